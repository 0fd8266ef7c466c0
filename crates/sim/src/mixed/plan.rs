//! What one seed does: its disks, its stack, and how they are used. Swarm testing: each seed takes a
//! subset of everything and leaves the rest out, so that what hides behind a common operation is
//! met too.

use super::nbd::NbdPlan;
use crate::disk::{DiskOptions, Latency};
use crate::schedule::Policy;
use fastrand::Rng;
use std::fmt::Write;

/// Sectors of a simulated disk.
const DISK_SECTORS: u64 = 4096;
/// Sectors of a device in memory.
const MEMORY_SECTORS: u64 = 2048;
/// Sectors of a log of writes.
const LOG_SECTORS: u64 = 512;

/// What a device or volume does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// It keeps data.
    Keeps,
    /// It keeps data until its process ends.
    Forgets,
    /// Its disk says that data is durable which is not.
    Lies,
    /// It may not do writes that it says it has done.
    Drops,
    /// It reads as zeroes, whatever is written.
    Zero,
    /// All I/O fails.
    Error,
}

/// Something that I/O goes to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device.
    pub name: String,
    /// What it is, for the counts.
    pub kind: &'static str,
    /// The first sector of it that is used.
    pub first: u64,
    /// How many are.
    pub sectors: u64,
    /// Sectors of its logical block.
    pub block: u64,
    /// What it does.
    pub nature: Nature,
    /// Faults are to be expected of it even if no disk has any.
    pub fails: bool,
    /// Tables that map it to the same places; empty if it is no volume.
    pub tables: Vec<String>,
    /// Where it may move: its place now and another one, each a leaf and a sector.
    pub moves: Option<[(String, u64); 2]>,
    /// A longer table, the sectors that it has, and the leaf that must grow first, with its new size
    /// in bytes.
    pub longer: Option<(String, u64, String, u64)>,
}

/// Which operations there are, and how often.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Weights: read, write, flush, discard, write zeroes, nonsense.
    pub weights: [u32; 6],
    /// Percent of writes with FUA, and with PREFLUSH.
    pub fua: u32,
    /// See `fua`.
    pub preflush: u32,
    /// Percent of bios that may not wait.
    pub nowait: u32,
    /// Percent of reads that are polled.
    pub polled: u32,
    /// Percent of bios that continue where the last one ended.
    pub sequential: u32,
    /// Most blocks of a bio.
    pub blocks_max: u64,
    /// Most bios in flight of a context.
    pub depth: u64,
    /// Most bios of a batch.
    pub batch: u64,
    /// Plugs are used.
    pub plugs: bool,
    /// Priorities are used.
    pub priorities: bool,
    /// Throttle groups are used.
    pub groups: bool,
    /// Contexts are dropped with I/O in flight.
    pub drops_contexts: bool,
    /// Longest absence of a thread from its context, in nanoseconds.
    pub away_ns: u64,
}

/// Chances of faults, in a million, that the disks of a seed have while faults are on.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Transient errors of reads, writes and flushes.
    pub read_error_ppm: u32,
    /// See above.
    pub write_error_ppm: u32,
    /// See above.
    pub flush_error_ppm: u32,
    /// A failed flush loses what it should have kept.
    pub flush_error_drops: bool,
    /// Stalls of 1 to 60 seconds.
    pub stall_ppm: u32,
    /// Transfers that do less than was asked.
    pub short_ppm: u32,
    /// Operations that are interrupted.
    pub interrupted_ppm: u32,
    /// Operations that are to be tried again.
    pub again_ppm: u32,
    /// Sectors become bad.
    pub bad_sectors: bool,
    /// A disk runs full for a while.
    pub full: bool,
    /// A disk fails altogether for a while.
    pub device_errors: bool,
    /// A disk vanishes until the next start.
    pub vanish: bool,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The stack file, up to the volumes.
    pub text: String,
    /// The volumes with their first tables.
    pub volumes: Vec<(String, String)>,
    /// The disks, by number.
    pub disks: Vec<DiskOptions>,
    /// Names of the leaf devices with a request queue.
    pub leaves: Vec<String>,
    /// What is loaded.
    pub targets: Vec<Target>,
    /// Contexts.
    pub contexts: u64,
    /// I/Os in all.
    pub ios: u64,
    /// Starts of the stack; all but the last end by a power cut or a kill.
    pub starts: u64,
    /// What the contexts do.
    pub mix: Mix,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Changes of the running stack in each start.
    pub changes: u64,
    /// The order of fibers.
    pub policy: Policy,
    /// What is served, in the scenario `nbd`.
    pub nbd: Option<NbdPlan>,
}

