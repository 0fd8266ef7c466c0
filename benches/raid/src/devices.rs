//! The measured devices: arrays on RAM disks or null devices, with a manager's thread each, and
//! striped volumes over the members of some of them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use drystone_core::clock::SystemClock;
use drystone_core::op::OpGroup;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{ContextSet, Device, SECTOR_SIZE};
use drystone_drivers::null::{Null, NullOptions};
use drystone_drivers::ram::Ram;
use drystone_queue::queue::QueueOptions;
use drystone_queue::{Driver, RequestQueue};
use drystone_raid::array::{self, Array, ArrayOptions, Command};
use drystone_raid::layout::{LAYOUT_DEFAULT, Layout, Level};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::assemble;
use drystone_raid::metadata::create::{self, CreateOptions, NewDevice, Policy};
use drystone_raid::metadata::superblock::Minor;
use drystone_targets::{Area, Line, Table, TargetSpec, Volume, VolumeOptions};

/// Bytes of a member: an array's members are many times as large as the caches of a processor.
pub const MEMBER_BYTES: u64 = 128 << 20;
/// Sectors of a chunk: 64 KiB.
pub const CHUNK_SECTORS: u64 = 128;

/// An array to be made.
#[derive(Clone, Copy)]
pub struct Spec {
    pub name: &'static str,
    pub level: Level,
    pub disks: u32,
    pub chunk_sectors: u64,
    pub policy: Policy,
    pub cache_stripes: u32,
    /// Its members are null devices, so that only the array's own work remains.
    pub is_null: bool,
    /// Its first member is out of it.
    pub is_degraded: bool,
}

impl Spec {
    pub fn parity_disks(&self) -> u32 {
        if self.level == Level::Raid6 { 2 } else { 1 }
    }
}

/// A device with those that it stands on.
pub struct Subject {
    pub device: Arc<dyn Device>,
    pub members: Vec<Arc<dyn Device>>,
    /// Start of a member's data, in sectors.
    data_offset: u64,
}

impl Subject {
    /// Reads and writes that its members have done so far.
    pub fn member_io(&self) -> (u64, u64) {
        let stats = self.members.iter().map(|member| member.stats());
        stats.fold((0, 0), |(reads, writes), stats| {
            let of = |group| stats.group(group).completed;
            (reads + of(OpGroup::Read), writes + of(OpGroup::Write))
        })
    }
}

fn counters() -> Arc<LockCounters> {
    LockCounters::new(SystemClock::new())
}

fn ram(name: String) -> Arc<dyn Device> {
    queue(name, Ram::new(MEMBER_BYTES, true).expect("memory for a member"))
}

fn null(name: String) -> Arc<dyn Device> {
    let options = NullOptions { size_bytes: MEMBER_BYTES, ..NullOptions::default() };
    queue(name, Null::new(options).expect("a null device"))
}

fn queue(name: String, driver: impl Driver) -> Arc<dyn Device> {
    let queue = RequestQueue::new(&name, driver, &QueueOptions::default(), counters());
    Arc::new(queue.expect("a queue"))
}

/// Makes an array on members of its own.
pub fn array(set: &Arc<ContextSet>, spec: &Spec) -> Subject {
    let names = (0..spec.disks).map(|disk| format!("{}-{disk}", spec.name));
    let members: Vec<_> = names.map(if spec.is_null { null } else { ram }).collect();
    let context = || set.open(Engine::Auto).expect("a context");
    let plan = create::plan(&options(spec), &new_devices(&members)).expect("a plan");
    let (_, candidates) = array::create(context(), &members, &plan).expect("new superblocks");
    let assembly = assemble(&candidates, None).expect("an array");
    let options = ArrayOptions {
        name: spec.name.to_owned(),
        read_only: false,
        cache_stripes: spec.cache_stripes,
        run: false,
        force: false,
        wall_clock: Arc::new(|| 0),
        event_sink: Arc::new(|_| ()),
    };
    let opened = array::open(context(), &members, &candidates, &assembly, &options);
    let opened = opened.expect("the array starts");
    thread::spawn(move || opened.manager.run());
    if spec.is_degraded {
        fail(&opened.array, members[0].info().name);
    }
    let data_offset = opened.array.status().superblock.data_offset;
    Subject { device: Arc::new(opened.array), members, data_offset }
}

fn options(spec: &Spec) -> CreateOptions {
    let layout = Layout::new(spec.level, LAYOUT_DEFAULT, spec.disks, spec.chunk_sectors);
    CreateOptions {
        layout: layout.expect("a layout"),
        minor: Minor::V1_2,
        spare_devices: 0,
        policy: Some(spec.policy),
        bitmap_chunk: None,
        size: None,
        data_offset: None,
        set_name: spec.name.to_owned(),
        set_uuid: Uuid([1; 16]),
        ctime: 0,
        // New devices read as zeroes, whose parity is zero.
        assume_clean: true,
        force: false,
    }
}

fn new_devices(members: &[Arc<dyn Device>]) -> Vec<Option<NewDevice>> {
    let device = |(number, member): (usize, &Arc<dyn Device>)| {
        let info = member.info();
        let uuid = Uuid([number as u8 + 2; 16]);
        let block_sectors = u64::from(info.limits.logical_block_size) / SECTOR_SIZE;
        let sectors = info.size_bytes / SECTOR_SIZE;
        Some(NewDevice { name: info.name, sectors, block_sectors, uuid })
    };
    members.iter().enumerate().map(device).collect()
}

fn fail(array: &Array, member: String) {
    let (request, locks) = (array.request(Command::Fail(member)), counters());
    loop {
        if let Some(outcome) = request.outcome(&locks) {
            return outcome.expect("the member fails");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A striped volume over the data of an array's members. Use it for reads only: its contents are
/// not those of the array.
pub fn striped(over: &Subject) -> Subject {
    let area = |device: &Arc<dyn Device>| Area { device: device.clone(), sector: over.data_offset };
    let stripes: Vec<_> = over.members.iter().map(area).collect();
    let each = MEMBER_BYTES / SECTOR_SIZE - over.data_offset;
    let length = each / CHUNK_SECTORS * CHUNK_SECTORS * stripes.len() as u64;
    let target = TargetSpec::Striped { chunk_sectors: CHUNK_SECTORS as u32, stripes };
    let table = Table::new(vec![Line { start: 0, length, target }]).expect("a table");
    let volume =
        Volume::new("striped", VolumeOptions { read_only: true, ..Default::default() }, counters());
    volume.load(table);
    volume.resume().expect("the volume starts");
    Subject { device: Arc::new(volume), members: over.members.clone(), data_offset: 0 }
}
