//! The devices of an array and their states, which the manager changes.
//!
//! Invariants:
//! * No two devices have one name or one number; a role has at most one member and one replacement.
//! * A change that the superblocks must record is marked ([`Members::is_changed`]) until they are
//!   written.
//! * A change of the set of devices that must be rebuilt is marked too, so that a rebuild under way
//!   begins again.

use crate::array::disk::{Disk, DiskState, LogTodo};
use crate::array::event::{ArrayEvent, Failed, Strength};
use crate::array::options::EventSink;
use crate::engine::{IN_SYNC, RoleSlot};
use crate::ids::{MemberNumber, Role};
use crate::layout::Layout;
use drystone_core::primitive::Ordering::*;
use std::ops::{Index, IndexMut, Range};
use std::sync::Arc;

/// See the module's text. Devices are known by position; a removal changes the positions.
pub(super) struct Members {
    disks: Vec<Disk>,
    layout: Layout,
    event_sink: EventSink,
    /// Numbers of removed devices: a report about I/O to one of them may still come.
    removed: Vec<MemberNumber>,
    is_changed: bool,
    is_rebuild_changed: bool,
}

impl Members {
    /// `is_changed`: the superblocks do not record the present state yet.
    pub(super) fn new(
        disks: Vec<Disk>,
        layout: Layout,
        event_sink: EventSink,
        is_changed: bool,
    ) -> Self {
        let removed = Vec::new();
        Members { disks, layout, event_sink, removed, is_changed, is_rebuild_changed: false }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Disk> {
        self.disks.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Disk> {
        self.disks.iter_mut()
    }

    pub(super) fn positions(&self) -> Range<usize> {
        0..self.disks.len()
    }

    pub(super) fn position_of(&self, name: &str) -> Option<usize> {
        self.disks.iter().position(|disk| *disk.name == *name)
    }

    pub(super) fn find(&self, number: MemberNumber) -> Option<usize> {
        self.disks.iter().position(|disk| disk.number() == number)
    }

    /// The superblocks do not record the present state yet.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    pub(super) fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Note that the superblocks were written.
    pub(super) fn mark_recorded(&mut self) {
        self.is_changed = false;
    }

    /// True if the set of devices that must be rebuilt has changed since the previous call.
    pub(super) fn take_rebuild_change(&mut self) -> bool {
        std::mem::take(&mut self.is_rebuild_changed)
    }

    pub(super) fn emit(&self, event: ArrayEvent) {
        (self.event_sink)(event);
    }

    /// The number of roles.
    fn roles(&self) -> u32 {
        self.layout.disks()
    }

    /// The number of roles whose member is in sync.
    fn in_sync(&self) -> u32 {
        let in_sync = |disk: &&Disk| matches!(disk.state, DiskState::InSync(_));
        self.disks.iter().filter(in_sync).count() as u32
    }

    /// The number of roles without a member in sync.
    pub(super) fn lost(&self) -> u32 {
        self.roles() - self.in_sync()
    }

    /// The number of roles that may be lost.
    pub(super) fn tolerated(&self) -> u32 {
        self.layout.level().parity_disks()
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.lost() > 0
    }

    pub(super) fn strength(&self) -> Strength {
        Strength { in_sync: self.in_sync(), disks: self.roles(), parity: self.tolerated() }
    }

    pub(super) fn faulty(&self) -> usize {
        self.disks.iter().filter(|disk| disk.is_faulty()).count()
    }

    /// The devices of each role, for contexts.
    pub(super) fn role_slots(&self) -> Vec<RoleSlot> {
        role_slots(&self.disks, self.roles())
    }

    /// Take in a device.
    pub(super) fn add(&mut self, disk: Disk) {
        self.disks.push(disk);
        self.mark_rebuild_changed();
    }

    /// Let go of a device.
    pub(super) fn remove(&mut self, position: usize) -> Disk {
        let disk = self.disks.remove(position);
        self.removed.push(disk.number());
        self.is_changed = true;
        disk
    }

    /// The lowest of these numbers that no device has, nor had since the start of the array. `None`
    /// if there is none.
    pub(super) fn free_number(&self, numbers: Range<u32>) -> Option<u32> {
        let is_free = |number: &u32| self.find(MemberNumber(*number)).is_none();
        let was_used = |number: &u32| self.removed.contains(&MemberNumber(*number));
        let new = numbers.clone().find(|number| is_free(number) && !was_used(number));
        new.or_else(|| numbers.clone().find(is_free))
    }

    /// Mark a device as failed. This is on record only after the superblocks were written.
    pub(super) fn fail(&mut self, position: usize, why: Failed) {
        let disk = &mut self.disks[position];
        let (before, member) = (disk.state, disk.name.clone());
        disk.state = DiskState::Faulty(before.role());
        if let DiskState::InSync(role) | DiskState::Rebuilding(role) = before {
            // Its replacement takes its role now.
            let mut others = self.disks.iter_mut();
            let next = others.find(|disk| disk.state == DiskState::Replacement(role));
            next.into_iter().for_each(|disk| disk.state = DiskState::Rebuilding(role));
        }
        self.mark_rebuild_changed();
        self.emit(ArrayEvent::MemberFailed { member, why, left: self.strength() });
    }

    fn mark_rebuild_changed(&mut self) {
        (self.is_changed, self.is_rebuild_changed) = (true, true);
    }

    /// Give a spare the task to replace the member of a role. False if there is no spare.
    pub(super) fn begin_replacement(&mut self, role: Role) -> bool {
        let Some(spare) = self.spare() else { return false };
        begin_rebuild(spare, DiskState::Replacement(role));
        self.mark_rebuild_changed();
        true
    }

    /// Give roles without a member to spares, as long as there are any.
    pub(super) fn assign_spares(&mut self) {
        for role in (0..self.roles()).map(Role) {
            let is_member = |disk: &Disk| disk.member_role() == Some(role);
            if self.disks.iter().any(is_member) {
                continue;
            }
            let Some(spare) = self.spare() else { return };
            begin_rebuild(spare, DiskState::Rebuilding(role));
            self.is_changed = true;
        }
    }

    fn spare(&mut self) -> Option<&mut Disk> {
        self.disks.iter_mut().find(|disk| disk.state == DiskState::Spare)
    }

    /// The devices that must be rebuilt.
    pub(super) fn rebuilt(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter().filter(|disk| disk.state.is_rebuilt())
    }

    /// Mark rebuilt members as in sync, and members whose replacement is rebuilt as failed.
    pub(super) fn promote_rebuilt(&mut self, rebuilt: &[MemberNumber]) {
        let replaced = |disk: &Disk| match disk.state {
            DiskState::Replacement(role) if rebuilt.contains(&disk.number()) => Some(role),
            _ => None,
        };
        let roles: Vec<Role> = self.disks.iter().filter_map(replaced).collect();
        let is_replaced =
            |disk: &&Disk| matches!(disk.state, DiskState::InSync(role) if roles.contains(&role));
        let gone: Vec<_> = self.disks.iter().filter(is_replaced).map(|d| d.name.clone()).collect();
        for disk in &mut self.disks {
            let is_meant = rebuilt.contains(&disk.number());
            disk.state = match disk.state {
                DiskState::InSync(role) if roles.contains(&role) => DiskState::Faulty(Some(role)),
                DiskState::Rebuilding(role) | DiskState::Replacement(role) if is_meant => {
                    disk.set_in_sync();
                    disk.by_bitmap = false;
                    DiskState::InSync(role)
                }
                state => state,
            };
        }
        self.is_changed = true;
        for member in gone {
            let (why, left) = (Failed::Replaced, self.strength());
            self.emit(ArrayEvent::MemberFailed { member, why, left });
        }
        debug_assert!(self.disks.iter().all(|disk| {
            !matches!(disk.state, DiskState::InSync(_))
                || disk.in_sync_below.load(Acquire) == IN_SYNC
        }));
    }

    pub(super) fn names_of(&self, numbers: &[MemberNumber]) -> Vec<Arc<str>> {
        let disks = self.disks.iter().filter(|disk| numbers.contains(&disk.number()));
        disks.map(|disk| disk.name.clone()).collect()
    }
}

/// Give a spare a role, and reset its state for that.
fn begin_rebuild(spare: &mut Disk, state: DiskState) {
    (spare.state, spare.wants_bitmap) = (state, true);
    spare.log_todo = LogTodo::All;
    spare.in_sync_below.store(0, Release);
}

/// The devices of each role.
pub(in crate::array) fn role_slots(disks: &[Disk], roles: u32) -> Vec<RoleSlot> {
    let mut slots: Vec<RoleSlot> = (0..roles).map(|_| RoleSlot::default()).collect();
    for disk in disks {
        match disk.state {
            DiskState::InSync(role) | DiskState::Rebuilding(role) => {
                slots[role.index()].member = Some(disk.member());
            }
            DiskState::Replacement(role) => {
                slots[role.index()].replacement = Some(disk.member());
            }
            DiskState::Spare | DiskState::Faulty(_) => {}
        }
    }
    slots
}

impl Index<usize> for Members {
    type Output = Disk;

    fn index(&self, position: usize) -> &Disk {
        &self.disks[position]
    }
}

impl IndexMut<usize> for Members {
    fn index_mut(&mut self, position: usize) -> &mut Disk {
        &mut self.disks[position]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::array::io::Io;
    use crate::array::tests::stand::Stand;
    use crate::layout::Level;
    use DiskState::*;
    use std::sync::mpsc::{Receiver, channel};

    /// The devices of a RAID-5 array with two members, numbered in order, and the events that the
    /// array emits.
    fn members(states: &[DiskState]) -> (Members, Receiver<ArrayEvent>) {
        let mut stand = Stand::new(states.len());
        stand.create(Level::Raid5, true);
        let (ctx, candidates, _) = stand.look();
        let mut io = Io::new(ctx);
        let mut disk = |(number, state): (usize, &DiskState)| {
            let Ok((_, superblock)) = &candidates[number].found else { panic!("a superblock") };
            let in_sync_below = if matches!(state, InSync(_)) { IN_SYNC } else { 0 };
            let device = stand.devices[number].clone();
            Disk::open(&mut io, &device, superblock, (*state, in_sync_below), None).unwrap()
        };
        let disks = states.iter().enumerate().map(&mut disk).collect();
        let (sender, told) = channel();
        let layout = Layout::new(Level::Raid5, 2, 2, 8).unwrap();
        let event_sink: EventSink = Arc::new(move |event| drop(sender.send(event)));
        (Members::new(disks, layout, event_sink, false), told)
    }

    fn states(members: &Members) -> Vec<DiskState> {
        members.iter().map(|disk| disk.state).collect()
    }

    #[test]
    fn a_replacement_takes_the_role_of_a_member_that_fails() {
        let (mut members, told) = members(&[InSync(Role(0)), InSync(Role(1)), Spare]);
        assert!(!members.is_changed() && !members.is_degraded());
        assert!(members.begin_replacement(Role(1)) && members.take_rebuild_change());
        assert!(!members.begin_replacement(Role(0)), "there is no other spare");
        assert_eq!(states(&members)[2], Replacement(Role(1)));
        members.fail(1, Failed::Asked);
        assert_eq!(states(&members)[1..], [Faulty(Some(Role(1))), Rebuilding(Role(1))]);
        assert!(members.is_changed() && members.take_rebuild_change());
        assert!(!members.take_rebuild_change());
        assert_eq!((members.lost(), members.faulty(), told.try_iter().count()), (1, 1, 1));
    }

    #[test]
    fn spares_get_the_roles_that_nobody_holds() {
        let (mut members, _) = members(&[InSync(Role(0)), Faulty(Some(Role(1))), Spare, Spare]);
        members.assign_spares();
        assert!(members.is_changed());
        assert_eq!(states(&members)[2..], [Rebuilding(Role(1)), Spare]);
        let rebuilt: Vec<_> = members.rebuilt().map(Disk::number).collect();
        members.promote_rebuilt(&rebuilt);
        assert_eq!(states(&members)[2..], [InSync(Role(1)), Spare]);
        assert!(!members.is_degraded());
        members.mark_recorded();
        members.assign_spares();
        assert!(!members.is_changed(), "all roles are held");
        members.fail(0, Failed::Gone);
        members.assign_spares();
        assert_eq!(states(&members)[3], Rebuilding(Role(0)));
        members.fail(2, Failed::Gone);
        members.mark_recorded();
        members.assign_spares();
        assert!(!members.is_changed(), "no spare is left");
    }

    #[test]
    fn a_member_that_was_replaced_is_not_used_any_more() {
        let (mut members, told) = members(&[InSync(Role(0)), InSync(Role(1)), Spare]);
        assert!(members.begin_replacement(Role(0)));
        let number = members[2].number();
        members.promote_rebuilt(&[number]);
        let now = [Faulty(Some(Role(0))), InSync(Role(1)), InSync(Role(0))];
        assert_eq!(states(&members), now);
        let told: Vec<_> = told.try_iter().collect();
        assert!(matches!(told[..], [ArrayEvent::MemberFailed { why: Failed::Replaced, .. }]));
    }

    #[test]
    fn numbers_are_used_again_last() {
        let (mut members, _) = members(&[InSync(Role(0)), InSync(Role(1)), Spare]);
        assert_eq!(members.free_number(2..5), Some(3));
        let removed = members.remove(2).number();
        assert_eq!((members.find(removed), members.free_number(2..5)), (None, Some(3)));
        assert_eq!(members.free_number(2..3), Some(2), "no other is left");
        assert_eq!(members.free_number(0..2), None);
    }
}
