//! Which arrays devices make: those that Linux wrote, and such as are made of them by hand.

mod common;

use common::{candidates, change, superblock};
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::assemble::{
    Assembly, BitmapUse, Candidate, Member, Replacement, Start, assemble,
};
use drystone_raid::metadata::bitmap::{BitmapHeader, STATE_STALE};
use drystone_raid::metadata::superblock::Features;
use drystone_raid::testing;

fn without(mut candidates: Vec<Candidate>, gone: &[usize]) -> Vec<Candidate> {
    let mut index = 0;
    candidates.retain(|_| {
        index += 1;
        !gone.contains(&(index - 1))
    });
    candidates
}

fn made(candidates: &[Candidate]) -> Assembly {
    assemble(candidates, None).unwrap()
}

fn in_sync(devices: &[usize]) -> Vec<Member> {
    devices.iter().map(|device| Member::InSync { device: *device }).collect()
}

const DEGRADED: Start = Start::Degraded { unexpected: None };

fn force(start: &Start) -> &str {
    let Start::Force(text) = start else { panic!("{start:?}") };
    text
}

fn refused(start: &Start) -> &str {
    let Start::No(text) = start else { panic!("{start:?}") };
    text
}

fn unexpected(start: &Start) -> &str {
    let Start::Degraded { unexpected: Some(text) } = start else { panic!("{start:?}") };
    text
}

#[test]
fn arrays_that_were_stopped_are_whole() {
    let special = |vector: &String| {
        let middle = ["stale", "faulty", "recover", "replac", "spare", "journal", "reshape"];
        vector.contains("crash")
            || vector.ends_with("torn")
            || middle.iter().any(|m| vector.contains(m))
    };
    for vector in testing::names().into_iter().filter(|vector| !special(vector)) {
        let mut candidates = candidates(&vector);
        let array = made(&candidates);
        let devices: Vec<usize> = (0..candidates.len()).collect();
        assert_eq!(array.members, in_sync(&devices), "{vector}");
        assert_eq!((&array.start, array.resync_from), (&Start::Whole, None), "{vector}");
        assert!(array.left_out.is_empty() && array.read_only.is_none(), "{vector}");
        // The order of the devices means nothing.
        candidates.reverse();
        let turned = made(&candidates).members;
        assert_eq!(turned, in_sync(&devices.into_iter().rev().collect::<Vec<_>>()), "{vector}");
    }
}

#[test]
fn crashed_arrays_are_resynced() {
    for (vector, bitmap, ppl) in [
        ("r5-ls-torn", BitmapUse::None, false),
        ("r5-ls-nobitmap-crash", BitmapUse::None, false),
        ("r5-ls-bitmap-torn", BitmapUse::Good, false),
        ("r5-ls-bitmap-crash", BitmapUse::Good, false),
        ("r5-ls-ppl-torn", BitmapUse::None, true),
    ] {
        let array = made(&candidates(vector));
        assert_eq!((&array.start, array.resync_from), (&Start::Whole, Some(0)), "{vector}");
        assert_eq!((array.bitmap, array.has_ppl), (bitmap, ppl), "{vector}");
    }
}

#[test]
fn dirty_and_degraded_starts_with_a_log_only() {
    for vector in ["r5-ls-torn", "r5-ls-bitmap-torn"] {
        let array = made(&without(candidates(vector), &[1]));
        let text = force(&array.start);
        assert!(text.contains("member 1 (missing)") && text.contains("nobody wrote"), "{text}");
    }
    let array = made(&without(candidates("r5-ls-ppl-torn"), &[1]));
    assert!(unexpected(&array.start).contains("3 of 4 members are there"), "{:?}", array.start);
}

