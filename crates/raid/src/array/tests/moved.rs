//! Reads that the array remaps without a part of their own. They must end as they were submitted,
//! and blocks that a member cannot read must still be computed.

use super::stand::{Memory, Stand};
use crate::ids::Role;
use crate::layout::Level;
use drystone_core::ChannelId;
use drystone_core::clock::SystemClock;
use drystone_core::op::OpGroup;
use drystone_core::primitive::Ordering::*;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, Context, Device, IoBuf, SECTOR_SIZE, Sector, Status};
use drystone_targets::{Area, Line, Table, TargetSpec, Volume, VolumeOptions};
use std::sync::Arc;

/// A volume over the whole of a device.
fn over(device: &Arc<dyn Device>) -> Volume {
    let volume = Volume::new("v", VolumeOptions::default(), LockCounters::new(SystemClock::new()));
    let length = device.info().size_bytes / SECTOR_SIZE;
    let target = TargetSpec::Linear(Area { device: device.clone(), sector: 0 });
    volume.load(Table::new(vec![Line { start: 0, length, target }]).unwrap());
    volume.resume().unwrap();
    volume
}

/// An array whose member 1 is below a volume. Each block is filled with its own byte, and member 1
/// cannot read one of its blocks. Returns that block's array sector.
fn stand() -> (Stand, Volume, u64) {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    let volume = over(&stand.devices[1]);
    stand.devices[1] = Arc::new(volume.clone());
    stand.start();
    for block in 0..96 {
        assert!(stand.write(block * 8, block as u8 + 1, 4096).is_ok());
    }
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let lost =
        (0..96 * 8).step_by(8).find(|sector| layout.map_sector(*sector).role == Role(1)).unwrap();
    spoil(&stand.memories[1], layout.map_sector(lost).sector);
    (stand, volume, lost)
}

fn spoil(memory: &Memory, sector: u64) {
    memory.bad_sector.store(memory.superblock().data_offset + sector, Relaxed);
}

fn all_ended(volume: &Volume) -> bool {
    volume.start_suspend();
    let is_quiesced = volume.is_quiesced();
    volume.resume().unwrap();
    is_quiesced
}

#[test]
fn what_a_member_cannot_read_comes_back_and_is_computed() {
    let (mut stand, volume, lost) = stand();
    let mut bio = Bio::read(Sector(lost), IoBuf::zeroed(4096));
    bio.user_data = 1 << 63 | 77;
    let bio = stand.io(bio);
    assert_eq!(bio.status, Status::Ok);
    assert_eq!(bio.buf().unwrap()[..], [lost as u8 / 8 + 1; 4096]);
    assert_eq!(
        (bio.sector, bio.user_data),
        (Sector(lost), 1 << 63 | 77),
        "as its submitter gave it"
    );
    // No layer that the bio passed counts it as in flight any more.
    assert!(all_ended(&volume));
    let array = stand.array.as_ref().unwrap().0.clone();
    let stats = array.stats();
    assert_eq!(stats.in_flight(), (0, 0));
    array.start_suspend();
    assert!(array.is_quiesced());
    array.resume();
    // Submit the same bio again, which must have no trace of the failed read.
    stand.memories[1].bad_sector.store(u64::MAX, Relaxed);
    let bio = stand.io(bio);
    assert_eq!((bio.status, bio.sector), (Status::Ok, Sector(lost)));
    assert_eq!(
        array.stats().group(OpGroup::Read).completed,
        stats.group(OpGroup::Read).completed + 1
    );
}

#[test]
fn nothing_that_is_lost_is_taken_for_read() {
    let (mut stand, _, lost) = stand();
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let address = layout.map_sector(lost);
    // The parity block of the row, from which the lost block would be computed.
    let other = layout.row_at(address.sector).p.index();
    spoil(&stand.memories[other], address.sector);
    let bio = stand.io(Bio::read(Sector(lost), IoBuf::zeroed(4096)));
    assert!(!bio.status.is_ok());
    assert_eq!(bio.sector, Sector(lost));
    assert!(stand.reads(lost + 8, lost as u8 / 8 + 2, 4096));
}

/// Some of several reads fail; each must return its own data.
#[test]
fn a_batch_is_taken_apart_where_it_must_be() {
    let (mut stand, volume, _) = stand();
    let reads = (0..96u64).map(|block| {
        let mut bio = Bio::read(Sector(block * 8), IoBuf::zeroed(4096));
        bio.user_data = block;
        bio
    });
    stand.begin_all(reads);
    for _ in 0..96 {
        let bio = ended(&mut stand);
        assert!(bio.status.is_ok() && bio.sector.0 == bio.user_data * 8);
        assert_eq!(bio.buf().unwrap()[..], [bio.user_data as u8 + 1; 4096]);
    }
    assert!(all_ended(&volume));
}

fn ended(stand: &mut Stand) -> Box<Bio> {
    for _ in 0..10_000 {
        if let Some(bio) = stand.ended() {
            return bio;
        }
        stand.turn();
    }
    panic!("a bio does not end");
}

/// The bio was remapped before by a volume over the array, so a part of it goes to the member.
#[test]
fn below_a_volume_it_is_the_same() {
    let (mut stand, _, lost) = stand();
    let array: Arc<dyn Device> = Arc::new(stand.array.as_ref().unwrap().0.clone());
    let volume = over(&array);
    let device: Arc<dyn Device> = Arc::new(volume.clone());
    let (context, _) = stand.user.as_mut().unwrap();
    let index = context.open(&device).unwrap();
    submit(context, index, Bio::read(Sector(lost), IoBuf::zeroed(4096)));
    let bio = ended(&mut stand);
    assert_eq!((bio.status, bio.sector), (Status::Ok, Sector(lost)));
    assert_eq!(bio.buf().unwrap()[..], [lost as u8 / 8 + 1; 4096]);
    assert!(all_ended(&volume));
}

fn submit(context: &mut Context, index: ChannelId, bio: Box<Bio>) {
    let mut list = BioList::new();
    list.push(bio);
    context.submit(index, &mut list);
}

/// The owner drops its context while a member has its reads. The reads fail, but they must end.
#[test]
fn a_context_that_is_dropped_takes_its_reads_along() {
    let (mut stand, volume, _) = stand();
    stand.memories[1].bad_sector.store(u64::MAX, Relaxed);
    stand.memories[0].hold();
    let reads = (0..96u64).map(|block| Bio::read(Sector(block * 8), IoBuf::zeroed(4096)));
    stand.begin_all(reads);
    stand.user = None;
    stand.memories[0].is_dead.store(true, Relaxed);
    stand.memories[0].release();
    stand.set.free_idle_orphans();
    let array: Arc<dyn Device> = Arc::new(stand.array.as_ref().unwrap().0.clone());
    let mut user = stand.set.open(Engine::Plain).unwrap();
    let index = user.open(&array).unwrap();
    stand.user = Some((user, index));
    assert!(stand.reads(0, 1, 4096), "the others tell what is on the dead one");
    assert!(all_ended(&volume));
    let array = stand.array.as_ref().unwrap().0.clone();
    array.start_suspend();
    (0..100).for_each(|_| _ = stand.turn());
    stand.set.free_idle_orphans();
    assert!(array.is_quiesced(), "nothing of it is in flight");
}
