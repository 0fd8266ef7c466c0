//! The configuration of an array for its contexts: published as a whole, copied by each channel,
//! read again when its epoch has changed.
//!
//! Invariants:
//! * A failed member is left out of a configuration only after the remaining members have the
//!   failure on record. So an assembly after a crash does not trust a member that missed writes.
//! * State that moves while I/O goes on (how far a member is rebuilt, how far parity is known to
//!   fit) is in atomics. Only the manager writes them, and only after the state that they promise
//!   holds.

use super::bitmap::Bitmap;
use super::plan::RmwLevel;
use super::roles::Roles;
use crate::ids::{MemberNumber, Role};
use crate::layout::{Layout, STRIPE_SECTORS};
use crate::metadata::bad_blocks::BadBlocks;
use drystone_core::primitive::{AtomicU64, Ordering::*};
use drystone_core::{Device, Limits};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Every sector of the member can be read.
pub(crate) const IN_SYNC: u64 = u64::MAX;

/// Blocks, by member sector, that reads return in place of the member's own. A read-only array uses
/// them for parity that its logs would correct.
pub(crate) type Patches = BTreeMap<u64, Vec<u8>>;

/// The configuration that all logs of an array share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PplConf {
    /// The signature of all headers.
    pub(crate) signature: u32,
    /// The highest generation among the members' headers.
    pub(crate) generation: u64,
}

/// Where a member's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogArea {
    /// Sector of the device.
    pub(crate) sector: u64,
    /// Room behind the header.
    pub(crate) parity_bytes: u32,
}

/// A device that holds a role, completely or as far as it is rebuilt.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn Device>,
    /// md's number of the device.
    pub(crate) number: MemberNumber,
    /// Where its data begins, in sectors of the device.
    pub(crate) data_offset: u64,
    /// Member sectors below this can be read.
    pub(crate) in_sync_below: Arc<AtomicU64>,
    /// Sectors of the device that cannot be read.
    pub(crate) bad_blocks: Arc<BadBlocks>,
    /// A write has failed since the start: bad blocks are not written to again (Linux
    /// `WriteErrorSeen`).
    pub(crate) write_error: bool,
    /// Where its partial parity log is, if the array has them.
    pub(crate) log: Option<LogArea>,
    /// Replacement contents for reads.
    pub(crate) patches: Option<Arc<Patches>>,
}

impl Member {
    pub(crate) fn is_in_sync(&self) -> bool {
        self.in_sync_below.load(Acquire) == IN_SYNC
    }

    /// The replacement contents for a read of a member sector, if it has any.
    pub(crate) fn patch(&self, sector: u64) -> Option<&[u8]> {
        self.patches.as_ref()?.get(&sector).map(Vec::as_slice)
    }

    /// The stripe at member sector `sector` is listed as bad.
    pub(crate) fn is_bad_at(&self, sector: u64) -> bool {
        let start = self.data_offset + sector;
        let is_bad = || self.bad_blocks.overlap(start..start + STRIPE_SECTORS).is_some();
        !self.bad_blocks.is_empty() && is_bad()
    }

    fn is_readable_at(&self, sector: u64) -> bool {
        sector + STRIPE_SECTORS <= self.in_sync_below.load(Acquire) && !self.is_bad_at(sector)
    }

    fn is_writable_at(&self, sector: u64) -> bool {
        !(self.write_error && self.is_bad_at(sector))
    }

    /// Its state is the same for every sector.
    fn is_plain(&self) -> bool {
        self.is_in_sync() && self.bad_blocks.is_empty()
    }
}

/// The devices of a role (md's `disk_info`: `rdev` and `replacement`).
#[derive(Clone, Default)]
pub(crate) struct RoleSlot {
    pub(crate) member: Option<Member>,
    /// A device that is written too, and replaces the member once it holds a copy of all data.
    pub(crate) replacement: Option<Member>,
}

/// A kind of synchronisation (`md/sync_action`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Make parity fit the data, after an unclean shutdown.
    Resync,
    /// Compute the blocks that new members must hold.
    Recover,
    /// Count the sectors whose parity does not fit.
    Check,
    /// Count them, and make parity fit.
    Repair,
}

/// See the module's text.
#[derive(Clone)]
pub(crate) struct Conf {
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) size_bytes: u64,
    /// By role.
    pub(crate) role_slots: Vec<RoleSlot>,
    /// Roles whose member is in sync and has no bad blocks, and that have no replacement.
    plain: Roles,
    /// Roles with a member or replacement whose state depends on the sector.
    special: Roles,
    /// The members are recorded as dirty (they may not fit one another): writes may begin.
    pub(crate) is_dirty: bool,
    /// New bios are held.
    pub(crate) is_suspended: bool,
    /// The epoch of the configuration that suspended the array.
    pub(crate) suspended_since: u64,
    /// The array is over: all I/O fails.
    pub(crate) is_closed: bool,
    /// More members are lost than parity makes up for: no writes (Linux `broken`).
    pub(crate) is_broken: bool,
    pub(crate) cache_stripes: u32,
    pub(crate) rmw_level: RmwLevel,
    pub(crate) action: Option<SyncAction>,
    /// The chunks whose bits the members have set, if they keep a bitmap.
    pub(crate) bitmap: Option<Arc<Bitmap>>,
    /// Members have partial parity logs.
    pub(crate) ppl: Option<PplConf>,
}

