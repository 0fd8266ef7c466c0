//! `flakey` as one context uses it: what becomes of a bio, and its data, while the device is down.
//!
//! Invariants:
//! * A part that comes back by its hook is a read that was sent while the device was down, or a
//!   write with a copy of the data.
//! * What the submitter writes from is never changed.

use super::VolumeChannel;
use super::hooked::Hooked;
use crate::flakey::{Fate, Flakey, Random};
use crate::table::Table;
use drystone_core::{Bio, Env, IoBuf, Op, Status};

/// The random numbers of a table's `flakey` segments in context `context`.
pub(super) fn randoms(table: &Table, context: u32) -> Vec<Random> {
    let flakeys = table.flakeys().iter().enumerate();
    flakeys.map(|(number, flakey)| flakey.random(number, context)).collect()
}

impl VolumeChannel {
    /// Send on, or end, a part of `flakey` segment `number`.
    #[inline(never)]
    pub(super) fn flakey(&self, env: &mut Env, number: u32, mut bio: Box<Bio>) {
        let Some(table) = self.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let flakey = table.flakey(number);
        match flakey.fate(bio.op, env.time.recent()) {
            Fate::Fail => return env.end_with(bio, Status::IoError),
            Fate::Drop => return env.end_with(bio, Status::Ok),
            Fate::Pass => {}
            Fate::Corrupt if bio.op == Op::Read => {
                Hooked::Flakey(number).hook(self.index, &mut bio);
            }
            Fate::Corrupt => {
                if !self.corrupt_write(flakey, number, &mut bio) {
                    return env.end_with(bio, Status::Resource);
                }
            }
        }
        self.send_to(env, flakey.place(), bio);
    }

    /// Give a write that is to be changed a copy of its data. False if memory is short.
    fn corrupt_write(&self, flakey: &Flakey, number: u32, bio: &mut Bio) -> bool {
        let mut randoms = self.randoms.borrow_mut();
        let changes = flakey.changes(Op::Write, bio.bytes, &mut randoms[number as usize]);
        let mut changes = changes.peekable();
        if changes.peek().is_none() {
            return true;
        }
        let Some(mut copy) = IoBuf::try_zeroed(bio.bytes as usize) else { return false };
        bio.copy_data_to(&mut copy);
        changes.for_each(|(at, value)| copy[at as usize] = value);
        bio.set_buf(copy, None);
        Hooked::Flakey(number).hook(self.index, bio);
        true
    }

    /// A part that was hooked here has ended.
    pub(super) fn corrupted(&self, env: &mut Env, number: u32, mut bio: Box<Bio>) {
        match bio.op {
            Op::Read if bio.status.is_ok() => self.corrupt_read(number, &mut bio),
            // The copy is not needed any more.
            Op::Write => drop(bio.take_buf()),
            _ => {}
        }
        env.end_bio(bio);
    }

    fn corrupt_read(&self, number: u32, bio: &mut Bio) {
        let Some(table) = self.table() else { return };
        let (number, mut randoms) = (number as usize, self.randoms.borrow_mut());
        let changes = table.flakeys()[number].changes(Op::Read, bio.bytes, &mut randoms[number]);
        changes.for_each(|(at, value)| bio.set_data_byte(at, value));
    }
}