#[test]
fn members_in_every_state_are_known() {
    let stale = made(&candidates("r5-ls-stale"));
    assert_eq!(stale.members[2], Member::Stale { device: 2, by_bitmap: false });
    assert_eq!((&stale.start, stale.lost()), (&DEGRADED, 1));
    assert!(stale.left_out[0].1.contains("m2 is stale: its events are 18, the array's 23"));

    let faulty = made(&candidates("r5-ls-faulty-kept"));
    assert_eq!((faulty.members[2], &faulty.start), (Member::Faulty { device: 2 }, &DEGRADED));

    let recovering = made(&candidates("r5-ls-recovering"));
    let rebuilt = Member::Rebuilding { device: 4, recovered: 4096, by_bitmap: false };
    assert_eq!((recovering.members[1], &recovering.start), (rebuilt, &DEGRADED));
    assert_eq!(recovering.left_out.iter().map(|(d, _)| *d).collect::<Vec<_>>(), [1]);

    let replacing = made(&candidates("r5-ls-replacing"));
    assert_eq!(replacing.members, in_sync(&[0, 1, 2, 3]));
    assert_eq!(replacing.replacements[1], Some(Replacement { device: 4, recovered: 4096 }));
    assert_eq!(replacing.start, Start::Whole);
    // Without its original the replacement is all there is.
    let replacing = made(&without(candidates("r5-ls-replacing"), &[1]));
    let rebuilt = Member::Rebuilding { device: 3, recovered: 4096, by_bitmap: false };
    assert_eq!((replacing.members[1], replacing.replacements[1]), (rebuilt, None));
    assert_eq!(replacing.start, DEGRADED);

    let spare = made(&candidates("r5-ls-spare"));
    assert_eq!((&spare.spares[..], &spare.start), (&[4][..], &Start::Whole));
}

#[test]
fn what_is_not_supported_is_not_written() {
    let mut devices = candidates("r5-ls-journal");
    let journal = made(&devices);
    assert!(force(&journal.start).contains("has a journal"), "nobody has looked into it");
    assert!(journal.read_only.unwrap().contains("journal"));
    devices[4].journal = Some(Err(MetadataError::Invalid("it is torn".to_owned())));
    assert!(force(&made(&devices).start).contains("m4: it is torn: what was written last"));
    // The user of an array that lacks members too is told of both.
    (0..5).for_each(|device| change(&mut devices, device, |own| own.resync_offset = 0));
    let both = made(&without(devices, &[1, 4]));
    let why = force(&both.start);
    assert!(why.contains("member 1 (missing)") && why.contains("has a journal"), "{why}");

    let reshape = made(&candidates("r5-ls-reshape"));
    assert!(refused(&reshape.start).contains("being reshaped, at array sector 16384"));
    assert_eq!(made(&candidates("r5-ls-reshape-after")).start, Start::Whole);

    let mut clustered = candidates("r5-ls");
    for device in 0..4 {
        change(&mut clustered, device, |own| own.feature_map |= Features::CLUSTERED);
    }
    assert!(refused(&made(&clustered).start).contains("cluster"));
}

/// A member failed in the last update: it is one event behind, and calls itself good.
#[test]
fn a_role_is_what_the_freshest_superblock_says() {
    for (number, expected) in [(0xFFFE, Member::Faulty { device: 2 }), (0xFFFF, Member::Missing)] {
        let mut devices = candidates("r5-ls");
        for device in [0, 1, 3] {
            change(&mut devices, device, |own| {
                own.events += 1;
                own.roles[2] = number;
            });
        }
        let array = made(&devices);
        assert_eq!((array.members[2], &array.start), (expected, &DEGRADED));
        // A device that was removed is a spare to Linux, and is rebuilt.
        assert_eq!(array.spares.contains(&2), number == 0xFFFF);
    }
}

/// The freshest superblock gives a spare a role, and the power goes before the spare is told.
#[test]
fn a_spare_that_was_not_told_of_its_role_holds_nothing() {
    let mut devices = without(candidates("r5-ls-spare"), &[2]);
    for device in 0..3 {
        change(&mut devices, device, |own| {
            own.events += 1;
            own.roles[2] = 0xFFFE;
            own.roles[5] = 2;
        });
    }
    let array = made(&devices);
    let rebuilt = Member::Rebuilding { device: 3, recovered: 0, by_bitmap: false };
    assert_eq!((array.members[2], &array.start), (rebuilt, &DEGRADED));
}

