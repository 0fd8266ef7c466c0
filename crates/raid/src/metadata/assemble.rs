//! The array that a set of devices forms, and whether it may start (`drivers/md/md.c`
//! `analyze_sbs`, `super_1_validate`; `raid5.c` `raid5_run`; mdadm `Assemble.c`).
//!
//! The freshest superblock F, the one with the most events, decides the state of each device:
//! 1. A member is fresh if its events are those of F or one less. An array that stops being written
//!    takes one event back, so one event less does not mean that the member is old.
//! 2. A member's role is the one in F's table, never the one in its own. A member that failed in
//!    F's last update is one event behind; its own table still calls it good, but its data is old.
//! 3. A member with another geometry and fewer events is from before the array was changed. It is
//!    left out.
//! 4. A member whose table calls F's device failed has seen another history. It is left out. Of
//!    several histories with equal events, the one written last counts, then the one that more
//!    members share.
//! 5. The order of the devices must not matter. So superblocks with as many events as F are
//!    combined with it (`equal.rs`).

mod assembly;
mod candidate;
mod equal;
mod start;

use drystone_core::mistake;
use std::cmp::Reverse;

use super::MetadataError;
use super::Uuid;
use super::bitmap::{self, BitmapHeader};
use super::places::Places;
use super::superblock::{DevRole, Features, Minor, Superblock, level_name, seconds};
use crate::layout::layout_name;
pub use assembly::{Assembly, BitmapUse, Member, Replacement, Start};
pub use candidate::Candidate;
use candidate::{events, superblock};

/// The array that these devices form; if they form several, the one with this `uuid`.
///
/// # Errors
/// There is no array; the devices are of different arrays or contradict one another; the geometry
/// is not one of RAID-4, 5 or 6. The message is one sentence.
pub fn assemble(candidates: &[Candidate], uuid: Option<Uuid>) -> Result<Assembly, String> {
    let freshest = freshest(candidates, uuid)?;
    let (minor, found) = superblock(&candidates[freshest]).ok_or("there is no superblock")?;
    same_array(candidates, freshest, found)?;
    let fresh = equal::agreed(candidates, freshest)?;
    let layout = fresh.geometry().map_err(|error| {
        format!("the array of {} cannot be used: {error}", candidates[freshest].name)
    })?;
    let disks = layout.disks() as usize;
    let mut assembly = Assembly {
        minor,
        layout,
        members: vec![Member::Missing; disks],
        replacements: vec![None; disks],
        spares: Vec::new(),
        journal: None,
        left_out: Vec::new(),
        replaced: Vec::new(),
        self_flagged: self_flagged(candidates),
        resync_from: (!fresh.is_clean()).then_some(fresh.resync_offset.min(fresh.used())),
        bitmap: BitmapUse::None,
        has_ppl: fresh.ppl().is_some(),
        fresh,
        logs_lost: Vec::new(),
        read_only: None,
        start: Start::Whole,
    };
    // The freshest comes first, so that the older of two devices with one number is left out.
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|device| {
        let candidate = &candidates[*device];
        (events(candidate), *device == freshest, Reverse(number(candidate)))
    });
    for device in order.into_iter().rev() {
        assembly.take(candidates, device)?;
    }
    assembly.left_out.sort();
    assembly.use_replacements();
    assembly.find_replaced(candidates);
    assembly.bitmap = assembly.bitmap_use(candidates);
    assembly.mark_partial(candidates);
    assembly.find_lost_logs(candidates);
    assembly.read_only = start::read_only(&assembly);
    assembly.start = start::decide(&assembly, candidates);
    Ok(assembly)
}

/// The reason to leave a device out if a fresher device has its number.
fn number_given_again(candidates: &[Candidate], device: usize, own: &Superblock) -> Option<String> {
    let is_later = |(_, found): (Minor, &Superblock)| {
        (found.set_uuid, found.dev_number) == (own.set_uuid, own.dev_number)
            && found.events > own.events
    };
    let later = candidates.iter().find(|other| superblock(other).is_some_and(is_later))?;
    Some(format!(
        "{} was device {} of the array before {}: it was removed, or is an old copy",
        candidates[device].name, own.dev_number, later.name
    ))
}

