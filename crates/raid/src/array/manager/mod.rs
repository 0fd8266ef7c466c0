//! The manager of an array: one thread, with a context of its own (Linux `md_thread`s
//! `raid5d` and `md_do_sync`).
//!
//! Invariants:
//! * Superblocks say what is so, or more cautiously: dirty is written before the first write
//!   passes, clean after the last has ended; a failed member is on record on the others before a
//!   configuration without it is published; how far something is rebuilt is written after it is.
//! * The configuration of contexts changes by being published, after the superblocks that it
//!   relies on are durable.
//! * Nothing here is waited for by a context that could go on without it.

mod bitmap;
mod commands;
mod faults;
mod members;
mod records;
mod requests;
mod safe_mode;
mod spare_layout;
mod sync;
mod sync_run;
mod synchronisation;

use super::bitmap::BitmapStorage;
use super::device::{ManagerQueue, SyncDevice};
use super::disk::{Disk, DiskState};
use super::event::{ArrayEvent, Failed, byte_of};
use super::io::Io;
use super::options::ArrayOptions;
use super::status::{ArrayState, ArrayStatus, DiskStatus};
use crate::engine::{Shared, Wanted};
use crate::metadata::assemble::Assembly;
use crate::metadata::superblock::CLEAN;
use drystone_core::clock::Ns;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Device, Result};
use members::Members;
pub(super) use members::role_slots;
use records::{Records, Target};
use requests::Requests;
use safe_mode::{Next, Record, SafeMode};
use std::sync::Arc;
use synchronisation::Synchronisation;

/// The time that a stop of an array waits for writes under way.
const STOP_PATIENCE_NS: Ns = 30_000_000_000;

/// The parts of a [`Manager`].
pub(super) struct ManagerSpec<'a> {
    pub(super) io: Io,
    pub(super) disks: Vec<Disk>,
    pub(super) assembly: &'a Assembly,
    pub(super) options: &'a ArrayOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) bitmap: Option<BitmapStorage>,
    /// From where on parity may not fit.
    pub(super) resync_from: Option<u64>,
}

/// See the module's text. A thread of its own must call [`Manager::run`].
pub struct Manager {
    pub(super) io: Io,
    shared: Arc<Shared>,
    members: Members,
    requests: Requests,
    safe_mode: SafeMode,
    records: Records,
    used: u64,
    read_only: bool,
    sync: Synchronisation,
    pub(super) is_over: bool,
    /// When what some member had no room for is tried again.
    room_look: Option<Ns>,
}

impl Manager {
    pub(super) fn new(spec: ManagerSpec<'_>) -> Result<(Self, ArrayStatus)> {
        let ManagerSpec { mut io, disks, assembly, options, shared, bitmap, resync_from } = spec;
        let device: Arc<dyn Device> = Arc::new(SyncDevice(shared.clone()));
        let sync_device = io.open(&device)?;
        shared.set_manager(Arc::downgrade(io.ctx.handle()));
        shared.fits_below.store(resync_from.unwrap_or(CLEAN), Release);
        let is_replacement = |disk: &Disk| matches!(disk.state, DiskState::Replacement(_));
        let are_recopied = assembly.resync_from.is_some() && disks.iter().any(is_replacement);
        // It is on record as dirty, and stays so until it is known to be better: replacements have
        // to say how little they have before members say that all is well.
        let is_dirty = resync_from == Some(0) || are_recopied;
        let is_changed = assembly.lost() > 0 || assembly.resync_from.is_some();
        let layout = shared.conf().layout;
        let members = Members::new(disks, layout, options.event_sink.clone(), is_changed);
        let manager = Manager {
            io,
            shared,
            members,
            requests: Requests::default(),
            safe_mode: SafeMode::new(is_dirty),
            records: Records::new(assembly.fresh.clone(), bitmap, options.wall_clock.clone()),
            used: assembly.used(),
            read_only: options.read_only,
            sync: Synchronisation::new(sync_device),
            is_over: false,
            room_look: None,
        };
        let status = manager.status(Vec::new());
        if manager.members.is_degraded() {
            manager.members.emit(ArrayEvent::Degraded(manager.members.strength()));
        }
        Ok((manager, status))
    }

    pub(super) fn with_queue(mut self, queue: Arc<ManagerQueue>) -> Self {
        self.requests.set_queue(queue);
        self
    }

    /// Take care of the array until it is stopped. Returns then; the calling thread belongs to it
    /// until then.
    pub fn run(mut self) {
        while !self.is_over {
            let deadline = self.step();
            self.wait(deadline);
        }
        self.end();
    }

    /// Until there is something to do. A context's wait may end for nothing, again and again where
    /// a member is polled: a step, which has others look, is not to be made each time.
    fn wait(&mut self, deadline: Option<Ns>) {
        let is_time = |now| deadline.is_some_and(|deadline| deadline <= now);
        // A wake-up may have come while superblocks were written, and ended a wait of that.
        while !self.is_over
            && !self.shared.is_wanted()
            && !self.io.has_ended()
            && !is_time(self.now())
        {
            self.io.wait(deadline);
            self.io.reap();
        }
    }

    /// Let go of all devices, and then answer the command to stop.
    pub(super) fn end(mut self) {
        let requests = std::mem::take(&mut self.requests);
        let locks = self.io.ctx.locks().clone();
        drop(self);
        requests.end(&locks);
    }

