//! The scenario `raid-metadata`: an array that was stopped in order, of whose members some are
//! edited before it is started again. It starts with the data that it held, or it is refused and
//! nothing is changed.
//!
//! Invariants:
//! * What is edited can be noticed: no edit makes another array of equal members, which nothing
//!   could tell from the one that was there.
//! * Each round begins with the disks and with the knowledge of what they hold that the stop left.

use super::array::{Admin, SUPERBLOCK};
use super::plan::{chance, of, stack_file};
use super::records::superblock;
use super::run::{Operator, Run, Started};
use crate::disk::Disk;
use crate::oracle::Oracle;
use crate::stack;
use drystone_raid::array::Command;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES, STATE_STALE};
use drystone_raid::metadata::superblock::{DevRole, Features, Superblock};
use fastrand::Rng;
use std::rc::Rc;

/// How often the members of a seed are edited.
const ROUNDS: u32 = 6;
/// I/Os of a start.
const USE: u64 = 40;
const SECTOR: usize = 512;

/// What a round begins with.
struct Base {
    disks: Vec<Disk>,
    oracles: Vec<Oracle>,
}

impl Operator {
    /// Make an array, use and stop it, and start it on edited members again and again.
    pub(super) fn operate_on_edited(mut self) {
        if !self.use_and_stop(false) {
            return;
        }
        let before = self.disks();
        if !self.use_and_stop(true) {
            return;
        }
        let base = Base { disks: self.disks(), oracles: self.run.oracles.borrow().clone() };
        for _ in 0..ROUNDS {
            self.round(&before);
            if self.run.world.failure().is_some() {
                return;
            }
            self.put_back(&base);
        }
    }

    fn disks(&self) -> Vec<Disk> {
        let world = &self.run.world;
        (0..world.disks()).map(|disk| world.disk(disk, |disk| disk.clone())).collect()
    }

    fn put_back(&self, base: &Base) {
        for (number, disk) in base.disks.iter().enumerate() {
            self.run.world.disk(number, |own| *own = disk.clone());
        }
        self.run.oracles.borrow_mut().clone_from(&base.oracles);
    }

    /// One start, which ends in order; sometimes a member fails in it. False if something is wrong.
    fn use_and_stop(&mut self, may_fail: bool) -> bool {
        let Some(start) = self.start_once(false, false) else { return false };
        let fails = may_fail && chance(&mut self.rng, 25);
        if let Some(admin) = Admin::new(&self.run, &start)
            && admin.wait_until_settled()
            && fails
        {
            let disk = self.rng.u64(0..self.run.world.disks() as u64) as usize;
            let _ = admin.order("fail", Command::Fail(Admin::name(disk)));
        }
        self.work_on(&start);
        self.end(start);
        self.run.world.failure().is_none()
    }

    fn work_on(&mut self, start: &Rc<Started>) {
        start.limit.set(self.run.progress.begun() + USE);
        self.spawn_loads(start);
        self.finish_work(start);
        if let Some(admin) = Admin::new(&self.run, start) {
            admin.wait_until_settled();
        }
    }

    /// Edit members, start the array, use it, stop it, and start it once more.
    fn round(&mut self, before: &[Disk]) {
        self.edit_members(before);
        let run_too = self.rng.bool();
        let written = self.written();
        let Some(start) = self.start_edited(run_too) else { return };
        self.count("edited: started");
        self.work_on(&start);
        self.compare(&start);
        self.judge_left_out(&start, &written);
        self.end(start);
        if self.run.world.failure().is_some() {
            return;
        }
        if let Some(start) = self.start_edited(true) {
            self.end(start);
        }
    }

    fn count(&self, what: &str) {
        self.run.world.note(|| what.to_owned());
        self.run.counts.borrow_mut().add(what, 1);
    }

    /// How often each disk has been written so far.
    fn written(&self) -> Vec<u64> {
        let writes = |disk: &mut Disk| {
            let counts = disk.counts();
            counts.writes + counts.discards + counts.write_zeroes
        };
        (0..self.run.world.disks()).map(|disk| self.run.world.disk(disk, writes)).collect()
    }

