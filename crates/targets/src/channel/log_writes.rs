//! `log-writes` as one context uses it: it sends I/O to the device, then enters the I/O into the
//! log, and writes the log.
//!
//! Invariants:
//! * A part with a copy of its data goes to the device, with an end_io hook. If the part succeeds,
//!   the log takes the I/O and the copy.
//! * The part that made a write to the log necessary carries that write, and does not end before
//!   it. So all writes to a log are parts of the bio that made them necessary, and a bio that has
//!   ended has no I/O on its way to the log.
//! * A failure of the log does not make the volume's I/O fail.
//! * An entry keeps its number from the moment its part goes to the device until the part ends.

use super::end_io::EndIo;
use super::view::VolumeView;
use crate::log_writes::LogWrites;
use crate::log_writes::format::{LogEntry, LogFlags};
use crate::log_writes::log::{Completed, Log, LogCarrier, LogStep, LogWrite, Logged};
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, Env, IoBuf, Op, SECTOR_SIZE, Slab, Status};
use std::sync::Arc;

/// The I/O on its way through the `log-writes` segments of a channel.
#[derive(Default)]
pub(super) struct Logging {
    entries: Slab<Entry>,
    /// Carriers that wait for others.
    waiting: usize,
}

enum Entry {
    /// A function has taken the entry, and will put another in its place or free the number.
    Taken,
    /// The part is on its way to the device.
    Sent { log: Arc<Log>, log_member: u32, what: Sent },
    /// The entries are on their way to the log.
    Carried(Box<Carried>),
}

/// The kind of I/O that was sent to the device.
enum Sent {
    /// A flush, with the number of I/Os that had completed before it.
    Flush(u64),
    /// A write or discard.
    Write(LogEntry),
}

struct Carried {
    log: Arc<Log>,
    log_member: u32,
    carrier: LogCarrier,
    /// The part that ends when its carrier is done.
    part: Box<Bio>,
    /// The number of writes to the log that have not ended.
    left: usize,
    waits: bool,
}

impl Logging {
    /// The number of bios that wait for log writes of other contexts.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Take an entry; the caller still owns its number.
    fn take(&mut self, number: u32) -> Entry {
        std::mem::replace(&mut self.entries[number], Entry::Taken)
    }

    fn carried(&mut self, number: u32) -> Option<&mut Carried> {
        match self.entries.get_mut(number) {
            Some(Entry::Carried(carried)) => Some(carried),
            _ => None,
        }
    }

    /// Send on a part of `log-writes` segment `number`.
    #[inline(never)]
    pub(super) fn submit(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut part: Box<Bio>,
    ) {
        let Some(table) = view.table() else {
            return env.end_with(part, Status::IoError);
        };
        let segment = table.log_writes(number);
        let log = &segment.log.log;
        if part.op != Op::Read && !log.is_off() {
            if part.op == Op::Write && !copy_data(&mut part) {
                return env.end_with(part, Status::Resource);
            }
            let what = match part.op {
                Op::Flush => Sent::Flush(log.completed_so_far(&env.locks)),
                _ => Sent::Write(entry(&part, log.sector_bytes())),
            };
            self.begin(view, segment, what, &mut part);
        }
        view.send_moved(env, (segment.member, 0), part);
    }

    fn begin(&mut self, view: &VolumeView, segment: &LogWrites, what: Sent, part: &mut Bio) {
        let (log, log_member) = (segment.log.log.clone(), segment.log_member);
        let number = self.entries.insert(Entry::Sent { log, log_member, what });
        EndIo::Log(number).set(view.channel(), part);
    }

    /// A part has ended on the device.
    pub(super) fn part_ended(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut part: Box<Bio>,
    ) {
        let entry = self.take(number);
        let data = if part.op == Op::Write { part.take_buf() } else { None };
        let Entry::Sent { log, log_member, what } = entry else {
            debug_assert!(false, "a part comes back to its entry");
            return env.end_bio(part);
        };
        let completed = match what {
            Sent::Flush(until) => Completed::Flush(until),
            Sent::Write(entry) if entry.flags.has(LogFlags::FUA) => {
                Completed::Fua(Logged::new(entry, data))
            }
            Sent::Write(entry) => Completed::Write(Logged::new(entry, data)),
        };
        // A failed write is not logged: it may not have happened.
        let is_ok = part.status.is_ok();
        let Some(carrier) = is_ok.then(|| log.take(completed, &env.locks)).flatten() else {
            self.entries.remove(number);
            return env.end_bio(part);
        };
        let carried = Carried { log, log_member, carrier, part, left: 0, waits: false };
        self.carry(view, env, number, Box::new(carried));
    }

