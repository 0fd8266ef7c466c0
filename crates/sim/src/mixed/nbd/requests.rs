//! The requests of a session, and the judgement of their replies.
//!
//! Invariants:
//! * The oracle learns of a request before its first byte is sent, and of its end when the reply is
//!   read. A request that never gets a reply is an orphan of the start: it may still happen until
//!   the server has nothing in flight.
//! * Every reply belongs to exactly one request of `open`; the protocol client below refuses
//!   others.

use super::super::io::{Io, Wanted};
use super::super::plan::Target;
use super::plan::ExportPlan;
use super::session::{Result, Session};
use super::wire::Wire;
use crate::oracle::ReadId;
use drystone_core::{Bio, BioFlags, Op, Status};
use drystone_exports::nbd::proto::{
    AllocationFlags, Command, CommandFlags, ErrorCode, TransmissionFlags,
};
use drystone_exports::nbd::reply::ReplyStyle;
use drystone_testkit::nbd::{ClientError, Connection, RawRequest, Reply};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;

const SECTOR: u64 = 512;
/// First cookie of raw requests: far above the cookies that are counted up.
const RAW: u64 = 1 << 40;

/// A request that was made.
enum Asked {
    Io { number: u64, io: Io, bio: Box<Bio>, flags: CommandFlags },
    Status { target: usize, range: Range<u64>, read: Option<ReadId>, one: bool },
    Cache,
    Nonsense { what: &'static str, expected: ErrorCode },
}

/// A session in transmission.
pub(super) struct Requests {
    connection: Option<Connection<Wire>>,
    target: usize,
    /// Sectors that requests may use, and all sectors of the device.
    sectors: u64,
    device_sectors: u64,
    read_only: bool,
    flags: TransmissionFlags,
    open: BTreeMap<u64, Asked>,
    raw: u64,
    /// True if it ends by a reset.
    pub(super) resets: bool,
}

impl Requests {
    pub(super) fn new(
        session: &Session,
        connection: Connection<Wire>,
        export: &ExportPlan,
    ) -> Self {
        let description = connection.description();
        let device_sectors = description.size_bytes / SECTOR;
        let flags = description.flags;
        let target = export.target;
        let first = session.run.plan.targets[target].first;
        let sectors = session.run.sectors(target).min(device_sectors - first);
        Requests {
            connection: Some(connection),
            target,
            sectors,
            device_sectors,
            read_only: flags.contains(TransmissionFlags::READ_ONLY),
            flags,
            open: BTreeMap::new(),
            raw: RAW,
            resets: false,
        }
    }

    fn connection(&mut self) -> &mut Connection<Wire> {
        self.connection.as_mut().expect("it is there until it is given up")
    }

    pub(super) fn wire(&mut self) -> &mut Wire {
        self.connection().stream()
    }

    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    pub(super) fn quiet_ns(&mut self) -> u64 {
        self.wire().quiet_ns()
    }

    pub(super) fn style(&self) -> ReplyStyle {
        self.connection.as_ref().expect("it is there until it is given up").style()
    }

    pub(super) fn is_extended(&self) -> bool {
        self.style() == ReplyStyle::Extended
    }

    /// The client abandons the session: the results of open requests are lost.
    pub(super) fn give_up(mut self, session: &Session) {
        for (_, asked) in std::mem::take(&mut self.open) {
            forget(session, asked);
        }
        let resets = self.resets;
        let connection = self.connection.take().expect("it is given up once");
        let wire = connection.into_stream();
        if resets {
            wire.reset();
        }
    }

    // --- sending