/// The parts of a [`Conf`] that the caller of [`Conf::new`] chooses.
pub(crate) struct ConfSpec {
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) size_bytes: u64,
    pub(crate) role_slots: Vec<RoleSlot>,
    pub(crate) cache_stripes: u32,
    pub(crate) bitmap: Option<Arc<Bitmap>>,
    pub(crate) ppl: Option<PplConf>,
}

impl Conf {
    pub(crate) fn new(spec: ConfSpec) -> Self {
        let mut conf = Conf {
            layout: spec.layout,
            limits: spec.limits,
            size_bytes: spec.size_bytes,
            role_slots: spec.role_slots,
            plain: Roles::EMPTY,
            special: Roles::EMPTY,
            is_dirty: false,
            is_suspended: false,
            suspended_since: 0,
            is_closed: false,
            is_broken: false,
            cache_stripes: spec.cache_stripes,
            rmw_level: RmwLevel::default(),
            action: None,
            bitmap: spec.bitmap,
            ppl: spec.ppl,
        };
        conf.role_slots_changed();
        conf
    }

    /// Update the fields that depend on `role_slots`, after each change of that.
    pub(crate) fn role_slots_changed(&mut self) {
        (self.plain, self.special) = (Roles::EMPTY, Roles::EMPTY);
        for (role, slot) in (0..).map(Role).zip(&self.role_slots) {
            let is_plain = slot.member.as_ref().is_some_and(Member::is_plain);
            if is_plain && slot.replacement.is_none() {
                self.plain.insert(role);
            } else if slot.member.is_some() || slot.replacement.is_some() {
                self.special.insert(role);
            }
        }
        let lost = self.lost().len();
        self.is_broken = lost > self.layout.level().parity_disks();
    }

    /// Every role has a member that is in sync and has no bad blocks, and none has a replacement.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.plain == self.all()
    }

    fn all(&self) -> Roles {
        Roles::below(self.layout.disks())
    }

    /// Roles without a member that is in sync.
    pub(crate) fn lost(&self) -> Roles {
        let in_sync = |role: &Role| {
            let slot = &self.role_slots[role.index()];
            slot.member.as_ref().is_some_and(Member::is_in_sync)
        };
        self.all() - self.plain - self.special.iter().filter(in_sync).collect()
    }

    /// Roles whose block at a member sector can be read from its member.
    #[inline]
    pub(crate) fn readable(&self, sector: u64) -> Roles {
        match self.special.is_empty() {
            true => self.plain,
            false => self.plain | self.special_at(sector, Member::is_readable_at),
        }
    }

    /// Roles whose block at a member sector must be kept right when the stripe changes: those of
    /// [`Conf::writable`], and those with a replacement.
    #[inline]
    pub(crate) fn kept(&self, sector: u64) -> Roles {
        if self.special.is_empty() {
            return self.plain;
        }
        let has_replacement = |role: &Role| self.role_slots[role.index()].replacement.is_some();
        self.writable(sector) | self.special.iter().filter(has_replacement).collect()
    }

    /// Roles whose block at a member sector must be written to the member when it changes.
    #[inline]
    pub(crate) fn writable(&self, sector: u64) -> Roles {
        match self.special.is_empty() {
            true => self.plain,
            false => self.plain | self.special_at(sector, Member::is_writable_at),
        }
    }

    fn special_at(&self, sector: u64, is_so: impl Fn(&Member, u64) -> bool) -> Roles {
        let slot = |role: &Role| self.role_slots[role.index()].member.as_ref();
        self.special.iter().filter(|r| slot(r).is_some_and(|m| is_so(m, sector))).collect()
    }

    /// Roles whose member or replacement is being rebuilt and has not got the block at `sector`
    /// yet.
    pub(crate) fn rebuilding(&self, sector: u64) -> Roles {
        self.behind(sector, false) | self.behind(sector, true)
    }

    /// Roles whose member, or whose replacement, has not got the block at `sector` yet.
    pub(crate) fn behind(&self, sector: u64, is_replacement: bool) -> Roles {
        let behind = |m: &Member| m.in_sync_below.load(Acquire) < sector + STRIPE_SECTORS;
        let is_behind = |role: &Role| self.member(*role, is_replacement).is_some_and(behind);
        self.special.iter().filter(is_behind).collect()
    }

    /// The member of `role`, if all of its data can be read.
    #[inline]
    pub(crate) fn plain_member(&self, role: Role) -> Option<&Member> {
        if !self.plain.has(role) {
            return None;
        }
        self.role_slots[role.index()].member.as_ref()
    }

    /// Whether device `number` holds `role` as a replacement; `None` if it does not hold it at all.
    pub(crate) fn is_replacement_at(&self, role: Role, number: MemberNumber) -> Option<bool> {
        let is_it = |as_replacement: &bool| {
            self.member(role, *as_replacement).is_some_and(|member| member.number == number)
        };
        [false, true].into_iter().find(is_it)
    }

    /// Roles whose member is in sync, but lists the block at a member sector as bad, and may take
    /// that block again.
    pub(crate) fn bad_at(&self, sector: u64) -> Roles {
        let is_bad = |m: &Member| m.is_in_sync() && m.is_bad_at(sector) && !m.write_error;
        match self.special.is_empty() {
            true => Roles::EMPTY,
            false => self.special_at(sector, |member, _| is_bad(member)),
        }
    }

    /// The member of `role`, or its replacement.
    pub(crate) fn member(&self, role: Role, is_replacement: bool) -> Option<&Member> {
        let slot = &self.role_slots[role.index()];
        if is_replacement { slot.replacement.as_ref() } else { slot.member.as_ref() }
    }
}
