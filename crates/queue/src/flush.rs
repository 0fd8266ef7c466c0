//! The flush machine: turns PREFLUSH, FUA and flush bios into operations that the device supports
//! (Linux `Documentation/block/writeback_cache_control.rst`, `block/blk-flush.c`).
//!
//! | write cache | device FUA | bio             | steps                     |
//! |-------------|------------|-----------------|---------------------------|
//! | no          | -          | any with data   | data                      |
//! | no          | -          | flush           | none                      |
//! | yes         | -          | flush           | preflush                  |
//! | yes         | yes        | FUA             | data (with FUA)           |
//! | yes         | yes        | PREFLUSH [FUA]  | preflush, data            |
//! | yes         | no         | FUA             | data, postflush           |
//! | yes         | no         | PREFLUSH + FUA  | preflush, data, postflush |
//!
//! Invariants:
//! * At most one flush command of a channel is in flight. A bio that comes meanwhile waits for the
//!   next one, because the running one may have begun before that bio's writes completed.
//! * A failed flush ends every bio that waited for it with its error. The data of a write with
//!   PREFLUSH is then not written.
//! * Bios in the machine never merge. Bios that leave it are not cut to the limits yet.
//! * A bio without data is a flush if it has PREFLUSH; with FUA alone it does nothing.

use drystone_core::{Bio, BioFlags, BioList, Limits, Op, Status};

/// The next step of a bio that leaves the machine.
pub(crate) enum Next {
    /// The bio ends.
    End(Box<Bio>, Status),
    /// The data of the bio goes to the device.
    Data(Box<Bio>),
}

/// The first step of a bio that concerns the flush machine.
pub(crate) enum Start {
    /// The bio has nothing to do and ends.
    End(Box<Bio>),
    /// The bio needs no flush.
    Normal(Box<Bio>),
    /// The bio's data is written first, then a flush follows.
    ThenFlush(Box<Bio>),
    /// The bio waits in the machine for a flush.
    Queued,
}

/// True if the device itself makes an operation with FUA durable: only writes of data.
pub(crate) fn has_fua(op: Op, limits: &Limits) -> bool {
    limits.fua && op == Op::Write
}

#[derive(Default)]
pub(crate) struct FlushMachine {
    /// Bios that wait for the next flush command, before or (FUA cleared) after their data.
    pending: BioList,
    /// Bios that the command in flight serves.
    running: BioList,
    in_flight: bool,
}