#[test]
fn one_event_less_is_no_sign_of_age() {
    let mut devices = candidates("r5-ls");
    change(&mut devices, 2, |own| own.events -= 1);
    assert_eq!(made(&devices).start, Start::Whole);
    change(&mut devices, 2, |own| own.events -= 1);
    let array = made(&devices);
    assert_eq!(array.members[2], Member::Stale { device: 2, by_bitmap: false });
    assert!(
        unexpected(&array.start).contains("member 2 is missing but was never"),
        "{:?}",
        array.start
    );
}

#[test]
fn too_few_members_need_force_or_cannot_start() {
    let text = made(&without(candidates("r5-ls"), &[1, 3])).start;
    let text = refused(&text);
    assert!(text.starts_with("2 of 4 members can be used, expected at least 3"), "{text}");
    assert!(text.contains("member 1 (missing), member 3 (missing)"), "{text}");
    assert_eq!(made(&without(candidates("r6-ls"), &[1, 3])).lost(), 2);
    let mut devices = without(candidates("r5-ls"), &[1]);
    change(&mut devices, 2, |own| own.events -= 5);
    let text = made(&devices).start;
    assert!(force(&text).contains("m3 can be forced in"), "{text}");
    assert!(refused(&made(&without(candidates("r6-ls"), &[0, 1, 3])).start).contains("2 of 5"));
}

#[test]
fn a_member_that_only_holds_parity_may_be_rebuilt_in_a_dirty_array() {
    let dirty = |vector: &str, device: usize| {
        let mut devices = candidates(vector);
        (0..4).for_each(|device| change(&mut devices, device, |own| own.resync_offset = 0));
        change(&mut devices, device, |own| {
            own.feature_map |= Features::RECOVERY_OFFSET;
            own.recovery_offset = 0;
        });
        made(&devices).start
    };
    assert_eq!(dirty("r4", 3), DEGRADED);
    assert_eq!(dirty("r5-pn", 3), DEGRADED);
    assert_eq!(dirty("r5-p0", 0), DEGRADED);
    for (vector, device) in [("r4", 0), ("r5-ls", 3), ("r5-p0", 3)] {
        assert!(force(&dirty(vector, device)).contains("being rebuilt"), "{vector}");
    }
}

/// Without parity nothing is computed, so a crash can have made nothing wrong.
#[test]
fn a_dirty_array_that_lacks_nothing_but_parity_starts() {
    let dirty = |vector: &str, lost: &[u16], role: Option<u16>| {
        let gone: Vec<usize> = lost.iter().map(|role| usize::from(*role)).collect();
        let mut devices = without(candidates(vector), &gone);
        for device in 0..devices.len() {
            change(&mut devices, device, |own| {
                own.resync_offset = 0;
                let theirs = own.roles.iter_mut().filter(|own| lost.contains(own));
                theirs.for_each(|own| *own = role.unwrap_or(*own));
            });
        }
        made(&devices).start
    };
    let parity_only = [("r4", &[3][..]), ("r5-pn", &[3]), ("r5-p0", &[0]), ("r6-p0", &[0, 1])];
    for (vector, lost) in parity_only {
        assert_eq!(dirty(vector, lost, Some(0xFFFE)), DEGRADED, "{vector}");
        assert_eq!(dirty(vector, lost, Some(0xFFFF)), DEGRADED, "{vector}");
        // On record as a member it may still appear, as in an array that is clean.
        assert!(unexpected(&dirty(vector, lost, None)).contains("may still appear"));
    }
    for (vector, lost) in [("r4", &[0][..]), ("r5-ls", &[3]), ("r5-p0", &[3]), ("r6-p0", &[0, 2])] {
        assert!(force(&dirty(vector, lost, Some(0xFFFE))).contains("write hole"), "{vector}");
    }
}

