//! An array as its devices describe it: the state of each device, and what may be done with the
//! array.
//!
//! Invariants:
//! * `members` and `replacements` have an entry for each role of the layout.
//! * A device takes part in at most one way: as a member, a replacement, a spare or the journal. A
//!   device that takes no part is in `left_out`, with the reason.

use std::collections::BTreeSet;
use std::fmt;

use super::candidate::{Candidate, superblock};
use crate::layout::Layout;
use crate::metadata::superblock::{DevRole, Features, Minor, Superblock, flagged_role};

/// The state of a role's member. `device` is an index of the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// All of its data can be used.
    InSync {
        /// The device.
        device: usize,
    },
    /// Its data can be used below a member sector; writes go to all of it.
    Rebuilding {
        /// The device.
        device: usize,
        /// Member sectors below this are rebuilt.
        recovered: u64,
        /// Only the chunks that the bitmap marks have to be rebuilt.
        by_bitmap: bool,
    },
    /// The device is present, but its data is too old to be used.
    Stale {
        /// The device.
        device: usize,
        /// The bitmap marks everything that it has missed, so it can be added again without a full
        /// rebuild.
        by_bitmap: bool,
    },
    /// The device is present, but has failed.
    Faulty {
        /// The device.
        device: usize,
    },
    /// The device is present, but its metadata beside the superblock is damaged.
    Damaged {
        /// The device.
        device: usize,
    },
    /// No device has the role.
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

    /// True if all of its data can be used.
    pub fn is_in_sync(&self) -> bool {
        matches!(self, Member::InSync { .. })
    }
}

/// A device that will replace a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The device.
    pub device: usize,
    /// Member sectors below this are copied.
    pub recovered: u64,
}

/// How the bitmap can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitmapUse {
    /// The array has no bitmap.
    None,
    /// Its bits mark where parity may be wrong.
    Good,
    /// It is older than the array: all bits count as set.
    Stale,
    /// The superblocks say that there is a bitmap, but none can be read; the reason.
    Bad(String),
    /// It is of a kind that this program does not support; the reason. The array must not be
    /// written.
    Unknown(String),
}

/// Whether an array may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// All members are in sync.
    Whole,
    /// Members are missing, but no data is lost.
    Degraded {
        /// Members are missing that were never marked as failed, so they may still appear. The
        /// array should start only if the user insists. One sentence.
        unexpected: Option<String>,
    },
    /// The array may start only if the user accepts the loss that this sentence names.
    Force(String),
    /// The array must not start; the reason, one sentence.
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

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// The freshest superblock: name, identity, events, sizes. It includes the most cautious values
    /// of superblocks with equal events.
    pub fresh: Superblock,
    /// Where superblocks lie.
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
    /// Roles whose former device is left out because another device has replaced it, each with that
    /// former device.
    pub(super) replaced: Vec<(usize, usize)>,
    /// Devices whose own superblock sets the flag of [`Superblock::has_error_flag`] on themselves,
    /// each with its number.
    pub(super) self_flagged: Vec<(usize, u32)>,
    /// The member sector from which on parity may be wrong; `None` if it is right everywhere.
    pub resync_from: Option<u64>,
    /// The use of the bitmap.
    pub bitmap: BitmapUse,
    /// True if members have partial parity logs.
    pub has_ppl: bool,
    /// Members in sync whose log is damaged, so that the writes in flight are not known: one
    /// sentence each.
    pub logs_lost: Vec<String>,
    /// The reason why the array may be read but must not be written, if there is one.
    pub read_only: Option<String>,
    /// Whether it may start.
    pub start: Start,
}

impl Assembly {
    /// Sectors used on each member.
    pub fn used(&self) -> u64 {
        self.fresh.used()
    }

    /// True if a left-out device was replaced by one that is not among the candidates. With that
    /// device the array may be complete.
    pub fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// True if the freshest superblock has a member with that role.
    pub(super) fn is_expected(&self, role: usize) -> bool {
        let mut numbers = 0..self.fresh.roles.len() as u32;
        numbers.any(|number| self.fresh.role_of(number) == DevRole::Active(role as u16))
    }

    /// True if the role is vacant and there is a spare, onto which the member is rebuilt once the
    /// array is written.
    pub fn is_left_to_spare(&self, role: usize) -> bool {
        let is_vacant = self.members[role] == Member::Missing && !self.is_expected(role);
        is_vacant && !self.spares.is_empty()
    }

    /// The number of roles whose member is not in sync.
    pub fn lost(&self) -> u32 {
        self.members.iter().filter(|member| !member.is_in_sync()).count() as u32
    }

    /// Text about the members that take part although they have the flag of
    /// [`Superblock::has_error_flag`]; empty if there are none.
    pub(super) fn flagged(&self) -> String {
        let by_fresh = 0..self.fresh.roles.len() as u32;
        let by_fresh = by_fresh.filter(|number| self.fresh.has_error_flag(*number));
        // The device with the flag may be the only one whose superblock has it.
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

    /// Advice about devices of another history, if there are any: without the device of the
    /// freshest superblock, these can be used together.
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

    /// The reason why a device is of another history than the freshest superblock, if it is.
    pub(super) fn other_history(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        let fresh = &self.fresh;
        // The freshest member may still be rebuilt, and may be the first whose superblock has its
        // role.
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

    /// Finds damaged logs of members in sync. The log of a member that is not in sync protects only
    /// parity that is computed anyway.
    pub(super) fn find_lost_logs(&mut self, candidates: &[Candidate]) {
        let in_sync = self.members.iter().filter(|member| member.is_in_sync());
        let lost = in_sync.filter_map(|member| {
            let Candidate { name, log_damage, .. } = &candidates[member.device()?];
            Some(format!("{name}: {}", log_damage.as_ref()?))
        });
        self.logs_lost = lost.filter(|_| self.has_ppl).collect();
    }
}
