//! Who takes care of an array: one thread, with a context of its own (Linux `md_thread`s
//! `raid5d` and `md_do_sync`).
//!
//! Invariants:
//! * Superblocks say what is so, or more cautiously: dirty is written before the first write passes,
//!   clean after the last has ended; a failed member is on record on the others before a
//!   configuration without it is published; how far something is rebuilt is written after it is.
//! * What contexts work by changes by publishing a configuration, after the superblocks that it
//!   relies on are durable.
//! * Nothing here is waited for by a context that could go on without it.

mod bitmap;
mod commands;
mod faults;
mod spare_layout;
mod supers;
mod sync;

use super::bitmap::BitmapStorage;
use super::control::Request;
use super::device::{ManagerQueue, SyncDevice};
use super::disk::{Disk, DiskState};
use super::event::{ArrayEvent, Failed, Strength, byte_of};
use super::io::Io;
use super::options::{ArrayOptions, EventSink, WallClock};
use super::status::{ArrayState, ArrayStatus, DiskStatus};
use crate::engine::{IN_SYNC, REGION_SECTORS, RoleSlot, Shared, Wanted};
use crate::ids::MemberNumber;
use crate::metadata::assemble::Assembly;
use crate::metadata::superblock::{CLEAN, Superblock};
use drystone_core::clock::Ns;
use drystone_core::context::DevIndex;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Device, Result};
use std::sync::Arc;
use sync::{Speed, Sync};

/// Without writes for so long the array is put on record as clean (`safe_mode_delay`, 204 ms).
const SAFE_MODE_DELAY_NS: Ns = 204_000_000;
/// The pause between two looks whether writes that are to end have ended.
const QUIET_PAUSE_NS: Ns = 1_000_000;
/// How long writes are waited for that are under way when an array is to be stopped.
const STOP_PATIENCE_NS: Ns = 30_000_000_000;

/// Whether the members are on record as fitting one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Clean,
    Dirty,
    /// Dirty, and no new write passes: it is to become clean, if those under way end soon. The epoch
    /// of the configuration that says so.
    Settling(u64),
}

/// What a [`Manager`] is made of.
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

/// See the module's text. [`Manager::run`] is to be called by a thread of its own.
pub struct Manager {
    pub(super) io: Io,
    shared: Arc<Shared>,
    queue: Option<Arc<ManagerQueue>>,
    sync_device: DevIndex,
    disks: Vec<Disk>,
    /// What all superblocks say alike.
    common: Arc<Superblock>,
    used: u64,
    record: Record,
    read_only: bool,
    /// The last change of the superblocks only said that the array is dirty, so that the count of
    /// events may go back (`can_decrease_events`).
    can_decrease_events: bool,
    /// Something that superblocks say has changed since they were written.
    changed: bool,
    wants_writes: bool,
    /// Writes that had passed when it was looked last, and when that was.
    writes_seen: (u64, Ns),
    bitmap: Option<BitmapStorage>,
    sync: Option<Sync>,
    /// What was asked for and has not begun.
    sync_asked: Option<crate::engine::SyncAction>,
    frozen: bool,
    speed: Speed,
    wall_clock: WallClock,
    event_sink: EventSink,
    /// Commands that were executed or refused, whose outcome is told when what follows from them has begun.
    executed: Vec<(Arc<Request>, Result<()>)>,
    /// Numbers of devices that were removed: what was on its way to one may be told of yet.
    let_go: Vec<MemberNumber>,
    /// Who asks for a device to be removed, and until when what is on its way there is waited for.
    removing: Vec<(Arc<Request>, Ns)>,
    /// Who asks for a stop, and until when what is in flight is waited for.
    stopping: Option<(Vec<Arc<Request>>, Ns)>,
    /// Who asked for the stop that has come about.
    stopped: Vec<Arc<Request>>,
    pub(super) is_over: bool,
    updated_ns: Ns,
    /// When what some member had no room for is tried again.
    room_look: Option<Ns>,
}