    /// Sends one more request.
    pub(super) fn send(&mut self, session: &mut Session) -> Result<()> {
        let weights = session.mix().weights;
        let mut left = session.rng.u32(0..weights.iter().sum());
        let kind = weights.iter().position(|weight| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        let sent = match kind.unwrap_or(0) {
            0 => self.send_io(session, Op::Read),
            1 => self.send_io(session, Op::Write),
            2 => self.send_io(session, Op::Flush),
            3 if self.flags.contains(TransmissionFlags::SEND_TRIM) => {
                self.send_io(session, Op::Discard)
            }
            4 if self.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) => {
                self.send_io(session, Op::WriteZeroes)
            }
            5 => self.send_status(session),
            6 => self.send_cache(session),
            _ => self.send_nonsense(session),
        };
        // With short pieces and slow threads a batch may take longer to send than a run may hang.
        session.run.progress.note();
        sent
    }

    fn target<'a>(&self, session: &'a Session) -> &'a Target {
        &session.run.plan.targets[self.target]
    }

    /// A range of the target: whole blocks, or sometimes parts of blocks.
    fn range(&self, session: &mut Session, most_bytes: u64) -> Range<u64> {
        let (whole, unaligned) = (self.target(session).block, session.mix().unaligned);
        // A new table with larger blocks makes the server refuse parts of blocks in sessions that
        // began before.
        let may_be_parts = u64::from(session.block_bytes) >= whole * SECTOR;
        let block = if session.chance(unaligned) && may_be_parts { 1 } else { whole };
        let blocks = self.sectors / block;
        let (most, long) = (session.mix().blocks_max, session.mix().long);
        let most = if session.chance(long) { blocks } else { most.min(blocks) };
        let most = most.min(most_bytes / SECTOR / block);
        let length = session.rng.u64(1..=most);
        let first = session.rng.u64(0..=blocks - length);
        let range = first * block..(first + length) * block;
        if !(range.start | range.end).is_multiple_of(whole) {
            session.run.counts.borrow_mut().add("nbd: part of a block", 1);
        }
        range
    }

    /// Offset and length in bytes of sectors of the target.
    fn bytes(&self, session: &Session, range: &Range<u64>) -> (u64, u64) {
        let first = self.target(session).first;
        ((first + range.start) * SECTOR, (range.end - range.start) * SECTOR)
    }

    fn send_io(&mut self, session: &mut Session, op: Op) -> Result<()> {
        let range = match op {
            Op::Flush => 0..0,
            Op::Read | Op::Write => self.range(session, session.at().max_request.into()),
            _ => self.range(session, u64::MAX),
        };
        let (flags, command_flags) = self.io_flags(session, op);
        let Some(number) = session.run.progress.begin() else { return Ok(()) };
        if self.read_only && !matches!(op, Op::Read | Op::Flush) {
            return self.forbidden(session, op, &range);
        }
        let fast = command_flags.contains(CommandFlags::FAST_ZERO);
        if fast && !self.flags.contains(TransmissionFlags::SEND_FAST_ZERO) {
            return self.fast_zeroes_not_offered(session, command_flags, &range);
        }
        let wanted = Wanted { target: self.target, range, op, flags, nonsense: false };
        let (io, bio) = wanted.begin(&session.run, None);
        io.note_begin(&session.run, number, session.number, &bio);
        let data = if op == Op::Write { bio.buf().map(|buf| buf.to_vec()) } else { None };
        let (offset, length) = match op {
            Op::Flush => (0, 0),
            _ => self.bytes(session, &io.range),
        };
        let asked = Asked::Io { number, io, bio, flags: command_flags };
        let (command, data) = (command_of(op), data.unwrap_or_default());
        self.begin(session, asked, |connection| {
            connection.send(command, command_flags, offset, length, &data)
        })
    }

    /// Sends a request that a read-only export must refuse.
    fn forbidden(&mut self, session: &Session, op: Op, range: &Range<u64>) -> Result<()> {
        let (offset, length) = self.bytes(session, range);
        let data = if op == Op::Write { vec![0xdd; length as usize] } else { Vec::new() };
        let nonsense =
            Asked::Nonsense { what: "write to a read-only export", expected: ErrorCode::Eperm };
        self.begin(session, nonsense, |connection| {
            connection.send(command_of(op), CommandFlags::empty(), offset, length, &data)
        })
    }

    /// Sends a flag that the export did not announce: the server must refuse it, whatever the
    /// device can do by now.
    fn fast_zeroes_not_offered(
        &mut self,
        session: &Session,
        flags: CommandFlags,
        range: &Range<u64>,
    ) -> Result<()> {
        let (offset, length) = self.bytes(session, range);
        let what = "fast zeroes that are not offered";
        self.expect_refusal(session, what, ErrorCode::Einval, |raw| {
            raw.command = Command::WriteZeroes.wire();
            (raw.flags, raw.offset, raw.length) = (flags.bits(), offset, length);
        })
    }

    fn begin(
        &mut self,
        session: &Session,
        asked: Asked,
        send: impl FnOnce(&mut Connection<Wire>) -> Result<u64>,
    ) -> Result<()> {
        match send(self.connection()) {
            Ok(cookie) => {
                self.open.insert(cookie, asked);
                Ok(())
            }
            Err(error) => {
                forget(session, asked);
                Err(error)
            }
        }
    }

    fn io_flags(&mut self, session: &mut Session, op: Op) -> (BioFlags, CommandFlags) {
        let (mut flags, mut wire) = (BioFlags::empty(), CommandFlags::empty());
        let fua = session.mix().fua;
        let fua = matches!(op, Op::Write | Op::WriteZeroes) && session.chance(fua);
        flags.set(BioFlags::FUA, fua);
        wire.set(CommandFlags::FUA, fua);
        if op == Op::WriteZeroes {
            let (no_hole, fast) = (session.rng.bool(), session.chance(20));
            flags.set(BioFlags::NOUNMAP, no_hole);
            wire.set(CommandFlags::NO_HOLE, no_hole);
            flags.set(BioFlags::FAST_ZERO, fast);
            wire.set(CommandFlags::FAST_ZERO, fast);
        }
        let structured = self.style() != ReplyStyle::Simple;
        wire.set(CommandFlags::DF, op == Op::Read && structured && session.chance(20));
        (flags, wire)
    }

    fn send_status(&mut self, session: &mut Session) -> Result<()> {
        let range = self.range(session, u64::MAX);
        let one = session.rng.bool();
        let Some(_) = session.run.progress.begin() else { return Ok(()) };
        let (offset, length) = self.bytes(session, &range);
        if !session.has_context {
            let what = "block status without a context";
            return self.expect_refusal(session, what, ErrorCode::Einval, |raw| {
                (raw.command, raw.offset, raw.length) =
                    (Command::BlockStatus.wire(), offset, length);
            });
        }
        let mut oracles = session.run.oracles.borrow_mut();
        let read = self
            .target(session)
            .device_kind
            .holds_data()
            .then(|| oracles[self.target].read_begins(range.clone()));
        drop(oracles);
        let flags = if one { CommandFlags::REQ_ONE } else { CommandFlags::empty() };
        let asked = Asked::Status { target: self.target, range, read, one };
        self.begin(session, asked, |connection| {
            connection.send(Command::BlockStatus, flags, offset, length, &[])
        })
    }

    fn send_cache(&mut self, session: &mut Session) -> Result<()> {
        let range = self.range(session, u64::MAX);
        let Some(_) = session.run.progress.begin() else { return Ok(()) };
        let (offset, length) = self.bytes(session, &range);
        self.begin(session, Asked::Cache, |connection| {
            connection.send(Command::Cache, CommandFlags::empty(), offset, length, &[])
        })
    }

    /// Sends a request that the server must refuse with a known error.
    fn send_nonsense(&mut self, session: &mut Session) -> Result<()> {
        let Some(_) = session.run.progress.begin() else { return Ok(()) };
        let end = self.device_sectors * SECTOR;
        let block = self.target(session).block * SECTOR;
        let read = Command::Read.wire();
        let (what, expected) = match session.rng.u32(0..6) {
            0 => ("read beyond the end", ErrorCode::Einval),
            1 => ("read of nothing", ErrorCode::Einval),
            2 => ("unknown command", ErrorCode::Einval),
            3 => ("unknown flag", ErrorCode::Einval),
            4 => ("flush of a range", ErrorCode::Einval),
            _ => return self.write_beyond(session, end, block),
        };
        self.expect_refusal(session, what, expected, |raw| {
            (raw.command, raw.offset, raw.length) = (read, 0, block);
            match what {
                "read beyond the end" => raw.offset = end,
                "read of nothing" => raw.length = 0,
                "unknown command" => raw.command = 99,
                "unknown flag" => raw.flags = 1 << 14,
                _ => raw.command = Command::Flush.wire(),
            }
        })
    }

    fn write_beyond(&mut self, session: &mut Session, end: u64, block: u64) -> Result<()> {
        let expected = if self.read_only { ErrorCode::Eperm } else { ErrorCode::Enospc };
        let data = vec![0xcc; 2 * block as usize];
        let nonsense = Asked::Nonsense { what: "write beyond the end", expected };
        self.begin(session, nonsense, |connection| {
            let flags = CommandFlags::empty();
            connection.send(Command::Write, flags, end - block, 2 * block, &data)
        })
    }

    fn expect_refusal(
        &mut self,
        session: &Session,
        what: &'static str,
        expected: ErrorCode,
        change: impl FnOnce(&mut RawRequest),
    ) -> Result<()> {
        self.raw += 1;
        let mut raw = RawRequest { flags: 0, command: 0, cookie: self.raw, offset: 0, length: 0 };
        change(&mut raw);
        self.begin(session, Asked::Nonsense { what, expected }, |connection| {
            // The reply must be an error, whatever the command was.
            connection.send_raw(Command::Flush, &raw, &[]).map(|()| raw.cookie)
        })
    }

    pub(super) fn disconnect(&mut self) -> Result<()> {
        let raw =
            RawRequest { flags: 0, command: Command::Disc.wire(), cookie: 0, offset: 0, length: 0 };
        let bytes = raw.encode(self.style());
        std::io::Write::write_all(self.wire(), &bytes)?;
        Ok(())
    }

    // --- receiving

    /// Take the replies that have begun to arrive.
    pub(super) fn receive_ready(&mut self, session: &mut Session) -> Result<()> {
        while !self.open.is_empty() && self.wire().take_arrived() {
            self.receive(session)?;
        }
        Ok(())
    }

    /// Wait for replies until so many requests are open.
    pub(super) fn receive_while_more_than(
        &mut self,
        session: &mut Session,
        keep: usize,
    ) -> Result<()> {
        while self.open.len() > keep {
            self.receive(session)?;
        }
        Ok(())
    }

    /// Read until the server has closed; the requests that are left may be answered before.
    pub(super) fn receive_end(&mut self, session: &mut Session) -> Result<()> {
        while !self.open.is_empty() {
            self.receive(session)?;
        }
        let mut rest = Vec::new();
        self.wire().read_to_end(&mut rest)?;
        if !rest.is_empty() {
            session.fail(&format!("{} bytes came that nobody asked for", rest.len()));
        }
        Ok(())
    }

    fn receive(&mut self, session: &mut Session) -> Result<()> {
        let reply = self.connection().receive()?;
        let asked = self.open.remove(&reply.cookie);
        let asked = asked.expect("the protocol's client knows each cookie");
        match asked {
            Asked::Io { number, io, bio, flags } => ended(session, number, io, bio, flags, reply),
            Asked::Status { target, range, read, one } => {
                status_told(session, target, &range, read, one, reply)
            }
            Asked::Cache => {
                session.count("cache");
                Ok(())
            }
            Asked::Nonsense { what, expected } => {
                let code = reply.error.as_ref().map(|(code, _)| *code);
                if code != Some(expected.wire()) {
                    session.fail(&format!("{what}: {:?} and not {expected:?}", reply.error));
                }
                session.count(what);
                Ok(())
            }
        }
    }
}

