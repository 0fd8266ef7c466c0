//! A client: its sessions, one after the other. Each has a handshake, requests, and mostly an
//! orderly end.
//!
//! Invariant: a session ends early only if the client knows an excuse for the server; any other
//! early end is a fault of the server.

use super::super::run::Run;
use super::super::started::Started;
use super::plan::ExportPlan;
use super::requests::Requests;
use super::session::{Result, Session};
use super::wire::Wire;
use drystone_core::clock::Ns;
use drystone_exports::nbd::proto::{
    ClientFlags, Command, InfoCode, OptionCode, ReplyCode, TransmissionFlags,
};
use drystone_testkit::nbd::{ClientError, Connection, Negotiation, RawRequest};
use std::io::Write;
use std::rc::Rc;

/// The time that bytes may need: a little more than the plan's longest latency.
const LATENCY_NS: Ns = 4_000_000;

/// A client's life.
pub(super) struct Client {
    session: Session,
    /// The time when it connected.
    connected_ns: Ns,
    excuse: Excuse,
    /// True if the session has extended headers.
    extended: bool,
}

/// The client's behaviour that allows the server to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excuse {
    /// It is in a handshake, which may time out.
    Handshake,
    /// It asked for an export with `EXPORT_NAME`, which the server can only refuse by closing.
    ExportName,
    /// It sent nothing for so long.
    Quiet(Ns),
    /// It broke the protocol.
    Nonsense,
}

/// The way a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// A disconnect request after all replies.
    Polite,
    /// A disconnect request while requests are in flight.
    Disconnect,
    /// It shuts down its sending side, and reads the remaining replies.
    HalfClose,
    /// Closed, whatever is in flight.
    Close,
    /// Reset, whatever is in flight.
    Reset,
    /// Half a request, then nothing for a while.
    HalfRequest,
    /// Garbage instead of a request.
    Garbage,
}

impl Client {
    pub(super) fn new(run: Rc<Run>, start: Rc<Started>, number: u64, seed: u64) -> Self {
        let connected_ns = run.world.now();
        let session = Session::new(run, start, number, seed);
        Client { session, connected_ns, excuse: Excuse::Handshake, extended: false }
    }

    fn goes_on(&self) -> bool {
        self.session.start.goes_on(&self.session.run) && !self.session.start.served().is_stopping()
    }

    /// Runs sessions until the start's share is done, or the power goes.
    pub(super) fn run(mut self) {
        while self.goes_on() {
            let before = self.session.run.progress.begun();
            self.session();
            let fruitless = self.session.run.progress.begun() == before;
            let ns = 1 + self.session.rng.u64(0..if fruitless { 50_000_000 } else { 1_000_000 });
            self.session.run.world.sleep(ns);
        }
        self.session.start.end_load();
    }

    fn session(&mut self) {
        self.session.listener = self.session.rng.usize(0..self.session.plan().listeners.len());
        let id = self.session.start.served().listeners.borrow()[self.session.listener];
        let Some(socket) = self.session.run.world.connect(id) else {
            return self.session.count("refused");
        };
        self.session.count("session");
        (self.connected_ns, self.excuse) = (self.session.run.world.now(), Excuse::Handshake);
        let wire = Wire::new(socket);
        let rude = self.session.mix().rude;
        if self.session.chance(rude) && self.session.rng.bool() {
            return self.rude_handshake(wire);
        }
        let ended = match self.negotiate(wire) {
            Ok(Some((connection, export))) => self.transmit(connection, &export),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            self.judge_end(&error);
        }
    }

