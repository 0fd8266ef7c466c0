//! Users of the devices of an open stack: the checks of [`crate::graph`] for tables that come
//! later.
//!
//! Both the live and the inactive table of a volume count, because a resume makes the inactive one
//! live without another check.

use std::collections::BTreeMap;
use std::sync::Arc;

use drystone_core::{Device, SECTOR_SIZE};
use drystone_targets::{Line, Table, TargetSpec, Volume};

use super::LiveStack;
use super::devices::{LiveDevice, State};
use crate::graph::MAX_LEVELS;
use crate::spec::ExportSpec;

/// The identity of a device.
type Key = usize;

fn key(device: &Arc<dyn Device>) -> Key {
    Arc::as_ptr(device).addr()
}

/// Sectors of a device that somebody uses.
struct Use<'a> {
    device: Arc<dyn Device>,
    start: u64,
    end: u64,
    /// The volume of the table; `None`: the new one.
    user: Option<&'a LiveDevice>,
}

fn tables(volume: &Volume) -> impl Iterator<Item = Arc<Table>> {
    volume.table().into_iter().chain(volume.inactive_table())
}

fn uses<'a>(table: &Table, user: Option<&'a LiveDevice>) -> Vec<Use<'a>> {
    let of_area = |(area, sectors): (&drystone_targets::Area, u64)| Use {
        device: area.device.clone(),
        start: area.sector,
        end: area.sector + sectors,
        user,
    };
    let of_line = |line: &Line| {
        let mut uses: Vec<Use<'a>> = line.areas().into_iter().map(of_area).collect();
        if matches!(line.target, TargetSpec::Delay(_)) {
            // Two equal areas, one read and one written, count as one use.
            uses.sort_by_key(|part| (key(&part.device), part.start));
            uses.dedup_by_key(|part| (key(&part.device), part.start));
        }
        uses
    };
    table.lines().iter().flat_map(of_line).collect()
}

/// The areas that arrays use: the whole of their members.
fn uses_of_arrays(state: &State) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    for (user, members) in state.arrays() {
        uses.extend(members.iter().map(|member| Use {
            device: member.device.clone(),
            start: 0,
            end: member.device.info().size_bytes / SECTOR_SIZE,
            user: Some(&**user),
        }));
    }
    uses
}

fn has_member(table: &Table, own: Key) -> bool {
    table.members().iter().any(|member| key(member) == own)
}

impl LiveStack {
    /// A volume or an array that `live` is part of now, if any: a writer that bypasses it would
    /// damage it.
    pub fn part_of(&self, live: &LiveDevice) -> Option<String> {
        above(&self.devices.lock(), live).into_iter().next()
    }
}

/// The names of all users of `live`, one for each export and each table over it.
pub(super) fn users(state: &State, exports: &[ExportSpec], live: &LiveDevice) -> Vec<String> {
    let exports = exports.iter().filter(|export| export.device == live.name);
    let names = exports.map(|export| format!("export `{}`", export.name));
    names.chain(above(state, live).into_iter().map(|name| format!("`{name}`"))).collect()
}

/// The names of the volumes and arrays that `live` is part of, one for each table.
pub(super) fn above(state: &State, live: &LiveDevice) -> Vec<String> {
    let (own, mut names) = (key(&live.device), Vec::new());
    for (user, volume) in state.volumes() {
        let over = tables(volume).filter(|table| has_member(table, own));
        names.extend(over.map(|_| user.name.clone()));
    }
    for (user, members) in state.arrays() {
        if members.iter().any(|member| key(&member.device) == own) {
            names.push(user.name.clone());
        }
    }
    names
}

/// The number of users of each device that has any.
pub(super) fn open_counts(state: &State, exports: &[ExportSpec]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for export in exports {
        *counts.entry(export.device.clone()).or_default() += 1;
    }
    for table in state.volumes().flat_map(|(_, volume)| tables(volume)) {
        for member in table.members() {
            *counts.entry(member.info().name).or_default() += 1;
        }
    }
    for member in state.arrays().flat_map(|(_, members)| members) {
        *counts.entry(member.name.clone()).or_default() += 1;
    }
    counts
}

