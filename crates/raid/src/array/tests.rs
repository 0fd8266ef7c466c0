//! Whole arrays over memory: superblocks, members that fail, synchronisation.

use super::*;
use crate::engine::SyncAction;
use crate::layout::{Layout, Level};
use crate::metadata::Uuid;
use crate::metadata::assemble::{Assembly, Candidate, assemble};
use crate::metadata::create::{CreateOptions, NewDevice, plan};
use crate::metadata::superblock::{CLEAN, Minor, Superblock};
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::context::DevIndex;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::*};
use drystone_core::ring::Engine;
use drystone_core::stats::DiskStats;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{
    Bio, BioList, Channel, Context, ContextSet, Device, DeviceInfo, Env, Error, Extent, IoBuf,
    Limits, Op, Result, SECTOR_SIZE, Sector, Status,
};
use std::sync::Arc;

const BYTES: usize = 4 << 20;

/// A device in memory.
struct Memory {
    name: String,
    bytes: Lock<Vec<u8>>,
    locks: Arc<LockCounters>,
    is_dead: AtomicBool,
    /// Reads and writes that touch this sector fail, once it is not all ones.
    bad_sector: AtomicU64,
    writes: AtomicU64,
}

impl Memory {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Memory {
            name: name.to_owned(),
            bytes: Lock::new(LockClass::Other, vec![0; BYTES]),
            locks: LockCounters::new(ManualClock::new(1)),
            is_dead: AtomicBool::new(false),
            bad_sector: AtomicU64::new(u64::MAX),
            writes: AtomicU64::new(0),
        })
    }

    fn put(&self, sector: u64, data: &[u8]) {
        let start = (sector * SECTOR_SIZE) as usize;
        self.bytes.lock(&self.locks)[start..start + data.len()].copy_from_slice(data);
    }

    fn get(&self, sector: u64, bytes: usize) -> Vec<u8> {
        let start = (sector * SECTOR_SIZE) as usize;
        self.bytes.lock(&self.locks)[start..start + bytes].to_vec()
    }

    fn superblock(&self) -> Superblock {
        let bytes = self.get(8, 4096);
        Superblock::parse(&bytes, 8, BYTES as u64 / SECTOR_SIZE).expect("a superblock")
    }

    fn serve(&self, bio: &mut Bio) -> Status {
        let (start, end) = (bio.sector.0, bio.end_sector().0);
        let bad = self.bad_sector.load(Relaxed);
        if self.is_dead.load(Relaxed) || bio.op != Op::Flush && (start..end).contains(&bad) {
            return Status::IoError;
        }
        let range = bio.sector.bytes() as usize..(bio.sector.bytes() + bio.bytes) as usize;
        let mut bytes = self.bytes.lock(&self.locks);
        match bio.op {
            Op::Read => bio.fill_data_from(&bytes[range]),
            Op::Write => {
                self.writes.fetch_add(1, Relaxed);
                bio.copy_data_to(&mut bytes[range]);
            }
            _ => {}
        }
        Status::Ok
    }
}

struct MemoryChannel(Arc<Memory>);

/// The same device, as an `Arc` that its channels keep.
struct Shelf(Arc<Memory>);

impl Channel for MemoryChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(mut bio) = bios.pop() {
            let status = self.0.serve(&mut bio);
            env.end_with(bio, status);
        }
    }

    fn members(&self) -> &[u32] {
        &[]
    }

    fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

impl Device for Shelf {
    fn info(&self) -> DeviceInfo {
        let name = self.0.name.clone();
        DeviceInfo { name, kind: "memory", size_bytes: BYTES as u64, limits: Limits::default() }
    }

    fn open_channel(&self, _env: &mut Env, _index: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(MemoryChannel(self.0.clone())))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
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

/// Devices, and the array that they make, served by one thread.
struct Stand {
    clock: Arc<ManualClock>,
    set: Arc<ContextSet>,
    memories: Vec<Arc<Memory>>,
    devices: Vec<Arc<dyn Device>>,
    array: Option<(Array, Manager)>,
    user: Option<(Context, DevIndex)>,
}

fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

impl Stand {
    fn new(disks: usize) -> Self {
        let clock = ManualClock::new(1_000_000_000);
        let set = ContextSet::new(clock.clone() as Arc<dyn Clock>);
        let memories: Vec<_> = (0..disks).map(|n| Memory::new(&format!("d{n}"))).collect();
        let device = |memory: &Arc<Memory>| Arc::new(Shelf(memory.clone())) as Arc<dyn Device>;
        let devices = memories.iter().map(device).collect();
        Stand { clock, set, memories, devices, array: None, user: None }
    }

