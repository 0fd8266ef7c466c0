//! The manager of an array: one thread, with a context of its own (Linux `md_thread`s
//! `raid5d` and `md_do_sync`).
//!
//! Invariants:
//! * Superblocks never say more than is true. The array is recorded as dirty before the first write
//!   passes, and as clean after the last write has ended. A failed member is on record on the
//!   others before a configuration without it is published. The progress of a rebuild is written
//!   after the sectors are rebuilt.
//! * The manager changes the configuration of contexts by publishing it, after the superblocks that
//!   the configuration relies on are durable.
//! * No context waits for the manager while it could go on without it.

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

/// How long a stop of the array waits for writes under way.
const STOP_PATIENCE_NS: Ns = 30_000_000_000;

/// The parts of a [`Manager`].
pub(super) struct ManagerSpec<'a> {
    pub(super) io: Io,
    pub(super) disks: Vec<Disk>,
    pub(super) assembly: &'a Assembly,
    pub(super) options: &'a ArrayOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) bitmap: Option<BitmapStorage>,
    /// The member sector from which on parity may not fit.
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
    /// The time at which writes that found no room are sent again.
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
        // The array is recorded as dirty and stays so for now: replacements must record that they
        // have to be copied again before any member is recorded as clean.
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

    /// Manage the array until it is stopped. The calling thread does nothing else until then.
    pub fn run(mut self) {
        while !self.is_over {
            let deadline = self.step();
            self.wait(deadline);
        }
        self.end();
    }

    /// Wait until there is work. The wait of a context may end early and often where a member is
    /// polled, and a step makes other contexts look; so this does not return for such wake-ups.
    fn wait(&mut self, deadline: Option<Ns>) {
        let is_time = |now| deadline.is_some_and(|deadline| deadline <= now);
        // The wake-up for a request may have ended an earlier wait, while superblocks were written.
        while !self.is_over
            && !self.shared.is_wanted()
            && !self.io.has_ended()
            && !is_time(self.now())
        {
            self.io.wait(deadline);
            self.io.reap();
        }
    }

    /// Close all devices, then answer the command to stop.
    pub(super) fn end(mut self) {
        let requests = std::mem::take(&mut self.requests);
        let locks = self.io.ctx.locks().clone();
        drop(self);
        requests.end(&locks);
    }

    /// Do all work that is due. Returns the time of the next step if no request comes before.
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

    /// Publish a configuration with the present state. Returns its epoch.
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

    /// The records, and the devices that they are written to.
    fn records(&mut self) -> (&mut Records, Target<'_>) {
        let record = self.safe_mode.record();
        let (io, members) = (&mut self.io, &mut self.members);
        (&mut self.records, Target { io, members, shared: &self.shared, record })
    }

    /// Record the present state; durable when this returns. True if a device failed by that: then a
    /// configuration without it must be published.
    fn write_superblocks(&mut self) -> bool {
        let (records, mut to) = self.records();
        records.write(&mut to)
    }

    /// Write the changed pages of the bitmap; durable when this returns. False if a device failed
    /// by that.
    fn write_bitmap(&mut self) -> bool {
        let (records, mut to) = self.records();
        records.write_bitmap(&mut to)
    }

    /// Write the superblock of one device. False if the write failed.
    fn write_superblock_of(&mut self, position: usize) -> bool {
        let (records, mut to) = self.records();
        records.write_one(&mut to, position)
    }

    /// Write the superblocks and publish, if the devices have changed.
    fn record_changes(&mut self) {
        if self.members.is_changed() && !self.read_only {
            self.write_superblocks();
            self.publish();
        }
    }

    /// Record the array as dirty when a writer asks for it, and as clean after a time without
    /// writes.
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

    /// The present status. Each step makes one, so this reuses the memory of the previous list of
    /// disks.
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
