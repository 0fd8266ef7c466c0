//! Makes the stack of a plan: disks and devices in memory, volumes over them, and the facts that a
//! run knows of each.

use super::plan::{ArrayEvent, DeviceKind, FaultPlan, Mix, Plan, Target, chance, of};
use super::redundancy::Redundancy;
use crate::disk::{DiskOptions, Latency};
use crate::schedule::Policy;
use fastrand::Rng;
use std::fmt::Write;

/// Sectors of a simulated disk.
const DISK_SECTORS: u64 = 4096;
/// Sectors of a device in memory.
const MEMORY_SECTORS: u64 = 2048;
/// Sectors of a member that an array does not use, at most: without partial parity logs, and with
/// them.
const MEMBER_OVERHEAD: [u64; 2] = [3072, 4352];
/// Sectors of an array that the load uses.
const ARRAY_SECTORS: u64 = 768;
/// Sectors of a log of writes.
const LOG_SECTORS: u64 = 512;

/// Makes a stack file and the facts about its devices.
pub(super) struct Builder<'a> {
    rng: &'a mut Rng,
    text: String,
    volumes: Vec<(String, String)>,
    /// Sectors of a disk.
    sectors: u64,
    leaves: Vec<Leaf>,
    disks: Vec<DiskOptions>,
    targets: Vec<Target>,
}

struct Leaf {
    name: String,
    next: u64,
    end: u64,
    block: u64,
    disk: Option<usize>,
    keeps: bool,
    lies: bool,
}

impl<'a> Builder<'a> {
    /// With disks of the usual size.
    pub(super) fn new(rng: &'a mut Rng) -> Self {
        Self::small(rng, DISK_SECTORS)
    }

    /// With disks of so many sectors; members of an array have more, for metadata.
    pub(super) fn small(rng: &'a mut Rng, sectors: u64) -> Self {
        let (text, volumes, leaves) = (String::new(), vec![], vec![]);
        Builder { rng, text, volumes, sectors, leaves, disks: vec![], targets: vec![] }
    }

    /// A plan of one start, in which nothing changes and nothing fails.
    pub(super) fn plan(self, policy: Policy, contexts: u64, ios: u64, mix: Mix) -> Plan {
        Plan {
            text: self.text,
            volumes: self.volumes,
            disks: self.disks,
            leaves: self.leaves.into_iter().map(|leaf| leaf.name).collect(),
            targets: self.targets,
            contexts,
            ios,
            starts: 1,
            mix,
            faults: FaultPlan::default(),
            changes: 0,
            policy,
            nbd: None,
            array_event: ArrayEvent::Nothing,
        }
    }

    pub(super) fn honest_disks(&mut self) {
        for number in 0..self.rng.u64(1..=3) {
            self.disk(number);
        }
        self.disks.iter_mut().for_each(|disk| disk.lying = false);
        self.leaves.iter_mut().for_each(|leaf| leaf.lies = false);
    }

