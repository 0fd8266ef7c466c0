//! Devices that are added, or replace a member, and that lose their writes.

use super::*;
use crate::ids::Role;
use crate::metadata::superblock::DevRole;

const BYTES: usize = 192 << 10;
/// The device that is added.
const NEW: usize = 4;

/// An array filled with ones, and a device with a cache that can be added to the array.
fn started(policy: Policy) -> Stand {
    let mut stand = Stand::new(4);
    stand.create_with(Level::Raid5, true, Some(policy), None);
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    stand.memories[NEW].has_cache.store(true, Relaxed);
    let new = (stand.memories.pop().unwrap(), stand.devices.pop().unwrap());
    stand.start();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand.memories.push(new.0);
    stand.devices.push(new.1);
    stand
}

fn add(stand: &mut Stand, device: usize) -> drystone_core::Result<()> {
    let (name, device, uuid) =
        (format!("d{device}"), stand.devices[device].clone(), uuid(device as u8));
    stand.command(Command::Add { name, device, uuid })
}

fn names(stand: &Stand) -> Vec<String> {
    let status = stand.array.as_ref().unwrap().0.status();
    status.disks.iter().map(|disk| disk.name.to_string()).collect()
}

fn all_fits(stand: &mut Stand) {
    stand.until("the end", |status| is_idle(status) && status.degraded() == 0);
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    assert_eq!(stand.until("check", is_idle).mismatch_cnt, 0);
    assert!(stand.reads(0, 1, BYTES));
}

/// A spare gets one of two vacant roles. Superblocks must record that before contexts know it.
#[test]
fn a_spare_is_a_member_on_record_first_though_another_role_stays_vacant() {
    const SPARE: usize = 5;
    let mut stand = Stand::new(5);
    stand.create(Level::Raid6, true);
    stand.add_device(vec![0; stand.memories[0].image().len()]);
    let spare = (stand.memories.pop().unwrap(), stand.devices.pop().unwrap());
    stand.start();
    stand.command(Command::Fail("d0".to_owned())).unwrap();
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    stand.memories.push(spare.0);
    stand.devices.push(spare.1);
    add(&mut stand, SPARE).unwrap();
    let is_told = |stand: &Stand| {
        stand.states().iter().any(|state| matches!(state, DiskState::Rebuilding(_)))
    };
    for _ in 0..100 {
        let is_recorded = matches!(stand.memories[SPARE].superblock().role(), DevRole::Active(_));
        if is_told(&stand) {
            assert!(is_recorded, "contexts know of a role that is not on record");
            return;
        }
        stand.turn();
    }
    panic!("the spare gets no role");
}

/// A device that was told to be added is there at the next start; one that was not is none of the
/// array's,
/// and may be tried again.
#[test]
fn a_device_that_does_not_flush_is_not_added() {
    for policy in [Policy::Resync, Policy::Bitmap, Policy::Ppl] {
        for is_degraded in [false, true] {
            let mut stand = started(policy);
            if is_degraded {
                stand.command(Command::Fail("d1".to_owned())).unwrap();
            }
            let before = names(&stand);
            stand.memories[NEW].flush_fails.store(true, Relaxed);
            let why = add(&mut stand, NEW).unwrap_err().message;
            assert!(why.starts_with("d4 is not added to md0: it did not write and flush"), "{why}");
            assert_eq!(names(&stand), before, "it is let go");
            let own = stand.memories[0].superblock();
            assert!(own.roles[4..].iter().all(|role| *role == DevRole::Spare.number()));
            assert!(stand.reads(0, 1, BYTES) && stand.write(0, 1, BYTES).is_ok());
            assert_eq!(
                stand.array.as_ref().unwrap().0.status().degraded(),
                usize::from(is_degraded),
                "nobody else failed"
            );
            stand.memories[NEW].flush_fails.store(false, Relaxed);
            add(&mut stand, NEW).unwrap();
            all_fits(&mut stand);
            stand.stop();
            let assembly = stand.look().2.unwrap();
            let has_part = match is_degraded {
                true => assembly.members[1].device() == Some(NEW),
                false => assembly.spares == [NEW],
            };
            assert!(has_part, "{assembly:?}");
        }
    }
}

