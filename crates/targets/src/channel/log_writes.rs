//! `log-writes` as one context uses it: what is sent to the device, what then goes into the log, and
//! the writes that take it there.
//!
//! Invariants:
//! * What is sent to the device is a part with a copy of its data, hooked. When it has ended well it
//!   is told to the log, and the copy becomes the log's.
//! * What the log says is to be written now, whoever told it carries: the part does not end before.
//!   So all that is written to a log is parts of the bio that made it necessary, and a bio that has
//!   ended has nothing on its way to the log any more.
//! * An error of the log is nobody's but the log's.
//! * A place holds what it does from the part's way down until its end.

use super::VolumeChannel;
use super::hooked::Hooked;
use crate::log_writes::LogWrites;
use crate::log_writes::format::{LogEntry, LogFlags};
use crate::log_writes::log::{Completed, Log, LogCarrier, LogStep, LogWrite, Logged};
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, Env, IoBuf, Op, SECTOR_SIZE, Sector, Slab, Status};
use std::sync::Arc;

/// What is on its way through the `log-writes` segments of a channel.
#[derive(Default)]
pub(super) struct Logging {
    places: Slab<Place>,
    /// Carriers that wait for others.
    waiting: usize,
}

enum Place {
    /// In the hands of the function that took it, which puts another in or frees the number.
    Taken,
    /// On its way to the device.
    Sent { log: Arc<Log>, log_member: u32, what: Sent },
    /// On its way to the log.
    Carried(Box<Carried>),
}

/// What was sent to the device.
enum Sent {
    /// A flush, with what had completed before.
    Flush(u64),
    /// A write or discard.
    Write(LogEntry),
}

struct Carried {
    log: Arc<Log>,
    log_member: u32,
    carrier: LogCarrier,
    /// What ends when it is done.
    part: Box<Bio>,
    /// Writes to the log that have not ended.
    left: usize,
    waits: bool,
}

impl Logging {
    /// Bios that wait for what other contexts write.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Empty a place, which stays the caller's.
    fn take(&mut self, number: u32) -> Place {
        std::mem::replace(&mut self.places[number], Place::Taken)
    }

    fn carried(&mut self, number: u32) -> Option<&mut Carried> {
        match self.places.get_mut(number) {
            Some(Place::Carried(carried)) => Some(carried),
            _ => None,
        }
    }
}

impl VolumeChannel {
    /// Send on a part of `log-writes` segment `number`.
    #[inline(never)]
    pub(super) fn log_writes(&self, env: &mut Env, number: u32, mut part: Box<Bio>) {
        let Some(table) = self.table() else {
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
            self.hook_logged(segment, what, &mut part);
        }
        self.send_to(env, (segment.member, 0), part);
    }

    fn hook_logged(&self, segment: &LogWrites, what: Sent, part: &mut Bio) {
        let (log, log_member) = (segment.log.log.clone(), segment.log_member);
        let place = self.logging.borrow_mut().places.insert(Place::Sent { log, log_member, what });
        Hooked::Logged(place).hook(self.index, part);
    }

    /// A part has ended on the device.
    pub(super) fn logged(&self, env: &mut Env, number: u32, mut part: Box<Bio>) {
        let place = self.logging.borrow_mut().take(number);
        let data = if part.op == Op::Write { part.take_buf() } else { None };
        let Place::Sent { log, log_member, what } = place else {
            debug_assert!(false, "a part comes back to its place");
            return env.end_bio(part);
        };
        let completed = match what {
            Sent::Flush(until) => Completed::Flush(until),
            Sent::Write(entry) if entry.flags.has(LogFlags::FUA) => {
                Completed::Fua(Logged::new(entry, data))
            }
            Sent::Write(entry) => Completed::Write(Logged::new(entry, data)),
        };
        // What failed did not happen, as far as anybody knows.
        let is_ok = part.status.is_ok();
        let Some(carrier) = is_ok.then(|| log.take(completed, &env.locks)).flatten() else {
            self.logging.borrow_mut().places.remove(number);
            return env.end_bio(part);
        };
        let carried = Carried { log, log_member, carrier, part, left: 0, waits: false };
        self.carry(env, number, Box::new(carried));
    }

