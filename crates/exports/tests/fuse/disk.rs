//! A device in memory, whose I/O takes its time and ends in any order.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::stats::DiskStats;
use drystone_core::{
    Bio, BioFlags, BioList, Channel, ChannelId, Device, DeviceInfo, Env, Extent, Limits, Op,
    Result, Status,
};

/// Extents are told in pieces of this.
pub const PIECE: usize = 4096;

/// The disk.
pub struct Disk {
    pub bytes: Mutex<Vec<u8>>,
    /// Of it, so much is there.
    pub size: AtomicU64,
    pub block: u32,
    pub read_only: bool,
    /// Nothing can be read or written.
    pub fails: bool,
    /// Nothing can be written.
    pub fails_writes: bool,
    /// It writes zeroes by itself.
    pub zeroes: bool,
    /// It says that it does, but does not.
    pub claims_to_zero: bool,
    /// It does so piece by piece, and ends early when no client wants it any more.
    pub zeroes_in_pieces: bool,
    /// The number of times that it has.
    pub cut_short: AtomicU64,
    /// It takes discards, which zero.
    pub discards: bool,
    /// Bios that are submitted from now on are held until the release.
    pub holds: AtomicBool,
    /// Zeroing is.
    pub holds_zeroes: bool,
    pub released: AtomicBool,
    /// Longest time of an I/O; 0 ends it in the call.
    pub delay_ns: AtomicU64,
    /// Shortest time of one that does not.
    pub least_ns: AtomicU64,
    /// The operations that came, with their flags and throttle groups.
    pub counts: Mutex<Vec<(Op, BioFlags, u32)>>,
    /// Writes that its statistics tell of.
    pub written: AtomicU64,
    /// Most that were in flight at once, of one context.
    pub most_held: AtomicU64,
    random: AtomicU64,
}

impl Disk {
    pub fn new(size: usize, block: u32) -> Arc<Self> {
        Arc::new(Disk {
            bytes: Mutex::new(vec![0; size]),
            size: AtomicU64::new(size as u64),
            block,
            read_only: false,
            fails: false,
            fails_writes: false,
            zeroes: true,
            claims_to_zero: false,
            zeroes_in_pieces: false,
            cut_short: AtomicU64::new(0),
            discards: false,
            holds: AtomicBool::new(false),
            holds_zeroes: false,
            released: AtomicBool::new(false),
            delay_ns: AtomicU64::new(0),
            least_ns: AtomicU64::new(0),
            counts: Mutex::default(),
            written: AtomicU64::new(0),
            most_held: AtomicU64::new(0),
            random: AtomicU64::new(1),
        })
    }

    pub fn count(&self, op: Op) -> usize {
        self.counts.lock().unwrap().iter().filter(|(of, ..)| *of == op).count()
    }

    fn random(&self) -> u64 {
        let next =
            |x: u64| Some(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
        self.random.try_update(Relaxed, Relaxed, next).unwrap() >> 33
    }

    fn range(&self, bio: &Bio) -> Option<Range<usize>> {
        let (start, end) = (bio.sector.bytes(), bio.sector.bytes() + bio.bytes);
        let whole = (start | end) & u64::from(self.block - 1) == 0;
        (whole && end <= self.size.load(Relaxed)).then_some(start as usize..end as usize)
    }

    fn read(&self, bio: &mut Bio) -> Status {
        let Some(range) = self.range(bio) else { return Status::Invalid };
        if self.fails {
            return Status::Medium;
        }
        bio.fill_data_from(&self.bytes.lock().unwrap()[range]);
        Status::Ok
    }

    fn write(&self, bio: &Bio) -> Status {
        let Some(range) = self.range(bio) else { return Status::Invalid };
        if bio.op == Op::WriteZeroes && (self.claims_to_zero || !self.zeroes) {
            return Status::NotSupported;
        }
        if self.fails || self.fails_writes {
            return Status::Medium;
        }
        if self.read_only {
            return Status::Permission;
        }
        let place = &mut self.bytes.lock().unwrap()[range];
        match bio.op {
            Op::Write => bio.copy_data_to(place),
            _ => place.fill(0),
        }
        Status::Ok
    }
}

/// The disk as a device: channels need to share it.
pub struct Handle(pub Arc<Disk>);

impl Device for Handle {
    drystone_testkit::no_latencies!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits {
            logical_block_size: self.0.block,
            read_only: self.0.read_only,
            max_write_zeroes_bytes: if self.0.zeroes { u64::MAX } else { 0 },
            max_discard_bytes: if self.0.discards { u64::MAX } else { 0 },
            ..Limits::default()
        };
        let size_bytes = self.0.size.load(Relaxed);
        DeviceInfo { name: "disk".into(), kind: "test", size_bytes, limits }
    }

    fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
        let held = Vec::with_capacity(256);
        Ok(Box::new(DiskChannel { disk: self.0.clone(), held, look_at: 0 }))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        let bytes = self.0.bytes.lock().unwrap();
        let (mut at, end) = (offset as usize, (offset + length) as usize);
        let mut found = Vec::new();
        while at < end && found.len() < max {
            let next = (at / PIECE * PIECE + PIECE).min(end);
            let (start, length) = (at as u64, (next - at) as u64);
            found.push(match bytes[at..next].iter().all(|byte| *byte == 0) {
                true => Extent::hole(start, length),
                false => Extent::data(start, length),
            });
            at = next;
        }
        Ok(found)
    }

    fn stats(&self) -> DiskStats {
        let mut stats = DiskStats::default();
        stats.groups[OpGroup::Write as usize].completed = self.0.written.load(Relaxed);
        stats
    }
}

struct DiskChannel {
    disk: Arc<Disk>,
    /// Bios that end later, and when.
    held: Vec<(Ns, Box<Bio>)>,
    /// When to look next whether what is held was released.
    look_at: Ns,
}

/// When a bio ends that is held until the release, and how often that is looked at.
const HELD: Ns = Ns::MAX;
const LOOK_NS: Ns = 1_000_000;

impl DiskChannel {
    /// Reads see what is there when they begin, writes are there when they end: as far apart as may
    /// be.
    fn begin(&self, bio: &mut Bio) {
        bio.status = match bio.op {
            Op::Read => self.disk.read(bio),
            _ => Status::Ok,
        };
    }

    fn end(&self, env: &mut Env, mut bio: Box<Bio>) {
        if bio.op.is_write() {
            bio.status = self.disk.write(&bio);
        }
        let status = bio.status;
        env.end_with(bio, status);
    }
}

impl Channel for DiskChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        let delay = self.disk.delay_ns.load(Relaxed);
        while let Some(mut bio) = bios.pop() {
            self.disk.counts.lock().unwrap().push((bio.op, bio.flags, bio.group));
            self.begin(&mut bio);
            let zeroes = bio.op == Op::WriteZeroes && self.disk.holds_zeroes;
            let holds = zeroes || self.disk.holds.load(SeqCst);
            match delay {
                _ if holds => self.held.push((HELD, bio)),
                0 => self.end(env, bio),
                _ => {
                    let least = self.disk.least_ns.load(Relaxed);
                    let at = env.time.now() + least + self.disk.random() % delay;
                    self.held.push((at, bio));
                }
            }
        }
        self.disk.most_held.fetch_max(self.held.len() as u64, Relaxed);
    }

    fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn deadline(&self) -> Option<Ns> {
        self.held.iter().map(|(at, _)| *at).min().map(|at| at.min(self.look_at))
    }

    fn tick(&mut self, env: &mut Env, now: Ns) {
        self.look_at = now + LOOK_NS;
        let released = self.disk.released.load(SeqCst);
        let ends = |at: Ns| at <= now || at == HELD && released;
        // Without allocations, for tests that count them.
        while let Some(place) = self.held.iter().position(|(at, _)| ends(*at)) {
            let (_, bio) = self.held.swap_remove(place);
            self.end(env, bio);
        }
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>) {
        let is_one = |bio: &Bio| {
            let zeroes = matches!(bio.op, Op::Discard | Op::WriteZeroes);
            zeroes && self.disk.zeroes_in_pieces && range.contains(&bio.user_data)
        };
        while let Some(place) = self.held.iter().position(|(_, bio)| is_one(bio)) {
            let (_, bio) = self.held.swap_remove(place);
            self.disk.cut_short.fetch_add(1, Relaxed);
            env.end_with(bio, Status::Cancelled);
        }
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        for (_, bio) in std::mem::take(&mut self.held) {
            env.end_with(bio, Status::Cancelled);
        }
    }
}
