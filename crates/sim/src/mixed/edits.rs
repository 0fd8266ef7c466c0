//! Edits of an array's members: superblocks and bitmaps that are spoilt, old, of another shape, or
//! that contradict the other members.
//!
//! Invariant: the array can notice each edit. No edit makes a consistent set of members of another
//! array, which nothing could tell from the real one.

use super::array::SUPERBLOCK;
use super::plan::of;
use super::records::superblock;
use super::run::Run;
use crate::disk::Disk;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES, STATE_STALE};
use drystone_raid::metadata::superblock::{DevRole, Features, Superblock};
use fastrand::Rng;

const SECTOR: usize = 512;

/// See the module's text.
pub(super) struct Edits<'a> {
    run: &'a Run,
    rng: &'a mut Rng,
}

impl<'a> Edits<'a> {
    pub(super) fn new(run: &'a Run, rng: &'a mut Rng) -> Self {
        Edits { run, rng }
    }

    /// Edit some members: mostly as many as the array can lose, or one more. An edit of numbers or
    /// roles comes alone: if another member were missing too, no superblock could refute it.
    pub(super) fn edit_members(&mut self, before: &[Disk]) {
        let run = self.run;
        let disks = run.world.disks();
        let roll = self.rng.u32(0..10);
        if roll < 2 {
            let disk = self.rng.usize(0..disks);
            return self.edit_superblock(disk, roll == 0, claim_another);
        }
        if roll == 2 {
            let other = self.rng.usize(1..disks);
            let second = run.world.disk(other, |disk| disk.clone());
            let first = run.world.disk(0, |disk| std::mem::replace(disk, second));
            run.world.disk(other, |disk| *disk = first);
            return self.count("edited: disks change places");
        }
        let parity = run.plan.targets[0].redundancy.map_or(1, |of| of.parity) as usize;
        let most = self.rng.usize(1..=parity + 1).min(disks - 1);
        let first = self.rng.usize(0..disks);
        let latest = self.latest_events((first + most..first + disks).map(|disk| disk % disks));
        for disk in (first..first + most).map(|disk| disk % disks) {
            self.edit_member(disk, &before[disk], latest);
        }
    }

    /// The highest event count in the superblocks of these disks.
    fn latest_events(&self, disks: impl Iterator<Item = usize>) -> u64 {
        disks.filter_map(|disk| superblock(self.run, disk)).map(|own| own.events).max().unwrap_or(0)
    }

    /// Edits one member. `latest` is the highest event count of a superblock that is not edited.
    fn edit_member(&mut self, disk: usize, before: &Disk, latest: u64) {
        match self.rng.u32(0..12) {
            0 => self.put_older(disk, before, latest),
            1 => self.spoil_superblock(disk, "edited: a wrong checksum", |bytes| bytes[216] ^= 1),
            2 => self.spoil_superblock(disk, "edited: no superblock", |bytes| bytes.fill(0)),
            3 | 4 => self.edit_bitmap(disk),
            5 | 6 => self.edit_superblock(disk, true, of_another_age),
            7 | 8 => self.edit_superblock(disk, false, of_another_shape),
            _ => self.edit_superblock(disk, false, of_other_places),
        }
    }

    /// Puts the whole disk back as it was before, if an unedited superblock can show its age: one
    /// that is more than one event ahead. The old superblock cannot show its own age, nor can an
    /// edited one.
    fn put_older(&self, disk: usize, before: &Disk, latest: u64) {
        let run = self.run;
        let kept = run.world.disk(disk, |disk| std::mem::replace(disk, before.clone()));
        let events = superblock(run, disk).map_or(0, |own| own.events);
        run.world.note(|| format!("d{disk} of before: events {events}, the others' {latest}"));
        if events.saturating_add(1) < latest {
            return self.count("edited: an older copy");
        }
        run.world.disk(disk, |disk| *disk = kept);
    }

    fn spoil_superblock(&self, disk: usize, what: &str, spoil: impl FnOnce(&mut [u8])) {
        let from = SUPERBLOCK.0 as usize * SECTOR;
        self.run.world.disk(disk, |disk| {
            let mut bytes = disk.contents_of(from..from + SUPERBLOCK.1 * SECTOR);
            spoil(&mut bytes);
            disk.poke(from as u64, &bytes);
        });
        self.count(what);
    }