    /// Adds an array over disks that do not lie. It sometimes has a spare, more often if one must
    /// take a member's place. It mostly has a bitmap if a member must come back. Returns the number
    /// of spares.
    pub(super) fn array(&mut self, array_event: ArrayEvent) -> u64 {
        let (kind, fewest) =
            of(self.rng, &[("raid5", 3), ("raid5", 3), ("raid6", 4), ("raid4", 3)]);
        let members = self.rng.u64(fewest..=fewest + 2);
        let [one, too] = [self.rng.u64(0..2), self.rng.u64(0..2)];
        let spares = if array_event == ArrayEvent::Copied { one } else { one * too };
        let policy = match kind {
            _ if array_event == ArrayEvent::Returns => {
                of(self.rng, &["resync", "bitmap", "bitmap"])
            }
            "raid5" => of(self.rng, &["resync", "bitmap", "ppl"]),
            _ => of(self.rng, &["resync", "bitmap"]),
        };
        let mut members_sectors = self.sectors;
        self.sectors += MEMBER_OVERHEAD[usize::from(policy == "ppl")];
        for number in 0..members + spares {
            self.disk(number);
        }
        self.disks.iter_mut().for_each(|disk| disk.lying = false);
        // A slow disk must not count as lost: that would be a fault of a member.
        self.text = self.text.replace("\"50ms\"", "\"30s\"").replace("\"2s\"", "\"30s\"");
        let chunk = of(self.rng, &[8, 8, 16, 64, 128]);
        members_sectors -= members_sectors % chunk;
        let names: Vec<_> = self.leaves.iter().map(|leaf| format!("\"{}\"", leaf.name)).collect();
        let layout = match kind {
            "raid6" => of(self.rng, &["left-symmetric", "ddf-N-continue", "parity-first-6"]),
            _ => of(self.rng, &["left-symmetric", "right-asymmetric", "parity-last"]),
        };
        // The level says where parity is.
        let layout =
            if kind == "raid4" { String::new() } else { format!("layout = \"{layout}\"\n") };
        let most = if members_sectors < 1024 { 17 } else { 256 };
        let stripes = of(self.rng, &[17, 17, 32, 256]).min(most);
        let _ = write!(
            self.text,
            "[device.a]\ntype = \"{kind}\"\nmembers = [{}]\nraid_devices = {members}\n\
             chunk = {}\n{layout}stripe_cache_size = {stripes}\n\
             consistency_policy = \"{policy}\"\n",
            names.join(", "),
            chunk * 512,
        );
        let parity = if kind == "raid6" { 2 } else { 1 };
        let block = self.leaves.iter().map(|leaf| leaf.block).max().unwrap_or(1);
        self.targets.push(Target {
            name: "a".to_owned(),
            kind: "on an array",
            first: 0,
            // Only a part of the array, so that I/Os often overlap.
            sectors: ARRAY_SECTORS.min(members_sectors * (members - parity)),
            block,
            disks: (0..self.disks.len()).collect(),
            lies_at: None,
            device_kind: DeviceKind::Keeps,
            fails: false,
            redundancy: Some(Redundancy {
                parity,
                data: members - parity,
                chunk,
                logged: policy == "ppl",
            }),
            tables: vec![],
            moves: None,
            longer: None,
        });
        spares
    }

    /// Adds one or two small targets; at least a part of a disk.
    pub(super) fn small_targets(&mut self) {
        for number in 0..self.rng.u64(1..=2) {
            let sectors = 8 * self.rng.u64(2..=8);
            match self.rng.u64(0..6) {
                0 | 1 => self.concat(number, sectors),
                2 => self.striped(number, false),
                3 => self.striped(number, true),
                4 => self.delayed(number, sectors),
                _ => self.plain(sectors),
            }
        }
        if self.targets.is_empty() {
            // A part that was reserved but too small becomes free again.
            self.leaves[0].next = 0;
            self.plain(64);
        }
    }

    /// Adds targets that lie on a disk in one piece, with or without a volume.
    pub(super) fn straight_targets(&mut self) {
        for number in 0..self.rng.u64(1..=3) {
            let sectors = 8 * self.rng.u64(4..=24);
            match self.rng.bool() {
                true => self.plain(sectors),
                false => self.delayed(number, sectors),
            }
        }
    }

    pub(super) fn leaves(&mut self) {
        for number in 0..self.rng.u64(1..=5) {
            self.disk(number);
        }
        if chance(self.rng, 50) {
            self.ram();
        }
        if chance(self.rng, 50) {
            self.null();
        }
    }

    fn disk(&mut self, number: u64) {
        let size = self.sectors * 512;
        let physical_block = of(self.rng, &[512, 4096]);
        let block = if physical_block == 4096 && chance(self.rng, 30) { 4096 } else { 512 };
        let latency = if chance(self.rng, 80) { Latency::ssd() } else { Latency::hdd() };
        let (cache, lying) = (chance(self.rng, 80), chance(self.rng, 5));
        self.disks.push(DiskOptions {
            physical_block,
            cache,
            lying: lying && cache,
            latency,
            ..DiskOptions::new(size)
        });
        let name = format!("d{number}");
        let queue = self.queue();
        let blocks =
            format!("logical_block_size = {block}\nphysical_block_size = {physical_block}\n");
        let _ = write!(
            self.text,
            "[device.{name}]\ntype = \"file\"\npath = \"/sim/{number}\"\nsize = \
             {size}\n{blocks}{queue}"
        );
        self.leaves.push(Leaf {
            name,
            next: 0,
            end: self.sectors,
            block: block as u64 / 512,
            disk: Some(number as usize),
            keeps: true,
            lies: lying && cache,
        });
    }