fn command_of(op: Op) -> Command {
    match op {
        Op::Read => Command::Read,
        Op::Write => Command::Write,
        Op::Flush => Command::Flush,
        Op::Discard => Command::Trim,
        Op::WriteZeroes => Command::WriteZeroes,
    }
}

/// The result of a request is lost.
fn forget(session: &Session, asked: Asked) {
    match asked {
        Asked::Io { io, .. } => session.start.add_orphans([io]),
        Asked::Status { target, read: Some(read), .. } => {
            session.run.oracles.borrow_mut()[target].read_failed(read);
        }
        Asked::Status { .. } | Asked::Cache | Asked::Nonsense { .. } => {}
    }
}

fn broken(what: impl Into<String>) -> ClientError {
    ClientError::Protocol(what.into())
}

/// The reply to an I/O.
fn ended(
    session: &Session,
    number: u64,
    io: Io,
    mut bio: Box<Bio>,
    flags: CommandFlags,
    reply: Reply,
) -> Result<()> {
    bio.status = match &reply.error {
        None => Status::Ok,
        Some((code, _)) if ErrorCode::from_wire(*code).is_some() => {
            Status::from_errno(*code as i32)
        }
        Some((code, _)) => return Err(broken(format!("error {code} is none of the protocol's"))),
    };
    let read = io.op == Op::Read && bio.status == Status::Ok;
    if read && reply.data.len() as u64 != bio.data_len() {
        return Err(broken(format!("{} bytes of {}", reply.data.len(), bio.data_len())));
    }
    if read {
        bio.fill_data_from(&reply.data);
        let holes = reply.content.iter().filter(|(_, _, hole)| *hole).count();
        session.run.counts.borrow_mut().add("nbd: hole in a read", holes as u64);
    }
    if read && flags.contains(CommandFlags::DF) && reply.content.len() != 1 {
        return Err(broken(format!("{} chunks where one was asked for", reply.content.len())));
    }
    io.complete(&session.run, number, &bio);
    Ok(())
}

