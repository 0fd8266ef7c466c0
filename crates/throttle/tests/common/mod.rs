//! A device that ends what it gets at once and notes when; contexts in simulated time.
#![allow(dead_code, reason = "each file of tests uses some of it")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use drystone_core::clock::ManualClock;
use drystone_core::device::TypedDevice;
use drystone_core::mailbox::Message;
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_core::{
    Bio, BioList, Channel, ChannelId, Context, ContextSet, Device, DeviceInfo, Env, Extent, IoBuf,
    Limits as DeviceLimits, Op, Result, Sector, Status,
};
use drystone_throttle::{Change, DeviceThrottle, Groups, Throttled};
use std::sync::{Arc, Mutex};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
/// When the simulated clock begins.
pub const START: u64 = 1000 * SECOND;
pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * KIB;

/// An I/O as the device saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Nanoseconds since the beginning.
    pub at: u64,
    pub group: u32,
    pub op: Op,
    pub bytes: u64,
    pub user_data: u64,
}

#[derive(Clone)]
pub struct Recorder {
    pub seen: Arc<Mutex<Vec<Seen>>>,
    /// The most that it takes at once, as the channel knows it.
    pub most: u64,
    /// The same by now, if it has changed.
    pub limit: Arc<Mutex<Option<u64>>>,
    /// Done when it is asked next how much that is: while a channel admits bios by rules that it
    /// has read.
    pub hook: Hook,
}

/// Something to do once.
pub type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

impl Device for Recorder {
    drystone_testkit::no_statistics!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = DeviceLimits::default();
        DeviceInfo { name: "disk".to_owned(), kind: "test", size_bytes: 1 << 40, limits }
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, id)?))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }
}

impl TypedDevice for Recorder {
    type Channel = Recorder;

    fn open_typed(&self, _env: &mut Env, _id: ChannelId) -> Result<Recorder> {
        Ok(self.clone())
    }
}

impl Channel for Recorder {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        let at = env.time.now() - START;
        while let Some(bio) = bios.pop() {
            let Bio { group, op, bytes, user_data, .. } = *bio;
            self.seen.lock().unwrap().push(Seen { at, group, op, bytes, user_data });
            env.end_with(bio, Status::Ok);
        }
    }

    fn max_io_bytes(&self) -> u64 {
        self.most
    }

    fn follow_limits(&mut self, _env: &mut Env) {
        self.most = self.limit.lock().unwrap().unwrap_or(self.most);
    }

    fn first_part(&self, bio: &Bio) -> u64 {
        let hook = self.hook.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        bio.bytes.min(self.most)
    }

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

/// Contexts on a throttled device, in simulated time.
pub struct Bench {
    pub clock: Arc<ManualClock>,
    pub groups: Arc<Groups>,
    pub disk: Recorder,
    pub device: Arc<dyn Device>,
    pub contexts: Vec<Context>,
    pub index: ChannelId,
    pub ended: Vec<(u64, Status)>,
}

impl Bench {
    pub fn new(contexts: usize) -> Self {
        Self::with_most(contexts, u64::MAX)
    }

    pub fn with_most(contexts: usize, most: u64) -> Self {
        let clock = ManualClock::new(START);
        let locks = LockRegistry::new(clock.clone());
        let groups = Groups::new(clock.clone(), &locks);
        let disk =
            Recorder { seen: Arc::default(), most, limit: Arc::default(), hook: Hook::default() };
        let device: Arc<dyn Device> =
            Arc::new(Throttled::<_, DeviceThrottle>::new(disk.clone(), groups.attach("disk")));
        let set = ContextSet::counted_by(locks);
        let mut contexts: Vec<_> =
            (0..contexts).map(|_| set.open(Engine::Plain).unwrap()).collect();
        let indices: Vec<_> = contexts.iter_mut().map(|it| it.open(&device).unwrap()).collect();
        Bench { clock, groups, disk, device, index: indices[0], contexts, ended: Vec::new() }
    }

    pub fn group(&self, path: &str) -> u32 {
        self.groups.create(path).unwrap().id().as_u32()
    }

    pub fn set(&self, path: &str, change: Change) {
        self.groups.set_max(path, "disk", &change).unwrap();
    }

    pub fn submit(&mut self, context: usize, bio: Box<Bio>) {
        let mut bios = BioList::new();
        bios.push(bio);
        self.contexts[context].submit(self.index, &mut bios);
    }

    /// Let `ns` pass, in steps of `step`.
    pub fn run(&mut self, ns: u64, step: u64) {
        for _ in 0..ns / step {
            self.clock.advance(step);
            self.look();
        }
    }

    /// Have every context look, and take what ended.
    pub fn look(&mut self) -> Vec<(usize, Box<Bio>)> {
        use drystone_core::clock::Clock;
        let mut ended = Vec::new();
        for (number, context) in self.contexts.iter_mut().enumerate() {
            let mut out = BioList::new();
            context.wait(Some(self.clock.now()));
            context.reap(&mut out);
            while let Some(bio) = out.pop() {
                self.ended.push((bio.user_data, bio.status));
                ended.push((number, bio));
            }
        }
        ended
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.disk.seen.lock().unwrap().clone()
    }
}

pub fn bio(op: Op, group: u32, bytes: u64, user_data: u64) -> Box<Bio> {
    let mut bio = match op {
        Op::Read => Bio::read(Sector(0), IoBuf::zeroed(bytes as usize)),
        Op::Write => Bio::write(Sector(0), IoBuf::zeroed(bytes as usize)),
        op => Bio::without_data(op, Sector(0), bytes),
    };
    (bio.group, bio.user_data) = (group, user_data);
    bio
}

pub fn bps(read: u64, write: u64) -> Change {
    Change { rbps: Some(Some(read)), wbps: Some(Some(write)), ..Change::default() }
}

pub fn iops(read: u64, write: u64) -> Change {
    Change { riops: Some(Some(read)), wiops: Some(Some(write)), ..Change::default() }
}
