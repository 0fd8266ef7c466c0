//! Volumes that come and go below a volume that stays, while its contexts stay open: their channels
//! go too, and the numbers of these are used again.

mod common;

use common::{Disk, User};
use drystone_core::clock::SystemClock;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, IoBuf, Sector, Status};
use drystone_targets::{Area, Line, Table, TargetSpec, Volume, VolumeOptions};
use std::sync::{Arc, Weak};

const SECTORS: u64 = 8;

type Shared = Arc<dyn Device>;

fn linear(device: &Shared) -> Table {
    let target = TargetSpec::Linear(Area { device: device.clone(), sector: 0 });
    Table::new(vec![Line { start: 0, length: SECTORS, target }]).unwrap()
}

fn swap(volume: &Volume, table: Table) {
    volume.load(table);
    volume.start_suspend();
    assert!(volume.is_quiesced());
    volume.resume().unwrap();
}

/// A volume over the whole of a device, and what stacks know it by.
fn over(device: &Shared) -> (Volume, Shared) {
    let locks = LockCounters::new(SystemClock::new());
    let volume = Volume::new("v", VolumeOptions::default(), locks);
    swap_first(&volume, linear(device));
    let shared: Shared = Arc::new(volume.clone());
    (volume, shared)
}

fn swap_first(volume: &Volume, table: Table) {
    volume.load(table);
    volume.resume().unwrap();
}

fn write(value: u8) -> Box<Bio> {
    let mut buf = IoBuf::zeroed(512);
    buf.fill(value);
    Bio::write(Sector(1), buf)
}

fn alive(devices: &[Weak<dyn Device>]) -> usize {
    devices.iter().filter(|device| device.strong_count() > 0).count()
}

/// More than a context has numbers for. Of two contexts one has no I/O: it is only told of tables.
#[test]
fn seventy_thousand_volumes_come_and_go() {
    let disk: Shared = Disk::new("disk", SECTORS);
    let (top, device) = over(&disk);
    let set = ContextSet::new(SystemClock::new());
    let (mut user, mut idle) = (User::new(&set, &device), User::new(&set, &device));
    let mut gone = Vec::new();
    for n in 0..70_000u32 {
        let (volume, below) = over(&disk);
        swap(&top, linear(&below));
        let done = user.run(write(n as u8));
        assert_eq!(done.status, Status::Ok, "volume {n}");
        swap(&top, linear(&disk));
        volume.close();
        gone.push(Arc::downgrade(&below));
        if n % 1000 == 999 {
            assert!(alive(&gone) < 200, "of {n} volumes {} stay", alive(&gone));
        }
    }
    assert_eq!(
        idle.run(Bio::read(Sector(1), IoBuf::zeroed(512))).buf().unwrap()[0],
        69_999u32 as u8
    );
}

/// A volume that is removed with I/O in flight keeps its number until that has ended: what comes
/// back finds its own way, and nothing of it reaches the volumes that came meanwhile.
#[test]
fn a_number_is_not_used_again_while_a_bio_names_it() {
    let (slow, fast) = (Disk::new("slow", SECTORS), Disk::new("fast", SECTORS));
    let (slow_device, fast_device): (Shared, Shared) = (slow.clone(), fast.clone());
    let (inner, inner_device) = over(&slow_device);
    let (outer, outer_device) = over(&inner_device);
    let (busy, busy_device) = over(&fast_device);
    let set = ContextSet::new(SystemClock::new());
    let mut user = User::new(&set, &outer_device);
    let index = user.cx.open(&busy_device).unwrap();
    slow.hold(true);
    user.submit(write(1));
    let mut flushing = write(2);
    flushing.flags |= BioFlags::PREFLUSH;
    user.submit(flushing);
    outer.close();
    inner.close();
    let mut gone = vec![Arc::downgrade(&inner_device)];
    drop((inner, inner_device));
    for n in 0..300u32 {
        let (volume, below) = over(&fast_device);
        swap(&busy, linear(&below));
        let mut bios = drystone_core::BioList::new();
        bios.push(write(n as u8));
        user.cx.submit(index, &mut bios);
        assert!(user.wait().status.is_ok());
        swap(&busy, linear(&fast_device));
        volume.close();
        gone.push(Arc::downgrade(&below));
    }
    assert!(gone[0].strong_count() > 0, "bios name it");
    assert!(alive(&gone) < 150, "{} stay", alive(&gone));
    let writes = fast.seen().len();
    assert_eq!(writes, 300);
    slow.release();
    let mut ends = [user.wait(), user.wait()].map(|bio| bio.status);
    ends.sort_by_key(|status| status.is_ok());
    assert_eq!(ends, [Status::IoError, Status::Ok], "the data behind the flush have no table");
    assert!(fast.seen().is_empty());
    // Now it goes as well, but for the outermost: its number is the owner's.
    for _ in 0..150 {
        let (volume, below) = over(&fast_device);
        swap(&busy, linear(&below));
        swap(&busy, linear(&fast_device));
        volume.close();
    }
    assert_eq!(gone[0].strong_count(), 0);
    assert_eq!(user.run(write(3)).status, Status::IoError);
}

/// A volume that was removed does not come back.
#[test]
fn a_removed_volume_takes_no_table() {
    let disk: Shared = Disk::new("disk", SECTORS);
    let (volume, _) = over(&disk);
    volume.close();
    volume.load(linear(&disk));
    assert_eq!(volume.resume().unwrap_err().message, "v: it was removed");
}