/// Who sits where.
pub(super) fn role_slots(disks: &[Disk], roles: u32) -> Vec<RoleSlot> {
    let mut role_slots: Vec<RoleSlot> = (0..roles).map(|_| RoleSlot::default()).collect();
    for disk in disks {
        match disk.state {
            DiskState::InSync(role) | DiskState::Rebuilding(role) => {
                role_slots[role.index()].member = Some(disk.member());
            }
            DiskState::Replacement(role) => {
                role_slots[role.index()].replacement = Some(disk.member());
            }
            DiskState::Spare | DiskState::Faulty(_) => {}
        }
    }
    role_slots
}

impl Manager {
    pub(super) fn new(spec: ManagerSpec<'_>) -> Result<(Self, ArrayStatus)> {
        let ManagerSpec { mut io, disks, assembly, options, shared, bitmap, resync_from } = spec;
        let device: Arc<dyn Device> = Arc::new(SyncDevice(shared.clone()));
        let sync_device = io.open(&device)?;
        shared.set_manager(Arc::downgrade(io.ctx.handle()));
        shared.fits_below.store(resync_from.unwrap_or(CLEAN), Release);
        let lost = assembly.lost() > 0;
        let mut manager = Manager {
            io,
            shared,
            queue: None,
            sync_device,
            disks,
            common: Arc::new(assembly.fresh.clone()),
            used: assembly.used(),
            record: Record::Clean,
            read_only: options.read_only,
            can_decrease_events: false,
            changed: lost || assembly.resync_from.is_some(),
            wants_writes: false,
            writes_seen: (0, 0),
            bitmap,
            sync: None,
            sync_asked: None,
            frozen: false,
            speed: Speed::default(),
            wall_clock: options.wall_clock.clone(),
            event_sink: options.event_sink.clone(),
            executed: Vec::new(),
            let_go: Vec::new(),
            removing: Vec::new(),
            stopping: None,
            stopped: Vec::new(),
            is_over: false,
            updated_ns: 0,
            room_look: None,
        };
        let is_replacement = |disk: &Disk| matches!(disk.state, DiskState::Replacement(_));
        let are_copied_anew =
            assembly.resync_from.is_some() && manager.disks.iter().any(is_replacement);
        if resync_from == Some(0) || are_copied_anew {
            // It is on record as dirty, and stays so until it is known to be better: replacements have to say
            // how little they have before members say that all is well.
            manager.record = Record::Dirty;
        }
        let status = manager.status(Vec::new());
        if manager.is_degraded() {
            manager.emit(ArrayEvent::Degraded(manager.strength()));
        }
        Ok((manager, status))
    }