    fn create(&mut self, level: Level, assume_clean: bool) {
        let layout = Layout::new(level, 2, self.devices.len() as u32, 128).unwrap();
        let options = CreateOptions {
            layout,
            minor: Minor::V1_2,
            spare_devices: 0,
            policy: None,
            bitmap_chunk: None,
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
            sectors: BYTES as u64 / SECTOR_SIZE,
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

    fn look(&self) -> (Context, Vec<Candidate>, std::result::Result<Assembly, String>) {
        let ctx = self.set.open(Engine::Plain).unwrap();
        let (ctx, candidates) = find(ctx, &self.devices).unwrap();
        let assembly = assemble(&candidates, None);
        (ctx, candidates, assembly)
    }

    fn start(&mut self) {
        let (ctx, candidates, assembly) = self.look();
        let options = ArrayOptions {
            name: "md0".to_owned(),
            read_only: false,
            cache_stripes: 64,
            force: false,
            wall_clock: Arc::new(|| 5),
        };
        let opened = open(ctx, &self.devices, &candidates, &assembly.unwrap(), &options).unwrap();
        let mut user = self.set.open(Engine::Plain).unwrap();
        let index = user.open(&(Arc::new(opened.array.clone()) as Arc<dyn Device>)).unwrap();
        self.array = Some((opened.array, opened.manager));
        self.user = Some((user, index));
        self.turn();
    }

    /// Let the manager do what it can, and some time pass.
    fn turn(&mut self) -> Option<u64> {
        let (_, manager) = self.array.as_mut().unwrap();
        let deadline = manager.step();
        manager.io.wait(Some(0));
        self.clock.advance(1_000_000);
        deadline
    }

    fn io(&mut self, bio: Box<Bio>) -> Box<Bio> {
        let (user, index) = self.user.as_mut().unwrap();
        let mut list = BioList::new();
        list.push(bio);
        user.submit(*index, &mut list);
        for _ in 0..10_000 {
            let mut done = BioList::new();
            self.user.as_mut().unwrap().0.reap(&mut done);
            if let Some(bio) = done.pop() {
                return bio;
            }
            self.turn();
        }
        panic!("an I/O does not end");
    }

    fn write(&mut self, sector: u64, value: u8, bytes: usize) -> Status {
        let bio = Bio::write(Sector(sector), IoBuf::from_slice(&vec![value; bytes]));
        self.io(bio).status
    }

    fn read(&mut self, sector: u64, bytes: usize) -> (Status, Vec<u8>) {
        let bio = self.io(Bio::read(Sector(sector), IoBuf::zeroed(bytes)));
        (bio.status, bio.buf().unwrap().to_vec())
    }

    fn reads(&mut self, sector: u64, value: u8, bytes: usize) -> bool {
        self.read(sector, bytes) == (Status::Ok, vec![value; bytes])
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&ArrayStatus) -> bool) -> Arc<ArrayStatus> {
        for _ in 0..100_000 {
            let status = self.array.as_ref().unwrap().0.status();
            if is_so(&status) {
                return status;
            }
            self.turn();
        }
        panic!("{what} does not come: {:?}", self.array.as_ref().unwrap().0.status());
    }

    fn command(&mut self, command: Command) -> Result<()> {
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

    fn stop(&mut self) {
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

    fn states(&self) -> Vec<DiskState> {
        let status = self.array.as_ref().unwrap().0.status();
        status.disks.iter().map(|disk| disk.state).collect()
    }
}

fn is_idle(status: &ArrayStatus) -> bool {
    status.sync.is_none()
}

#[test]
fn a_write_makes_the_array_dirty_before_it_passes_and_idleness_makes_it_clean() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    // Events do not go back to those of an array that nobody has written.
    stand.write(0, 1, 512);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    let before = stand.memories[0].superblock();
    assert!(before.is_clean());
    assert!(stand.write(0, 1, 4096).is_ok());
    let dirty = stand.memories[3].superblock();
    assert_eq!((dirty.resync_offset, dirty.events), (0, before.events + 1));
    assert!(stand.reads(0, 1, 4096));
    stand.until("clean", |status| status.state == ArrayState::Clean);
    let clean = stand.memories[2].superblock();
    assert_eq!((clean.resync_offset, clean.events), (CLEAN, before.events), "it went back");
    stand.write(8, 2, 512);
    stand.stop();
    assert!(stand.memories.iter().all(|memory| memory.superblock().is_clean()));
    stand.start();
    assert!(stand.reads(0, 1, 4096) && stand.reads(8, 2, 512));
}

#[test]
fn after_a_crash_parity_is_made_to_fit() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 64 << 10);
    // Nobody stops it; and a block of parity was not written.
    (stand.array, stand.user) = (None, None);
    let data_offset = stand.memories[3].superblock().data_offset;
    stand.memories[3].put(data_offset, &[9; 4096]);
    stand.start();
    let status = stand.until("resync", is_idle);
    assert_eq!(status.mismatch_cnt, 8);
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    let status = stand.until("check", is_idle);
    assert_eq!(status.mismatch_cnt, 0);
    stand.stop();
    assert!(stand.memories[1].superblock().is_clean());
}

#[test]
fn a_member_that_dies_is_on_record_before_a_write_ends() {
    for (level, deaths) in [(Level::Raid5, 1), (Level::Raid6, 2)] {
        let mut stand = Stand::new(5);
        stand.create(level, true);
        stand.start();
        stand.write(0, 1, 256 << 10);
        for victim in 1..=deaths {
            stand.memories[victim].is_dead.store(true, Relaxed);
            assert!(stand.write(0, 1 + victim as u8, 256 << 10).is_ok());
            let super0 = stand.memories[0].superblock();
            assert_eq!(super0.roles[victim], 0xFFFE, "it is on record");
            assert!(stand.reads(0, 1 + victim as u8, 256 << 10));
        }
        // It comes back old.
        stand.stop();
        stand.memories.iter().for_each(|memory| memory.is_dead.store(false, Relaxed));
        let (_, _, assembly) = stand.look();
        assert_eq!(assembly.unwrap().lost(), deaths as u32, "what is old is not used");
        stand.start();
        assert!(stand.reads(0, 1 + deaths as u8, 256 << 10));
        for (n, name) in (1..=deaths).map(|n| (n, format!("d{n}"))) {
            let (device, uuid) = (stand.devices[n].clone(), uuid(50 + n as u8));
            stand.command(Command::Add { name, device, uuid }).unwrap();
        }
        stand.until("recovery", |status| is_idle(status) && status.degraded() == 0);
        stand.command(Command::Sync(SyncAction::Check)).unwrap();
        assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
        assert!(stand.reads(0, 1 + deaths as u8, 256 << 10));
    }
}

#[test]
fn one_death_too_many_breaks_the_array_and_writes_fail() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 192 << 10);
    for victim in [1, 2] {
        stand.memories[victim].is_dead.store(true, Relaxed);
        let _ = stand.write(0, 2, 192 << 10);
    }
    assert!(!stand.write(0, 3, 192 << 10).is_ok());
    stand.until("broken", |status| status.state == ArrayState::Broken);
    // D0 of row 1 is on member 3 of a left-symmetric array... what member 0 has can be read.
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let there = (0..).find(|sector| layout.place(*sector).role == 0).unwrap();
    assert!(stand.read(there, 4096).0.is_ok());
    let gone = (0..).find(|sector| layout.place(*sector).role == 1).unwrap();
    assert!(!stand.read(gone, 4096).0.is_ok());
}