    /// Start it and compare all of it. Nothing if it is refused.
    fn start_edited(&mut self, run_too: bool) -> Option<Rc<Started>> {
        self.run.faults.count_anew();
        let (disks, written) = (self.disks(), self.written());
        let mut text = stack_file(&self.run.plan.text, &self.run.volumes.borrow());
        if run_too {
            text = text.replace("[device.a]\n", "[device.a]\nrun = true\n");
        }
        let stack = match stack::open(&self.run.world, text) {
            Ok(stack) => stack,
            Err(why) => {
                self.refused(&why, &disks, &written);
                return None;
            }
        };
        let start = self.run.started(stack);
        if start.device("a").info().size_bytes / SECTOR as u64 >= self.run.sectors(0) {
            self.compare(&start);
            return Some(start);
        }
        self.run.world.fail("the array is smaller than it was");
        self.end(start);
        None
    }

    /// Nothing has changed: that a log can be written is found out by writing again what it holds.
    fn refused(&self, why: &str, disks: &[Disk], written: &[u64]) {
        self.count("edited: refused");
        self.run.world.note(|| format!("refused: {why}"));
        let has_changed = |disk: &usize| {
            let now = self.run.world.disk(*disk, |disk| disk.contents());
            now != disks[*disk].contents()
        };
        let now = self.written();
        let mut written = (0..disks.len()).filter(|disk| now[*disk] != written[*disk]);
        if let Some(disk) = written.find(has_changed) {
            self.run.world.fail(format!("the array is refused, and d{disk} has changed: {why}"));
        }
    }

    /// Nothing is written to what takes no part.
    fn judge_left_out(&self, start: &Rc<Started>, written: &[u64]) {
        let Some(admin) = Admin::new(&self.run, start) else { return };
        let status = admin.status();
        for (disk, (before, now)) in written.iter().zip(self.written()).enumerate() {
            if Admin::state(&status, disk).is_some() {
                continue;
            }
            self.count("edited: a member left out");
            if *before != now {
                self.run.world.fail(format!("d{disk} is left out of the array, and is written"));
            }
        }
    }

    /// Edit some members: mostly as many as the array can do without, or one more. Lies about
    /// numbers and roles come alone: with another member missing nothing tells them from the truth.
    fn edit_members(&mut self, before: &[Disk]) {
        let run = self.run.clone();
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

    /// The most events that a superblock of these disks has.
    fn latest_events(&self, disks: impl Iterator<Item = usize>) -> u64 {
        disks
            .filter_map(|disk| superblock(&self.run, disk))
            .map(|own| own.events)
            .max()
            .unwrap_or(0)
    }

    /// `latest` is the most events of a superblock that is not edited.
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

    /// The whole disk as it was before, if a superblock that is not edited tells its age: one that
    /// has heard of more than one event since. What the disk itself held is no witness, nor is a
    /// superblock that is edited.
    fn put_older(&self, disk: usize, before: &Disk, latest: u64) {
        let run = &self.run;
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

    /// With a checksum that is right; sometimes written later than all others.
    fn edit_superblock(
        &mut self,
        disk: usize,
        may_be_later: bool,
        edit: fn(&mut Superblock, &mut Rng, &Run) -> &'static str,
    ) {
        let Some(mut own) = superblock(&self.run, disk) else { return };
        let what = edit(&mut own, &mut self.rng, &self.run);
        if may_be_later && self.rng.bool() {
            own.utime += 10;
        }
        let from = SUPERBLOCK.0 * SECTOR as u64;
        self.run.world.disk(disk, |disk| disk.poke(from, &own.to_bytes()));
        self.run.world.note(|| format!("d{disk} is edited: {own:?}"));
        self.count(what);
    }

    /// A bitmap that disagrees; it marks nothing that is needed, since the array was stopped in
    /// order.
    fn edit_bitmap(&mut self, disk: usize) {
        let Some(own) = superblock(&self.run, disk) else { return };
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
            _ => header.chunk_bytes = of(&mut self.rng, &[512, 4096, 1 << 20, 1 << 31, 0, 777]),
        }
        self.run.world.disk(disk, |disk| disk.poke(from as u64, &header.to_bytes()));
        self.count("edited: a bitmap that disagrees");
    }
}

/// It says that it is another member.
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

/// It has heard of fewer updates than the others, or of more.
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

/// Of another size or geometry, or of another array.
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

/// What it keeps beside its data is somewhere else, or it is in another state.
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
