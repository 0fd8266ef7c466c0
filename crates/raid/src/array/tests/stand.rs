//! Devices in memory, and the array on them, served by one thread.

use super::super::*;
use crate::layout::{Layout, Level};
use crate::metadata::Uuid;
use crate::metadata::assemble::{Assembly, Candidate, assemble};
use crate::metadata::create::{CreateOptions, NewDevice, Policy, plan};
use crate::metadata::superblock::{Minor, Superblock};
use crate::testing;
use drystone_core::ChannelId;
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::extent::ExtentList;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use drystone_core::ring::Engine;
use drystone_core::stats::DiskStats;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{
    Bio, BioList, Channel, Context, ContextSet, Device, DeviceInfo, Env, Error, Extent, IoBuf,
    Limits, Op, Result, SECTOR_SIZE, Sector, Status,
};
use std::ops::Range;
use std::sync::Arc;

const BYTES: usize = 4 << 20;

/// An I/O that a device got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the device.
    pub(super) device: usize,
    pub(super) op: Op,
    pub(super) sectors: Range<u64>,
}

/// The I/O of all devices, in order. The power fails after a number of writes: later ones do
/// nothing.
pub(super) struct Power {
    entries: Lock<Vec<Entry>>,
    locks: Arc<LockCounters>,
    writes_left: AtomicU64,
}

impl Power {
    fn new() -> Arc<Self> {
        Arc::new(Power {
            entries: Lock::new(LockClass::Other, Vec::new()),
            locks: LockCounters::new(ManualClock::new(1)),
            writes_left: AtomicU64::new(u64::MAX),
        })
    }

    fn note(&self, entry: Entry) -> bool {
        let is_write = entry.op == Op::Write;
        self.entries.lock(&self.locks).push(entry);
        let left = self.writes_left.load(Relaxed);
        if is_write && left > 0 {
            self.writes_left.store(left - 1, Relaxed);
        }
        left > 0
    }

    /// Take the I/O since the previous call.
    pub(super) fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.entries.lock(&self.locks))
    }

    pub(super) fn goes_after(&self, writes: u64) {
        self.writes_left.store(writes, Relaxed);
    }

    pub(super) fn is_off(&self) -> bool {
        self.writes_left.load(Relaxed) == 0
    }
}

/// A device in memory.
pub(in crate::array) struct Memory {
    number: usize,
    power: Arc<Power>,
    /// I/O to this sector and to later ones is held.
    held_from: AtomicU64,
    words: Lock<Vec<Arc<Message>>>,
    /// The device reports a volatile cache.
    pub(super) has_cache: AtomicBool,
    /// Bytes of its logical block.
    pub(super) block: AtomicU32,
    pub(super) name: String,
    pub(super) bytes: Lock<Vec<u8>>,
    pub(super) locks: Arc<LockCounters>,
    pub(in crate::array) is_dead: AtomicBool,
    /// Flushes fail, and so do writes that come with one.
    pub(super) flush_fails: AtomicBool,
    /// Reads and writes that touch this sector fail, once it is not all ones.
    pub(super) bad_sector: AtomicU64,
    /// Writes that touch this sector fail, once it is not all ones.
    pub(super) read_only_sector: AtomicU64,
    /// Reads that touch this sector fail until it is written, once it is not all ones.
    pub(super) unreadable: AtomicU64,
    /// The device is gone: all of its I/O fails with that status.
    pub(super) has_gone: AtomicBool,
    /// Reads are not held.
    pub(super) lets_reads_pass: AtomicBool,
    /// Writes to this sector and later ones find no room, once it is not all ones.
    pub(super) full_from: AtomicU64,
    /// Sectors that the device reports as holes, whatever they hold.
    pub(super) holes: Lock<Vec<Range<u64>>>,
}