/// Refuses a table that would make `live` stand on itself, or too many volumes on one another.
pub(super) fn check_levels(state: &State, live: &LiveDevice, table: &Table) -> Result<(), String> {
    let volumes = state.volumes().map(|(other, _)| other);
    let mut others = volumes.chain(state.arrays().map(|(other, _)| other));
    if !others.any(|other| has_member(table, key(&other.device))) {
        // On devices without members the volume is on the first level, and its level before was at
        // least that.
        return Ok(());
    }
    let graph = Graph::new(state);
    for member in table.members() {
        if let Some(mut names) = graph.path(key(member), key(&live.device)) {
            if names.is_empty() {
                return Err(format!("`{}` stands on itself", live.name));
            }
            names.insert(0, live.name.clone());
            return Err(format!("a cycle: {} -> {}", names.join(" -> "), live.name));
        }
    }
    let below = table.members().iter().map(|member| graph.levels_below(key(member))).max();
    let levels = below.map_or(1, |below| below + 1) + graph.levels_above(key(&live.device));
    if levels > MAX_LEVELS {
        return Err(format!("{levels} volumes would stand on one another: at most {MAX_LEVELS}"));
    }
    Ok(())
}

/// Refuses a member that would make an array stand on itself, or too many devices on one another.
pub(super) fn check_member(
    state: &State,
    array: &LiveDevice,
    member: &LiveDevice,
) -> Result<(), String> {
    let graph = Graph::new(state);
    let (own, below) = (key(&array.device), key(&member.device));
    if own == below || graph.path(below, own).is_some() {
        return Err(format!("`{}` stands on `{}` itself", member.name, array.name));
    }
    let levels = graph.levels_below(below) + 1 + graph.levels_above(own);
    match levels > MAX_LEVELS {
        true => Err(format!("{levels} volumes would stand on one another: at most {MAX_LEVELS}")),
        false => Ok(()),
    }
}

/// Volumes and their members. Without cycles, and at most [`MAX_LEVELS`] deep.
struct Graph<'a> {
    names: BTreeMap<Key, &'a str>,
    below: BTreeMap<Key, Vec<Key>>,
    above: BTreeMap<Key, Vec<Key>>,
}

impl<'a> Graph<'a> {
    fn new(state: &'a State) -> Self {
        let mut graph =
            Graph { names: BTreeMap::new(), below: BTreeMap::new(), above: BTreeMap::new() };
        for (live, volume) in state.volumes() {
            let own = key(&live.device);
            graph.names.insert(own, &live.name);
            for member in tables(volume).flat_map(|table| table.members().to_vec()) {
                graph.below.entry(own).or_default().push(key(&member));
                graph.above.entry(key(&member)).or_default().push(own);
            }
        }
        for (live, members) in state.arrays() {
            let own = key(&live.device);
            graph.names.insert(own, &live.name);
            for member in members {
                graph.below.entry(own).or_default().push(key(&member.device));
                graph.above.entry(key(&member.device)).or_default().push(own);
            }
        }
        graph
    }

    /// The volumes on a way down from `from` to `to`, without `to` itself.
    fn path(&self, from: Key, to: Key) -> Option<Vec<String>> {
        let mut came_by: BTreeMap<Key, Option<Key>> = BTreeMap::from([(from, None)]);
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            for member in self.below.get(&at).into_iter().flatten() {
                came_by.entry(*member).or_insert_with(|| {
                    next.push(*member);
                    Some(at)
                });
            }
        }
        let mut at = came_by.get(&to)?;
        let mut names = Vec::new();
        while let Some(before) = at {
            names.insert(0, self.name(*before));
            at = came_by.get(before)?;
        }
        Some(names)
    }

    fn name(&self, key: Key) -> String {
        self.names.get(&key).copied().unwrap_or_default().to_owned()
    }

    fn levels_below(&self, key: Key) -> usize {
        longest(&self.below, key, &mut BTreeMap::new())
    }

    fn levels_above(&self, key: Key) -> usize {
        longest(&self.above, key, &mut BTreeMap::new())
    }
}

/// Edges of the longest way from `from`.
fn longest(edges: &BTreeMap<Key, Vec<Key>>, from: Key, known: &mut BTreeMap<Key, usize>) -> usize {
    if let Some(known) = known.get(&from) {
        return *known;
    }
    let next = edges.get(&from).into_iter().flatten();
    let length = next.map(|next| longest(edges, *next, known) + 1).max().unwrap_or(0);
    known.insert(from, length);
    length
}