#[test]
fn all_of_the_same_age_are_forced_in_together() {
    let aged = |ages: [u64; 5]| {
        let mut devices = candidates("r6-ls");
        let fresh = devices[0].found.as_ref().unwrap().1.events + 100;
        (0..5).for_each(|device| {
            change(&mut devices, device, |own| own.events = fresh - ages[device])
        });
        let mut array = made(&devices);
        let told = force(&array.start).to_owned();
        array.force(&devices);
        (array, told)
    };
    // One would be enough.
    let (array, told) = aged([0, 0, 20, 20, 20]);
    assert_eq!(array.members, in_sync(&[0, 1, 2, 3, 4]));
    assert!(told.contains("m2, m3, m4 can be forced in"), "{told}");
    assert!(array.left_out.is_empty() && array.start == Start::Whole, "{:?}", array.start);
    assert_eq!(array.resync_from, Some(0), "members of two ages: parity may not fit");
    let (array, told) = aged([0, 0, 20, 10, 30]);
    assert!(told.contains("; m3 can be forced in"), "{told}");
    assert_eq!((array.lost(), array.resync_from), (2, None), "there is no parity to spare");
    let (array, _) = aged([0, 10, 20, 20, 5]);
    assert_eq!(array.lost(), 2);
    assert!(array.members[1].is_in_sync() && array.members[4].is_in_sync());
}

#[test]
fn an_image_of_before_a_change_of_shape_is_left_out() {
    let mut devices = candidates("r5-ls");
    change(&mut devices, 1, |own| {
        own.chunk_sectors /= 2;
        own.events -= 1;
    });
    let mut array = made(&devices);
    assert_eq!((array.lost(), array.members[1]), (1, Member::Missing));
    let (device, why) = &array.left_out[0];
    assert_eq!(*device, 1);
    assert!(why.starts_with("m1 is of the array before it was changed: it says raid5"), "{why}");
    // Nor is it forced in where members are too few, as one with fewer members would not be.
    change(&mut devices, 2, |own| {
        own.raid_disks -= 1;
        own.events -= 5;
    });
    array = made(&devices);
    assert!(refused(&array.start).contains("2 of 4 members can be used"), "{:?}", array.start);
}

/// A NAS of Synology marks a member in use that had errors.
#[test]
fn a_member_with_the_error_flag_is_read_and_not_written() {
    let mut devices = candidates("r5-ls");
    (0..4).for_each(|device| change(&mut devices, device, |own| own.roles[2] = 0x8002));
    let array = made(&devices);
    assert_eq!((&array.members[..], &array.start), (&in_sync(&[0, 1, 2, 3])[..], &Start::Whole));
    let why = array.read_only.expect("a reason");
    assert!(why.starts_with("member 2 has the error flag (role 0x8002): a Synology NAS"), "{why}");
    // Without it nothing keeps the others from being written.
    let array = made(&without(devices.clone(), &[2]));
    assert_eq!((array.lost(), array.read_only), (1, None));
    assert!(unexpected(&array.start).contains("member 2 is missing"), "{:?}", array.start);
    let array = made(&without(devices, &[0]));
    assert!(array.members[2].is_in_sync() && array.lost() == 1, "it is needed");
}

/// A crash may come when the one that has it was told, and the others were not.
#[test]
fn an_error_flag_that_only_its_bearer_knows_of_counts() {
    for behind in [0, 1] {
        let mut devices = candidates("r5-ls");
        change(&mut devices, 2, |own| {
            own.roles[2] = 0x8002;
            own.events -= behind;
        });
        let why = made(&devices).read_only.expect("a reason");
        assert!(why.starts_with("member 2 has the error flag (role 0x8002): a"), "{why}");
        // Without it nothing keeps the others from being written.
        assert_eq!(made(&without(devices, &[2])).read_only, None);
    }
}

#[test]
fn a_member_with_the_error_flag_that_is_forced_in_is_not_written() {
    let mut devices = candidates("r5-ls");
    (0..4).for_each(|device| change(&mut devices, device, |own| own.roles[2] = 0x8002));
    (2..4).for_each(|device| change(&mut devices, device, |own| own.events -= 2));
    let mut array = made(&devices);
    assert_eq!((array.lost(), &array.read_only), (2, &None), "it takes no part");
    array.force(&devices);
    assert_eq!(array.lost(), 0);
    assert!(array.read_only.expect("a reason").starts_with("member 2 has the error flag"));
}

