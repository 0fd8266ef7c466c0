//! The speed of synchronisation: the maximum while nothing else uses the array, otherwise the
//! minimum.

use super::*;
use drystone_core::clock::Clock;
use drystone_core::{Bio, IoBuf, Sector};

const MIN: u64 = 128;
const MAX: u64 = 1024;
/// The sectors that may be under way, or may begin before the pace changes: regions of 64 KiB, and
/// 100 ms at the pace.
const SLACK: u64 = 192;

/// An array that is synchronised, with limits in KiB a second.
fn stand() -> Stand {
    let mut stand = Stand::new(4);
    stand.create(Level::Raid5, true);
    stand.start();
    stand.command(Command::Speed { min: Some(MIN), max: Some(MAX) }).unwrap();
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    stand
}

/// The KiB of each member that are synchronised in `seconds`, while `each` is called every 20 ms.
fn done_in(stand: &mut Stand, seconds: u64, mut each: impl FnMut(&mut Stand)) -> u64 {
    let done = |stand: &Stand| {
        let sync = stand.array.as_ref().unwrap().0.status().sync;
        sync.expect("it is under way").done / 2
    };
    let (before, end) = (done(stand), stand.clock.now() + seconds * 1_000_000_000);
    while stand.clock.now() < end {
        each(stand);
        (0..20).for_each(|_| _ = stand.turn());
    }
    done(stand) - before
}

fn assert_about(kib: u64, expected: u64) {
    assert!(kib.abs_diff(expected) <= SLACK, "{kib} KiB, expected about {expected}");
}

#[test]
fn it_yields_to_those_who_use_the_array() {
    let mut stand = stand();
    assert_about(done_in(&mut stand, 1, |_| {}), MAX);
    let write = |stand: &mut Stand| assert!(stand.write(0, 1, 4096).is_ok());
    assert_about(done_in(&mut stand, 4, write), 4 * MIN);
    assert_about(done_in(&mut stand, 1, |_| {}), MAX);
}

#[test]
fn it_yields_to_reads_too() {
    let mut stand = stand();
    let read = |stand: &mut Stand| assert!(stand.reads(0, 0, 4096));
    assert_about(done_in(&mut stand, 4, read), 4 * MIN);
}

/// No new I/O comes, but some has not ended.
#[test]
fn it_yields_to_what_is_in_flight() {
    let mut stand = stand();
    let array = stand.array.as_ref().unwrap().0.clone();
    let last = array.info().size_bytes / SECTOR_SIZE - 8;
    let address = array.status().layout.map_sector(last);
    let memory = stand.memories[address.role.index()].clone();
    memory.hold_from(address.sector);
    stand.begin(Bio::read(Sector(last), IoBuf::zeroed(4096)));
    assert_about(done_in(&mut stand, 4, |_| {}), 4 * MIN);
    memory.release();
    stand.wait_for(1);
    assert_about(done_in(&mut stand, 1, |_| {}), MAX);
}
