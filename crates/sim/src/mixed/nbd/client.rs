//! A client: sessions one after the other, each with its handshake, its requests and its farewell,
//! or without one.
//!
//! Invariant: a session ends early only for a reason that is known here; any other end is a fault
//! of the server's.

use super::super::run::{Run, Started};
use super::plan::{ClientMix, ExportPlan, ListenerPlan, NbdPlan};
use super::requests::Requests;
use super::wire::Wire;
use drystone_core::clock::Ns;
use drystone_exports::nbd::proto::{
    ClientFlags, Command, InfoCode, OptionCode, ReplyCode, TransmissionFlags,
};
use drystone_testkit::nbd::{ClientError, Connection, Negotiation, RawRequest};
use fastrand::Rng;
use std::io::Write;
use std::rc::Rc;

/// What clients' calls return.
pub(super) type Result<T> = drystone_testkit::nbd::Result<T>;

/// Bytes may take so long, a little more than the plan's longest.
const LATENCY_NS: Ns = 4_000_000;

/// A client's life.
pub(super) struct Client {
    pub(super) run: Rc<Run>,
    pub(super) start: Rc<Started>,
    pub(super) rng: Rng,
    pub(super) number: u64,
    /// Where it connects to now, when it did, and what excuses an early end.
    listener: usize,
    connected_ns: Ns,
    excuse: Excuse,
    /// This session has a context for block status.
    pub(super) has_context: bool,
    /// And extended headers.
    extended: bool,
    /// Bytes of the device's blocks when this session began: the server knows no others.
    pub(super) block_bytes: u32,
}