    fn queue(&mut self) -> String {
        let mut words = Vec::new();
        let scheduler =
            of(self.rng, &[None, Some("none"), Some("mq-deadline"), Some("mq-deadline")]);
        if let Some(scheduler) = scheduler {
            words.push(format!("scheduler = \"{scheduler}\""));
            if scheduler == "mq-deadline" && chance(self.rng, 60) {
                words.push("straight = false".to_owned());
            }
        }
        if chance(self.rng, 60) {
            words.push(format!("nr_requests = {}", of(self.rng, &[1, 2, 4, 16, 64])));
        }
        if chance(self.rng, 60) {
            words.push(format!("hw_queues = {}", of(self.rng, &[1, 2, 4])));
        }
        if chance(self.rng, 30) {
            words.push(format!("nomerges = {}", self.rng.u64(0..3)));
        }
        if chance(self.rng, 30) {
            words.push(format!("max_sectors_kb = {}", of(self.rng, &[4, 8, 64])));
        }
        if chance(self.rng, 50) {
            words.push(format!("io_timeout = \"{}\"", of(self.rng, &["50ms", "2s", "30s"])));
        }
        format!("queue = {{ {} }}\n", words.join(", "))
    }

    fn memory(&mut self, name: &str, text: &str) {
        let size = MEMORY_SECTORS * 512;
        let _ = write!(self.text, "[device.{name}]\n{text}size = {size}\n");
        self.leaves.push(Leaf {
            name: name.to_owned(),
            next: 0,
            end: MEMORY_SECTORS,
            block: 1,
            disk: None,
            keeps: false,
            lies: false,
        });
    }

    fn ram(&mut self) {
        self.memory("r", "type = \"ram\"\n");
        let queue = self.queue();
        self.text.push_str(&queue);
    }

    fn null(&mut self) {
        let mut text = "type = \"null\"\nmemory_backed = true\nhw_queue_depth = 4\n".to_owned();
        if chance(self.rng, 50) {
            text.push_str("irqmode = \"timer\"\ncompletion_nsec = \"20us\"\n");
        }
        if chance(self.rng, 60) {
            text.push_str("submit_queues = 2\npoll_queues = 2\n");
            self.memory("n", &text);
            self.text.push_str("queue = { io_poll = true }\n");
        } else {
            self.memory("n", &text);
        }
    }

    /// Reserves `sectors` of a leaf that has so many left.
    fn area(&mut self, sectors: u64) -> Option<(usize, u64)> {
        let first = self.rng.u64(0..self.leaves.len() as u64) as usize;
        let around = (0..self.leaves.len()).map(|n| (first + n) % self.leaves.len());
        let leaf = around.into_iter().find(|n| {
            let leaf = &self.leaves[*n];
            leaf.end - leaf.next >= sectors
        })?;
        let at = self.leaves[leaf].next;
        self.leaves[leaf].next += sectors;
        Some((leaf, at))
    }

    pub(super) fn targets(&mut self) {
        for number in 0..self.rng.u64(2..=5) {
            let sectors = 8 * self.rng.u64(4..=48);
            match self.rng.u64(0..11) {
                0 | 1 => self.concat(number, sectors),
                2 | 3 => self.striped(number, false),
                4 => self.striped(number, true),
                5 => self.flakey(number, sectors),
                6 => self.delayed(number, sectors),
                7 => self.plain(sectors),
                9 => self.logged(number, sectors),
                8 => self.movable(number, sectors),
                _ => self.nothing(number, sectors),
            }
        }
        // A run needs at least one target that keeps data on disks and whose table can be changed.
        let is_plain = |target: &Target| target.device_kind == DeviceKind::Keeps && !target.fails;
        let has_tables = |target: &Target| is_plain(target) && !target.tables.is_empty();
        if !self.targets.iter().any(has_tables) {
            self.concat(99, 64);
        }
    }

    fn device_kind(&self, leaves: &[usize]) -> DeviceKind {
        if leaves.iter().any(|leaf| self.leaves[*leaf].lies) {
            return DeviceKind::Lies;
        }
        match leaves.iter().all(|leaf| self.leaves[*leaf].keeps) {
            true => DeviceKind::Keeps,
            false => DeviceKind::Forgets,
        }
    }

    /// Reserves the areas of a volume, either all on devices that keep data or all in memory: a
    /// volume keeps all its data over a power cut, or none.
    fn areas(&mut self, count: u64, sectors: u64) -> Vec<(usize, u64)> {
        let mut areas = Vec::new();
        for _ in 0..count {
            let Some(area) = self.area(sectors) else { break };
            let keeps = |leaf: usize| self.leaves[leaf].keeps;
            if areas.first().is_none_or(|(leaf, _): &(usize, u64)| keeps(*leaf) == keeps(area.0)) {
                areas.push(area);
            }
        }
        areas
    }

    fn volume(&mut self, name: &str, table: &str) {
        self.volumes.push((name.to_owned(), table.to_owned()));
    }