#[test]
fn bitmaps_are_of_use_when_they_are_as_fresh_as_the_array() {
    let with = |change: &dyn Fn(&mut BitmapHeader)| {
        let mut devices = candidates("r5-ls-bitmap");
        for device in &mut devices {
            let Some(Ok(header)) = &mut device.bitmap else { panic!("no bitmap") };
            change(header);
        }
        made(&devices)
    };
    assert_eq!(with(&|_| ()).bitmap, BitmapUse::Good);
    assert_eq!(with(&|header| header.events += 1).bitmap, BitmapUse::Good);
    assert_eq!(with(&|header| header.events -= 1).bitmap, BitmapUse::Stale);
    assert_eq!(with(&|header| header.state |= STATE_STALE).bitmap, BitmapUse::Stale);
    assert_eq!(with(&|header| header.sync_size -= 8).bitmap, BitmapUse::Stale);
    let other = with(&|header| header.uuid.0[0] ^= 1);
    assert_eq!(other.start, Start::Whole);
    assert!(other.read_only.unwrap().contains("no-bitmap"));

    let mut devices = candidates("r5-ls-bitmap");
    for device in &mut devices {
        device.bitmap = Some(Err(MetadataError::Unknown("it is lockless".to_owned())));
    }
    let array = made(&devices);
    assert_eq!(array.start, Start::Whole);
    assert!(array.read_only.unwrap().contains("it is lockless"));
}

#[test]
fn a_stale_member_that_missed_little_is_told_by_the_bitmap() {
    let mut devices = candidates("r5-ls-bitmap");
    change(&mut devices, 1, |own| own.events -= 2);
    let cleared = devices[0].bitmap.clone().unwrap().unwrap().events_cleared;
    let Ok((_, own)) = &devices[1].found else { unreachable!() };
    let by_bitmap = own.events >= cleared;
    assert_eq!(made(&devices).members[1], Member::Stale { device: 1, by_bitmap });
    for device in &mut devices {
        let Some(Ok(header)) = &mut device.bitmap else { panic!("no bitmap") };
        header.events_cleared = 10;
    }
    assert_eq!(made(&devices).members[1], Member::Stale { device: 1, by_bitmap: true });
    // Of another history, which the bitmap does not know.
    change(&mut devices, 1, |own| {
        (0..own.roles.len()).filter(|n| *n != 1).for_each(|n| own.roles[n] = 0xFFFE);
    });
    assert_eq!(made(&devices).members[1], Member::Stale { device: 1, by_bitmap: false });
}

#[test]
fn devices_that_contradict_one_another_are_refused() {
    let refusal = |devices: &[Candidate]| assemble(devices, None).unwrap_err();
    let mut mixed = without(candidates("r5-ls"), &[3]);
    mixed.extend(without(candidates("r5-la"), &[0, 1, 2]));
    assert!(refusal(&mixed).contains("is of the array"), "{}", refusal(&mixed));
    let uuid = mixed[0].found.as_ref().unwrap().1.set_uuid;
    assert!(assemble(&mixed[..3], Some(uuid)).is_ok());
    let mut twins = candidates("r5-ls");
    twins.push(Candidate { name: "copy".to_owned(), ..twins[1].clone() });
    assert!(refusal(&twins).contains("both device 1 of the array"), "{}", refusal(&twins));
    let mut shapes = candidates("r5-ls");
    change(&mut shapes, 1, |own| own.chunk_sectors = 8);
    assert!(refusal(&shapes).contains("neither is older"), "{}", refusal(&shapes));
    let mut level = candidates("r5-ls");
    (0..4).for_each(|device| change(&mut level, device, |own| own.level = 1));
    assert!(refusal(&level).contains("level is raid1, expected 4, 5 or 6"), "{}", refusal(&level));
    assert_eq!(refusal(&[]), "no devices are named");
    let blank = Candidate {
        name: "sda".to_owned(),
        found: superblock(&testing::Image::new(1 << 20)),
        bitmap: None,
        damage: None,
        log_damage: None,
        device_sectors: 1 << 20,
        journal: None,
    };
    assert!(refusal(&[blank]).contains("sda: there is no md superblock"));
}

