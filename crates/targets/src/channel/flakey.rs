//! `flakey` as one context uses it: what happens to a bio and its data while the device is down.
//!
//! Invariants:
//! * Only two kinds of parts return by their end_io hook: reads that were sent while the device was
//!   down, and writes with a copy of the data.
//! * The submitter's buffer of a write is never changed.
//! * Each segment of the live table has a random number generator, used by this context alone.

use super::end_io::EndIo;
use super::view::VolumeView;
use crate::flakey::{Fate, Flakey, Random};
use crate::table::Table;
use drystone_core::{Bio, ContextId, Env, IoBuf, Op, Status};

/// See the module's text.
#[derive(Default)]
pub(super) struct Corruption {
    randoms: Vec<Random>,
}

impl Corruption {
    /// The generators for a table that the context has not used yet.
    pub(super) fn new(table: &Table, context: ContextId) -> Self {
        let flakeys = table.flakeys().iter().enumerate();
        let randoms = flakeys.map(|(number, flakey)| flakey.random(number, context.0)).collect();
        Corruption { randoms }
    }

    /// Send on, or end, a part of `flakey` segment `number`.
    #[inline(never)]
    pub(super) fn submit(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut bio: Box<Bio>,
    ) {
        let Some(table) = view.table() else {
            return env.end_with(bio, Status::IoError);
        };
        let flakey = table.flakey(number);
        match flakey.fate(bio.op, env.time.recent()) {
            Fate::Fail => return env.end_with(bio, Status::IoError),
            Fate::Drop => return env.end_with(bio, Status::Ok),
            Fate::Pass => {}
            Fate::Corrupt if bio.op == Op::Read => {
                EndIo::Corrupt(number).set(view.channel(), &mut bio);
            }
            Fate::Corrupt => {
                if !self.corrupt_write(view, flakey, number, &mut bio) {
                    return env.end_with(bio, Status::Resource);
                }
            }
        }
        view.send_moved(env, flakey.place(), bio);
    }

    /// Replace the data of a write by a copy, which the caller then changes. False if memory is
    /// short.
    fn corrupt_write(
        &mut self,
        view: &VolumeView,
        flakey: &Flakey,
        number: u32,
        bio: &mut Bio,
    ) -> bool {
        let changes = flakey.changes(Op::Write, bio.bytes, &mut self.randoms[number as usize]);
        let mut changes = changes.peekable();
        if changes.peek().is_none() {
            return true;
        }
        let Some(mut copy) = IoBuf::try_zeroed(bio.bytes as usize) else { return false };
        bio.copy_data_to(&mut copy);
        changes.for_each(|(at, value)| copy[at as usize] = value);
        bio.set_buf(copy, None);
        EndIo::Corrupt(number).set(view.channel(), bio);
        true
    }

    /// A part of segment `number` has returned by its end_io hook.
    pub(super) fn ended(
        &mut self,
        view: &VolumeView,
        env: &mut Env,
        number: u32,
        mut bio: Box<Bio>,
    ) {
        match bio.op {
            Op::Read if bio.status.is_ok() => self.corrupt_read(view, number, &mut bio),
            // The copy has served its purpose.
            Op::Write => drop(bio.take_buf()),
            _ => {}
        }
        env.end_bio(bio);
    }

    fn corrupt_read(&mut self, view: &VolumeView, number: u32, bio: &mut Bio) {
        let Some(table) = view.table() else { return };
        let random = &mut self.randoms[number as usize];
        let changes = table.flakey(number).changes(Op::Read, bio.bytes, random);
        changes.for_each(|(at, value)| bio.set_data_byte(at, value));
    }
}