/// The reply to a block status request.
fn status_told(
    session: &Session,
    target: usize,
    range: &Range<u64>,
    read: Option<ReadId>,
    one: bool,
    reply: Reply,
) -> Result<()> {
    session.run.admit_losses();
    if let Some(error) = reply.error {
        return Err(broken(format!("block status failed: {error:?}")));
    }
    let [(_, extents)] = &reply.status[..] else {
        return Err(broken(format!("{} contexts where one was chosen", reply.status.len())));
    };
    let total: u64 = extents.iter().map(|(length, _)| *length).sum();
    let length = (range.end - range.start) * SECTOR;
    if one && (extents.len() != 1 || total > length) {
        return Err(broken(format!("{extents:?} where one extent was asked for")));
    }
    session.count("block status told");
    let Some(read) = read else { return Ok(()) };
    let zeroes = zeroes(range, extents);
    session.run.counts.borrow_mut().add("nbd: hole in a status", zeroes.len() as u64);
    let told = session.run.oracles.borrow_mut()[target].read_tells_zeroes(read, &zeroes);
    if let (Err(violation), false) = (told, session.run.off.get()) {
        let name = &session.run.plan.targets[target].name;
        session.fail(&format!("block status of {name} says that there are zeroes: {violation}"));
    }
    Ok(())
}

/// The sectors of `range` that the extents report as zeroes.
fn zeroes(range: &Range<u64>, extents: &[(u64, u32)]) -> Vec<Range<u64>> {
    let (mut at, mut zeroes) = (range.start, Vec::new());
    for (length, flags) in extents {
        let end = (at + length / SECTOR).min(range.end);
        if AllocationFlags::from_bits_retain(*flags).contains(AllocationFlags::ZERO) && at < end {
            zeroes.push(at..end);
        }
        at = end;
    }
    zeroes
}
