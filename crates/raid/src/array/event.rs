//! Events of an array for its operator: a member that fails, a synchronisation that begins or ends.

use super::status::action_name;
use crate::engine::SyncAction;
use drystone_core::SECTOR_SIZE;
use std::fmt;
use std::sync::Arc;

/// Why a device of an array is not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// A user asked for it (`drystone md fail`).
    Asked,
    /// A replacement has taken its place.
    Replaced,
    /// The device is gone: it executes no I/O any more, or its file was cut short.
    Gone,
    /// It failed a write at this byte, and its bad block list cannot take the block.
    Write(u64),
    /// Its data at this byte can neither be read nor computed, and its bad block list cannot take
    /// the block.
    Read(u64),
    /// It failed a flush.
    Flush,
    /// It failed a write of its partial parity log.
    Log,
    /// It failed a write of its superblock or its bad block list.
    Superblock,
    /// It failed a write of the write-intent bitmap.
    Bitmap,
}

/// The reason as the end of a sentence.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Asked => f.write_str("was marked as failed by a command"),
            Failed::Replaced => {
                f.write_str("is used no longer: its replacement has all that it held")
            }
            Failed::Gone => f.write_str("the device has gone, or its file was cut short"),
            Failed::Write(byte) => write!(f, "a write at byte {byte} of it failed"),
            Failed::Read(byte) => {
                write!(f, "byte {byte} of it can neither be read nor computed from the others")
            }
            Failed::Flush => f.write_str("a flush of it failed"),
            Failed::Log => f.write_str("its partial parity log could not be written"),
            Failed::Superblock => f.write_str("its superblock could not be written"),
            Failed::Bitmap => f.write_str("its write-intent bitmap could not be written"),
        }
    }
}

/// How many members of an array are in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strength {
    /// Members in sync.
    pub in_sync: u32,
    /// All members of the array.
    pub disks: u32,
    /// The number of members that may be lost.
    pub parity: u32,
}

/// "3 of 4 members are in sync, and no more may fail".
impl fmt::Display for Strength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Strength { in_sync, disks, parity } = *self;
        write!(f, "{in_sync} of {disks} members are in sync, ")?;
        match (in_sync + parity).checked_sub(disks) {
            None => write!(f, "{} are needed: the array is broken", disks - parity),
            Some(0) => f.write_str("and no more may fail"),
            Some(spare) => write!(f, "and {spare} more may fail"),
        }
    }
}

/// Something that happened to an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArrayEvent {
    /// The array was started without some members, or with members that must be rebuilt.
    Degraded(Strength),
    /// A device is not used any more.
    MemberFailed {
        /// Its name.
        member: Arc<str>,
        /// Why.
        why: Failed,
        /// The members that are left.
        left: Strength,
    },
    /// Blocks of 4 KiB of a member were put on its bad block list.
    BadBlocks {
        /// Its name.
        member: Arc<str>,
        /// The first byte of the first block.
        byte: u64,
        /// True if a write to the block failed; false if it can neither be read nor computed.
        is_write: bool,
        /// The number of further blocks since.
        more: u64,
    },
    /// A member has no room: writes wait until it has.
    NoRoom(Arc<str>),
    /// A synchronisation begins.
    SyncBegan {
        /// The kind.
        action: SyncAction,
        /// Devices that are rebuilt.
        members: Vec<Arc<str>>,
        /// Where it begins, in percent.
        percent: u8,
    },
    /// A synchronisation has ended.
    SyncEnded {
        /// The kind.
        action: SyncAction,
        /// Devices that were rebuilt.
        members: Vec<Arc<str>>,
        /// Its progress in percent; `None` if it reached the end.
        stopped_at: Option<u8>,
        /// Sectors whose parity did not fit.
        mismatches: u64,
        /// Members in sync now.
        left: Strength,
    },
}

impl ArrayEvent {
    /// The member, if this is an event that a member may repeat often.
    pub fn repeats(&self) -> Option<&Arc<str>> {
        match self {
            ArrayEvent::BadBlocks { member, .. } => Some(member),
            _ => None,
        }
    }