#[test]
fn who_saw_another_history_is_left_out() {
    // Two halves of a RAID-6 ran without each other, and have as many events.
    let mut devices = candidates("r6-ls-4d");
    for (device, others) in [(0, [2, 3]), (1, [2, 3]), (2, [0, 1]), (3, [0, 1])] {
        change(&mut devices, device, |own| others.iter().for_each(|d| own.roles[*d] = 0xFFFE));
    }
    let array = made(&devices);
    assert_eq!(array.lost(), 2);
    let left: Vec<usize> = array.left_out.iter().map(|(device, _)| *device).collect();
    assert_eq!(left, [2, 3]);
    assert!(array.left_out[0].1.contains("another history"), "{:?}", array.left_out);
}

/// A RAID-5 ran without member 3; copies from before ran without member 0, and then the first
/// member 0 was put back. Both have as many events.
fn two_histories() -> Vec<Candidate> {
    let mut devices = candidates("r5-ls");
    change(&mut devices, 0, |own| own.roles[3] = 0xFFFE);
    (1..4).for_each(|device| change(&mut devices, device, |own| own.roles[0] = 0xFFFE));
    devices
}

#[test]
fn of_two_histories_the_later_one_counts_and_then_that_of_more_members() {
    let mut devices = two_histories();
    (1..4).for_each(|device| change(&mut devices, device, |own| own.utime += 1));
    for later in [true, false] {
        let array = made(&devices);
        assert_eq!(array.members[1..], in_sync(&[1, 2, 3]), "{later}");
        assert_eq!(array.members[0], Member::Faulty { device: 0 }, "{later}");
        assert_eq!(array.start, DEGRADED, "{later}");
        // Parts of a second stand above the seconds, and do not count.
        (1..4).for_each(|device| change(&mut devices, device, |own| own.utime -= 1));
        change(&mut devices, 0, |own| own.utime += 7 << 40);
    }
}

#[test]
fn who_is_to_be_left_out_for_another_history_is_told() {
    let mut devices = two_histories();
    change(&mut devices, 0, |own| own.utime += 1);
    let array = made(&devices);
    let text = force(&array.start);
    assert!(text.contains("1 of 4 members can be used, expected at least 3"), "{text}");
    assert!(text.contains("m1 is of another history") && text.contains("m3 is of"), "{text}");
    assert!(text.ends_with("leave out m0 to use what the others hold"), "{text}");
    assert_eq!(made(&without(devices, &[0])).start, DEGRADED);
}

/// A spare that was removed does not know that its number was given again, and its age says
/// nothing.
#[test]
fn of_two_devices_with_one_number_the_later_counts() {
    let mut candidates = candidates("r5-ls-spare");
    let spare = candidates.len() - 1;
    let number = candidates[spare].found.as_ref().unwrap().1.dev_number;
    let mut old = candidates[spare].clone();
    old.name = "old".to_owned();
    candidates.push(old);
    change(&mut candidates, spare + 1, |old| old.events -= 1);
    let array = made(&candidates);
    assert_eq!(array.spares, [spare]);
    let (left_out, why) = &array.left_out[0];
    assert_eq!(*left_out, spare + 1);
    assert_eq!(
        why,
        &format!(
            "old was device {number} of the array before m{spare}: it was removed, or is an old \
             copy"
        )
    );
}

#[test]
fn logs_of_partial_parity_are_of_raid5_only() {
    let mut candidates = candidates("r5-ls-ppl");
    for device in 0..candidates.len() {
        change(&mut candidates, device, |own| own.level = 4);
    }
    assert!(refused(&made(&candidates).start).contains("which only RAID-5 of up to 64 members"));
}

#[test]
fn a_broken_superblock_is_a_member_that_is_not_there() {
    let mut devices = candidates("r5-ls");
    devices[1].found = Err(MetadataError::Invalid("superblock checksum is 1, expected 2".into()));
    let array = made(&devices);
    assert!(array.left_out[0].1.starts_with("m1: superblock checksum"), "{:?}", array.left_out);
    assert!(unexpected(&array.start).contains("member 1"), "{:?}", array.start);
    change(&mut devices, 2, |own| own.data_size = 100);
    let array = made(&devices);
    assert!(array.left_out[1].1.contains("m2 is too small: it has 100 sectors"));
}
