//! Decides whether an array may start, and whether it may be written.

use super::assembly::{Assembly, BitmapUse, Member, Start};
use super::candidate::{Candidate, events};
use crate::layout::Level;
use crate::metadata::MetadataError;
use crate::metadata::ppl;
use crate::metadata::superblock::{DevRole, Features};

impl Assembly {
    /// Forces stale members in if too few members are in sync (mdadm's `--assemble --force`). It
    /// takes those with the most events first, until there are enough, and all that are as old as
    /// the last of these. If this makes more members than needed, parity may not fit. Changes
    /// nothing if there are enough members, or too few even so.
    pub fn force(&mut self, candidates: &[Candidate]) {
        force(self, candidates);
    }

    /// The reason why the contents of the array's journal are not known, if it has a journal and
    /// that is so.
    pub fn journal_gap(&self, candidates: &[Candidate]) -> Option<String> {
        journal_gap(self, candidates)
    }
}

/// The reason why the array may be read but must not be written, if there is one.
pub(super) fn read_only(assembly: &Assembly) -> Option<String> {
    if has_journal(assembly) {
        return Some(
            "the array has a journal, which is not supported: it can only be read, and only if its \
             journal is among the devices and holds nothing that the members lack"
                .to_owned(),
        );
    }
    let flagged = assembly.flagged();
    if !flagged.is_empty() {
        return Some(format!(
            "{flagged}: a Synology NAS sets it on a member in use that had I/O errors; what such a \
             member holds may be damaged, so the array can only be read"
        ));
    }
    match &assembly.bitmap {
        BitmapUse::Unknown(text) => Some(format!(
            "the array can only be read: a writer would have to keep its bitmap ({text})"
        )),
        BitmapUse::Bad(text) => Some(format!(
            "the superblocks say that there is a bitmap, but it cannot be used ({text}): the array \
             can only be read until it is removed (mdadm --assemble --update=no-bitmap)"
        )),
        _ => None,
    }
}

fn has_journal(assembly: &Assembly) -> bool {
    assembly.fresh.feature_map.contains(Features::JOURNAL)
}

/// The reason why the contents of the array's journal are not known, if that is so. The superblocks
/// do not help: Linux calls an array with a journal clean even while it is written.
fn journal_gap(assembly: &Assembly, candidates: &[Candidate]) -> Option<String> {
    const THEN: &str =
        "what was written last may be there only, so that blocks may be read as they were before";
    if !has_journal(assembly) {
        return None;
    }
    let found =
        assembly.journal.map(|device| (&candidates[device].name, &candidates[device].journal));
    match found {
        Some((_, Some(Ok(_)))) => None,
        Some((name, Some(Err(error)))) => Some(format!(
            "{name}: {error}: {THEN}; start and stop the array with mdadm on Linux, which replays \
             its journal"
        )),
        Some((_, None)) | None => Some(format!(
            "the array has a journal, which is not among the devices that can be used: {THEN}; \
             name its device too, or start and stop the array with mdadm on Linux, which replays \
             its journal"
        )),
    }
}

/// Decides whether the array may start.
pub(super) fn decide(assembly: &Assembly, candidates: &[Candidate]) -> Start {
    let start = decide_by_members(assembly, candidates);
    match (journal_gap(assembly, candidates), start) {
        (None, start) | (_, start @ Start::No(_)) => start,
        (Some(gap), Start::Force(why)) => Start::Force(format!("{why}; {gap}")),
        (Some(gap), _) => Start::Force(gap),
    }
}

fn decide_by_members(assembly: &Assembly, candidates: &[Candidate]) -> Start {
    if let Some(text) = unsupported(assembly) {
        return Start::No(text);
    }
    let (lost, parity) = (assembly.lost(), assembly.layout.level().parity_disks());
    if lost > parity {
        return too_few(assembly, candidates);
    }
    let is_logged = assembly.has_ppl && assembly.logs_lost.is_empty();
    if assembly.resync_from.is_some() && lost > parity_only(assembly) && !is_logged {
        return Start::Force(write_hole(assembly));
    }
    match lost {
        0 => Start::Whole,
        _ => Start::Degraded { unexpected: unexpected(assembly, candidates) },
    }
}