    /// Edits a superblock and keeps its checksum right; sometimes it becomes the latest by its
    /// update time.
    fn edit_superblock(
        &mut self,
        disk: usize,
        may_be_later: bool,
        edit: fn(&mut Superblock, &mut Rng, &Run) -> &'static str,
    ) {
        let Some(mut own) = superblock(self.run, disk) else { return };
        let what = edit(&mut own, self.rng, self.run);
        if may_be_later && self.rng.bool() {
            own.utime += 10;
        }
        let from = SUPERBLOCK.0 * SECTOR as u64;
        self.run.world.disk(disk, |disk| disk.poke(from, &own.to_bytes()));
        self.run.world.note(|| format!("d{disk} is edited: {own:?}"));
        self.count(what);
    }

    /// Edits a bitmap's header so that it disagrees with the superblock. No set bit is needed,
    /// since the array was stopped in order.
    fn edit_bitmap(&mut self, disk: usize) {
        let Some(own) = superblock(self.run, disk) else { return };
        let Some(offset) = own.bitmap_offset() else { return };
        let Some(place) = own.super_offset.checked_add_signed(offset.into()) else { return };
        let from = place as usize * SECTOR;
        let bytes = self.run.world.disk(disk, |disk| disk.contents_of(from..from + HEADER_BYTES));
        let Ok(mut header) = BitmapHeader::parse(&bytes) else { return };
        match self.rng.u32(0..7) {
            0 => header.events = header.events.saturating_sub(self.rng.u64(1..4)),
            1 => header.events += self.rng.u64(1..4),
            2 => header.state |= STATE_STALE,
            3 => header.sync_size = self.rng.u64(..),
            4 => header.uuid = Uuid([7; 16]),
            5 => header.events_cleared += self.rng.u64(1..1000),
            _ => header.chunk_bytes = of(self.rng, &[512, 4096, 1 << 20, 1 << 31, 0, 777]),
        }
        self.run.world.disk(disk, |disk| disk.poke(from as u64, &header.to_bytes()));
        self.count("edited: a bitmap that disagrees");
    }

    fn count(&self, what: &str) {
        self.run.world.note(|| what.to_owned());
        self.run.counts.borrow_mut().add(what, 1);
    }
}

/// Gives the superblock the number or the role of another member.
fn claim_another(own: &mut Superblock, rng: &mut Rng, run: &Run) -> &'static str {
    let disks = run.world.disks() as u32;
    let other = (own.dev_number + rng.u32(1..disks)) % disks;
    match rng.bool() {
        true => own.dev_number = other,
        false => {
            let role = own.role_of(other).number();
            if let Some(entry) = own.roles.get_mut(own.dev_number as usize) {
                *entry = role;
            }
        }
    }
    "edited: the role of another"
}

/// Makes the superblock older or newer than the others.
fn of_another_age(own: &mut Superblock, rng: &mut Rng, run: &Run) -> &'static str {
    let others = 0..run.world.disks().min(own.roles.len());
    match rng.u32(0..6) {
        0 | 1 => own.events = own.events.saturating_sub(rng.u64(1..4)),
        2 => own.events += rng.u64(1..4),
        3 => own.roles[rng.usize(others)] = DevRole::Faulty.number(),
        4 => own.roles[rng.usize(others)] = DevRole::Spare.number(),
        _ => own.resync_offset = rng.u64(0..own.size),
    }
    "edited: another age"
}

/// Gives the superblock another size, geometry or array.
fn of_another_shape(own: &mut Superblock, rng: &mut Rng, _: &Run) -> &'static str {
    let chunk = u64::from(own.chunk_sectors);
    match rng.u32(0..10) {
        0 => own.size -= chunk,
        1 => own.size = of(rng, &[8, own.size / 2, own.size + 8, u64::MAX - 127, 0]),
        2 => own.data_size = of(rng, &[0, own.size - 8, own.data_size + 8, u64::MAX]),
        3 => own.data_offset = of(rng, &[own.data_offset + (1 << 20), u64::MAX, u64::MAX - 8]),
        4 => own.chunk_sectors = of(rng, &[own.chunk_sectors * 2, 0, 12, u32::MAX]),
        5 => own.layout = of(rng, &[0, 1, 5, 18, 99]),
        6 => own.level = of(rng, &[0, 1, 4, 5, 6, -1]),
        7 => own.raid_disks = of(rng, &[own.raid_disks + 1, own.raid_disks - 1, 0, 1 << 30]),
        8 => own.set_uuid = Uuid([9; 16]),
        _ => own.super_offset = rng.u64(..),
    }
    "edited: another size or shape"
}