/// A former member comes back that lacks only the chunks that the bitmap marks.
#[test]
fn a_former_member_that_does_not_flush_is_not_added() {
    let mut stand = started(Policy::Bitmap);
    stand.memories[1].has_cache.store(true, Relaxed);
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    stand.command(Command::Remove("d1".to_owned())).unwrap();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand.memories[1].flush_fails.store(true, Relaxed);
    let why = add(&mut stand, 1).unwrap_err().message;
    assert!(why.starts_with("d1 is not added to md0"), "{why}");
    assert_eq!(names(&stand), ["d0", "d2", "d3"]);
    stand.memories[1].flush_fails.store(false, Relaxed);
    add(&mut stand, 1).unwrap();
    all_fits(&mut stand);
}

#[test]
fn a_spare_that_does_not_flush_replaces_nobody() {
    let mut stand = started(Policy::Resync);
    add(&mut stand, NEW).unwrap();
    stand.memories[NEW].flush_fails.store(true, Relaxed);
    let why = stand.command(Command::Replace("d1".to_owned())).unwrap_err().message;
    assert!(why.starts_with("d1 is not replaced: the spare chosen for it did not"), "{why}");
    assert_eq!(stand.states()[1], DiskState::InSync(Role(1)));
    assert!(matches!(stand.states()[NEW], DiskState::Faulty(_)));
    stand.memories[NEW].flush_fails.store(false, Relaxed);
    stand.command(Command::Remove("d4".to_owned())).unwrap();
    add(&mut stand, NEW).unwrap();
    stand.command(Command::Replace("d1".to_owned())).unwrap();
    stand.until("the end", |status| {
        status
            .disks
            .iter()
            .any(|disk| &*disk.name == "d4" && disk.state == DiskState::InSync(Role(1)))
    });
    all_fits(&mut stand);
}

/// A frozen array that has lost `d1`; the devices from `members` on are spares.
fn frozen(level: Level, members: usize, spares: usize) -> Stand {
    let mut stand = Stand::new(members);
    stand.create(level, true);
    stand.start();
    assert!(stand.write(0, 1, BYTES).is_ok());
    stand.command(Command::Freeze(true)).unwrap();
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    for spare in members..members + spares {
        stand.add_device(vec![0; stand.memories[0].image().len()]);
        add(&mut stand, spare).unwrap();
        assert_eq!(stand.states()[spare], DiskState::Spare);
    }
    stand
}

#[test]
fn a_spare_that_takes_no_superblock_is_followed_by_the_next_at_once() {
    let mut stand = frozen(Level::Raid5, 4, 2);
    stand.memories[4].is_dead.store(true, Relaxed);
    stand.command(Command::Freeze(false)).unwrap();
    // Nothing wakes the manager again.
    assert!(matches!(stand.states()[4], DiskState::Faulty(_)));
    assert_eq!(stand.states()[5], DiskState::Rebuilding(Role(1)));
    all_fits(&mut stand);
}

#[test]
fn a_member_that_fails_as_a_spare_goes_on_record_is_used_no_more() {
    let mut stand = frozen(Level::Raid6, 5, 1);
    for device in [2, 5] {
        stand.memories[device].flush_fails.store(true, Relaxed);
    }
    stand.command(Command::Freeze(false)).unwrap();
    for device in [2, 5] {
        assert!(matches!(stand.states()[device], DiskState::Faulty(_)), "{device}");
    }
    stand.power.take();
    assert!(stand.reads(0, 1, BYTES));
    let entries = stand.power.take();
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry.device != 2), "{entries:?}");
}

#[test]
fn nothing_is_rebuilt_if_too_many_fail_as_the_spare_goes_on_record() {
    let mut stand = frozen(Level::Raid5, 4, 1);
    stand.memories[0].flush_fails.store(true, Relaxed);
    stand.command(Command::Freeze(false)).unwrap();
    let status = stand.array.as_ref().unwrap().0.status();
    assert!(matches!(stand.states()[0], DiskState::Faulty(_)));
    assert_eq!((status.state, status.sync.is_none()), (ArrayState::Broken, true));
}