impl Memory {
    pub(super) fn new(number: usize, bytes: Vec<u8>, power: &Arc<Power>) -> Arc<Self> {
        Arc::new(Memory {
            number,
            power: power.clone(),
            held_from: AtomicU64::new(u64::MAX),
            words: Lock::new(LockClass::Other, Vec::new()),
            has_cache: AtomicBool::new(false),
            block: AtomicU32::new(512),
            name: format!("d{number}"),
            bytes: Lock::new(LockClass::Other, bytes),
            locks: LockCounters::new(ManualClock::new(1)),
            is_dead: AtomicBool::new(false),
            flush_fails: AtomicBool::new(false),
            bad_sector: AtomicU64::new(u64::MAX),
            read_only_sector: AtomicU64::new(u64::MAX),
            unreadable: AtomicU64::new(u64::MAX),
            has_gone: AtomicBool::new(false),
            lets_reads_pass: AtomicBool::new(false),
            full_from: AtomicU64::new(u64::MAX),
            holes: Lock::new(LockClass::Other, Vec::new()),
        })
    }

    pub(super) fn put(&self, sector: u64, data: &[u8]) {
        let start = (sector * SECTOR_SIZE) as usize;
        self.bytes.lock(&self.locks)[start..start + data.len()].copy_from_slice(data);
    }

    pub(super) fn get(&self, sector: u64, bytes: usize) -> Vec<u8> {
        let start = (sector * SECTOR_SIZE) as usize;
        self.bytes.lock(&self.locks)[start..start + bytes].to_vec()
    }

    pub(in crate::array) fn superblock(&self) -> Superblock {
        self.superblock_of(Minor::V1_2)
    }

    pub(super) fn superblock_of(&self, minor: Minor) -> Superblock {
        let sector = minor.sector(self.sectors()).expect("a place");
        Superblock::parse(&self.get(sector, 4096), sector, self.sectors()).expect("a superblock")
    }

    pub(super) fn sectors(&self) -> u64 {
        self.bytes.lock(&self.locks).len() as u64 / SECTOR_SIZE
    }

    /// The contents of the whole device.
    pub(super) fn image(&self) -> Vec<u8> {
        self.bytes.lock(&self.locks).clone()
    }

    /// Hold I/O to its data from now on.
    pub(super) fn hold(&self) {
        self.hold_from(0);
    }

    /// Hold I/O to its data from this member sector on.
    pub(super) fn hold_from(&self, sector: u64) {
        self.held_from.store(self.superblock().data_offset + sector, Relaxed);
    }

    /// True if the device reports a sector as a hole.
    pub(super) fn is_hole(&self, sector: u64) -> bool {
        self.holes.lock(&self.locks).iter().any(|hole| hole.contains(&sector))
    }

    /// The reported extents, sector by sector.
    fn extents(&self, offset: u64, length: u64, max: usize) -> Vec<Extent> {
        let (mut list, mut at, end) = (ExtentList::new(), offset, offset + length);
        while at < end && list.as_slice().len() <= max {
            let part = (SECTOR_SIZE - at % SECTOR_SIZE).min(end - at);
            list.push(match self.is_hole(at / SECTOR_SIZE) {
                true => Extent::hole(at, part),
                false => Extent::data(at, part),
            });
            at += part;
        }
        list.as_slice().iter().take(max).copied().collect()
    }

    /// Let held I/O go on.
    pub(super) fn release(&self) {
        self.held_from.store(u64::MAX, Relaxed);
        for word in self.words.lock(&self.locks).iter() {
            if let Some(handle) = word.receiver() {
                handle.send(word.clone());
                handle.kick();
            }
        }
    }

    pub(super) fn serve(&self, bio: &mut Bio) -> Status {
        let (start, end) = (bio.sector.0, bio.end_sector().0);
        let block = u64::from(self.block.load(Relaxed)) / SECTOR_SIZE;
        let is_whole = start.is_multiple_of(block) && end.is_multiple_of(block);
        assert!(bio.op == Op::Flush || is_whole, "{:?} of {start}..{end}: no whole blocks", bio.op);
        if self.has_gone.load(Relaxed) {
            return Status::Offline;
        }
        let bad = self.bad_sector.load(Relaxed);
        if self.is_dead.load(Relaxed) || bio.op != Op::Flush && (start..end).contains(&bad) {
            return Status::IoError;
        }
        if bio.is_flush() && self.flush_fails.load(Relaxed) {
            return Status::IoError;
        }
        let fixed = self.read_only_sector.load(Relaxed);
        if bio.op == Op::Write && (start..end).contains(&fixed) {
            return Status::IoError;
        }
        if (start..end).contains(&self.unreadable.load(Relaxed)) {
            match bio.op {
                Op::Read => return Status::IoError,
                Op::Write => self.unreadable.store(u64::MAX, Relaxed),
                _ => {}
            }
        }
        if bio.op == Op::Write && end > self.full_from.load(Relaxed) {
            return Status::NoSpace;
        }
        let entry = Entry { device: self.number, op: bio.op, sectors: start..end };
        let is_on = self.power.note(entry);
        let range = bio.sector.bytes() as usize..(bio.sector.bytes() + bio.bytes) as usize;
        let mut bytes = self.bytes.lock(&self.locks);
        match bio.op {
            Op::Read => bio.fill_data_from(&bytes[range]),
            Op::Write if is_on => bio.copy_data_to(&mut bytes[range]),
            _ => {}
        }
        Status::Ok
    }
}

