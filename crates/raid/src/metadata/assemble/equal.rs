//! Combines the freshest superblock F with the superblocks that have equal events.
//!
//! None of these is newer than another, and the order of the devices must not decide. If one of
//! them says what F does not, the most cautious value is taken, or the array is refused, depending
//! on whether Linux can leave such a difference. Linux writes superblocks one after another, and
//! takes an event back when an array becomes clean. So a crash or a failing member at that moment
//! leaves superblocks with equal events that disagree on:
//! - the array being clean or dirty: the lowest `resync_offset` is taken;
//! - a device being failed or a member: it counts as failed.
//!
//! No crash leaves any other difference. The array is refused if geometry or number of members
//! differ ([`super::shape`]), if a device has two roles, or if only some members have partial
//! parity logs: nothing tells which superblock is right. A journal, a reshape, a cluster and the
//! error flag of a Synology NAS count if any superblock has them: they only keep the array from
//! being written or started. A bitmap counts too, and is then kept up to date.

use super::candidate::{Candidate, superblock};
use crate::metadata::superblock::{DevRole, Features, Superblock};

/// Features that forbid to write an array, or to start it.
const CAUTIONS: Features =
    Features::JOURNAL.union(Features::RESHAPE_ACTIVE).union(Features::CLUSTERED);

/// F with the most cautious values of the superblocks with equal events.
///
/// # Errors
/// Two superblocks contradict each other, and nothing tells which one is right. The message is one
/// sentence.
pub(super) fn agreed(candidates: &[Candidate], freshest: usize) -> Result<Superblock, String> {
    let (_, fresh) = superblock(&candidates[freshest]).ok_or("there is no superblock")?;
    let mut agreed = fresh.clone();
    for candidate in candidates {
        let Some((_, other)) = superblock(candidate).filter(|(_, own)| is_equal(fresh, own)) else {
            continue;
        };
        let names = (candidate.name.as_str(), candidates[freshest].name.as_str());
        check_roles(names, other, fresh)?;
        agreed.add_cautions(other);
        agreed.add_roles(other);
        if is_member(fresh, other) && is_member(other, other) {
            check_logs(names, other, fresh)?;
            agreed.resync_offset = agreed.resync_offset.min(other.resync_offset);
            agreed.add_bitmap(other);
        }
    }
    Ok(agreed)
}

/// True if another superblock of F's array has as many events and the same history: F does not call
/// its device failed, and it calls F's a member ([`super::Assembly::other_history`]).
fn is_equal(fresh: &Superblock, other: &Superblock) -> bool {
    (other.set_uuid, other.events) == (fresh.set_uuid, fresh.events)
        && other.dev_number != fresh.dev_number
        && fresh.role_of(other.dev_number) != DevRole::Faulty
        && is_member(other, fresh)
}

/// True if a table of roles calls another superblock's device a member.
fn is_member(table: &Superblock, of: &Superblock) -> bool {
    matches!(table.role_of(of.dev_number), DevRole::Active(_))
}

/// Checks that all tables give a device the same role. The superblock of a spare may lack its new
/// role; [`super::Assembly::take_member`] handles that.
fn check_roles(
    (name, freshest): (&str, &str),
    other: &Superblock,
    fresh: &Superblock,
) -> Result<(), String> {
    let is_role = |role| matches!(role, DevRole::Active(_) | DevRole::Journal);
    let numbers = 0..fresh.roles.len().min(other.roles.len()) as u32;
    let mut pairs = numbers.map(|number| (number, other.role_of(number), fresh.role_of(number)));
    match pairs.find(|(_, one, another)| is_role(*one) && is_role(*another) && one != another) {
        None => Ok(()),
        Some((number, one, another)) => Err(format!(
            "{name} says that device {number} of the array {}, but {freshest} says that it {}, and \
             neither is older: leave out the one that is wrong",
            role_words(one),
            role_words(another)
        )),
    }
}

fn role_words(role: DevRole) -> String {
    match role {
        DevRole::Active(role) => format!("has role {role}"),
        DevRole::Journal => "is the journal".to_owned(),
        DevRole::Spare => "is a spare".to_owned(),
        DevRole::Faulty => "has failed".to_owned(),
    }
}

/// Checks that both superblocks have a partial parity log, or none. If only some members have one,
/// writes to the others are not logged.
fn check_logs(
    (name, freshest): (&str, &str),
    other: &Superblock,
    fresh: &Superblock,
) -> Result<(), String> {
    let words = |own: &Superblock| match own.ppl() {
        Some(_) => "has partial parity logs",
        None => "has no partial parity logs",
    };
    match other.ppl().is_some() == fresh.ppl().is_some() {
        true => Ok(()),
        false => Err(format!(
            "{name} says that the array {}, but {freshest} says that it {}, and neither is older: \
             leave out the one that is wrong",
            words(other),
            words(fresh)
        )),
    }
}

impl Superblock {
    fn add_cautions(&mut self, other: &Superblock) {
        let is_reshaped = |own: &Superblock| own.feature_map.contains(Features::RESHAPE_ACTIVE);
        if is_reshaped(other) {
            let position = other.reshape_position;
            let before = is_reshaped(self).then_some(self.reshape_position);
            self.reshape_position = before.map_or(position, |before| before.min(position));
        }
        self.feature_map |= other.feature_map & CAUTIONS;
    }

    /// Takes over devices that the other table calls failed or flagged.
    fn add_roles(&mut self, other: &Superblock) {
        for (number, role) in self.roles.iter_mut().enumerate() {
            let of_other = other.role_of(number as u32);
            let is_flagged = other.has_error_flag(number as u32)
                && DevRole::from_number(*role) == Some(of_other);
            if of_other == DevRole::Faulty {
                *role = DevRole::Faulty.number();
            } else if is_flagged {
                *role = other.roles[number];
            }
        }
    }

    fn add_bitmap(&mut self, other: &Superblock) {
        if self.bitmap_offset().is_none() && other.bitmap_offset().is_some() {
            self.feature_map |= Features::BITMAP_OFFSET;
            self.bitmap_or_ppl = other.bitmap_or_ppl;
        }
    }
}