    /// Do all work that is due. The result is the time of the next step without a request.
    pub(super) fn step(&mut self) -> Option<Ns> {
        self.io.reap();
        let wanted = self.shared.take_wanted();
        if wanted.contains(Wanted::WRITES) {
            self.safe_mode.want_writes();
        }
        self.take_reports();
        self.take_requests();
        self.record_changes();
        let now = self.now();
        self.set_wanted_bits();
        let looks = [
            self.remove_asked(now),
            self.keep_record(now),
            self.synchronise(now),
            self.tend_bitmap(now),
            self.stop_if_asked(now),
            self.look_for_room(now),
        ];
        self.tell_status();
        self.tell_outcomes();
        looks.into_iter().flatten().min()
    }

    fn now(&self) -> Ns {
        self.io.ctx.set().clock().now()
    }

    /// Make contexts work by what is so now.
    fn publish(&mut self) -> u64 {
        let role_slots = self.members.role_slots();
        let is_dirty = self.safe_mode.record() == Record::Dirty;
        let action = self.sync.action();
        let epoch = self.shared.publish(|conf| {
            (conf.role_slots, conf.is_dirty, conf.action) = (role_slots, is_dirty, action);
        });
        self.shared.holders.changed();
        epoch
    }

    /// The records, and what they are written to.
    fn records(&mut self) -> (&mut Records, Target<'_>) {
        let record = self.safe_mode.record();
        let (io, members) = (&mut self.io, &mut self.members);
        (&mut self.records, Target { io, members, shared: &self.shared, record })
    }

    /// Put the present state on record; durable when this returns. True if a device has failed by
    /// that: then contexts must hear of it.
    fn write_superblocks(&mut self) -> bool {
        let (records, mut to) = self.records();
        records.write(&mut to)
    }

    /// Write what has changed of the bitmap; durable when this returns. False if a device has
    /// failed by that.
    fn write_bitmap(&mut self) -> bool {
        let (records, mut to) = self.records();
        records.write_bitmap(&mut to)
    }

    /// Write the superblock of one device. False if it did not take it.
    fn write_superblock_of(&mut self, position: usize) -> bool {
        let (records, mut to) = self.records();
        records.write_one(&mut to, position)
    }

    /// Have superblocks say what has changed, and contexts work by it.
    fn record_changes(&mut self) {
        if self.members.is_changed() && !self.read_only {
            self.write_superblocks();
            self.publish();
        }
    }

    /// Dirty when somebody wants to write, clean when nobody has written for a while.
    fn keep_record(&mut self, now: Ns) -> Option<Ns> {
        if self.read_only {
            return None;
        }
        let writes = self.shared.ports().iter().map(|port| port.writes()).sum();
        let mut next = self.safe_mode.next(writes, now);
        if let Next::CheckWrites(epoch) = next {
            let have_ended = self.shared.writes_are_quiet(epoch);
            next = self.safe_mode.writes_checked(have_ended, now);
        }
        match next {
            Next::Wait(until) => until,
            Next::RecordDirty(until) => {
                self.write_superblocks();
                self.publish();
                Some(until)
            }
            Next::StopWrites => {
                let epoch = self.publish();
                self.safe_mode.writes_stopped(epoch);
                Some(now)
            }
            Next::LetWritesPass(until) => {
                self.publish();
                Some(until)
            }
            Next::RecordClean => {
                if self.write_superblocks() {
                    self.publish();
                }
                self.safe_mode.wants_writes().then_some(now)
            }
            Next::CheckWrites(_) => None,
        }
    }

    fn tell_status(&mut self) {
        let change = |told: &mut ArrayStatus| *told = self.status(std::mem::take(&mut told.disks));
        self.requests.change_status(change);
    }

    /// The status of now. This is done at each step, and takes the memory of the disks that were
    /// told.
    fn status(&self, mut disks: Vec<DiskStatus>) -> ArrayStatus {
        let disk = |disk: &Disk| DiskStatus {
            name: disk.name.clone(),
            number: disk.number(),
            uuid: disk.superblock.device_uuid,
            state: disk.state,
            has_bad_blocks: !disk.bad_blocks.is_empty(),
            lacks_room: disk.lacks_room,
            corrected: disk.corrected,
        };
        disks.clear();
        disks.extend(self.members.iter().map(disk));
        let conf = self.shared.conf();
        let state = match self.safe_mode.record() {
            _ if self.is_over => ArrayState::Inactive,
            _ if conf.is_broken => ArrayState::Broken,
            _ if self.read_only => ArrayState::ReadOnly,
            Record::Clean => ArrayState::Clean,
            Record::Dirty | Record::Settling(_) => ArrayState::Active,
        };
        let speed = self.sync.speed();
        ArrayStatus {
            layout: conf.layout,
            superblock: self.records.common().clone(),
            used: self.used,
            state,
            read_only: self.read_only,
            disks,
            sync: self.sync.status(self.used, self.now()),
            resync_pending: self.sync.action().is_none()
                && self.shared.fits_below.load(Acquire) != CLEAN,
            bitmap: self.records.bitmap().map(BitmapStorage::status),
            frozen: self.sync.is_frozen(),
            mismatch_cnt: self.shared.mismatches.load(Relaxed),
            speed: (speed.min, speed.max),
            updated_ns: self.records.updated_ns(),
        }
    }
}