fn both(candidates: &[Candidate], devices: (usize, usize), role: u16) -> String {
    let (name, other) = (&candidates[devices.0].name, &candidates[devices.1].name);
    format!("{name} and {other} both have role {role} of the array: leave out one of them")
}

fn self_flagged(candidates: &[Candidate]) -> Vec<(usize, u32)> {
    let owns = candidates.iter().enumerate();
    let owns = owns.filter_map(|(device, found)| Some((device, superblock(found)?.1)));
    let flagged = owns.filter(|(_, own)| own.has_error_flag(own.dev_number));
    flagged.map(|(device, own)| (device, own.dev_number)).collect()
}

fn number(candidate: &Candidate) -> Option<u32> {
    superblock(candidate).map(|(_, found)| found.dev_number)
}

/// The number of devices that a superblock calls members and that call its device a member.
fn agreeing(candidates: &[Candidate], own: &Superblock) -> usize {
    let is_member = |of: &Superblock, number| matches!(of.role_of(number), DevRole::Active(_));
    let agrees = |other: &&Superblock| {
        other.set_uuid == own.set_uuid
            && is_member(own, other.dev_number)
            && other.size == own.size
            && is_member(other, own.dev_number)
    };
    let all = candidates.iter().filter_map(|candidate| superblock(candidate).map(|(_, own)| own));
    all.filter(agrees).count()
}

/// The candidate with the most events, members before spares. Of equals: the one written last, then
/// the one on which more devices agree, then one with a valid geometry, then the one with the
/// lowest number.
fn freshest(candidates: &[Candidate], uuid: Option<Uuid>) -> Result<usize, String> {
    let rank = |candidate: &Candidate| {
        let (_, found) = superblock(candidate)?;
        let member = matches!(found.role(), DevRole::Active(_));
        let last = (seconds(found.utime), agreeing(candidates, found));
        let last = (last, found.geometry().is_ok(), Reverse(found.dev_number));
        uuid.is_none_or(|uuid| uuid == found.set_uuid).then_some((member, found.events, last))
    };
    let ranked = candidates.iter().enumerate().filter_map(|(i, c)| Some((rank(c)?, i)));
    // Of identical copies the first one is taken.
    let best = ranked.max_by_key(|(rank, i)| (*rank, usize::MAX - i));
    best.map(|(_, index)| index).ok_or_else(|| match (candidates.first(), uuid) {
        (_, Some(uuid)) => format!("no device is of the array {uuid}"),
        (Some(first), _) => match &first.found {
            Err(error) => format!("no device is of an array; {}: {error}", first.name),
            Ok(_) => "no device is of an array".to_owned(),
        },
        (None, _) => "no devices are named".to_owned(),
    })
}

/// Level, layout, chunk size and number of members: the map from array sectors to members.
fn shape(own: &Superblock) -> (i32, u32, u32, u32) {
    (own.level, own.layout, own.chunk_sectors, own.raid_disks)
}

/// The shape as text for people.
fn shape_words(own: &Superblock) -> String {
    let layout = match layout_name(own.layout) {
        Some(name) => name.to_owned(),
        None => format!("layout {}", own.layout),
    };
    format!(
        "{} {layout} of {} members with chunks of {} KiB",
        level_name(own.level),
        own.raid_disks,
        own.chunk_sectors / 2
    )
}