struct MemoryChannel(Arc<Memory>, BioList);

/// The same device, as an `Arc` that its channels keep.
pub(super) struct Shelf(Arc<Memory>);

impl Channel for MemoryChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(mut bio) = bios.pop() {
            let passes = bio.op == Op::Read && self.0.lets_reads_pass.load(Relaxed);
            let is_held = bio.op != Op::Flush && bio.sector.0 >= self.0.held_from.load(Relaxed);
            if is_held && !passes {
                self.1.push(bio);
                continue;
            }
            let status = self.0.serve(&mut bio);
            env.end_with(bio, status);
        }
    }

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        let mut held = self.1.take();
        self.submit(env, &mut held);
    }

    fn in_flight(&self) -> usize {
        self.1.len()
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

impl Device for Shelf {
    fn info(&self) -> DeviceInfo {
        let name = self.0.name.clone();
        let size_bytes = self.0.sectors() * SECTOR_SIZE;
        let has_cache = self.0.has_cache.load(Relaxed);
        let limits = Limits {
            write_cache: has_cache,
            fua: has_cache,
            logical_block_size: self.0.block.load(Relaxed),
            ..Limits::default()
        };
        DeviceInfo { name, kind: "memory", size_bytes, limits }
    }

    fn has_volatile_cache(&self) -> bool {
        self.0.has_cache.load(Relaxed)
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        let word = Message::to(env.handle(), id, 0);
        self.0.words.lock(&self.0.locks).push(word);
        Ok(Box::new(MemoryChannel(self.0.clone(), BioList::new())))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        Ok(self.0.extents(offset, length, max))
    }

    fn stats(&self) -> DiskStats {
        DiskStats::default()
    }

    fn latencies(&self, _group: OpGroup) -> Snapshot {
        Snapshot::default()
    }

    fn attribute(&self, _name: &str) -> Option<String> {
        None
    }

    fn set_attribute(&self, _name: &str, _value: &str) -> Result<()> {
        Err(Error::invalid("none"))
    }
}

/// Devices, and the array on them, served by one thread.
pub(in crate::array) struct Stand {
    pub(super) clock: Arc<ManualClock>,
    pub(super) set: Arc<ContextSet>,
    pub(super) power: Arc<Power>,
    pub(in crate::array) memories: Vec<Arc<Memory>>,
    pub(in crate::array) devices: Vec<Arc<dyn Device>>,
    pub(super) array: Option<(Array, Manager)>,
    pub(super) user: Option<(Context, ChannelId)>,
    /// How the array is started.
    pub(super) is_read_only: bool,
    pub(super) is_forced: bool,
    /// Receives the array's events.
    pub(super) event_sink: EventSink,
    /// I/O of the user that has ended.
    done: BioList,
}

pub(super) fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

impl Stand {
    /// Devices of zeroes.
    pub(in crate::array) fn new(disks: usize) -> Self {
        Stand::of(vec![vec![0; BYTES]; disks])
    }

    /// The members of a vector.
    pub(super) fn of_vector(name: &str) -> Self {
        let images = testing::members(name).into_iter();
        Stand::of(images.map(|image| image.read(0, image.bytes() as usize)).collect())
    }

    /// Devices that hold `images`.
    pub(super) fn of(images: Vec<Vec<u8>>) -> Self {
        let clock = ManualClock::new(1_000_000_000);
        let set = ContextSet::new(clock.clone() as Arc<dyn Clock>);
        let power = Power::new();
        let images = images.into_iter().enumerate();
        let memories: Vec<_> = images.map(|(n, bytes)| Memory::new(n, bytes, &power)).collect();
        let device = |memory: &Arc<Memory>| Arc::new(Shelf(memory.clone())) as Arc<dyn Device>;
        let devices = memories.iter().map(device).collect();
        Stand {
            clock,
            set,
            power,
            memories,
            devices,
            array: None,
            user: None,
            is_read_only: false,
            is_forced: false,
            event_sink: Arc::new(|_| ()),
            done: BioList::new(),
        }
    }

    /// One more device.
    pub(super) fn add_device(&mut self, bytes: Vec<u8>) {
        let memory = Memory::new(self.memories.len(), bytes, &self.power);
        self.devices.push(Arc::new(Shelf(memory.clone())));
        self.memories.push(memory);
    }

    pub(in crate::array) fn create(&mut self, level: Level, assume_clean: bool) {
        self.create_with(level, assume_clean, None, None);
    }

    /// Make an array; `chunk` is the bytes of a member that a bit stands for.
    pub(super) fn create_with(
        &mut self,
        level: Level,
        assume_clean: bool,
        policy: Option<Policy>,
        chunk: Option<u64>,
    ) {
        self.create_minor(Minor::V1_2, level, assume_clean, policy, chunk);
    }

    /// The same with another version of metadata.
    pub(super) fn create_minor(
        &mut self,
        minor: Minor,
        level: Level,
        assume_clean: bool,
        policy: Option<Policy>,
        chunk: Option<u64>,
    ) {
        let layout = Layout::new(level, 2, self.devices.len() as u32, 128).unwrap();
        let options = CreateOptions {
            layout,
            minor,
            spare_devices: 0,
            policy,
            bitmap_chunk: chunk,
            size: None,
            data_offset: None,
            set_name: "here:0".to_owned(),
            set_uuid: uuid(7),
            ctime: 1,
            assume_clean,
            force: true,
        };
        let new = |n: usize| NewDevice {
            name: format!("d{n}"),
            sectors: self.memories[n].sectors(),
            block_sectors: u64::from(self.memories[n].block.load(Relaxed)) / SECTOR_SIZE,
            uuid: uuid(100 + n as u8),
        };
        let devices: Vec<_> = (0..self.devices.len()).map(|n| Some(new(n))).collect();
        let plan = plan(&options, &devices).unwrap();
        for (memory, member) in self.memories.iter().zip(plan.members) {
            let member = member.unwrap();
            for write in member.before.iter().chain([&member.last]) {
                memory.put(write.sector, &write.bytes);
            }
        }
    }

    pub(in crate::array) fn look(
        &self,
    ) -> (Context, Vec<Candidate>, std::result::Result<Assembly, String>) {
        let ctx = self.set.open(Engine::Plain).unwrap();
        let (ctx, candidates) = find(ctx, &self.devices).unwrap();
        let assembly = assemble(&candidates, None);
        (ctx, candidates, assembly)
    }

    /// Start the array, without a user yet.
    pub(super) fn open(&mut self) -> Opened {
        self.try_open().unwrap()
    }

    pub(super) fn try_open(&mut self) -> Result<Opened> {
        let (ctx, candidates, assembly) = self.look();
        // Drop the I/O of the search for superblocks.
        self.power.take();
        let options = ArrayOptions {
            name: "md0".to_owned(),
            read_only: self.is_read_only,
            cache_stripes: 64,
            run: true,
            force: self.is_forced,
            wall_clock: Arc::new(|| 5),
            event_sink: self.event_sink.clone(),
        };
        open(ctx, &self.devices, &candidates, &assembly.unwrap(), &options)
    }

    pub(super) fn start(&mut self) {
        let opened = self.open();
        self.start_opened(opened);
    }

    pub(super) fn start_opened(&mut self, opened: Opened) {
        let mut user = self.set.open(Engine::Plain).unwrap();
        let index = user.open(&(Arc::new(opened.array.clone()) as Arc<dyn Device>)).unwrap();
        self.array = Some((opened.array, opened.manager));
        self.user = Some((user, index));
        self.turn();
    }

    /// Let the manager do all work that is due, and some time pass.
    pub(super) fn turn(&mut self) -> Option<u64> {
        let (_, manager) = self.array.as_mut().unwrap();
        let deadline = manager.step();
        manager.io.wait(Some(0));
        self.clock.advance(1_000_000);
        deadline
    }

    /// Let `seconds` pass, and the manager work meanwhile.
    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.clock.advance(100_000_000);
            self.turn();
        }
    }

    /// Begin an I/O; [`Stand::ended`] returns it when it has ended.
    pub(super) fn begin(&mut self, bio: Box<Bio>) {
        self.begin_all([bio]);
    }

    /// Begin several at once.
    pub(super) fn begin_all(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let (user, index) = self.user.as_mut().unwrap();
        let mut list = BioList::new();
        bios.into_iter().for_each(|bio| list.push(bio));
        user.submit(*index, &mut list);
    }

    /// A bio that has ended.
    pub(super) fn ended(&mut self) -> Option<Box<Bio>> {
        self.user.as_mut().unwrap().0.reap(&mut self.done);
        self.done.pop()
    }

    /// Wait until `bios` bios that were begun have ended.
    pub(super) fn wait_for(&mut self, mut bios: usize) {
        for _ in 0..10_000 {
            bios -= usize::from(self.ended().is_some());
            if bios == 0 {
                return;
            }
            self.turn();
        }
        panic!("{bios} bios do not end");
    }

    /// Simulate that the process dies.
    pub(super) fn crash(&mut self) {
        (self.array, self.user) = (None, None);
        self.power.goes_after(u64::MAX);
    }

    pub(super) fn io(&mut self, bio: Box<Bio>) -> Box<Bio> {
        self.begin(bio);
        for _ in 0..10_000 {
            if let Some(bio) = self.ended() {
                return bio;
            }
            self.turn();
        }
        panic!("an I/O does not end");
    }

    pub(super) fn write(&mut self, sector: u64, value: u8, bytes: usize) -> Status {
        let bio = Bio::write(Sector(sector), IoBuf::from_slice(&vec![value; bytes]));
        self.io(bio).status
    }

    pub(super) fn read(&mut self, sector: u64, bytes: usize) -> (Status, Vec<u8>) {
        let bio = self.io(Bio::read(Sector(sector), IoBuf::zeroed(bytes)));
        (bio.status, bio.buf().unwrap().to_vec())
    }

    pub(super) fn reads(&mut self, sector: u64, value: u8, bytes: usize) -> bool {
        self.read(sector, bytes) == (Status::Ok, vec![value; bytes])
    }

    pub(super) fn until(
        &mut self,
        what: &str,
        is_so: impl Fn(&ArrayStatus) -> bool,
    ) -> Arc<ArrayStatus> {
        for _ in 0..100_000 {
            let status = self.array.as_ref().unwrap().0.status();
            if is_so(&status) {
                return status;
            }
            self.turn();
        }
        panic!("{what} does not come: {:?}", self.array.as_ref().unwrap().0.status());
    }

    pub(super) fn command(&mut self, command: Command) -> Result<()> {
        let request = self.array.as_ref().unwrap().0.request(command);
        let locks = LockCounters::new(self.clock.clone());
        for _ in 0..100_000 {
            if let Some(outcome) = request.outcome(&locks) {
                return outcome;
            }
            self.turn();
        }
        panic!("a command does not end");
    }

    pub(super) fn stop(&mut self) {
        let request = self.array.as_ref().unwrap().0.request(Command::Stop);
        while !self.array.as_ref().unwrap().1.is_over {
            self.turn();
        }
        let (_, manager) = self.array.take().unwrap();
        manager.end();
        self.user = None;
        let locks = LockCounters::new(self.clock.clone());
        assert!(matches!(request.outcome(&locks), Some(Ok(()))));
    }

    pub(super) fn states(&self) -> Vec<DiskState> {
        let status = self.array.as_ref().unwrap().0.status();
        status.disks.iter().map(|disk| disk.state).collect()
    }
}

pub(super) fn is_idle(status: &ArrayStatus) -> bool {
    status.sync.is_none()
}
