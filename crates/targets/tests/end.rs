//! Suspensions that are given up, and volumes that end.

mod common;

use common::{Disk, User};
use drystone_core::clock::SystemClock;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, ContextSet, Device, Extent, IoBuf, Sector, Status};
use drystone_targets::{Area, Line, Table, TargetSpec, Volume, VolumeOptions};
use std::sync::Arc;

const SECTORS: u64 = 64;

fn linear(device: &Arc<Disk>) -> Table {
    let target = TargetSpec::Linear(Area { device: device.clone(), sector: 0 });
    Table::new(vec![Line { start: 0, length: SECTORS, target }]).unwrap()
}

/// A volume over `disk`, and a context that uses it.
fn open(disk: &Arc<Disk>) -> (Volume, User) {
    let locks = LockCounters::new(SystemClock::new());
    let volume = Volume::new("v", VolumeOptions::default(), locks);
    volume.load(linear(disk));
    volume.resume().unwrap();
    let device: Arc<dyn Device> = Arc::new(volume.clone());
    let user = User::new(&ContextSet::new(SystemClock::new()), &device);
    (volume, user)
}

fn write(sector: u64) -> Box<Bio> {
    let mut bio = Bio::write(Sector(sector), IoBuf::zeroed(512));
    bio.user_data = sector;
    bio
}

#[test]
fn a_suspension_that_is_given_up_changes_no_table() {
    let (a, b) = (Disk::new("a", SECTORS), Disk::new("b", SECTORS));
    let (volume, mut user) = open(&a);
    volume.load(linear(&b));
    a.hold(true);
    user.submit(write(1));
    volume.start_suspend();
    user.submit(write(2));
    volume.cancel_suspend();
    assert!(!volume.is_suspended() && volume.inactive_table().is_some());
    assert_eq!((a.seen().len(), b.seen().len()), (2, 0), "what was kept went by the live table");
    a.release();
    assert_eq!((user.wait().user_data, user.wait().user_data), (1, 2));
    volume.cancel_suspend();
    assert_eq!(volume.table().unwrap().text(), "0 64 linear a 0\n");
}

/// Clients know the size of the day on which they came.
#[test]
fn what_is_asked_beyond_the_end_is_data() {
    let disk = Disk::new("a", SECTORS);
    let line = |start| Line { start, length: 8, target: TargetSpec::Zero };
    let (volume, _user) = open(&disk);
    for lines in [vec![line(0)], vec![line(0), line(8)]] {
        let size = lines.len() as u64 * 4096;
        volume.start_suspend();
        assert!(volume.is_quiesced());
        volume.load(Table::new(lines).unwrap());
        volume.resume().unwrap();
        assert_eq!(volume.extents(size, 512, 9).unwrap(), [Extent::data(size, 512)]);
        assert_eq!(volume.extents(1 << 40, 512, 9).unwrap(), [Extent::data(1 << 40, 512)]);
        assert_eq!(volume.extents(512, 32 << 10, 9).unwrap(), [Extent::hole(512, size - 512)]);
    }
    volume.close();
    assert_eq!(volume.extents(0, 512, 9).unwrap(), [Extent::data(0, 512)]);
}

#[test]
fn a_volume_that_ends_fails_what_it_keeps_and_leaves_its_members_alone() {
    let a = Disk::new("a", SECTORS);
    let (volume, mut user) = open(&a);
    let table = Arc::downgrade(&volume.table().unwrap());
    volume.load(linear(&a));
    a.hold(true);
    user.submit(write(1));
    let mut flushing = write(2);
    flushing.flags |= BioFlags::PREFLUSH;
    user.submit(flushing);
    volume.start_suspend();
    user.submit(write(3));
    volume.close();
    assert!(volume.table().is_none() && volume.inactive_table().is_none());
    assert!(table.upgrade().is_none(), "though the context was not called");
    let kept: Vec<_> = user.reap().iter().map(|bio| (bio.user_data, bio.status)).collect();
    assert_eq!(kept, [(3, Status::IoError)]);
    // The write that was let through goes on, and so does the flush; the data behind it do not.
    a.release();
    let mut both = [user.wait(), user.wait()].map(|bio| (bio.user_data, bio.status));
    both.sort_by_key(|(sector, _)| *sector);
    assert_eq!(both, [(1, Status::Ok), (2, Status::IoError)]);
    assert_eq!(a.seen().len(), 2);
    assert_eq!(user.run(write(4)).status, Status::IoError);
    assert_eq!(user.run(Bio::flush()).status, Status::IoError);
    assert!(a.seen().is_empty());
}