    /// A write to the log has ended.
    pub(super) fn write_ended(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut write: Box<Bio>,
    ) {
        let failed = !write.status.is_ok();
        drop(write.take_buf());
        env.end_with(write, Status::Ok);
        let Some(carried) = self.carried(number) else { return };
        if failed {
            carried.carrier.fail();
        }
        carried.left -= 1;
        if carried.left > 0 {
            return;
        }
        let Entry::Carried(carried) = self.take(number) else { return };
        self.carry(view, env, number, carried);
    }

    /// Go on with the carriers that wait, because other contexts may have written what they wait
    /// for.
    pub(super) fn resume(&mut self, view: &VolumeView, env: &mut Env) {
        if self.waiting == 0 {
            return;
        }
        for number in 0..self.entries.numbers_end() {
            if self.carried(number).is_none_or(|carried| !carried.waits) {
                continue;
            }
            let Entry::Carried(mut carried) = self.take(number) else { continue };
            carried.waits = false;
            self.waiting -= 1;
            self.carry(view, env, number, carried);
        }
    }

    /// Do the next step of the carried entry `number`.
    fn carry(&mut self, view: &VolumeView, env: &mut Env, number: u32, mut carried: Box<Carried>) {
        let mut wakes = Vec::new();
        // A volume that was removed cannot reach its log any more.
        if view.table().is_none() {
            carried.log.give_up(&env.locks, &mut wakes);
        }
        let doorbell = Some(view.doorbell());
        let step = loop {
            let carrier = &mut carried.carrier;
            match carried.log.step(carrier, doorbell, &env.locks, &mut wakes) {
                LogStep::Write(writes) if writes.is_empty() => {}
                step => break step,
            }
        };
        wakes.into_iter().for_each(|doorbell: Arc<Message>| env.send_and_kick(doorbell));
        match step {
            LogStep::Write(writes) => self.write_log(view, env, number, carried, writes),
            LogStep::Wait => {
                carried.waits = true;
                self.waiting += 1;
                self.entries[number] = Entry::Carried(carried);
            }
            LogStep::Done => {
                self.entries.remove(number);
                env.end_bio(carried.part);
            }
        }
    }

    /// Send writes to the log, as parts of the bio to which the carried part belongs.
    fn write_log(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut carried: Box<Carried>,
        writes: Vec<LogWrite>,
    ) {
        let member = carried.log_member;
        carried.left = writes.len();
        let mut parts = env.divide_again(&carried.part);
        self.entries[number] = Entry::Carried(carried);
        for LogWrite { sector, data } in writes {
            let mut write = parts.flush(env);
            write.op = Op::Write;
            write.flags = BioFlags::empty();
            write.set_buf(data, None);
            EndIo::LogWrite(number).set(view.channel(), &mut write);
            view.send_to_sector(env, (member, sector), write);
        }
        env.divided(parts);
    }
}

/// Replace the data of a write by a copy. The submitter may change its buffer, but the log must get
/// the same data as the device. False if memory is short.
fn copy_data(part: &mut Bio) -> bool {
    let Some(mut copy) = IoBuf::try_zeroed(part.bytes as usize) else { return false };
    part.copy_data_to(&mut copy);
    part.set_buf(copy, None);
    true
}

/// The log's entry for a write or discard.
fn entry(part: &Bio, sector_bytes: u32) -> LogEntry {
    let block = u64::from(sector_bytes) / SECTOR_SIZE;
    let fua = if part.flags.contains(BioFlags::FUA) { LogFlags::FUA } else { LogFlags::default() };
    let discard = if part.op == Op::Discard { LogFlags::DISCARD } else { LogFlags::default() };
    let (sector, sectors) = (part.sector.0 / block, part.bytes / SECTOR_SIZE / block);
    LogEntry { sector, sectors, flags: fua | discard, text_bytes: 0 }
}