/// The warning for an array that is dirty and lacks members: some blocks may be wrong.
fn write_hole(assembly: &Assembly) -> String {
    let logs = match &assembly.logs_lost[..] {
        [] => String::new(),
        logs => format!(" and a whole partial parity log ({})", logs.join("; ")),
    };
    format!(
        "the array was not stopped cleanly and lacks {}{logs}: in stripes that were being written, \
         data computed for what is missing may be wrong, even in blocks that nobody wrote (the \
         RAID-5 write hole)",
        named(assembly)
    )
}

/// The reason why an array can neither be written nor safely read, if there is one.
fn unsupported(assembly: &Assembly) -> Option<String> {
    let features = assembly.fresh.feature_map;
    if features.contains(Features::RESHAPE_ACTIVE) {
        return Some(format!(
            "the array is being reshaped, at array sector {}, which is not supported: part of it \
             has the old geometry, so it cannot even be read; let mdadm end the reshape",
            assembly.fresh.reshape_position
        ));
    }
    if features.contains(Features::CLUSTERED) {
        return Some(
            "the array is shared by a cluster, which is not supported: even reading is safe only \
             while no other machine has it"
                .to_owned(),
        );
    }
    let disks = assembly.layout.disks();
    if assembly.has_ppl && (assembly.layout.level() != Level::Raid5 || disks > ppl::DISKS_MAX) {
        return Some(format!(
            "the array has partial parity logs, which only RAID-5 of up to {} members can have: \
             this one is of level {} and {disks} members",
            ppl::DISKS_MAX,
            assembly.fresh.level
        ));
    }
    None
}

/// The number of members that are not in sync and hold only parity. Their loss makes no data
/// missing, so no data is computed from parity that may be wrong.
fn parity_only(assembly: &Assembly) -> u32 {
    let layout = &assembly.layout;
    let disks = layout.disks();
    let roles: &[u32] = match (layout.level(), layout.number()) {
        (Level::Raid4, _) | (Level::Raid5, 5) => &[disks - 1],
        (Level::Raid5, 4) => &[0],
        (Level::Raid6, 4) => &[0, 1],
        (Level::Raid6, 5) => &[disks - 2, disks - 1],
        (Level::Raid6, 20) => &[0, disks - 1],
        (Level::Raid6, 16..=19) => &[disks - 1],
        _ => &[],
    };
    roles.iter().filter(|role| !assembly.members[**role as usize].is_in_sync()).count() as u32
}

/// The decision when too few members are in sync: stale members may make up for them.
fn too_few(assembly: &Assembly, candidates: &[Candidate]) -> Start {
    let parity = assembly.layout.level().parity_disks();
    let chosen = chosen(assembly, candidates);
    let disks = assembly.layout.disks();
    let there = disks - assembly.lost();
    let others = assembly.other_histories(candidates);
    if chosen.is_empty() {
        return Start::No(format!(
            "{there} of {disks} members can be used, expected at least {}; without: {}{others}",
            disks - parity,
            named(assembly)
        ));
    }
    let names = chosen.iter().map(|(_, device)| candidates[*device].name.as_str());
    let names: Vec<&str> = names.collect();
    Start::Force(format!(
        "{there} of {disks} members can be used, expected at least {}; {} can be forced in, but \
         what was written since then is lost, or mixed with older data{others}",
        disks - parity,
        names.join(", ")
    ))
}

/// Roles whose former member is stale or failed and can be forced in, each with that device: most
/// events first.
fn forcible(assembly: &Assembly, candidates: &[Candidate]) -> Vec<(usize, usize)> {
    let was_whole = |role: usize, device: usize| {
        let own = candidates[device].found.as_ref().ok().map(|(_, own)| own);
        let partial = Features::RECOVERY_OFFSET | Features::REPLACEMENT;
        own.is_some_and(|own| {
            own.role() == DevRole::Active(role as u16)
                && own.raid_disks == assembly.fresh.raid_disks
                && own.size == assembly.fresh.size
                && own.data_size >= assembly.fresh.size
                && !own.feature_map.intersects(partial)
        })
    };
    let old = assembly.members.iter().enumerate().filter_map(|(role, member)| match member {
        Member::Stale { device, .. } | Member::Faulty { device } => Some((role, *device)),
        _ => None,
    });
    let mut old: Vec<_> = old.filter(|(role, device)| was_whole(*role, *device)).collect();
    old.sort_by_key(|(_, device)| std::cmp::Reverse(events(&candidates[*device])));
    old
}