    fn loaded(
        &mut self,
        kind: &'static str,
        name: String,
        leaves: &[usize],
        sectors: u64,
        tables: Vec<String>,
    ) {
        let block = leaves.iter().map(|leaf| self.leaves[*leaf].block).max().unwrap_or(1);
        let device_kind = self.device_kind(leaves);
        let mut disks: Vec<_> = leaves.iter().filter_map(|leaf| self.leaves[*leaf].disk).collect();
        disks.sort_unstable();
        disks.dedup();
        self.targets.push(Target {
            name,
            kind,
            first: 0,
            sectors,
            block,
            disks,
            lies_at: None,
            device_kind,
            fails: false,
            redundancy: None,
            tables,
            moves: None,
            longer: None,
        });
    }

    fn concat(&mut self, number: u64, sectors: u64) {
        let count = self.rng.u64(1..=3);
        let areas = self.areas(count, sectors);
        if areas.is_empty() {
            return;
        }
        let name = format!("v{number}");
        let (mut whole, mut halves, mut slow) = (String::new(), String::new(), String::new());
        for (nth, (leaf, at)) in areas.iter().enumerate() {
            let (start, device) = (nth as u64 * sectors, &self.leaves[*leaf].name);
            let half = sectors / 16 * 8;
            let _ = writeln!(whole, "{start} {sectors} linear {device} {at}");
            let _ = writeln!(halves, "{start} {half} linear {device} {at}");
            let (start2, rest, at2) = (start + half, sectors - half, at + half);
            let _ = writeln!(halves, "{start2} {rest} linear {device} {at2}");
            let _ = writeln!(slow, "{start} {sectors} delay {device} {at} 1");
        }
        self.volume(&name, &whole);
        let leaves: Vec<_> = areas.iter().map(|(leaf, _)| *leaf).collect();
        let total = sectors * areas.len() as u64;
        let grown = self.growth(&whole, total, &leaves);
        self.loaded("on linear", name, &leaves, total, vec![whole, halves, slow]);
        self.targets.last_mut().expect("just added").longer = grown;
    }

    /// A longer table, whose last part is the space that a disk gains when it grows.
    fn growth(
        &mut self,
        table: &str,
        sectors: u64,
        leaves: &[usize],
    ) -> Option<(String, u64, String, u64)> {
        let leaf = &mut self.leaves[leaves[0]];
        if !leaf.keeps || leaf.lies || leaf.end != DISK_SECTORS || !chance(self.rng, 40) {
            return None;
        }
        // No other target gets a part of this leaf, so that the leaf grows only once.
        leaf.end = leaf.next;
        let (more, device) = (64, leaf.name.clone());
        let line = format!("{sectors} {more} linear {device} {DISK_SECTORS}\n");
        Some((format!("{table}{line}"), sectors + more, device, (DISK_SECTORS + more) * 512))
    }

    fn striped(&mut self, number: u64, stacked: bool) {
        let (count, chunk) = (self.rng.u64(2..=4), of(self.rng, &[8, 16, 64]));
        let each = chunk * self.rng.u64(2..=6);
        let areas = self.areas(count, each);
        if areas.len() < 2 {
            return;
        }
        let members: Vec<_> =
            areas.iter().map(|(leaf, at)| format!("{} {at}", self.leaves[*leaf].name)).collect();
        let sectors = each * areas.len() as u64;
        let table = format!("0 {sectors} striped {} {chunk} {}\n", areas.len(), members.join(" "));
        let leaves: Vec<_> = areas.iter().map(|(leaf, _)| *leaf).collect();
        if !stacked {
            let name = format!("v{number}");
            self.volume(&name, &table);
            return self.loaded("on striped", name, &leaves, sectors, vec![table]);
        }
        let (lower, name) = (format!("u{number}"), format!("v{number}"));
        self.volume(&lower, &table);
        let half = sectors / 16 * 8;
        // The halves change places.
        let swapped = format!(
            "0 {half} linear {lower} {}\n{half} {} linear {lower} 0\n",
            sectors - half,
            sectors - half
        );
        let again = format!(
            "0 {half} delay {lower} {} 1\n{half} {} linear {lower} 0\n",
            sectors - half,
            sectors - half
        );
        self.volume(&name, &swapped);
        self.loaded("on stacked", name, &leaves, sectors, vec![swapped, again]);
    }