/// Makes a stack file and what is known of it.
struct Builder<'a> {
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
    keeps: bool,
    lies: bool,
}

impl Plan {
    /// The plan of a seed, for about `ios` I/Os.
    pub fn new(rng: &mut Rng, ios: u64) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(4..=8);
        let mix = Mix::random(rng);
        let faults = FaultPlan::random(rng);
        let starts = rng.u64(2..=3);
        let changes = rng.u64(2..=12);
        let mut builder = Builder::new(rng, DISK_SECTORS);
        builder.leaves();
        builder.targets();
        Plan { starts, faults, changes, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// A small plan, all of whose targets keep data on honest disks that do not fail: so small that
    /// a power cut can be tried at each of its moments.
    pub fn small(rng: &mut Rng) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=4);
        let ios = rng.u64(10..=60);
        let mix = Mix::small(rng);
        let sectors = of(rng, &[128, 128, 256]);
        let mut builder = Builder::new(rng, sectors);
        builder.honest_disks();
        builder.small_targets();
        builder.plan(policy, contexts, ios, mix)
    }
}

/// The stack file with these volumes.
pub fn stack_file(text: &str, volumes: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (name, table) in volumes {
        let lines: Vec<_> = table.lines().map(|line| format!("\"{line}\"")).collect();
        let _ = writeln!(text, "[device.{name}]\ntable = [{}]", lines.join(", "));
    }
    text
}

pub(super) fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

/// One of them.
pub(super) fn of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.u64(0..all.len() as u64) as usize]
}

impl Mix {
    fn random(rng: &mut Rng) -> Self {
        let mut weights = [0, 0, 2, 1, 1, 1].map(|base| if chance(rng, 60) { base } else { 0 });
        weights[0] = of(rng, &[5, 20, 60]);
        weights[1] = of(rng, &[10, 30, 60]);
        weights[2] = of(rng, &[0, 1, 3, 10]);
        Mix {
            weights,
            fua: of(rng, &[0, 0, 5, 30]),
            preflush: of(rng, &[0, 0, 3]),
            nowait: of(rng, &[0, 0, 0, 10]),
            polled: of(rng, &[0, 0, 20, 80]),
            sequential: of(rng, &[0, 20, 80]),
            blocks_max: of(rng, &[1, 4, 16, 64]),
            depth: of(rng, &[1, 2, 8, 32]),
            batch: of(rng, &[1, 4, 16, 40]),
            plugs: chance(rng, 40),
            priorities: chance(rng, 30),
            groups: chance(rng, 50),
            drops_contexts: chance(rng, 30),
            away_ns: of(rng, &[0, 10_000, 1_000_000, 50_000_000]),
        }
    }

    /// Mostly writes, and much that makes them durable.
    fn small(rng: &mut Rng) -> Self {
        let mut weights = [2, 20, 0, 0, 0, 0];
        weights[2] = of(rng, &[0, 2, 6]);
        weights[3] = of(rng, &[0, 0, 2]);
        weights[4] = of(rng, &[0, 2, 4]);
        Mix {
            weights,
            fua: of(rng, &[0, 10, 40]),
            preflush: of(rng, &[0, 10, 30]),
            nowait: of(rng, &[0, 0, 10]),
            polled: 0,
            sequential: of(rng, &[0, 20, 80]),
            blocks_max: of(rng, &[1, 2, 4, 16]),
            depth: of(rng, &[1, 2, 8]),
            batch: of(rng, &[1, 4, 8]),
            plugs: chance(rng, 40),
            priorities: chance(rng, 20),
            groups: false,
            drops_contexts: false,
            away_ns: of(rng, &[0, 10_000, 1_000_000]),
        }
    }
}

