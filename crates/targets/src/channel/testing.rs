//! The environment for unit tests of a channel's parts: a context that calls them, and a member.

use crate::area::Area;
use crate::shared::{Shared, VolumeOptions};
use crate::table::{Line, Table, TargetSpec};
use drystone_core::clock::ManualClock;
use drystone_core::mailbox::Message;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioList, Channel, ChannelId, ContextSet, Device, DeviceInfo, Env, Extent, Limits, Op,
    Result, SECTOR_SIZE, Status,
};
use std::sync::{Arc, Mutex};

/// The time of the contexts' clock.
pub(super) const NOW: u64 = 1_000_000_000;

/// An I/O that reached a member: operation, sector and number of sectors.
pub(super) type Seen = (Op, u64, u64);

/// What a device does with a bio.
type Act = Box<dyn FnMut(&mut Env, ChannelId, Box<Bio>) + Send>;

/// A device that calls the given function with each bio.
struct TestDevice(Mutex<Option<Act>>);

struct TestChannel {
    act: Act,
    id: ChannelId,
}

impl Device for TestDevice {
    drystone_testkit::no_statistics!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits { write_cache: true, ..Limits::default() };
        DeviceInfo { name: "m".to_owned(), kind: "test", size_bytes: 1 << 20, limits }
    }

    fn open_channel(&self, _env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        let act = self.0.lock().unwrap().take().expect("it is opened once");
        Ok(Box::new(TestChannel { act, id }))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }
}

impl Channel for TestChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            (self.act)(env, self.id, bio);
        }
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

/// A member that ends all I/O at once, and the list of that I/O.
pub(super) fn member() -> (Arc<dyn Device>, Arc<Mutex<Vec<Seen>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let act: Act = Box::new(move |env, _, bio| {
        noted.lock().unwrap().push((bio.op, bio.sector.0, bio.bytes / SECTOR_SIZE));
        env.end_with(bio, Status::Ok);
    });
    (Arc::new(TestDevice(Mutex::new(Some(act)))), seen)
}

/// The area of a device from a sector on.
pub(super) fn area(device: &Arc<dyn Device>, sector: u64) -> Area {
    Area { device: device.clone(), sector }
}

/// A table of these targets, 8 sectors each.
pub(super) fn table(targets: Vec<TargetSpec>) -> Arc<Table> {
    let line = |(n, target): (u64, TargetSpec)| Line { start: n * 8, length: 8, target };
    Arc::new(Table::new((0..).zip(targets).map(line).collect()).unwrap())
}

/// A volume without a table.
pub(super) fn shared() -> Arc<Shared> {
    let locks = LockCounters::new(ManualClock::new(NOW));
    Shared::new("v", VolumeOptions::default(), locks)
}

/// Make `table` the live one.
pub(super) fn publish(shared: &Arc<Shared>, table: Arc<Table>) {
    shared.publish(|live| shared.take_over(live, table));
}

/// Call `act` with `bio` in a context, as a channel would be called. Returns the bio when it has
/// ended.
pub(super) fn run(
    bio: Box<Bio>,
    act: impl FnOnce(&mut Env, ChannelId, Box<Bio>) + Send + 'static,
) -> Box<Bio> {
    let mut act = Some(act);
    let act: Act = Box::new(move |env, id, bio| {
        let act = act.take().expect("one bio comes");
        act(env, id, bio);
    });
    let device: Arc<dyn Device> = Arc::new(TestDevice(Mutex::new(Some(act))));
    let mut context = ContextSet::new(ManualClock::new(NOW)).open(Engine::Plain).unwrap();
    let channel = context.open(&device).unwrap();
    let mut bios = BioList::new();
    bios.push(bio);
    context.submit(channel, &mut bios);
    context.reap(&mut bios);
    bios.pop().expect("the bio ends at once")
}