    fn flakey(&mut self, number: u64, sectors: u64) {
        let Some((leaf, at)) = self.area(sectors) else { return };
        let (up, down) = (self.rng.u64(1..=3), self.rng.u64(1..=2));
        let features = ["", " 1 error_writes", " 1 error_reads", " 1 drop_writes"];
        // A device that forgets must not also drop writes: the oracle cannot tell the two losses
        // apart.
        let count = if self.leaves[leaf].keeps { 4 } else { 3 };
        let features = of(self.rng, &features[..count]);
        let device = &self.leaves[leaf].name;
        let table = format!("0 {sectors} flakey {device} {at} {up} {down}{features}\n");
        let name = format!("v{number}");
        self.volume(&name, &table);
        self.loaded("on flakey", name, &[leaf], sectors, vec![table]);
        let target = self.targets.last_mut().expect("just added");
        target.fails = true;
        if features.contains("drop") {
            target.device_kind = DeviceKind::Drops;
        }
    }

    fn delayed(&mut self, number: u64, sectors: u64) {
        let Some((leaf, at)) = self.area(sectors) else { return };
        let device = self.leaves[leaf].name.clone();
        let ms = [self.rng.u64(0..20), self.rng.u64(0..50), self.rng.u64(0..9)];
        let [a, b, c] = ms.map(|ms| format!(" {device} {at} {ms}"));
        let table = format!("0 {sectors} delay{a}{b}{c}\n");
        let name = format!("v{number}");
        self.volume(&name, &table);
        self.loaded(
            "on delay",
            name,
            &[leaf],
            sectors,
            vec![table, format!("0 {sectors} linear {device} {at}\n")],
        );
        self.lies_at(leaf, at);
    }

    /// A volume whose writes are logged on another device.
    fn logged(&mut self, number: u64, sectors: u64) {
        let Some((leaf, at)) = self.area(sectors) else { return };
        let Some((log, log_at)) = self.area(LOG_SECTORS) else { return };
        if self.leaves[leaf].block != self.leaves[log].block {
            return;
        }
        let (below, log_name, name) =
            (format!("b{number}"), format!("l{number}"), format!("v{number}"));
        let linear = |n: u64, leaf: &Leaf, at| format!("0 {n} linear {} {at}\n", leaf.name);
        let (data, logs) = (&self.leaves[leaf], &self.leaves[log]);
        let (data, logs) = (linear(sectors, data, at), linear(LOG_SECTORS, logs, log_at));
        self.volume(&below, &data);
        self.volume(&log_name, &logs);
        let table = format!("0 {sectors} log-writes {below} {log_name}\n");
        self.volume(&name, &table);
        self.loaded("on log-writes", name, &[leaf], sectors, vec![]);
    }

    /// A volume that may be at one of two places.
    fn movable(&mut self, number: u64, sectors: u64) {
        let areas = self.areas(2, sectors);
        let [(leaf, at), (other, to)] = areas[..] else { return };
        // A move to a disk that lies would make durable data volatile.
        if self.leaves[leaf].lies || self.leaves[other].lies {
            return;
        }
        let (here, there) = (&self.leaves[leaf].name, &self.leaves[other].name);
        let (table, name) = (format!("0 {sectors} linear {here} {at}\n"), format!("v{number}"));
        let moves = Some([(here.clone(), at), (there.clone(), to)]);
        self.volume(&name, &table);
        self.loaded("on moving", name, &[leaf, other], sectors, vec![table]);
        self.targets.last_mut().expect("just added").moves = moves;
    }

    /// A part of a leaf, without a volume.
    fn plain(&mut self, sectors: u64) {
        let Some((leaf, at)) = self.area(sectors) else { return };
        let name = self.leaves[leaf].name.clone();
        self.loaded("on leaf", name, &[leaf], sectors, vec![]);
        self.targets.last_mut().expect("just added").first = at;
        self.lies_at(leaf, at);
    }

    /// Notes that the last target lies on a leaf in one piece.
    fn lies_at(&mut self, leaf: usize, at: u64) {
        let place = self.leaves[leaf].disk.map(|disk| (disk, at));
        self.targets.last_mut().expect("just added").lies_at = place;
    }

    fn nothing(&mut self, number: u64, sectors: u64) {
        let (word, kind, device_kind) = of(
            self.rng,
            &[("zero", "on zero", DeviceKind::Zero), ("error", "on error", DeviceKind::Error)],
        );
        let (name, table) = (format!("v{number}"), format!("0 {sectors} {word}\n"));
        self.volume(&name, &table);
        self.loaded(kind, name, &[], sectors, vec![table]);
        let target = self.targets.last_mut().expect("just added");
        (target.device_kind, target.fails) = (device_kind, device_kind == DeviceKind::Error);
    }
}