impl FlushMachine {
    /// Begin the sequence of `bio`.
    pub(crate) fn start(&mut self, mut bio: Box<Bio>, limits: &Limits) -> Start {
        if !limits.write_cache {
            bio.flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
            return if bio.op == Op::Flush { Start::End(bio) } else { Start::Normal(bio) };
        }
        if bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH) {
            self.pending.push(bio);
            return Start::Queued;
        }
        if has_fua(bio.op, limits) { Start::Normal(bio) } else { Start::ThenFlush(bio) }
    }

    /// Note that the data of a bio is written that still needs a flush.
    pub(crate) fn data_done(&mut self, mut bio: Box<Bio>) {
        // The bio has no data part left from here on.
        bio.flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
        self.pending.push(bio);
    }

    /// True if a flush command should be sent now.
    pub(crate) fn wants_flush(&self) -> bool {
        !self.in_flight && !self.pending.is_empty()
    }

    /// Note that a flush command is sent, which serves all waiting bios.
    pub(crate) fn flush_sent(&mut self) {
        debug_assert!(self.wants_flush() && self.running.is_empty());
        self.running = self.pending.take();
        self.in_flight = true;
    }

    /// Let the bios of a flush command wait again, before all others: the driver could not take the
    /// command.
    pub(crate) fn flush_refused(&mut self) {
        self.in_flight = false;
        self.pending.prepend(&mut self.running);
    }

    /// End the flush command with `status`. Calls `next` for each bio that it served.
    pub(crate) fn flush_ended(&mut self, status: Status, mut next: impl FnMut(Next)) {
        debug_assert!(self.in_flight);
        self.in_flight = false;
        let mut served = self.running.take();
        while let Some(mut bio) = served.pop() {
            let data_left =
                bio.op != Op::Flush && bio.bytes > 0 && bio.flags.contains(BioFlags::PREFLUSH);
            if status.is_ok() && data_left {
                bio.flags.remove(BioFlags::PREFLUSH);
                next(Next::Data(bio));
            } else {
                next(Next::End(bio, status));
            }
        }
    }

    /// The number of bios in the machine.
    pub(crate) fn len(&self) -> usize {
        self.pending.len() + self.running.len()
    }

    /// Take the bios that no command serves yet.
    pub(crate) fn take_pending(&mut self) -> BioList {
        self.pending.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::{IoBuf, Sector};

    fn write(flags: BioFlags) -> Box<Bio> {
        let mut bio = Bio::write(Sector(0), IoBuf::zeroed(512));
        bio.flags = flags;
        bio
    }

    /// The steps of a bio as text, if every flush command ends with the given status.
    fn steps(mut bio: Box<Bio>, cache: bool, fua: bool, flush: Status) -> String {
        let limits = Limits { write_cache: cache, fua, ..Limits::default() };
        let mut machine = FlushMachine::default();
        let mut log = String::new();
        let mut then_flush = false;
        loop {
            match machine.start(bio, &limits) {
                Start::End(_) => return log + "end",
                Start::Normal(b) => bio = b,
                Start::ThenFlush(b) => (bio, then_flush) = (b, true),
                Start::Queued => {
                    let mut next = None;
                    log += "flush ";
                    machine.flush_sent();
                    machine.flush_ended(flush, |n| next = Some(n));
                    match next.unwrap() {
                        Next::End(_, status) => {
                            return log + if status.is_ok() { "end" } else { "error" };
                        }
                        Next::Data(b) => {
                            bio = b;
                            continue;
                        }
                    }
                }
            }
            log += if bio.flags.contains(BioFlags::FUA) && fua { "data+fua " } else { "data " };
            if !then_flush {
                return log + "end";
            }
            machine.data_done(bio);
            log += "flush ";
            machine.flush_sent();
            let mut end = Status::Ok;
            machine.flush_ended(flush, |n| match n {
                Next::End(_, s) => end = s,
                Next::Data(_) => panic!("data twice"),
            });
            return log + if end.is_ok() { "end" } else { "error" };
        }
    }

    #[test]
    fn the_table_holds() {
        let (pre, fua) = (BioFlags::PREFLUSH, BioFlags::FUA);
        let ok = |bio, cache, dev_fua| steps(bio, cache, dev_fua, Status::Ok);
        assert_eq!(ok(write(pre | fua), false, false), "data end");
        assert_eq!(ok(Bio::flush(), false, false), "end");
        assert_eq!(ok(Bio::flush(), true, false), "flush end");
        assert_eq!(ok(write(fua), true, true), "data+fua end");
        assert_eq!(ok(write(pre), true, true), "flush data end");
        assert_eq!(ok(write(pre | fua), true, true), "flush data+fua end");
        assert_eq!(ok(write(fua), true, false), "data flush end");
        assert_eq!(ok(write(pre | fua), true, false), "flush data flush end");
    }

    #[test]
    fn a_failed_flush_reaches_the_bio() {
        let bad = |bio, dev_fua| steps(bio, true, dev_fua, Status::IoError);
        assert_eq!(bad(Bio::flush(), false), "flush error");
        assert_eq!(bad(write(BioFlags::PREFLUSH), false), "flush error");
        assert_eq!(bad(write(BioFlags::FUA), false), "data flush error");
    }

    #[test]
    fn a_late_flush_waits_for_the_next_command() {
        let limits = Limits { write_cache: true, ..Limits::default() };
        let mut machine = FlushMachine::default();
        assert!(matches!(machine.start(Bio::flush(), &limits), Start::Queued));
        machine.flush_sent();
        assert!(matches!(machine.start(Bio::flush(), &limits), Start::Queued));
        assert!(!machine.wants_flush());
        let mut ended = 0;
        machine.flush_ended(Status::Ok, |_| ended += 1);
        assert_eq!(ended, 1);
        assert!(machine.wants_flush());
        assert_eq!(machine.len(), 1);
    }
}