    /// Stops in the middle of a handshake, or sends garbage.
    fn rude_handshake(&mut self, mut wire: Wire) {
        let bytes = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 7, 0, 0, 0, 40], &[0; 40]].concat();
        let half = self.session.rng.usize(0..bytes.len());
        // The write fails if the server has closed already.
        let _ = wire.write_all(&bytes[..half]);
        if self.session.rng.bool() {
            let _ = wire.write_all(b"GET / HTTP/1.1\r\n\r\n");
            self.session.count("garbage in a handshake");
        } else {
            self.session.count("half a handshake");
        }
        let ns = self.session.rng.u64(0..200_000_000);
        self.session.run.world.sleep(ns);
        if self.session.rng.bool() {
            wire.reset();
        }
    }

    // --- handshake

    fn exports(&self) -> Vec<ExportPlan> {
        let all = self.session.plan().exports.iter();
        all.filter(|export| export.listener == self.session.listener).cloned().collect()
    }

    fn negotiate(&mut self, wire: Wire) -> Result<Option<(Connection<Wire>, ExportPlan)>> {
        let exports = self.exports();
        let export = exports[self.session.rng.usize(0..exports.len())].clone();
        let flags =
            if self.session.rng.bool() { ClientFlags::all() } else { ClientFlags::FIXED_NEWSTYLE };
        let mut talk = Negotiation::start(wire, flags)?;
        if self.session.chance(20) {
            self.questions(&mut talk, &exports)?;
        }
        let structured = self.choose_style(&mut talk)?;
        self.session.has_context = structured && self.session.chance(70);
        if self.session.has_context {
            self.choose_contexts(&mut talk, &export.name)?;
        }
        if self.session.chance(5) {
            self.session.count("abort");
            talk.abort()?;
            return Ok(None);
        }
        self.enter(talk, export).map(Some)
    }

    fn enter(
        &mut self,
        talk: Negotiation<Wire>,
        export: ExportPlan,
    ) -> Result<(Connection<Wire>, ExportPlan)> {
        let device = self.session.start.device(&self.session.run.plan.targets[export.target].name);
        let before = device.info();
        let name = if export.default && self.session.rng.bool() { "" } else { &export.name };
        let old_way = self.session.rng.u32(0..4) == 0;
        if old_way {
            self.excuse = Excuse::ExportName;
        }
        if old_way && self.extended {
            // The server can refuse this option only by closing.
            self.session.count("export name refused");
            self.excuse = Excuse::Nonsense;
        }
        let connection = match old_way {
            true => talk.export_name(name)?,
            false => talk.go(name, &[InfoCode::BlockSize, InfoCode::Name])?,
        };
        if self.excuse == Excuse::Nonsense {
            self.session.fail("an export name was not refused");
        }
        let (told, now) = (connection.description(), device.info());
        // The block size may change with the table later.
        self.session.block_bytes =
            before.limits.logical_block_size.min(now.limits.logical_block_size);
        let now = now.size_bytes;
        if told.size_bytes != before.size_bytes && told.size_bytes != now {
            self.session
                .fail(&format!("{name} has {now} bytes, and is told to have {}", told.size_bytes));
        }
        if export.read_only && !told.flags.contains(TransmissionFlags::READ_ONLY) {
            self.session.fail(&format!("{name} is not told to be read-only"));
        }
        self.session.count(&format!("{:?}", connection.style()));
        Ok((connection, export))
    }

    /// Sends options that change nothing.
    fn questions(&mut self, talk: &mut Negotiation<Wire>, exports: &[ExportPlan]) -> Result<()> {
        let mut names: Vec<_> = talk.list()?.into_iter().map(|(name, _)| name).collect();
        let mut planned: Vec<_> = exports.iter().map(|export| export.name.clone()).collect();
        names.sort();
        planned.sort();
        if names != planned {
            self.session.fail(&format!("the list has {names:?}, and there are {planned:?}"));
        }
        self.refused(talk.info("nothing", &[]).map(drop), &[ReplyCode::ErrUnknown]);
        let length = self.session.rng.usize(0..3000);
        let unknown = talk.option(0x4242, &vec![7; length]).map(drop);
        self.refused(unknown, &[ReplyCode::ErrUnsup]);
        let tls = talk.option(OptionCode::StartTls.wire(), &[]).map(drop);
        self.refused(tls, &[ReplyCode::ErrUnsup, ReplyCode::ErrPolicy]);
        talk.info(&exports[0].name, &[InfoCode::Description, InfoCode::BlockSize])?;
        self.session.count("questions");
        Ok(())
    }

    fn refused(&self, answer: Result<()>, codes: &[ReplyCode]) {
        let refused = match &answer {
            Err(ClientError::Io(_)) => true,
            Err(error) => error.refusal().is_some_and(|code| codes.contains(&code)),
            Ok(()) => false,
        };
        if !refused {
            self.session.fail(&format!("{answer:?} where one of {codes:?} was expected"));
        }
    }

    /// Chooses the style of replies. True if they are structured.
    fn choose_style(&mut self, talk: &mut Negotiation<Wire>) -> Result<bool> {
        let style = self.session.rng.u32(0..4);
        self.extended = style > 1;
        match style {
            0 => return Ok(false),
            1 => talk.structured_replies()?,
            2 => talk.extended_headers()?,
            _ => {
                talk.structured_replies()?;
                talk.extended_headers()?;
            }
        }
        Ok(true)
    }

    fn choose_contexts(&mut self, talk: &mut Negotiation<Wire>, export: &str) -> Result<()> {
        let query = if self.session.rng.bool() { "base:allocation" } else { "base:" };
        if query == "base:" {
            let listed = talk.list_contexts(export, &[query])?;
            if !listed.iter().any(|(_, name)| name == "base:allocation") {
                self.session.fail(&format!("the contexts are {listed:?}"));
            }
        }
        let chosen = talk.set_contexts(export, &["base:allocation", "nobody:knows"])?;
        if chosen.len() != 1 || chosen[0].1 != "base:allocation" {
            self.session.fail(&format!("the chosen contexts are {chosen:?}"));
        }
        self.session.count("block status");
        Ok(())
    }

    // --- transmission

    fn transmit(&mut self, connection: Connection<Wire>, export: &ExportPlan) -> Result<()> {
        let mut requests = Requests::new(&self.session, connection, export);
        self.excuse = Excuse::Quiet(0);
        let ended = self.work(&mut requests);
        let ended = ended.and_then(|()| self.farewell(&mut requests));
        if let Excuse::Quiet(_) = self.excuse {
            self.excuse = Excuse::Quiet(requests.quiet_ns());
        }
        requests.give_up(&self.session);
        ended
    }

    fn work(&mut self, requests: &mut Requests) -> Result<()> {
        let most = self.session.mix().session;
        let mut left = self.session.rng.u64(1..=most);
        while left > 0 && self.goes_on() {
            let depth = self.session.mix().depth;
            let batch = self.session.rng.u64(1..=depth).min(left);
            for _ in 0..batch.min(depth.saturating_sub(requests.open() as u64)) {
                requests.send(&mut self.session)?;
                left -= 1;
            }
            self.rest();
            requests.receive_ready(&mut self.session)?;
            let keep = self.session.rng.u64(0..=depth) as usize;
            requests.receive_while_more_than(&mut self.session, keep)?;
        }
        Ok(())
    }

    fn rest(&mut self) {
        let away = self.session.mix().away_ns;
        if away > 0 && self.session.rng.u32(0..8) == 0 {
            let ns = self.session.rng.u64(0..away);
            self.session.run.world.sleep(ns);
        }
    }

    fn farewell(&mut self, requests: &mut Requests) -> Result<()> {
        let rude = [
            Farewell::Disconnect,
            Farewell::HalfClose,
            Farewell::Close,
            Farewell::Reset,
            Farewell::HalfRequest,
            Farewell::Garbage,
        ];
        let percent = self.session.mix().rude;
        let how = match self.session.chance(percent) {
            true => rude[self.session.rng.usize(0..rude.len())],
            false => Farewell::Polite,
        };
        self.session.count(&format!("farewell {how:?}, in flight: {}", requests.open() > 0));
        match how {
            Farewell::Polite => {
                requests.receive_while_more_than(&mut self.session, 0)?;
                requests.disconnect()
            }
            Farewell::Disconnect => {
                requests.disconnect()?;
                self.last_replies(requests)
            }
            Farewell::HalfClose => {
                requests.wire().end();
                self.last_replies(requests)
            }
            Farewell::Close => Ok(()),
            Farewell::Reset => {
                requests.resets = true;
                Ok(())
            }
            Farewell::HalfRequest => self.half_request(requests),
            Farewell::Garbage => self.garbage(requests),
        }
    }

    /// Reads the last replies after the client has announced its end: the server does and answers
    /// all that it has.
    fn last_replies(&mut self, requests: &mut Requests) -> Result<()> {
        self.excuse = Excuse::Quiet(requests.quiet_ns());
        requests.receive_while_more_than(&mut self.session, 0)?;
        self.excuse = Excuse::Nonsense;
        requests.receive_end(&mut self.session)
    }

    fn half_request(&mut self, requests: &mut Requests) -> Result<()> {
        let raw = RawRequest {
            flags: 0,
            command: Command::Write.wire(),
            cookie: 77,
            offset: 0,
            length: 65_536,
        };
        let mut bytes = raw.encode(requests.style());
        bytes.resize(bytes.len() + 30_000, 0xee);
        let half = self.session.rng.usize(1..bytes.len());
        // The server refuses an extended write without the payload flag, and would take its data
        // for requests.
        let half = half.min(if requests.is_extended() { 31 } else { half });
        requests.wire().write_all(&bytes[..half])?;
        let ns = self.session.rng.u64(0..300_000_000);
        self.session.run.world.sleep(ns);
        requests.resets = self.session.rng.bool();
        Ok(())
    }

    fn garbage(&mut self, requests: &mut Requests) -> Result<()> {
        self.excuse = Excuse::Nonsense;
        let length = self.session.rng.usize(32..2000);
        requests.wire().write_all(&vec![0x5a; length])?;
        requests.receive_end(&mut self.session)
    }

    /// Judges an early end: it needs an excuse.
    fn judge_end(&self, error: &ClientError) {
        match error {
            ClientError::Io(_) if self.has_reason() => {}
            ClientError::Refused { code, .. }
                if *code == ReplyCode::ErrPolicy.wire()
                    && self.excuse == Excuse::Handshake
                    && self.may_lack_a_place() => {}
            _ => self.session.fail(&format!("{error} ({:?})", self.excuse)),
        }
        self.session.count("early end");
    }

    /// True if all connections may have been taken when the client chose its export, although some
    /// may be free by now.
    fn may_lack_a_place(&self) -> bool {
        self.session.at().max_connections < 64
    }

    fn has_reason(&self) -> bool {
        let (now, at) = (self.session.run.world.now(), self.session.at());
        if self.session.run.off.get() || self.session.start.served().is_stopping() {
            return true;
        }
        // Bytes that were still on their way at the server's time-out came too late.
        let late = |quiet: Ns, most: Ns| quiet + LATENCY_NS >= most;
        match self.excuse {
            Excuse::Nonsense => true,
            Excuse::ExportName if self.may_lack_a_place() => true,
            Excuse::Handshake | Excuse::ExportName => {
                late(now - self.connected_ns, at.handshake_ns)
            }
            Excuse::Quiet(quiet) => at.idle_ns > 0 && late(quiet, at.idle_ns),
        }
    }
}
