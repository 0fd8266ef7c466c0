//! An array as its devices tell it: what each of them is in it, and what may be done with it.
//!
//! Invariants:
//! * `members` and `replacements` have an entry for each role of the layout.
//! * A device takes part in one way at the most: as a member, a replacement, a spare or the
//!   journal. One that takes no part is in `left_out`, with the reason.

use std::collections::BTreeSet;
use std::fmt;

use super::candidate::{Candidate, superblock};
use crate::layout::Layout;
use crate::metadata::superblock::{DevRole, Features, Minor, Superblock, flagged_role};

/// The state of a role's member. Numbers of devices are indices of the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// Its data is whole.
    InSync {
        /// The device.
        device: usize,
    },
    /// Its data is whole below a member sector; writes go to all of it.
    Rebuilding {
        /// The device.
        device: usize,
        /// Member sectors below are rebuilt.
        recovered: u64,
        /// Only what the bitmap marks has to be rebuilt.
        by_bitmap: bool,
    },
    /// It is there and too old to be used.
    Stale {
        /// The device.
        device: usize,
        /// The bitmap marks all that it has missed, so it can be added again without rebuilding
        /// all.
        by_bitmap: bool,
    },
    /// It is there and has failed.
    Faulty {
        /// The device.
        device: usize,
    },
    /// It is there, and what it keeps beside its superblock is damaged.
    Damaged {
        /// The device.
        device: usize,
    },
    /// It is not there.
    Missing,
}

impl Member {
    /// Its device, if that takes part in the array.
    pub fn device(&self) -> Option<usize> {
        match self {
            Member::InSync { device } | Member::Rebuilding { device, .. } => Some(*device),
            _ => None,
        }
    }

    /// True if its data is whole.
    pub fn is_in_sync(&self) -> bool {
        matches!(self, Member::InSync { .. })
    }
}

/// A device that will take a member's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The device.
    pub device: usize,
    /// Member sectors below have been copied.
    pub recovered: u64,
}

/// The use of the bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitmapUse {
    /// There is none.
    None,
    /// Its bits tell where parity may be wrong.
    Good,
    /// It is older than the array: all bits count as set.
    Stale,
    /// There should be one, and there is none that can be read; why.
    Bad(String),
    /// It is of a kind that is not kept here; why. The array must not be written.
    Unknown(String),
}

/// Whether an array may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// Whole.
    Whole,
    /// It lacks members, and has lost nothing.
    Degraded {
        /// Members are missing that were never marked as failed, so they may still appear: it
        /// should start only if the user says so. One sentence.
        unexpected: Option<String>,
    },
    /// Only if what the sentence names may be lost.
    Force(String),
    /// Not at all; one sentence.
    No(String),
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Start::Whole => f.write_str("it can start"),
            Start::Degraded { unexpected: None } => f.write_str("it can start degraded"),
            Start::Degraded { unexpected: Some(text) } | Start::Force(text) | Start::No(text) => {
                f.write_str(text)
            }
        }
    }
}

/// An array as its devices tell it.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// The freshest superblock: name, identity, events, sizes; with the worst that others of as
    /// many events say.
    pub fresh: Superblock,
    /// Where superblocks stand.
    pub minor: Minor,
    /// The geometry.
    pub layout: Layout,
    /// By role.
    pub members: Vec<Member>,
    /// By role.
    pub replacements: Vec<Option<Replacement>>,
    /// Devices that wait for a member to fail.
    pub spares: Vec<usize>,
    /// The journal.
    pub journal: Option<usize>,
    /// Devices that take no part, each with the reason, one sentence.
    pub left_out: Vec<(usize, String)>,
    /// Roles whose members are not there, with the device that had the role before them.
    pub(super) replaced: Vec<(usize, usize)>,
    /// Devices whose own superblock has the flag of [`Superblock::has_error_flag`] on them, each
    /// with its number.
    pub(super) self_flagged: Vec<(usize, u32)>,
    /// `None`: parity is right everywhere; else the member sector from which on it may not be.
    pub resync_from: Option<u64>,
    /// The use of the bitmap.
    pub bitmap: BitmapUse,
    /// True if members have partial parity logs.
    pub has_ppl: bool,
    /// Of which members in sync the log does not tell what was being written, one sentence each.
    pub logs_lost: Vec<String>,
    /// Why the array must not be written, if so; reading is safe.
    pub read_only: Option<String>,
    /// Whether it may start.
    pub start: Start,
}