    /// A write to the log has ended.
    pub(super) fn log_written(&self, env: &mut Env, number: u32, mut write: Box<Bio>) {
        let failed = !write.status.is_ok();
        drop(write.take_buf());
        env.end_with(write, Status::Ok);
        let mut logging = self.logging.borrow_mut();
        let Some(carried) = logging.carried(number) else { return };
        if failed {
            carried.carrier.has_failed();
        }
        carried.left -= 1;
        if carried.left > 0 {
            return;
        }
        let Place::Carried(carried) = logging.take(number) else { return };
        drop(logging);
        self.carry(env, number, carried);
    }

    /// Others have written what carriers here may wait for.
    pub(super) fn go_on_logging(&self, env: &mut Env) {
        if self.logging.borrow().waiting == 0 {
            return;
        }
        let end = self.logging.borrow().places.numbers_end();
        for number in 0..end {
            let mut logging = self.logging.borrow_mut();
            if logging.carried(number).is_none_or(|carried| !carried.waits) {
                continue;
            }
            let Place::Carried(mut carried) = logging.take(number) else { continue };
            carried.waits = false;
            logging.waiting -= 1;
            drop(logging);
            self.carry(env, number, carried);
        }
    }

    /// Do what is next for what is carried, whose place is number `number`.
    fn carry(&self, env: &mut Env, number: u32, mut carried: Box<Carried>) {
        let mut wakes = Vec::new();
        // A volume that was removed has no way to its log any more.
        if self.table().is_none() {
            carried.log.give_up(&env.locks, &mut wakes);
        }
        let word = Some(self.port.doorbell());
        let step = loop {
            let carrier = &mut carried.carrier;
            match carried.log.step(carrier, word, &env.locks, &mut wakes) {
                LogStep::Write(writes) if writes.is_empty() => {}
                step => break step,
            }
        };
        wakes.into_iter().for_each(|word: Arc<Message>| env.send_and_kick(word));
        match step {
            LogStep::Write(writes) => self.write_log(env, number, carried, writes),
            LogStep::Wait => {
                carried.waits = true;
                let mut logging = self.logging.borrow_mut();
                logging.waiting += 1;
                logging.places[number] = Place::Carried(carried);
            }
            LogStep::Done => {
                self.logging.borrow_mut().places.remove(number);
                env.end_bio(carried.part);
            }
        }
    }

    /// Send writes to the log, as parts of the bio that the carried one is a part of.
    fn write_log(
        &self,
        env: &mut Env,
        number: u32,
        mut carried: Box<Carried>,
        writes: Vec<LogWrite>,
    ) {
        let member = self.members[carried.log_member as usize];
        carried.left = writes.len();
        let mut parts = env.divide_again(&carried.part);
        self.logging.borrow_mut().places[number] = Place::Carried(carried);
        for LogWrite { sector, data } in writes {
            let mut write = parts.flush(env);
            (write.op, write.sector) = (Op::Write, Sector(sector));
            write.flags = BioFlags::empty();
            write.set_buf(data, None);
            Hooked::LogWrite(number).hook(self.index, &mut write);
            env.send_down(member, write);
        }
        env.divided(parts);
    }
}

/// Give a write a copy of its data: what goes into the log is what the device got, whatever becomes
/// of the submitter's buffer. False if memory is short.
fn copy_data(part: &mut Bio) -> bool {
    let Some(mut copy) = IoBuf::try_zeroed(part.bytes as usize) else { return false };
    part.copy_data_to(&mut copy);
    part.set_buf(copy, None);
    true
}

/// What the log says of a write or discard.
fn entry(part: &Bio, sector_bytes: u32) -> LogEntry {
    let block = u64::from(sector_bytes) / SECTOR_SIZE;
    let fua = if part.flags.contains(BioFlags::FUA) { LogFlags::FUA } else { LogFlags::default() };
    let discard = if part.op == Op::Discard { LogFlags::DISCARD } else { LogFlags::default() };
    let (sector, sectors) = (part.sector.0 / block, part.bytes / SECTOR_SIZE / block);
    LogEntry { sector, sectors, flags: fua | discard, text_bytes: 0 }
}
