//! The losses that an array can bear: its shape, and whether parity makes up for a fault.
//!
//! A role is *safe* if a disk without a known fault holds it and remains its member. A replacement
//! takes the member's place as soon as it is rebuilt, and only then do errors of its reads show. So
//! a role with a hurt replacement counts as lost.

use drystone_raid::SyncAction;
use drystone_raid::array::{ArrayStatus, DiskState};

/// The shape of a target that is an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redundancy {
    /// Members that may be lost.
    pub parity: u64,
    /// Members that hold data in each row.
    pub data: u64,
    /// Sectors of a chunk.
    pub chunk: u64,
    /// True if a partial parity log limits the write hole: a power cut may spoil only blocks that
    /// were being written to a missing member.
    pub logged: bool,
}

/// True if parity fits everywhere: no synchronisation runs or is pending.
pub(super) fn parity_fits(status: &ArrayStatus) -> bool {
    !status.resync_pending && status.sync.is_none_or(|sync| sync.action != SyncAction::Resync)
}

/// The condition of a disk, by which faults are judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskCondition {
    /// Its state in the array; `None` if the array does not have it.
    pub(super) state: Option<DiskState>,
    /// True if no fault of it is known.
    pub(super) is_good: bool,
}

/// The number of roles that stay readable whatever the disks that are not good do.
pub(super) fn safe_roles(disks: &[DiskCondition]) -> u64 {
    let is_safe = |disk: &&DiskCondition| {
        let Some(DiskState::InSync(role)) = disk.state else { return false };
        let replacement = Some(DiskState::Replacement(role));
        disk.is_good && disks.iter().all(|other| other.state != replacement || other.is_good)
    };
    disks.iter().filter(is_safe).count() as u64
}

/// True if a spare is hurt, which the manager may choose to take a member's place.
pub(super) fn has_hurt_spare(disks: &[DiskCondition]) -> bool {
    disks.iter().any(|disk| disk.state == Some(DiskState::Spare) && !disk.is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DiskState::{Faulty, InSync, Rebuilding, Replacement, Spare};
    use drystone_raid::Role;

    fn disks<const N: usize>(all: [(DiskState, bool); N]) -> [DiskCondition; N] {
        all.map(|(state, is_good)| DiskCondition { state: Some(state), is_good })
    }

    #[test]
    fn only_members_without_a_fault_are_safe() {
        let all =
            disks([(InSync(Role(0)), true), (InSync(Role(1)), false), (Rebuilding(Role(2)), true)]);
        assert_eq!(safe_roles(&all), 1);
        assert_eq!(safe_roles(&disks([(Faulty(Some(Role(0))), true), (Spare, true)])), 0);
        assert_eq!(safe_roles(&[DiskCondition { state: None, is_good: true }]), 0);
    }

    /// Seed 500139 of `raid`: a spare with read errors took a member's place after another member
    /// had failed.
    #[test]
    fn a_role_with_a_hurt_replacement_is_not_safe() {
        let with = |is_good| {
            let members =
                [(InSync(Role(0)), true), (InSync(Role(1)), true), (InSync(Role(2)), true)];
            safe_roles(&disks([
                members[0],
                members[1],
                members[2],
                (Replacement(Role(2)), is_good),
            ]))
        };
        assert_eq!((with(true), with(false)), (3, 2));
    }

    #[test]
    fn a_hurt_spare_is_told() {
        let with = |is_good| has_hurt_spare(&disks([(InSync(Role(0)), false), (Spare, is_good)]));
        assert_eq!((with(true), with(false)), (false, true));
    }
}