    /// Merge the count of `other` into this event. False if `other` does not repeat this event.
    pub fn absorb(&mut self, other: &ArrayEvent) -> bool {
        match (self, other) {
            (
                ArrayEvent::BadBlocks { member, is_write, more, .. },
                ArrayEvent::BadBlocks { member: same, is_write: also, more: others, .. },
            ) if member == same && is_write == also => {
                *more += 1 + others;
                true
            }
            _ => false,
        }
    }
}

fn names(members: &[Arc<str>]) -> String {
    let names: Vec<String> = members.iter().map(|name| format!("`{name}`")).collect();
    names.join(" and ")
}

/// A synchronisation as the subject of a sentence.
fn subject(action: SyncAction, members: &[Arc<str>]) -> String {
    match action {
        SyncAction::Recover => format!("the rebuild of {}", names(members)),
        action => format!("the {}", action_name(action)),
    }
}

/// A sentence without its full stop.
impl fmt::Display for ArrayEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayEvent::Degraded(left) => write!(f, "it starts degraded: {left}"),
            ArrayEvent::MemberFailed {
                member,
                why: why @ (Failed::Asked | Failed::Replaced),
                left,
            } => {
                write!(f, "`{member}` {why}; {left}")
            }
            ArrayEvent::MemberFailed { member, why, left } => {
                write!(f, "`{member}` has failed, because {why}; {left}")
            }
            ArrayEvent::BadBlocks { member, byte, is_write, more } => {
                let why =
                    if *is_write { "be written" } else { "be read, nor computed from others" };
                write!(
                    f,
                    "the block at byte {byte} of `{member}` cannot {why}, and is on its bad block \
                     list"
                )?;
                if *more > 0 {
                    write!(f, " (and {more} more)")?;
                }
                Ok(())
            }
            ArrayEvent::NoRoom(member) => {
                write!(f, "`{member}` has no room: writes wait until it has")
            }
            ArrayEvent::SyncBegan { action, members, percent } => {
                write!(f, "{} begins at {percent} %", subject(*action, members))?;
                if *action == SyncAction::Resync {
                    f.write_str(
                        ", because the array was not stopped cleanly, was new, or had \
                        members forced in",
                    )?;
                }
                Ok(())
            }
            ArrayEvent::SyncEnded { action, members, stopped_at, mismatches, left } => {
                let subject = subject(*action, members);
                if let Some(percent) = stopped_at {
                    return write!(f, "{subject} stops at {percent} %");
                }
                match (action, mismatches) {
                    (SyncAction::Recover, _) => write!(f, "{subject} has ended; {left}"),
                    (SyncAction::Resync, _) => write!(f, "{subject} has ended"),
                    (_, 0) => write!(f, "{subject} has ended; it found no mismatch"),
                    (SyncAction::Repair, n) => {
                        write!(f, "{subject} has ended; it corrected {n} sectors of parity")
                    }
                    (_, n) => write!(
                        f,
                        "{subject} has ended; {n} sectors of parity do not match the data"
                    ),
                }
            }
        }
    }
}

/// Bytes of a device before its sector `sector`.
pub(super) fn byte_of(sector: u64) -> u64 {
    sector.saturating_mul(SECTOR_SIZE)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said() {
        let text = |in_sync, parity| Strength { in_sync, disks: 6, parity }.to_string();
        assert_eq!(text(6, 2), "6 of 6 members are in sync, and 2 more may fail");
        assert_eq!(text(4, 2), "4 of 6 members are in sync, and no more may fail");
        assert_eq!(text(3, 2), "3 of 6 members are in sync, 4 are needed: the array is broken");
    }

    #[test]
    fn bad_blocks_of_one_member_are_counted_together() {
        let event = |member: &str, byte, is_write| ArrayEvent::BadBlocks {
            member: member.into(),
            byte,
            is_write,
            more: 0,
        };
        let mut first = event("m0", 4096, true);
        assert!(first.absorb(&event("m0", 8192, true)) && first.absorb(&event("m0", 0, true)));
        assert!(!first.absorb(&event("m1", 8192, true)) && !first.absorb(&event("m0", 0, false)));
        assert_eq!(
            first.to_string(),
            "the block at byte 4096 of `m0` cannot be written, and is on its bad block list (and 2 \
             more)"
        );
    }
}
