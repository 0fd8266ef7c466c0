//! The contents that a power cut may leave: the versions of each block, and how luck picks one.
//!
//! ```text
//!            durable   log, oldest first      in flight
//!   block 7     v0 ----- v1 ------- v2 ---------- v3        keeps one of v0 .. v3
//!   block 8     v0 ------------------------------ v1        keeps one of v0 .. v1
//! ```
//!
//! Each block keeps the version of one moment, whatever the others keep.

use super::DiskOptions;
use super::flight::Disk;
use super::media::{Entry, Media};
use fastrand::Rng;

/// A block that has more than one version.
#[derive(Clone, Debug)]
struct Block {
    block: u64,
    /// First index of its entries in [`Versions::order`].
    first: usize,
    count: usize,
}

/// All versions that blocks may have: the durable one, and one for each later entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Versions {
    entries: Vec<Entry>,
    blocks: Vec<Block>,
    /// Indexes of entries, block by block, oldest first.
    order: Vec<usize>,
}

/// Which versions luck keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Luck {
    /// A random version of each block.
    Any,
    /// The newest version of most blocks, a random one of the others.
    MostlyNewest,
    /// The durable version of most blocks, a random one of the others.
    MostlyDurable,
    /// Every entry up to a moment, none later.
    UpTo(usize),
    /// The newest version of each block but one, which keeps its durable one.
    Missing(usize),
    /// The durable version of each block but one, which keeps its newest one.
    Alone(usize),
    /// The combination with this number.
    Number(u64),
}

impl Versions {
    /// The versions that the entries, oldest first, make over the contents of the media.
    pub fn new(media: &Media, entries: Vec<Entry>) -> Self {
        let mut pairs = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let blocks = media.blocks(entry.offset, entry.length);
            let live = blocks.filter(|&block| media.durable(block) < entry.seq);
            pairs.extend(live.map(|block| (block, index)));
        }
        pairs.sort_unstable();
        let mut blocks: Vec<Block> = Vec::new();
        for (at, &(block, _)) in pairs.iter().enumerate() {
            match blocks.last_mut() {
                Some(last) if last.block == block => last.count += 1,
                _ => blocks.push(Block { block, first: at, count: 1 }),
            }
        }
        let order = pairs.into_iter().map(|(_, index)| index).collect();
        Versions { entries, blocks, order }
    }

    /// The entries that make the first `count` versions of a block.
    fn of(&self, block: &Block, count: usize) -> impl Iterator<Item = &Entry> {
        self.order[block.first..block.first + count].iter().map(|&index| &self.entries[index])
    }

    /// Draws the kind of luck of a power cut.
    fn draw_luck(&self, rng: &mut Rng) -> Luck {
        let block = |rng: &mut Rng| rng.u64(0..self.blocks.len().max(1) as u64) as usize;
        match rng.u32(0..8) {
            0..=2 => Luck::Any,
            3 => Luck::MostlyNewest,
            4 => Luck::MostlyDurable,
            5 => Luck::UpTo(rng.u64(0..=self.entries.len() as u64) as usize),
            6 => Luck::Missing(block(rng)),
            _ => Luck::Alone(block(rng)),
        }
    }

    /// For each block, in order: how many versions after the durable one it keeps.
    fn pick(&self, luck: Luck, rng: &mut Rng) -> Vec<usize> {
        let mut number = if let Luck::Number(number) = luck { number } else { 0 };
        let mut kept = Vec::with_capacity(self.blocks.len());
        for (at, block) in self.blocks.iter().enumerate() {
            let any = |rng: &mut Rng| rng.u64(0..=block.count as u64) as usize;
            kept.push(match luck {
                Luck::Any => any(rng),
                Luck::MostlyNewest if rng.u32(0..16) > 0 => block.count,
                Luck::MostlyDurable if rng.u32(0..16) > 0 => 0,
                Luck::MostlyNewest | Luck::MostlyDurable => any(rng),
                Luck::UpTo(moment) => self.count_before(block, moment),
                Luck::Missing(one) => block.count * usize::from(at != one),
                Luck::Alone(one) => block.count * usize::from(at == one),
                Luck::Number(_) => {
                    let choices = block.count as u64 + 1;
                    let digit = number % choices;
                    number /= choices;
                    digit as usize
                }
            });
        }
        kept
    }

    fn count_before(&self, block: &Block, moment: usize) -> usize {
        self.order[block.first..block.first + block.count].partition_point(|&index| index < moment)
    }

    /// The number of combinations, if it is at most `max`.
    fn combinations(&self, max: u64) -> Option<u64> {
        let mut product = 1u64;
        for block in &self.blocks {
            product = product.checked_mul(block.count as u64 + 1).filter(|&p| p <= max)?;
        }
        Some(product)
    }

    fn put(&self, media: &mut Media, kept: &[usize]) {
        for (block, &count) in self.blocks.iter().zip(kept) {
            media.put_versions(block.block, self.of(block, count));
            media.forget(block.block);
        }
    }
}