/// What the client has done to deserve that the server closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excuse {
    /// Nothing but being in a handshake.
    Handshake,
    /// Nothing but asking for an export with `EXPORT_NAME`, which can only be refused by closing.
    ExportName,
    /// Nothing but sending nothing for so long.
    Quiet(Ns),
    /// It broke the protocol.
    Nonsense,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// With all replies read, a disconnect request.
    Polite,
    /// A disconnect request while requests are in flight.
    Disconnect,
    /// It sends no more, and reads what still comes.
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
        let (listener, connected_ns) = (0, run.world.now());
        let rng = Rng::with_seed(seed);
        let (excuse, has_context, extended) = (Excuse::Handshake, false, false);
        let block_bytes = 0;
        Client {
            run,
            start,
            rng,
            number,
            listener,
            connected_ns,
            excuse,
            has_context,
            extended,
            block_bytes,
        }
    }

    pub(super) fn plan(&self) -> &NbdPlan {
        self.run.plan.nbd.as_ref().expect("a plan of what is served")
    }

    pub(super) fn mix(&self) -> &ClientMix {
        &self.plan().mix
    }

    pub(super) fn at(&self) -> &ListenerPlan {
        &self.plan().listeners[self.listener]
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.u32(0..100) < percent
    }

    pub(super) fn count(&self, what: &str) {
        self.run.world.note(|| format!("client {}: {what}", self.number));
        self.run.counts.borrow_mut().add(&format!("nbd: {what}"), 1);
    }

    /// Something is wrong that is not about a single I/O.
    pub(super) fn fail(&self, sentence: &str) {
        self.run.world.fail(format!("client {}: {sentence}", self.number));
    }

    fn goes_on(&self) -> bool {
        self.run.goes_on(&self.start) && !self.start.served.is_stopping()
    }

    /// Sessions until this start's share is done, or the power goes.
    pub(super) fn run(mut self) {
        while self.goes_on() {
            let before = self.run.progress.begun();
            self.session();
            let fruitless = self.run.progress.begun() == before;
            let ns = 1 + self.rng.u64(0..if fruitless { 50_000_000 } else { 1_000_000 });
            self.run.world.sleep(ns);
        }
        self.start.loads.set(self.start.loads.get() - 1);
    }

    fn session(&mut self) {
        self.listener = self.rng.usize(0..self.plan().listeners.len());
        let id = self.start.served.listeners.borrow()[self.listener];
        let Some(socket) = self.run.world.connect(id) else {
            return self.count("refused");
        };
        self.count("session");
        (self.connected_ns, self.excuse) = (self.run.world.now(), Excuse::Handshake);
        let wire = Wire::new(socket);
        let rude = self.mix().rude;
        if self.chance(rude) && self.rng.bool() {
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

    /// The client stops in the middle of its handshake, or says nonsense.
    fn rude_handshake(&mut self, mut wire: Wire) {
        let bytes = [&[0, 0, 0, 3][..], b"IHAVEOPT", &[0, 0, 0, 7, 0, 0, 0, 40], &[0; 40]].concat();
        let half = self.rng.usize(0..bytes.len());
        // A server that has closed already takes nothing.
        let _ = wire.write_all(&bytes[..half]);
        if self.rng.bool() {
            let _ = wire.write_all(b"GET / HTTP/1.1\r\n\r\n");
            self.count("garbage in a handshake");
        } else {
            self.count("half a handshake");
        }
        let ns = self.rng.u64(0..200_000_000);
        self.run.world.sleep(ns);
        if self.rng.bool() {
            wire.reset();
        }
    }

    // --- handshake

    fn exports(&self) -> Vec<ExportPlan> {
        let all = self.plan().exports.iter();
        all.filter(|export| export.listener == self.listener).cloned().collect()
    }

    fn negotiate(&mut self, wire: Wire) -> Result<Option<(Connection<Wire>, ExportPlan)>> {
        let exports = self.exports();
        let export = exports[self.rng.usize(0..exports.len())].clone();
        let flags = if self.rng.bool() { ClientFlags::all() } else { ClientFlags::FIXED_NEWSTYLE };
        let mut talk = Negotiation::start(wire, flags)?;
        if self.chance(20) {
            self.questions(&mut talk, &exports)?;
        }
        let structured = self.choose_style(&mut talk)?;
        self.has_context = structured && self.chance(70);
        if self.has_context {
            self.choose_contexts(&mut talk, &export.name)?;
        }
        if self.chance(5) {
            self.count("abort");
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
        let device = self.start.device(&self.run.plan.targets[export.target].name);
        let before = device.info();
        let name = if export.default && self.rng.bool() { "" } else { &export.name };
        let old_way = self.rng.u32(0..4) == 0;
        if old_way {
            self.excuse = Excuse::ExportName;
        }
        if old_way && self.extended {
            // The server has no other way of refusing it.
            self.count("export name refused");
            self.excuse = Excuse::Nonsense;
        }
        let connection = match old_way {
            true => talk.export_name(name)?,
            false => talk.go(name, &[InfoCode::BlockSize, InfoCode::Name])?,
        };
        if self.excuse == Excuse::Nonsense {
            self.fail("an export name was not refused");
        }
        let (told, now) = (connection.description(), device.info());
        // Tables may be changed meanwhile.
        self.block_bytes = before.limits.logical_block_size.min(now.limits.logical_block_size);
        let now = now.size_bytes;
        if told.size_bytes != before.size_bytes && told.size_bytes != now {
            self.fail(&format!("{name} has {now} bytes, and is told to have {}", told.size_bytes));
        }
        if export.read_only && !told.flags.contains(TransmissionFlags::READ_ONLY) {
            self.fail(&format!("{name} is not told to be read-only"));
        }
        self.count(&format!("{:?}", connection.style()));
        Ok((connection, export))
    }

    /// Options that change nothing.
    fn questions(&mut self, talk: &mut Negotiation<Wire>, exports: &[ExportPlan]) -> Result<()> {
        let mut names: Vec<_> = talk.list()?.into_iter().map(|(name, _)| name).collect();
        let mut planned: Vec<_> = exports.iter().map(|export| export.name.clone()).collect();
        names.sort();
        planned.sort();
        if names != planned {
            self.fail(&format!("the list has {names:?}, and there are {planned:?}"));
        }
        self.refused(talk.info("nothing", &[]).map(drop), &[ReplyCode::ErrUnknown]);
        let length = self.rng.usize(0..3000);
        let unknown = talk.option(0x4242, &vec![7; length]).map(drop);
        self.refused(unknown, &[ReplyCode::ErrUnsup]);
        let tls = talk.option(OptionCode::StartTls.wire(), &[]).map(drop);
        self.refused(tls, &[ReplyCode::ErrUnsup, ReplyCode::ErrPolicy]);
        talk.info(&exports[0].name, &[InfoCode::Description, InfoCode::BlockSize])?;
        self.count("questions");
        Ok(())
    }

    fn refused(&self, answer: Result<()>, codes: &[ReplyCode]) {
        let refused = match &answer {
            Err(ClientError::Io(_)) => true,
            Err(error) => error.refusal().is_some_and(|code| codes.contains(&code)),
            Ok(()) => false,
        };
        if !refused {
            self.fail(&format!("{answer:?} where one of {codes:?} was expected"));
        }
    }

    /// Whether replies are structured.
    fn choose_style(&mut self, talk: &mut Negotiation<Wire>) -> Result<bool> {
        let style = self.rng.u32(0..4);
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
        let query = if self.rng.bool() { "base:allocation" } else { "base:" };
        if query == "base:" {
            let listed = talk.list_contexts(export, &[query])?;
            if !listed.iter().any(|(_, name)| name == "base:allocation") {
                self.fail(&format!("the contexts are {listed:?}"));
            }
        }
        let chosen = talk.set_contexts(export, &["base:allocation", "nobody:knows"])?;
        if chosen.len() != 1 || chosen[0].1 != "base:allocation" {
            self.fail(&format!("the chosen contexts are {chosen:?}"));
        }
        self.count("block status");
        Ok(())
    }

    // --- transmission

    fn transmit(&mut self, connection: Connection<Wire>, export: &ExportPlan) -> Result<()> {
        let mut requests = Requests::new(self, connection, export);
        self.excuse = Excuse::Quiet(0);
        let ended = self.work(&mut requests);
        let ended = ended.and_then(|()| self.farewell(&mut requests));
        if let Excuse::Quiet(_) = self.excuse {
            self.excuse = Excuse::Quiet(requests.quiet_ns());
        }
        requests.give_up(self);
        ended
    }

    fn work(&mut self, requests: &mut Requests) -> Result<()> {
        let most = self.mix().session;
        let mut left = self.rng.u64(1..=most);
        while left > 0 && self.goes_on() {
            let depth = self.mix().depth;
            let batch = self.rng.u64(1..=depth).min(left);
            for _ in 0..batch.min(depth.saturating_sub(requests.open() as u64)) {
                requests.send(self)?;
                left -= 1;
            }
            self.rest();
            requests.receive_ready(self)?;
            let keep = self.rng.u64(0..=depth) as usize;
            requests.receive_while_more_than(self, keep)?;
        }
        Ok(())
    }

    fn rest(&mut self) {
        let away = self.mix().away_ns;
        if away > 0 && self.rng.u32(0..8) == 0 {
            let ns = self.rng.u64(0..away);
            self.run.world.sleep(ns);
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
        let percent = self.mix().rude;
        let how = match self.chance(percent) {
            true => rude[self.rng.usize(0..rude.len())],
            false => Farewell::Polite,
        };
        self.count(&format!("farewell {how:?}, in flight: {}", requests.open() > 0));
        match how {
            Farewell::Polite => {
                requests.receive_while_more_than(self, 0)?;
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

    /// The server has been told that nothing more comes: what it has is done, and answered.
    fn last_replies(&mut self, requests: &mut Requests) -> Result<()> {
        self.excuse = Excuse::Quiet(requests.quiet_ns());
        requests.receive_while_more_than(self, 0)?;
        self.excuse = Excuse::Nonsense;
        requests.receive_end(self)
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
        let half = self.rng.usize(1..bytes.len());
        // Without the payload flag an extended write is refused, and its data would be requests.
        let half = half.min(if requests.is_extended() { 31 } else { half });
        requests.wire().write_all(&bytes[..half])?;
        let ns = self.rng.u64(0..300_000_000);
        self.run.world.sleep(ns);
        requests.resets = self.rng.bool();
        Ok(())
    }

    fn garbage(&mut self, requests: &mut Requests) -> Result<()> {
        self.excuse = Excuse::Nonsense;
        let length = self.rng.usize(32..2000);
        requests.wire().write_all(&vec![0x5a; length])?;
        requests.receive_end(self)
    }

    /// Whether there is a reason why the session could not go on.
    fn judge_end(&self, error: &ClientError) {
        match error {
            ClientError::Io(_) if self.has_reason() => {}
            ClientError::Refused { code, .. }
                if *code == ReplyCode::ErrPolicy.wire()
                    && self.excuse == Excuse::Handshake
                    && self.may_lack_a_place() => {}
            _ => self.fail(&format!("{error} ({:?})", self.excuse)),
        }
        self.count("early end");
    }

    /// Whether all places may have been taken when it chose its export, by now perhaps no more.
    fn may_lack_a_place(&self) -> bool {
        self.at().max_connections < 64
    }

    fn has_reason(&self) -> bool {
        let (now, at) = (self.run.world.now(), self.at());
        if self.run.off.get() || self.start.served.is_stopping() {
            return true;
        }
        // Bytes that were on their way when the server lost its patience came too late.
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