    pub(super) fn with_queue(mut self, queue: Arc<ManagerQueue>) -> Self {
        self.queue = Some(queue);
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

    /// Until there is something to do. A context's wait may end for nothing, again and again where a
    /// member is polled: a step, which has others look, is not to be made each time.
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

    /// Let go of all devices, and then tell whoever has asked for the stop.
    pub(super) fn end(mut self) {
        let (stopped, queue) = (std::mem::take(&mut self.stopped), self.queue.take());
        let locks = self.io.ctx.locks().clone();
        drop(self);
        stopped.iter().for_each(|request| request.end(Ok(()), &locks));
        if let Some(queue) = queue {
            queue.close();
        }
    }

    /// Do what there is to do now; when there may be more though nobody asks.
    pub(super) fn step(&mut self) -> Option<Ns> {
        self.io.reap();
        let wanted = self.shared.take_wanted();
        self.wants_writes |= wanted.contains(Wanted::WRITES);
        self.take_reports();
        self.take_requests();
        if self.changed && !self.read_only {
            self.write_superblocks();
            self.publish();
        }
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
        let role_slots = role_slots(&self.disks, self.common.raid_disks);
        let is_dirty = self.record == Record::Dirty;
        let action = self.sync.as_ref().map(|sync| sync.action);
        let epoch = self.shared.publish(|conf| {
            (conf.role_slots, conf.is_dirty, conf.action) = (role_slots, is_dirty, action);
        });
        self.shared.holders.changed();
        epoch
    }

    /// Dirty when somebody wants to write, clean when nobody has written for a while.
    fn keep_record(&mut self, now: Ns) -> Option<Ns> {
        if self.read_only {
            return None;
        }
        let writes = self.shared.ports().iter().map(|port| port.writes()).sum();
        match self.record {
            Record::Clean if std::mem::take(&mut self.wants_writes) => {
                self.record = Record::Dirty;
                self.write_superblocks();
                self.publish();
                self.writes_seen = (writes, now);
                Some(now + SAFE_MODE_DELAY_NS)
            }
            Record::Clean => None,
            Record::Dirty => self.settle_if_idle(writes, now),
            Record::Settling(epoch) => self.settle(epoch, now),
        }
    }

    fn settle_if_idle(&mut self, writes: u64, now: Ns) -> Option<Ns> {
        self.wants_writes = false;
        let (seen, since) = self.writes_seen;
        if writes != seen {
            self.writes_seen = (writes, now);
        } else if now >= since + SAFE_MODE_DELAY_NS {
            self.record = Record::Settling(0);
            self.record = Record::Settling(self.publish());
            self.writes_seen = (writes, now);
            return Some(now);
        }
        Some(self.writes_seen.1 + SAFE_MODE_DELAY_NS)
    }

    fn settle(&mut self, epoch: u64, now: Ns) -> Option<Ns> {
        if self.shared.writes_are_quiet(epoch) {
            self.record = Record::Clean;
            if self.write_superblocks() {
                self.publish();
            }
            return self.wants_writes.then_some(now);
        }
        if std::mem::take(&mut self.wants_writes) {
            // Somebody goes on writing: nothing was written of it, so nothing is to be taken back.
            self.record = Record::Dirty;
            self.publish();
            return Some(now + SAFE_MODE_DELAY_NS);
        }
        Some(now + QUIET_PAUSE_NS)
    }

    fn tell_status(&mut self) {
        if let Some(queue) = &self.queue {
            queue.change_status(|told| *told = self.status(std::mem::take(&mut told.disks)));
        }
    }

    /// What is so now. This is done at each step, and takes the memory of the disks that were told.
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
        disks.extend(self.disks.iter().map(disk));
        let conf = self.shared.conf();
        let state = match self.record {
            _ if self.is_over => ArrayState::Inactive,
            _ if conf.is_broken => ArrayState::Broken,
            _ if self.read_only => ArrayState::ReadOnly,
            Record::Clean => ArrayState::Clean,
            Record::Dirty | Record::Settling(_) => ArrayState::Active,
        };
        ArrayStatus {
            layout: conf.layout,
            superblock: self.common.clone(),
            used: self.used,
            state,
            read_only: self.read_only,
            disks,
            sync: self.sync.as_ref().map(|sync| sync.status(self.used, self.now())),
            resync_pending: self.sync.is_none() && self.shared.fits_below.load(Acquire) != CLEAN,
            bitmap: self.bitmap.as_ref().map(BitmapStorage::status),
            frozen: self.frozen,
            mismatch_cnt: self.shared.mismatches.load(Relaxed),
            speed: (self.speed.min, self.speed.max),
            updated_ns: self.updated_ns,
        }
    }

    fn disk_of(&self, number: MemberNumber) -> Option<usize> {
        self.disks.iter().position(|disk| disk.number() == number)
    }

    /// Members of roles that are in sync.
    fn in_sync(&self) -> usize {
        let in_sync = |disk: &&Disk| matches!(disk.state, DiskState::InSync(_));
        self.disks.iter().filter(in_sync).count()
    }

    fn strength(&self) -> Strength {
        let layout = self.shared.conf().layout;
        let parity = layout.level().parity_disks();
        Strength { in_sync: self.in_sync() as u32, disks: self.common.raid_disks, parity }
    }

    fn emit(&self, event: ArrayEvent) {
        (self.event_sink)(event);
    }

    fn is_degraded(&self) -> bool {
        self.in_sync() < self.common.raid_disks as usize
    }
}