/// What a power cut left, in numbers of blocks.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Blocks that had more than one version.
    pub blocks: u64,
    /// The number of these that kept the newest.
    pub newest: u64,
    /// The number of these that kept the durable one.
    pub durable: u64,
}

/// The power goes: each block keeps one version. `in_flight` comes after the log.
pub(super) fn power_cut(media: &mut Media, in_flight: Vec<Entry>, rng: &mut Rng) -> Left {
    let mut entries = media.take_log();
    entries.extend(in_flight);
    let versions = Versions::new(media, entries);
    let kept = versions.pick(versions.draw_luck(rng), rng);
    versions.put(media, &kept);
    media.forget_phantoms();
    let with_kept = || versions.blocks.iter().zip(&kept);
    let left = Left {
        blocks: kept.len() as u64,
        newest: with_kept().filter(|(block, kept)| block.count == **kept).count() as u64,
        durable: with_kept().filter(|(_, kept)| **kept == 0).count() as u64,
    };
    for data in versions.entries.into_iter().filter_map(|entry| entry.data) {
        media.recycle(data);
    }
    left
}

/// A failed flush drops what is not durable: each block keeps one version. Half of the blocks that
/// lose data show the loss only after a power cut. Returns how many blocks lost data.
pub(super) fn drop_unflushed(media: &mut Media, rng: &mut Rng) -> u64 {
    let entries = media.take_log();
    let versions = Versions::new(media, entries);
    let kept = versions.pick(versions.draw_luck(rng), rng);
    let mut lost = 0;
    for (block, &count) in versions.blocks.iter().zip(&kept) {
        media.put_versions(block.block, versions.of(block, count));
        if count == block.count {
            continue;
        }
        lost += 1;
        if rng.bool() {
            media.forget(block.block);
        } else {
            media.keep_phantom(block.block);
        }
    }
    lost
}

/// A copy of a disk at one moment, to see what a power cut at that moment may leave.
#[derive(Clone, Debug)]
pub struct DiskSnapshot {
    options: DiskOptions,
    media: Media,
    versions: Versions,
}

impl DiskSnapshot {
    pub(super) fn new(options: DiskOptions, mut media: Media, in_flight: Vec<Entry>) -> Self {
        let mut entries = media.take_log();
        entries.extend(in_flight);
        let versions = Versions::new(&media, entries);
        media.forget_phantoms();
        for block in &versions.blocks {
            media.forget(block.block);
        }
        DiskSnapshot { options, media, versions }
    }

    /// The number of different images, if it is not more than `max`.
    pub fn images_max(&self, max: u64) -> Option<u64> {
        self.versions.combinations(max)
    }

