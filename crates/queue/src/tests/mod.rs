//! The request queue on a driver that the test controls.

mod apart;
mod attributes;
mod busy;
pub(crate) mod fake;
mod flush;
mod interleaved;
mod layout;
mod path;
mod queues;
mod scheduled;
mod sharing;
mod switched;
mod timeout;
mod timing;
mod together;

use crate::queue::{QueueOptions, RequestQueue};
use crate::scheduler::SchedulerKind;
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, Env, IoBuf, Op, Sector, Status,
};
use fake::{Answer, Fake, Seen, Setup, Stage};
use std::sync::Arc;

const ENGINES: [Engine; 2] = [Engine::Auto, Engine::Plain];
const MS: u64 = 1_000_000;

/// Runs `test` in the environment of a new context.
pub(crate) fn with_env(test: impl FnOnce(&mut Env) + Send + 'static) {
    drystone_testkit::device::with_env(ManualClock::new(1), Engine::Plain, test);
}

/// One context on a queue in front of a fake driver, with a clock that the test moves.
struct Rig {
    clock: Arc<ManualClock>,
    set: Arc<ContextSet>,
    stage: Arc<Stage>,
    device: Arc<dyn Device>,
    cx: Context,
    dev: ChannelId,
}

impl Rig {
    fn new(setup: Setup) -> Self {
        Self::with(setup, &QueueOptions::default(), Engine::Auto)
    }

    fn with(setup: Setup, options: &QueueOptions, engine: Engine) -> Self {
        let clock = ManualClock::new(1000 * MS);
        Self::timed(setup, options, engine, clock.clone(), clock)
    }

    /// The same; all parts see the time of `clock` through `shown`.
    fn timed(
        setup: Setup,
        options: &QueueOptions,
        engine: Engine,
        clock: Arc<ManualClock>,
        shown: Arc<dyn Clock>,
    ) -> Self {
        let set = ContextSet::new(shown.clone());
        let stage = Stage::new();
        let device = queue(Fake::new(setup, &stage), options, shown);
        let mut cx = set.open(engine).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        Rig { clock, set, stage, device, cx, dev }
    }

    /// Another context of the same set, with the device open.
    fn another(&self) -> (Context, ChannelId) {
        let mut cx = self.set.open(Engine::Auto).expect("a ring");
        let dev = cx.open(&self.device).expect("a channel");
        (cx, dev)
    }

    /// Submit `bios` in one call, numbered from 0 by their user data unless it is set.
    fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.cx.submit(self.dev, &mut list);
        assert!(list.is_empty());
    }

    /// The bios that have ended: user data and status.
    fn ended(&mut self) -> Vec<(u64, Status)> {
        ended(&mut self.cx)
    }

    /// The bios that have ended, and those that end as a consequence.
    fn all_ended(&mut self) -> Vec<(u64, Status)> {
        let mut all = Vec::new();
        loop {
            match self.ended() {
                some if some.is_empty() => return all,
                some => all.extend(some),
            }
        }
    }

    /// The requests that the driver took, as (sector, bytes).
    fn taken(&self) -> Vec<(u64, u64)> {
        self.stage.seen().iter().map(|s| (s.sector, s.bytes)).collect()
    }

    /// The operations that the driver took.
    fn ops(&self) -> Vec<Op> {
        self.stage.seen().iter().map(|s| s.op).collect()
    }

    /// Give back the requests that the driver holds, in order, until it holds none.
    fn give_back_all(&mut self) -> Vec<(u64, Status)> {
        let mut all = Vec::new();
        while self.stage.give_back(0, Status::Ok) {
            all.extend(self.ended());
        }
        all
    }

    fn attribute(&self, name: &str) -> String {
        self.device.attribute(name).expect("an attribute")
    }
}

fn queue(fake: Fake, options: &QueueOptions, clock: Arc<dyn Clock>) -> Arc<dyn Device> {
    let scheduler = options.scheduler.or(Some(SchedulerKind::None));
    let options = QueueOptions { scheduler, ..options.clone() };
    Arc::new(RequestQueue::new("q0", fake, &options, LockCounters::new(clock)).expect("a queue"))
}

fn ended(cx: &mut Context) -> Vec<(u64, Status)> {
    let mut out = BioList::new();
    cx.reap(&mut out);
    out.iter().map(|b| (b.user_data, b.status)).collect()
}

fn read(sector: u64, sectors: u64) -> Box<Bio> {
    tag(Bio::read(Sector(sector), IoBuf::zeroed(sectors as usize * 512)), sector)
}

fn write(sector: u64, sectors: u64) -> Box<Bio> {
    tag(Bio::write(Sector(sector), IoBuf::zeroed(sectors as usize * 512)), sector)
}

fn tag(mut bio: Box<Bio>, user_data: u64) -> Box<Bio> {
    bio.user_data = user_data;
    bio
}

fn with(mut bio: Box<Bio>, flags: BioFlags) -> Box<Bio> {
    bio.flags |= flags;
    bio
}

fn without_data(op: Op, sector: u64, sectors: u64) -> Box<Bio> {
    tag(Bio::without_data(op, Sector(sector), sectors * 512), sector)
}