/// Check that all superblocks are of the array of `fresh`, and that none contradicts it.
fn same_array(candidates: &[Candidate], freshest: usize, fresh: &Superblock) -> Result<(), String> {
    for candidate in candidates {
        let Some((_, found)) = superblock(candidate) else { continue };
        let other = &candidates[freshest].name;
        if found.set_uuid != fresh.set_uuid {
            return Err(format!(
                "{} is of the array {}, but {other} is of {}",
                candidate.name, found.set_uuid, fresh.set_uuid
            ));
        }
        // A device with fewer events is from before the array was changed.
        if shape(found) != shape(fresh) && found.events >= fresh.events {
            return Err(format!(
                "{} says {}, but {other} says {}, and neither is older: leave out the one that is \
                 wrong",
                candidate.name,
                shape_words(found),
                shape_words(fresh)
            ));
        }
    }
    Ok(())
}

impl Assembly {
    /// Gives a device its state in the array.
    fn take(&mut self, candidates: &[Candidate], device: usize) -> Result<(), String> {
        let candidate = &candidates[device];
        let own = match &candidate.found {
            Ok((_, own)) => own,
            Err(error) => {
                self.left_out.push((device, format!("{}: {error}", candidate.name)));
                return Ok(());
            }
        };
        self.check_twin(candidates, device, own)?;
        let outdated = || self.changed_since(candidate, own);
        if let Some(why) = number_given_again(candidates, device, own).or_else(outdated) {
            self.left_out.push((device, why));
            return Ok(());
        }
        let role = match mistake!("stale_member_read") {
            true => own.role(),
            false => self.fresh.role_of(own.dev_number),
        };
        if let Some(damage) = &candidate.damage {
            // A damaged replacement does not make its original fail.
            let what = match own.feature_map.contains(Features::REPLACEMENT) {
                true => Member::Missing,
                false => Member::Damaged { device },
            };
            self.leave_out(device, own, format!("{}: {damage}", candidate.name), what);
        } else if let Some(why) = self.other_history(candidate, own) {
            self.leave_out(device, own, why, Member::Stale { device, by_bitmap: false });
        } else if role == DevRole::Faulty {
            let why = format!("{} has failed, by the freshest superblock", candidate.name);
            self.leave_out(device, own, why, Member::Faulty { device });
        } else if let Some(why) = self.unfit(candidate, own) {
            self.leave_out(device, own, why, Member::Stale { device, by_bitmap: false });
        } else if let Some(why) = self.contradiction(candidate, own) {
            let why = format!("{}: {why}", candidate.name);
            self.leave_out(device, own, why, Member::Damaged { device });
        } else {
            match role {
                DevRole::Active(role) => self.take_member(candidates, device, own, role)?,
                DevRole::Journal => self.journal = Some(device),
                DevRole::Spare | DevRole::Faulty => self.spares.push(device),
            }
        }
        self.spares.sort_unstable();
        Ok(())
    }

    /// The reason to leave out a device with another geometry: its role means nothing in this
    /// array.
    fn changed_since(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        (shape(own) != shape(&self.fresh)).then(|| {
            format!(
                "{} is of the array before it was changed: it says {}, the array has {}; its \
                 events are {}, the array's {}",
                candidate.name,
                shape_words(own),
                shape_words(&self.fresh),
                own.events,
                self.fresh.events
            )
        })
    }

    /// Two devices with the same number and events are copies. Nothing tells which one is right.
    fn check_twin(
        &self,
        candidates: &[Candidate],
        device: usize,
        own: &Superblock,
    ) -> Result<(), String> {
        let twin = candidates.iter().enumerate().find(|(other, candidate)| {
            *other != device
                && superblock(candidate).is_some_and(|(_, found)| {
                    (found.dev_number, found.events) == (own.dev_number, own.events)
                })
        });
        match twin {
            Some((_, twin)) => Err(format!(
                "{} and {} are both device {} of the array: leave out the one that is a copy",
                candidates[device].name, twin.name, own.dev_number
            )),
            None => Ok(()),
        }
    }