    /// The images that a power cut may leave, each as a disk that is switched on and holds only
    /// durable data.
    ///
    /// All combinations are given if they are at most `bound`. Otherwise `bound` images are given:
    /// nothing kept, everything kept, each block missing, each block alone, everything up to each
    /// moment, and random ones. Where even these are too many, `rng` draws some of them.
    pub fn images(&self, bound: usize, rng: Rng) -> Images<'_> {
        let mut rng = rng;
        let plan = self.lucks(bound, &mut rng);
        Images { snapshot: self, plan: plan.into_iter(), rng }
    }

    /// The luck of each of [`DiskSnapshot::images`].
    pub(crate) fn lucks(&self, bound: usize, rng: &mut Rng) -> Vec<Luck> {
        match self.versions.combinations(bound as u64) {
            Some(count) => (0..count).map(Luck::Number).collect(),
            None => self.plan(bound, rng),
        }
    }

    fn plan(&self, bound: usize, rng: &mut Rng) -> Vec<Luck> {
        let (blocks, entries) = (self.versions.blocks.len(), self.versions.entries.len());
        let part = bound.saturating_sub(2) / 4;
        let mut plan = vec![Luck::UpTo(0), Luck::UpTo(entries)];
        plan.extend(some(blocks, part, rng).map(Luck::Missing));
        plan.extend(some(blocks, part, rng).map(Luck::Alone));
        plan.extend(some(entries, part, rng).map(Luck::UpTo));
        plan.resize(bound, Luck::Any);
        plan
    }

    fn image(&self, luck: Luck, rng: &mut Rng) -> Disk {
        self.image_of(&self.kept(luck, rng), rng.u64(..))
    }

    /// For each block with several versions: how many after the durable one it keeps.
    pub(crate) fn kept(&self, luck: Luck, rng: &mut Rng) -> Vec<usize> {
        self.versions.pick(luck, rng)
    }

    /// The image in which the blocks keep these versions.
    pub(crate) fn image_of(&self, kept: &[usize], seed: u64) -> Disk {
        let mut media = self.media.clone();
        self.versions.put(&mut media, kept);
        Disk::with_media(self.options.clone(), media, seed)
    }

    /// The versions that the blocks keep, in words.
    pub(crate) fn describe(&self, kept: &[usize]) -> String {
        let blocks = self.versions.blocks.iter().zip(kept);
        let words: Vec<_> = blocks
            .map(|(block, kept)| format!("{}: {kept}/{}", block.block, block.count))
            .collect();
        match words.is_empty() {
            true => "everything is durable".to_owned(),
            false => format!("blocks keep {}", words.join(", ")),
        }
    }
}

impl Disk {
    /// The power goes: each physical block keeps one version from its durable one to its newest,
    /// in-flight writes included. Each operation in flight ends with ENODEV when it is finished.
    /// Each later operation ends with ENODEV, too, until [`Disk::power_on`].
    pub fn power_cut(&mut self) {
        self.counts.power_cuts += 1;
        self.lose_power();
    }

    /// The device is unplugged: as [`Disk::power_cut`], until [`Disk::come_back`].
    pub fn vanish(&mut self) {
        self.counts.vanishes += 1;
        self.lose_power();
    }

    fn lose_power(&mut self) {
        if !self.is_on {
            return;
        }
        self.is_on = false;
        let mut entries = self.end_flights();
        self.rng.shuffle(&mut entries);
        let left = power_cut(&mut self.media, entries, &mut self.rng);
        self.counts.cut_blocks += left.blocks;
        self.counts.cut_kept += left.newest;
        self.counts.cut_lost += left.durable;
    }

    /// A copy of the disk's contents and of its operations in flight, as of now.
    pub fn snapshot(&self) -> DiskSnapshot {
        let mut copy = self.clone();
        let in_flight = copy.end_flights();
        DiskSnapshot::new(copy.options, copy.media, in_flight)
    }
}

/// At most `max` of the numbers below `count`: all, or evenly spread ones from a random start on.
fn some(count: usize, max: usize, rng: &mut Rng) -> impl Iterator<Item = usize> + use<> {
    let step = if max == 0 { 1 } else { count.div_ceil(max).max(1) };
    let first = rng.u64(0..step as u64) as usize;
    (first..count).step_by(step).take(max)
}

/// The images of a snapshot, made one by one: each is as large as the disk.
#[derive(Debug)]
pub struct Images<'a> {
    snapshot: &'a DiskSnapshot,
    plan: std::vec::IntoIter<Luck>,
    rng: Rng,
}

impl Iterator for Images<'_> {
    type Item = Disk;

    fn next(&mut self) -> Option<Disk> {
        let luck = self.plan.next()?;
        Some(self.snapshot.image(luck, &mut self.rng))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.plan.size_hint()
    }
}
