//! A test rig for drivers: a context on one device.
#![allow(clippy::vec_box, reason = "submit and reap take and give bios in boxes")]

use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::{Engine, Ring};
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, Env, IoBuf, Op, Pipe, Sector,
    Status,
};
use drystone_queue::queue::QueueOptions;
use drystone_queue::{Driver, RequestQueue};
use std::sync::Arc;

pub(crate) const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Plain];

pub(crate) struct Rig {
    pub(crate) set: Arc<ContextSet>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cx: Context,
    pub(crate) dev: ChannelId,
}

impl Rig {
    /// The driver on the machine's clock.
    pub(crate) fn new(driver: impl Driver, engine: Engine) -> Self {
        Self::with(driver, &QueueOptions::default(), engine, SystemClock::new())
    }

    pub(crate) fn with(
        driver: impl Driver,
        options: &QueueOptions,
        engine: Engine,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let ring = drystone_core::ring::open(engine, clock.clone()).expect("a ring");
        Self::on(driver, options, ring, clock)
    }

    /// The driver on a ring that the test gives.
    pub(crate) fn on(
        driver: impl Driver,
        options: &QueueOptions,
        ring: Box<dyn Ring>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let locks = LockCounters::new(clock.clone());
        let set = ContextSet::new(clock);
        let queue = RequestQueue::new("d0", driver, options, locks).expect("a queue");
        let device: Arc<dyn Device> = Arc::new(queue);
        let mut cx = set.context(ring);
        let dev = cx.open(&device).expect("a channel");
        Rig { set, device, cx, dev }
    }

    /// Another context on the same device.
    pub(crate) fn beside(&self, ring: Box<dyn Ring>) -> Self {
        let mut cx = self.set.context(ring);
        let dev = cx.open(&self.device).expect("a channel");
        Rig { set: self.set.clone(), device: self.device.clone(), cx, dev }
    }

    pub(crate) fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.cx.submit(self.dev, &mut list);
    }

    /// The bios that have ended, without waiting.
    pub(crate) fn reap(&mut self) -> Vec<Box<Bio>> {
        let mut out = BioList::new();
        self.cx.reap(&mut out);
        std::iter::from_fn(|| out.pop()).collect()
    }

    /// Wait until everything submitted has ended; in the order of the ends.
    pub(crate) fn drain(&mut self) -> Vec<Box<Bio>> {
        let mut all = self.reap();
        while self.cx.outstanding() > 0 {
            self.cx.wait(None);
            all.extend(self.reap());
        }
        all
    }

    pub(crate) fn one(&mut self, bio: Box<Bio>) -> Box<Bio> {
        self.submit([bio]);
        let mut ended = self.drain();
        assert_eq!(ended.len(), 1);
        ended.remove(0)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8], flags: BioFlags) -> Status {
        let mut bio = Bio::write(Sector::from_bytes(offset), IoBuf::from_slice(data));
        bio.flags = flags;
        self.one(bio).status
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Status> {
        let bio = self.one(Bio::read(Sector::from_bytes(offset), IoBuf::zeroed(len)));
        match bio.status {
            Status::Ok => Ok(bio.buf().expect("its buffer").to_vec()),
            status => Err(status),
        }
    }

    /// A read that comes with a pipe: how it ends, and what the pipe holds then.
    pub(crate) fn read_with_pipe(&mut self, offset: u64, len: usize) -> (Box<Bio>, Vec<u8>) {
        let mut bio = Bio::read(Sector::from_bytes(offset), IoBuf::zeroed(len));
        bio.set_pipe(Pipe::open().expect("a pipe"));
        let mut bio = self.one(bio);
        let mut pipe = bio.take_pipe().expect("it comes back");
        let mut data = Vec::new();
        while !pipe.is_empty() {
            let some = pipe.copy_out(pipe.len());
            pipe.moved(some.len());
            data.extend(some);
        }
        (bio, data)
    }

    pub(crate) fn range(&mut self, op: Op, offset: u64, bytes: u64, flags: BioFlags) -> Status {
        let mut bio = Bio::without_data(op, Sector::from_bytes(offset), bytes);
        bio.flags = flags;
        self.one(bio).status
    }

    pub(crate) fn flush(&mut self) -> Status {
        self.one(Bio::flush()).status
    }

    /// The allocation of the device's first `length` bytes, as (length, is data).
    pub(crate) fn allocation(&self, length: u64) -> Vec<(u64, bool)> {
        let extents = self.device.extents(0, length, usize::MAX).expect("extents");
        assert!(extents.iter().all(|e| e.allocated != e.zero));
        extents.iter().map(|e| (e.length, e.allocated)).collect()
    }
}

/// Bytes whose values depend on their place.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(7) ^ seed | 1).collect()
}

/// Runs `test` in the environment of a new context.
pub(crate) fn with_env(test: impl FnOnce(&mut Env) + Send + 'static) {
    drystone_testkit::device::with_env(SystemClock::new(), Engine::Auto, test);
}