    /// The reason why a device cannot be used, if there is one.
    fn unfit(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        let (name, fresh) = (&candidate.name, &self.fresh);
        // Updates of events do not always reach spares.
        let is_spare = own.role() == DevRole::Spare;
        let is_old = own.events.saturating_add(1) < fresh.events;
        if is_old && !is_spare && !mistake!("stale_member_read") {
            return Some(format!(
                "{name} is stale: its events are {}, the array's {}",
                own.events, fresh.events
            ));
        }
        let journal = fresh.role_of(own.dev_number) == DevRole::Journal;
        (own.data_size < fresh.size && !journal).then(|| {
            format!(
                "{name} is too small: it has {} sectors for data, the array uses {}",
                own.data_size, fresh.size
            )
        })
    }

    /// A contradiction between a superblock and that of the array.
    fn contradiction(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        let (size, fresh) = (own.size, &self.fresh);
        // A spare gets a new size together with its role, and a crash may prevent that. A crash
        // while the size changes leaves members with the old size: they are one event behind. An
        // array with a journal cannot be resized.
        let is_new = matches!(fresh.role_of(own.dev_number), DevRole::Active(_));
        if own.role() == DevRole::Spare && is_new && size != fresh.size {
            return self.no_room(candidate, own);
        }
        if own.role() != DevRole::Spare && size != fresh.size {
            if own.events < fresh.events && own.role() != DevRole::Journal {
                return self.no_room(candidate, own);
            }
            return Some(format!(
                "its superblock says that {size} sectors are used on each member, expected {} as \
                 in the freshest one",
                fresh.size
            ));
        }
        let number = own.dev_number as usize;
        (number >= fresh.roles.len().max(fresh.roles_max()))
            .then(|| format!("its number is {number}, expected below {}", fresh.roles_max()))
    }

    /// The reason why a member with an outdated size cannot hold the array's size, if there is one.
    fn no_room(&self, candidate: &Candidate, own: &Superblock) -> Option<String> {
        let header = candidate.bitmap.as_ref().and_then(|found| found.as_ref().ok());
        let grown = Superblock { size: self.fresh.size, ..own.clone() };
        let why = Places::of(&grown, candidate.device_sectors, header).err()?;
        Some(format!("it was not told that {} sectors of it are used: {why}", self.fresh.size))
    }

    fn take_member(
        &mut self,
        candidates: &[Candidate],
        device: usize,
        own: &Superblock,
        role: u16,
    ) -> Result<(), String> {
        let name = &candidates[device].name;
        let used = self.used();
        let Some(member) = self.members.get_mut(usize::from(role)) else {
            let disks = self.layout.disks();
            self.left_out.push((device, format!("{name} has role {role} of {disks} members")));
            return Ok(());
        };
        let replacement = &mut self.replacements[usize::from(role)];
        let is_told = |device: usize| {
            superblock(&candidates[device])
                .is_some_and(|(_, own)| own.role() == DevRole::Active(role))
        };
        let recovered = match own.feature_map.contains(Features::RECOVERY_OFFSET) {
            // Its own superblock does not have this role yet, so it holds none of the role's data.
            _ if !is_told(device) => Some(0),
            true => Some(own.recovery_offset).filter(|recovered| *recovered < used),
            false => None,
        };
        let by_bitmap = own.feature_map.contains(Features::RECOVERY_BITMAP);
        let now = match recovered {
            Some(recovered) => Member::Rebuilding { device, recovered, by_bitmap },
            None => Member::InSync { device },
        };
        let is_replacement = own.feature_map.contains(Features::REPLACEMENT);
        // If two devices have the role, the one whose superblock lacks it was to replace the other.
        let taken = match member.device() {
            _ if is_replacement => Some(device),
            Some(_) if !is_told(device) => Some(device),
            Some(other) if !is_told(other) => {
                *member = now;
                Some(other)
            }
            Some(other) => return Err(both(candidates, (device, other), role)),
            None => {
                *member = now;
                None
            }
        };
        let Some(device) = taken else { return Ok(()) };
        let recovered = if is_replacement { recovered.unwrap_or(used) } else { 0 };
        match replacement.replace(Replacement { device, recovered }) {
            Some(other) => Err(both(candidates, (device, other.device), role)),
            None => Ok(()),
        }
    }