impl Assembly {
    /// Sectors used on each member.
    pub fn used(&self) -> u64 {
        self.fresh.used()
    }

    /// A device that takes no part was replaced by one that is not among the candidates. With that
    /// one the array may be whole.
    pub fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// Whether the freshest superblock counts on a member of that role.
    pub(super) fn is_expected(&self, role: usize) -> bool {
        let mut numbers = 0..self.fresh.roles.len() as u32;
        numbers.any(|number| self.fresh.role_of(number) == DevRole::Active(role as u16))
    }

    /// Whether the role is vacant and a spare is there, on which the member is rebuilt once the
    /// array is written.
    pub fn is_left_to_spare(&self, role: usize) -> bool {
        let is_vacant = self.members[role] == Member::Missing && !self.is_expected(role);
        is_vacant && !self.spares.is_empty()
    }

    /// Roles whose data is not whole.
    pub fn lost(&self) -> u32 {
        self.members.iter().filter(|member| !member.is_in_sync()).count() as u32
    }

    /// The members that take part though they have the flag of [`Superblock::has_error_flag`], in
    /// words; empty if there are none.
    pub(super) fn flagged(&self) -> String {
        let by_fresh = 0..self.fresh.roles.len() as u32;
        let by_fresh = by_fresh.filter(|number| self.fresh.has_error_flag(*number));
        // The one that has it may be the only one that was told of it.
        let is_used = |device: &usize| self.members.iter().any(|m| m.device() == Some(*device));
        let by_own = self.self_flagged.iter().filter(|(device, _)| is_used(device));
        let numbers: BTreeSet<u32> = by_fresh.chain(by_own.map(|(_, number)| *number)).collect();
        let words = numbers.into_iter().filter_map(|number| {
            let DevRole::Active(role) = self.fresh.role_of(number) else { return None };
            self.members.get(usize::from(role))?.device()?;
            Some(format!("member {role} has the error flag (role {:#06x})", flagged_role(role)))
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// The advice about devices of another history, if there are any: they can be used together if
    /// the device that this one goes by is left out.
    pub(super) fn other_histories(&self, candidates: &[Candidate]) -> String {
        let found = || candidates.iter().filter_map(|c| Some((c, superblock(c)?.1)));
        let others: Vec<_> = found().filter_map(|(c, own)| self.other_history(c, own)).collect();
        let fresh = found().find(|(_, own)| {
            (own.dev_number, own.events) == (self.fresh.dev_number, self.fresh.events)
        });
        match (&others[..], fresh) {
            ([], _) | (_, None) => String::new(),
            (others, Some((fresh, _))) => {
                let (others, name) = (others.join("; "), &fresh.name);
                format!("; {others}: leave out {name} to use what the others hold")
            }
        }
    }

    /// Why a device is of another history than the freshest superblock, if so.
    pub(super) fn other_history(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        let fresh = &self.fresh;
        // A member that is rebuilt may be the first that was told of its role.
        let fresh_in_sync = matches!(fresh.role(), DevRole::Active(_))
            && !fresh.feature_map.contains(Features::RECOVERY_OFFSET);
        let knows = matches!(own.role_of(fresh.dev_number), DevRole::Active(_));
        (fresh_in_sync && !knows && own.role() != DevRole::Spare).then(|| {
            format!(
                "{} is of another history: it says that device {} has failed, which is in use",
                candidate.name, fresh.dev_number
            )
        })
    }

    /// A member that is not in sync is computed, so its own parity is of no use where it counts.
    pub(super) fn find_lost_logs(&mut self, candidates: &[Candidate]) {
        let in_sync = self.members.iter().filter(|member| member.is_in_sync());
        let lost = in_sync.filter_map(|member| {
            let Candidate { name, log_damage, .. } = &candidates[member.device()?];
            Some(format!("{name}: {}", log_damage.as_ref()?))
        });
        self.logs_lost = lost.filter(|_| self.has_ppl).collect();
    }
}