#[test]
fn a_bad_block_is_put_on_the_list_and_lives_in_parity() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    let data_offset = stand.memories[0].superblock().data_offset;
    stand.memories[0].bad_sector.store(data_offset + 3, Relaxed);
    assert!(stand.write(0, 1, 4096).is_ok());
    let status = stand.array.as_ref().unwrap().0.status();
    assert!(status.disks[0].has_bad_blocks && status.degraded() == 0);
    assert!(stand.reads(0, 1, 4096));
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 1, 4096), "the list is read again");
    stand.memories[0].bad_sector.store(u64::MAX, Relaxed);
    assert!(stand.write(0, 2, 4096).is_ok());
    assert!(stand.reads(0, 2, 4096));
}

#[test]
fn a_member_is_replaced_while_it_is_in_use() {
    let mut stand = Stand::new(5);
    let spare = (stand.memories.pop().unwrap(), stand.devices.pop().unwrap());
    stand.create(Level::Raid5, true);
    stand.start();
    stand.write(0, 1, 256 << 10);
    assert!(stand.command(Command::Replace("d1".to_owned())).is_err(), "there is no spare");
    let (name, device) = ("d4".to_owned(), spare.1.clone());
    stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    stand.command(Command::Replace("d1".to_owned())).unwrap();
    stand.until("replacement", |status| {
        status.disks.iter().any(|disk| disk.state == DiskState::InSync(1) && disk.name == "d4")
    });
    assert_eq!(stand.states()[1], DiskState::Faulty(Some(1)));
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    assert!(stand.reads(0, 1, 256 << 10));
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    stand.stop();
    (stand.memories[1], stand.devices[1]) = spare;
    let (_, _, assembly) = stand.look();
    assert_eq!(assembly.unwrap().lost(), 0);
}

#[test]
fn what_would_break_the_array_is_refused() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    assert!(stand.command(Command::Remove("d1".to_owned())).is_err(), "it is in use");
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    let error = stand.command(Command::Fail("d2".to_owned())).unwrap_err();
    assert!(error.message.contains("would be broken"), "{error}");
    assert!(stand.command(Command::Fail("d7".to_owned())).is_err());
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    assert_eq!(stand.states().len(), 3);
}

#[test]
fn the_cache_is_resized_while_it_is_used() {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    for stripes in [17, 4096, 17, 100] {
        let array = stand.array.as_ref().unwrap().0.clone();
        array.set_attribute("md/stripe_cache_size", &stripes.to_string()).unwrap();
        assert!(stand.write(3, stripes as u8, 1 << 20).is_ok());
        assert!(stand.reads(3, stripes as u8, 1 << 20));
        assert_eq!(array.attribute("md/stripe_cache_active").unwrap(), "0");
    }
    let array = stand.array.as_ref().unwrap().0.clone();
    assert!(array.set_attribute("md/stripe_cache_size", "16").is_err());
}