/// Moves the bitmap or log, or changes the state in the superblock.
fn of_other_places(own: &mut Superblock, rng: &mut Rng, _: &Run) -> &'static str {
    let near = of(rng, &[rng.clone().i32(-40..40), rng.clone().i32(0..8000), rng.clone().i32(..)]);
    match rng.u32(0..7) {
        // A partial parity log has two numbers in these four bytes.
        0 | 1 if own.feature_map.intersects(Features::PPL | Features::MULTIPLE_PPLS) => {
            let [low, high] = (near as i16).to_le_bytes();
            let [size, more] = of(rng, &[16u16, 128, 8, 0, u16::MAX]).to_le_bytes();
            own.bitmap_or_ppl = [low, high, size, more];
        }
        0 | 1 => own.bitmap_or_ppl = near.to_le_bytes(),
        2 => own.bblog_offset = near,
        3 => own.bblog_size = of(rng, &[0, 1, 8, u16::MAX]),
        4 => own.bblog_shift = rng.u8(..),
        5 => {
            own.feature_map |= Features::RECOVERY_OFFSET;
            own.recovery_offset = of(rng, &[0, 8, own.size / 2, u64::MAX]);
        }
        _ => own.feature_map ^= Features::from_bits_retain(1 << rng.u32(0..16)),
    }
    "edited: other places or features"
}

#[cfg(test)]
mod tests {
    use super::super::array::Admin;
    use super::super::boot::start_once;
    use super::super::shutdown::end;
    use super::super::testing::{array, on_fiber, run_of};
    use super::*;
    use std::rc::Rc;

    /// The disks of an array that was stopped in order.
    fn stopped() -> Rc<Run> {
        let run = run_of(array());
        let ended = on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            Admin::new(run, &start).expect("an array").wait_until_settled();
            end(run, start);
        });
        ended.expect("all is well");
        run
    }

    #[test]
    fn a_member_never_claims_what_it_is() {
        let (run, mut rng) = (stopped(), Rng::with_seed(1));
        let own = superblock(&run, 1).expect("a superblock");
        let is_number = (0..100).map(|_| {
            let mut edited = own.clone();
            claim_another(&mut edited, &mut rng, &run);
            assert_ne!((edited.dev_number, edited.role()), (own.dev_number, own.role()));
            edited.dev_number != own.dev_number
        });
        let numbers = is_number.filter(|is_number| *is_number).count();
        assert!((20..80).contains(&numbers), "{numbers} of 100 claim another number");
    }

    /// A wrong checksum is an edit of its own.
    #[test]
    fn an_edited_superblock_has_a_checksum_that_is_right() {
        let (run, mut rng) = (stopped(), Rng::with_seed(1));
        let own = superblock(&run, 1).expect("a superblock");
        let edit: fn(&mut Superblock, &mut Rng, &Run) -> &'static str = |own, _, _| {
            own.events += 7;
            "edited"
        };
        Edits::new(&run, &mut rng).edit_superblock(1, false, edit);
        let edited = superblock(&run, 1).expect("it can be read");
        assert_eq!((edited.events, edited.utime), (own.events + 7, own.utime));
        Edits::new(&run, &mut rng).spoil_superblock(1, "spoilt", |bytes| bytes[216] ^= 1);
        assert!(superblock(&run, 1).is_none());
    }

    #[test]
    fn an_older_copy_is_put_where_its_age_can_be_told() {
        let (run, mut rng) = (stopped(), Rng::with_seed(1));
        let before = run.world.disk(1, |disk| disk.clone());
        let events = superblock(&run, 1).expect("a superblock").events;
        let is_put = |latest: u64, rng: &mut Rng| {
            run.world.disk(1, |disk| disk.poke(0, &[9]));
            Edits::new(&run, rng).put_older(1, &before, latest);
            run.world.disk(1, |disk| disk.contents_of(0..1)) == [0]
        };
        assert!(!is_put(events + 1, &mut rng), "one event behind is as good as fresh");
        assert!(is_put(events + 2, &mut rng));
    }
}