/// Refuses a table of `live` that shares sectors: with itself, with other volumes, or with clients
/// of an export that may write.
pub(super) fn check_shares(
    state: &State,
    exports: &[ExportSpec],
    live: &LiveDevice,
    table: &Table,
) -> Result<(), String> {
    for member in table.members() {
        if let Some(taken) = state.taken(member) {
            return Err(taken);
        }
        let name = member.info().name;
        let writes = |export: &&ExportSpec| export.device == name && !export.read_only;
        if let Some(export) = exports.iter().find(writes) {
            return Err(format!(
                "clients of export `{}` write to `{name}`, so it must not be part of a volume",
                export.name
            ));
        }
    }
    let others = state.volumes().filter(|(other, _)| other.name != live.name);
    let mut all = uses(table, None);
    let own: Vec<Key> = table.members().iter().map(key).collect();
    for (other, volume) in others {
        let theirs = tables(volume).flat_map(|table| uses(&table, Some(other)));
        all.extend(theirs.filter(|theirs| own.contains(&key(&theirs.device))));
    }
    let arrays = uses_of_arrays(state).into_iter();
    all.extend(arrays.filter(|theirs| own.contains(&key(&theirs.device))));
    all.sort_by_key(|part| (key(&part.device), part.start));
    overlap(&all)
}

/// Refuses sectors that the new table shares with another user; `all` is in order. An area that
/// begins later overlaps the one that reaches furthest before it, if it overlaps any.
fn overlap(all: &[Use<'_>]) -> Result<(), String> {
    let (mut ours, mut theirs): (Option<&Use<'_>>, Option<&Use<'_>>) = (None, None);
    for part in all {
        let meets =
            |before: &&Use<'_>| key(&before.device) == key(&part.device) && part.start < before.end;
        let before = ours.filter(meets).or(theirs.filter(|_| part.user.is_none()).filter(meets));
        if let Some(before) = before {
            return Err(shared(before, part));
        }
        let furthest = if part.user.is_none() { &mut ours } else { &mut theirs };
        if !furthest
            .as_ref()
            .is_some_and(|f| key(&f.device) == key(&part.device) && f.end >= part.end)
        {
            *furthest = Some(part);
        }
    }
    Ok(())
}

fn shared(a: &Use<'_>, b: &Use<'_>) -> String {
    let (first, last) = (b.start, a.end.min(b.end) - 1);
    let name = a.device.info().name;
    match a.user.or(b.user) {
        None => format!("sectors {first} to {last} of `{name}` are used twice"),
        Some(user) => {
            format!("sectors {first} to {last} of `{name}` are used by `{}`", user.name)
        }
    }
}

/// Refuses a table that lacks sectors which tables over `live` use.
pub(super) fn check_above(state: &State, live: &LiveDevice, table: &Table) -> Result<(), String> {
    let (own, has) = (key(&live.device), table.size_bytes() / SECTOR_SIZE);
    let block = u64::from(table.limits().logical_block_size) / SECTOR_SIZE;
    for part in uses_of_arrays(state).iter().filter(|part| key(&part.device) == own) {
        if part.end > has {
            let user = part.user.map(|user| user.name.clone()).unwrap_or_default();
            return Err(format!("`{user}` uses all of `{}`, and the table has less", live.name));
        }
    }
    for (user, volume) in state.volumes() {
        let over = tables(volume).filter(|table| has_member(table, own));
        let all = over.flat_map(|table| uses(&table, Some(user)));
        for part in all.filter(|part| key(&part.device) == own) {
            if part.end > has {
                return Err(format!(
                    "`{}` uses sectors up to {} of `{}`, and the table has {has}",
                    user.name,
                    part.end - 1,
                    live.name
                ));
            }
            if !part.start.is_multiple_of(block) || !part.end.is_multiple_of(block) {
                return Err(format!(
                    "`{}` uses sectors {} to {} of `{}`, and the table has blocks of {} bytes",
                    user.name,
                    part.start,
                    part.end - 1,
                    live.name,
                    block * SECTOR_SIZE
                ));
            }
        }
    }
    Ok(())
}