    /// Leaves a device out, and makes `what` the state of its role's member if no device has that
    /// role.
    fn leave_out(&mut self, device: usize, own: &Superblock, why: String, what: Member) {
        self.left_out.push((device, why));
        if let DevRole::Active(role) = own.role()
            && let Some(member) = self.members.get_mut(usize::from(role))
            && *member == Member::Missing
        {
            *member = what;
        }
    }

    /// Makes a replacement the member if its original is missing.
    fn use_replacements(&mut self) {
        let used = self.used();
        for (member, replacement) in self.members.iter_mut().zip(&mut self.replacements) {
            if member.device().is_none()
                && let Some(Replacement { device, recovered }) = replacement.take()
            {
                *member = match recovered < used {
                    true => Member::Rebuilding { device, recovered, by_bitmap: false },
                    false => Member::InSync { device },
                };
            }
        }
    }

    /// Finds devices whose former role now belongs to another device.
    fn find_replaced(&mut self, candidates: &[Candidate]) {
        let is_another = |role: usize, device: usize| {
            let number = superblock(&candidates[device]).map(|(_, own)| own.dev_number);
            let role = DevRole::Active(role as u16);
            number.is_some_and(|number| self.fresh.role_of(number) != role)
                && (0..self.fresh.roles.len() as u32).any(|n| self.fresh.role_of(n) == role)
        };
        let before = self.members.iter().enumerate().filter_map(|(role, member)| match member {
            Member::Stale { device, .. } | Member::Faulty { device } => Some((role, *device)),
            _ => None,
        });
        self.replaced = before.filter(|(role, device)| is_another(*role, *device)).collect();
    }

    fn bitmap_use(&self, candidates: &[Candidate]) -> BitmapUse {
        if self.fresh.bitmap_offset().is_none() {
            return BitmapUse::None;
        }
        let mut bad = "no member in sync has one".to_owned();
        for device in self.members.iter().filter(|m| m.is_in_sync()).filter_map(Member::device) {
            let name = &candidates[device].name;
            match &candidates[device].bitmap {
                Some(Ok(header)) if header.uuid != self.fresh.set_uuid => {
                    bad = format!("{name}: the bitmap is of the array {}", header.uuid);
                }
                Some(Ok(header)) => return self.age_of(header),
                Some(Err(MetadataError::Unknown(text))) => {
                    return BitmapUse::Unknown(format!("{name}: {text}"));
                }
                Some(Err(error)) => bad = format!("{name}: {error}"),
                None => {}
            }
        }
        BitmapUse::Bad(bad)
    }

    fn age_of(&self, header: &BitmapHeader) -> BitmapUse {
        let stale = header.events < self.fresh.events
            || header.state & bitmap::STATE_STALE != 0
            || ![self.fresh.size, self.used()].contains(&header.sync_size);
        if stale { BitmapUse::Stale } else { BitmapUse::Good }
    }

    /// Finds the stale members that have missed only the chunks that the bitmap marks.
    fn mark_partial(&mut self, candidates: &[Candidate]) {
        if self.bitmap != BitmapUse::Good {
            return;
        }
        let in_sync = self.members.iter().filter(|member| member.is_in_sync());
        let headers =
            in_sync.filter_map(|m| candidates[m.device()?].bitmap.as_ref()?.as_ref().ok());
        let Some(cleared) = headers.map(|header| header.events_cleared).next() else { return };
        // The bitmap does not mark the writes to a device of another history.
        let is_ours =
            |c| superblock(c).is_some_and(|(_, own)| self.other_history(c, own).is_none());
        let ours: Vec<bool> = candidates.iter().map(is_ours).collect();
        for member in &mut self.members {
            if let Member::Stale { device, by_bitmap } = member {
                *by_bitmap = ours[*device]
                    && events(&candidates[*device]).is_some_and(|events| events >= cleared);
            }
        }
    }
}