/// The members of [`forcible`] that are forced in: as many as are needed, and all that are as old
/// as the last of these, because none of them is better than another (mdadm `Assemble.c`,
/// `force_array`). Empty if there are too few, or if none is needed.
fn chosen(assembly: &Assembly, candidates: &[Candidate]) -> Vec<(usize, usize)> {
    let mut old = forcible(assembly, candidates);
    let parity = assembly.layout.level().parity_disks();
    let need = assembly.lost().saturating_sub(parity) as usize;
    let age = |(_, device): &(usize, usize)| events(&candidates[*device]);
    match need.checked_sub(1).and_then(|last| old.get(last)).map(age) {
        Some(oldest) => old.retain(|one| age(one) >= oldest),
        None => old.clear(),
    }
    old
}

/// See [`Assembly::force`].
fn force(assembly: &mut Assembly, candidates: &[Candidate]) {
    let chosen = chosen(assembly, candidates);
    if chosen.is_empty() || unsupported(assembly).is_some() {
        return;
    }
    let was = |role: usize| assembly.members[role];
    let missed_little = |role| matches!(was(role), Member::Stale { by_bitmap: true, .. });
    let by_bitmap = chosen.iter().all(|(role, _)| missed_little(*role));
    for (role, device) in &chosen {
        assembly.members[*role] = Member::InSync { device: *device };
        assembly.left_out.retain(|(left_out, _)| left_out != device);
    }
    // With more members than needed, parity is resynced. Otherwise data computed later would mix
    // old and new blocks.
    let is_redundant = assembly.lost() < assembly.layout.level().parity_disks();
    if is_redundant {
        assembly.resync_from = Some(0);
        if !by_bitmap && assembly.bitmap == BitmapUse::Good {
            assembly.bitmap = BitmapUse::Stale;
        }
    }
    assembly.find_lost_logs(candidates);
    assembly.read_only = read_only(assembly);
    assembly.start = decide(assembly, candidates);
}

/// The roles that are not in sync, as text.
fn named(assembly: &Assembly) -> String {
    let lost = assembly.members.iter().enumerate().filter(|(_, member)| !member.is_in_sync());
    let words = lost.map(|(role, member)| {
        let damage = |device| assembly.left_out.iter().find(|(out, _)| *out == device);
        let state = match member {
            Member::InSync { .. } => "in sync",
            Member::Rebuilding { .. } => "being rebuilt",
            Member::Stale { .. } => "stale",
            Member::Faulty { .. } => "failed",
            Member::Damaged { device } => damage(*device).map_or("damaged", |(_, why)| why),
            Member::Missing => "missing",
        };
        format!("member {role} ({state})")
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Text about members that are missing although the freshest superblock has them. A damaged member
/// is not among them: it will not appear later.
fn unexpected(assembly: &Assembly, candidates: &[Candidate]) -> Option<String> {
    let expected = |role: usize| {
        let member = &assembly.members[role];
        let may_come = member.device().is_none() && !matches!(member, Member::Damaged { .. });
        may_come && assembly.is_expected(role)
    };
    let missing = (0..assembly.members.len()).filter(|role| expected(*role));
    let mut sentences: Vec<String> =
        missing.map(|role| absence(assembly, candidates, role)).collect();
    if !sentences.is_empty() {
        // One of the missing members may be a device whose superblock was refused.
        sentences.extend(candidates.iter().filter_map(refused));
    }
    let disks = assembly.layout.disks();
    (!sentences.is_empty()).then(|| {
        let there = disks - assembly.lost();
        format!("{there} of {disks} members are there; {}", sentences.join("; "))
    })
}

/// The reason why a superblock that is present was refused.
fn refused(candidate: &Candidate) -> Option<String> {
    match candidate.found.as_ref().err()? {
        MetadataError::Absent(_) => None,
        error => Some(format!("{}: {error}", candidate.name)),
    }
}

/// The reason why a member is missing.
fn absence(assembly: &Assembly, candidates: &[Candidate], role: usize) -> String {
    let of_role = |(replaced, _): &&(usize, usize)| *replaced == role;
    match assembly.replaced.iter().find(of_role) {
        Some((_, device)) => format!(
            "{} was replaced as member {role} by a device that is not among them",
            candidates[*device].name
        ),
        None => format!(
            "member {role} is missing but was never marked as failed, so it may still appear"
        ),
    }
}