impl FaultPlan {
    fn random(rng: &mut Rng) -> Self {
        let mut ppm = |most: u32| if chance(rng, 35) { 1 + rng.u32(0..most) } else { 0 };
        let mut plan = FaultPlan {
            read_error_ppm: ppm(20_000),
            write_error_ppm: ppm(20_000),
            flush_error_ppm: ppm(50_000),
            stall_ppm: ppm(1_000),
            short_ppm: ppm(50_000),
            interrupted_ppm: ppm(50_000),
            again_ppm: ppm(50_000),
            ..FaultPlan::default()
        };
        plan.flush_error_drops = chance(rng, 50);
        plan.bad_sectors = chance(rng, 25);
        plan.full = chance(rng, 20);
        plan.device_errors = chance(rng, 20);
        plan.vanish = chance(rng, 15);
        plan
    }
}

impl<'a> Builder<'a> {
    fn new(rng: &'a mut Rng, sectors: u64) -> Self {
        let (text, volumes, leaves) = (String::new(), vec![], vec![]);
        Builder { rng, text, volumes, sectors, leaves, disks: vec![], targets: vec![] }
    }

    /// A plan of one start, in which nothing changes and nothing fails.
    fn plan(self, policy: Policy, contexts: u64, ios: u64, mix: Mix) -> Plan {
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
        }
    }

    fn honest_disks(&mut self) {
        for number in 0..self.rng.u64(1..=3) {
            self.disk(number);
        }
        self.disks.iter_mut().for_each(|disk| disk.lying = false);
        self.leaves.iter_mut().for_each(|leaf| leaf.lies = false);
    }

    /// One or two; at least a disk itself.
    fn small_targets(&mut self) {
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
            // What was taken and found to be too little is free again.
            self.leaves[0].next = 0;
            self.plain(64);
        }
    }

    fn leaves(&mut self) {
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
            "[device.{name}]\ntype = \"file\"\npath = \"/sim/{number}\"\nsize = {size}\n{blocks}{queue}"
        );
        self.leaves.push(Leaf {
            name,
            next: 0,
            end: self.sectors,
            block: block as u64 / 512,
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

    /// `sectors` of a leaf that has as many left, or of another one.
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

    fn targets(&mut self) {
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
        // At least one that keeps data on disks, and whose table can be changed.
        let is_plain = |target: &Target| target.nature == Nature::Keeps && !target.fails;
        let has_tables = |target: &Target| is_plain(target) && !target.tables.is_empty();
        if !self.targets.iter().any(has_tables) {
            self.concat(99, 64);
        }
    }

    fn nature(&self, leaves: &[usize]) -> Nature {
        if leaves.iter().any(|leaf| self.leaves[*leaf].lies) {
            return Nature::Lies;
        }
        match leaves.iter().all(|leaf| self.leaves[*leaf].keeps) {
            true => Nature::Keeps,
            false => Nature::Forgets,
        }
    }

    /// Volumes that forget do so altogether: their areas are all in memory, or none is.
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
        let nature = self.nature(leaves);
        self.targets.push(Target {
            name,
            kind,
            first: 0,
            sectors,
            block,
            nature,
            fails: false,
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

    /// A longer table: with what a disk has behind its end once it has grown.
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
        // Nobody else gets anything of this leaf, so that it grows once only.
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
        // Two ways to lose what was written are more than the oracle keeps apart.
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
            target.nature = Nature::Drops;
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
        // What was durable would not be after a move to a disk that lies.
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
    }

    fn nothing(&mut self, number: u64, sectors: u64) {
        let (word, kind, nature) = of(
            self.rng,
            &[("zero", "on zero", Nature::Zero), ("error", "on error", Nature::Error)],
        );
        let (name, table) = (format!("v{number}"), format!("0 {sectors} {word}\n"));
        self.volume(&name, &table);
        self.loaded(kind, name, &[], sectors, vec![table]);
        let target = self.targets.last_mut().expect("just added");
        (target.nature, target.fails) = (nature, nature == Nature::Error);
    }
}
