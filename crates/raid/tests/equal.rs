//! Superblocks that have as many events, and do not say the same: none is right because its device
//! is named first.

mod common;

use common::{candidates, change};
use drystone_raid::metadata::assemble::{Assembly, Candidate, Member, Start, assemble};
use drystone_raid::metadata::superblock::{Features, Superblock};

type Change = fn(&mut Superblock);

/// Changes of a field each that describes the array, or its devices' roles, with the outcome.
const CHANGES: &[(&str, Change, Outcome)] = &[
    ("level", |own| own.level ^= 1, Outcome::Refused),
    ("layout", |own| own.layout ^= 1, Outcome::Refused),
    ("chunk", |own| own.chunk_sectors *= 2, Outcome::Refused),
    ("fewer members", |own| own.raid_disks -= 1, Outcome::Refused),
    ("more members", |own| own.raid_disks += 1, Outcome::Refused),
    ("uuid", |own| own.set_uuid.0[3] ^= 1, Outcome::Refused),
    ("size", |own| own.size -= 1024, Outcome::LeftOut),
    ("no room", |own| own.data_size = own.size - 8, Outcome::LeftOut),
    ("name", |own| own.set_name[0] ^= 1, Outcome::Any),
    ("time", |own| own.utime += 1, Outcome::Any),
    ("time of creation", |own| own.ctime += 1, Outcome::Any),
    ("number", |own| own.dev_number = 9, Outcome::Any),
    ("dirty", |own| own.resync_offset = 0, Outcome::ResyncFrom(0)),
    ("resync", |own| own.resync_offset = 4096, Outcome::ResyncFrom(4096)),
    ("clean", |own| own.resync_offset = u64::MAX, Outcome::Any),
    ("journal", |own| own.feature_map |= Features::JOURNAL, Outcome::ReadOnly("journal")),
    ("reshape", |own| own.feature_map |= Features::RESHAPE_ACTIVE, Outcome::No),
    ("cluster", |own| own.feature_map |= Features::CLUSTERED, Outcome::No),
    ("no journal", |own| own.feature_map -= Features::JOURNAL, Outcome::Any),
    ("no reshape", |own| own.feature_map -= Features::RESHAPE_ACTIVE, Outcome::Any),
    ("bitmap", |own| own.feature_map |= Features::BITMAP_OFFSET, Outcome::Any),
    ("no bitmap", |own| own.feature_map -= Features::BITMAP_OFFSET, Outcome::Any),
    ("rebuilt", |own| own.feature_map ^= Features::RECOVERY_OFFSET, Outcome::Any),
    ("replacement", |own| own.feature_map ^= Features::REPLACEMENT, Outcome::Any),
    ("role 0 is 1", |own| own.roles[0] = 1, Outcome::Any),
    ("role 1 is 2", |own| own.roles[1] = 2, Outcome::Any),
    ("role 2 is flagged", |own| own.roles[2] |= 0x8000, Outcome::Any),
    ("role 1 has failed", |own| own.roles[1] = 0xFFFE, Outcome::Any),
    ("role 3 is the journal", |own| own.roles[3] = 0xFFFD, Outcome::Any),
    ("role 2 is a spare", |own| own.roles[2] = 0xFFFF, Outcome::Any),
    ("short table", |own| own.roles.truncate(2), Outcome::Any),
];

/// The outcome of a change where it is one.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The same whatever the order; what, is for the other tests.
    Any,
    Refused,
    LeftOut,
    ResyncFrom(u64),
    ReadOnly(&'static str),
    No,
}

/// All orders of so many devices.
fn orders(devices: usize) -> Vec<Vec<usize>> {
    let Some(last) = devices.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| {
        (0..devices).map(move |position| {
            let mut order = order.clone();
            order.insert(position, last);
            order
        })
    };
    orders(last).into_iter().flat_map(with_last).collect()
}

/// The result of an assembly, with the devices' names in place of their numbers.
fn summary(devices: &[Candidate], found: &Result<Assembly, String>) -> String {
    let Ok(array) = found else { return "refused".to_owned() };
    let name = |device: &usize| devices[*device].name.as_str();
    let member = |member: &Member| match member {
        Member::InSync { device } => format!("{} in sync", name(device)),
        Member::Rebuilding { device, recovered, by_bitmap } => {
            format!("{} rebuilt from {recovered}, by bitmap: {by_bitmap}", name(device))
        }
        Member::Stale { device, by_bitmap } => format!("{} stale {by_bitmap}", name(device)),
        Member::Faulty { device } => format!("{} failed", name(device)),
        Member::Damaged { device } => format!("{} damaged", name(device)),
        Member::Missing => "missing".to_owned(),
    };
    let members: Vec<String> = array.members.iter().map(member).collect();
    let of_replacement = |r: &Option<_>| -> Option<(String, u64)> {
        let r: &drystone_raid::metadata::assemble::Replacement = r.as_ref()?;
        Some((name(&r.device).to_owned(), r.recovered))
    };
    let replacements: Vec<_> = array.replacements.iter().map(of_replacement).collect();
    let mut spares: Vec<&str> = array.spares.iter().map(name).collect();
    let mut left_out: Vec<&str> = array.left_out.iter().map(|(device, _)| name(device)).collect();
    spares.sort_unstable();
    left_out.sort_unstable();
    format!(
        "{members:?} {replacements:?} {spares:?} {:?} {left_out:?} {:?} {:?} {} {:?} {:?} {:?} {}",
        array.journal.as_ref().map(name),
        array.resync_from,
        array.bitmap,
        array.has_ppl,
        array.read_only,
        array.start,
        array.fresh.roles,
        array.fresh.name(),
    )
}

fn in_order(devices: &[Candidate], order: &[usize]) -> Vec<Candidate> {
    order.iter().map(|device| devices[*device].clone()).collect()
}

/// The result of an assembly in every order of the devices; it is the same in all.
fn of_all_orders(what: &str, devices: &[Candidate]) -> Result<Assembly, String> {
    let all = orders(devices.len()).into_iter().map(|order| {
        let devices = in_order(devices, &order);
        let found = assemble(&devices, None);
        (summary(&devices, &found), order, found)
    });
    let all: Vec<_> = all.collect();
    for (summary, order, _) in &all {
        assert_eq!(*summary, all[0].0, "{what}: {order:?}, and {:?}", all[0].1);
    }
    assemble(devices, None)
}

/// A vector's devices, with as many events; four, since the orders of five are many.
fn equal(vector: &str) -> Vec<Candidate> {
    let mut devices = candidates(vector);
    devices.truncate(4);
    let of = |device: &Candidate| device.found.as_ref().map_or(0, |(_, own)| own.events);
    let events = devices.iter().map(of).max().unwrap_or(0);
    (0..devices.len()).for_each(|device| change(&mut devices, device, |own| own.events = events));
    devices
}

#[test]
fn one_member_that_says_something_else_has_the_same_outcome_in_all_orders() {
    let vectors = ["r5-ls", "r5-ls-bitmap", "r5-ls-ppl", "r5-ls-torn", "r6-ls-4d", "r5-ls-spare"];
    for vector in vectors.into_iter().chain(["r5-ls-journal", "r5-ls-reshape", "r5-ls-recovering"])
    {
        let devices = equal(vector);
        for (device, (name, alter, _)) in
            (0..4).flat_map(|device| CHANGES.iter().map(move |change| (device, change)))
        {
            let mut devices = devices.clone();
            change(&mut devices, device, alter);
            let _ = of_all_orders(&format!("{vector}, {name} of m{device}"), &devices);
        }
    }
}

#[test]
fn one_member_of_a_clean_array_that_says_something_else_is_heard() {
    for (device, (name, alter, outcome)) in
        (0..4).flat_map(|device| CHANGES.iter().map(move |change| (device, change)))
    {
        let mut devices = equal("r5-ls");
        change(&mut devices, device, alter);
        let found = of_all_orders(name, &devices);
        let what = format!("{name} of m{device}: {found:?}");
        match (outcome, &found) {
            (Outcome::Refused, Err(_)) | (Outcome::Any, _) => {}
            (Outcome::LeftOut, Ok(array)) => {
                assert_eq!((array.left_out.len(), array.lost()), (1, 1), "{what}");
                assert_eq!(array.left_out[0].0, device, "{what}");
            }
            (Outcome::ResyncFrom(from), Ok(array)) => {
                assert_eq!((array.resync_from, array.lost()), (Some(*from), 0), "{what}");
            }
            (Outcome::ReadOnly(why), Ok(array)) => {
                assert!(array.read_only.as_ref().is_some_and(|text| text.contains(why)), "{what}");
            }
            (Outcome::No, Ok(array)) => assert!(matches!(array.start, Start::No(_)), "{what}"),
            _ => panic!("{what}"),
        }
    }
}

#[test]
fn another_number_of_members_is_refused_and_named() {
    for (disks, words) in [(3, "of 3 members"), (5, "of 5 members")] {
        let mut devices = equal("r5-ls");
        change(&mut devices, 0, |own| own.raid_disks = disks);
        let why = of_all_orders("members", &devices).unwrap_err();
        assert!(why.contains(words) && why.contains("of 4 members"), "{why}");
        assert!(why.contains("m0 says") && why.contains("neither is older"), "{why}");
        // A device that is older was there before the array was changed.
        change(&mut devices, 0, |own| own.events -= 1);
        let array = of_all_orders("older", &devices).unwrap();
        assert_eq!((array.lost(), array.members.len()), (1, 4));
        assert!(array.left_out[0].1.contains("of the array before it was changed"));
    }
}

#[test]
fn an_error_flag_in_any_superblock_keeps_the_array_from_being_written() {
    for device in 0..4 {
        let mut devices = equal("r5-ls");
        change(&mut devices, device, |own| own.roles[2] = 0x8002);
        let array = of_all_orders("flag", &devices).unwrap();
        assert_eq!((array.lost(), &array.start), (0, &Start::Whole));
        let why = array.read_only.expect("a reason");
        assert!(why.starts_with("member 2 has the error flag (role 0x8002)"), "m{device}: {why}");
    }
}

/// A crash may leave it: the device failed while the array became clean.
#[test]
fn who_has_failed_by_any_superblock_has_failed() {
    for device in 0..4 {
        let mut devices = equal("r5-ls");
        change(&mut devices, device, |own| own.roles[1] = 0xFFFE);
        let array = of_all_orders("failed", &devices).unwrap();
        assert_eq!(array.left_out[0].0, 1, "m{device}");
        // It does not say itself then which role it had.
        let was = if device == 1 { Member::Missing } else { Member::Faulty { device: 1 } };
        assert_eq!(array.members[1], was, "m{device}");
        assert_eq!((array.lost(), &array.start), (1, &Start::Degraded { unexpected: None }));
    }
}

#[test]
fn two_roles_for_one_device_are_refused() {
    for device in 0..4 {
        let mut devices = equal("r5-ls");
        change(&mut devices, device, |own| own.roles.swap(0, 1));
        let why = of_all_orders("roles", &devices).unwrap_err();
        assert!(why.contains("device 0 of the array has role") && why.contains("neither"), "{why}");
        let mut devices = equal("r5-ls");
        change(&mut devices, device, |own| own.roles[0] = 1);
        let why = of_all_orders("role", &devices).unwrap_err();
        assert!(why.contains("leave out the one that is wrong"), "m{device}: {why}");
    }
    // Each of two members has the other's role by its own table.
    let mut devices = equal("r5-ls");
    change(&mut devices, 0, |own| own.roles[0] = 1);
    change(&mut devices, 1, |own| own.roles[1] = 0);
    assert!(of_all_orders("both", &devices).is_err());
}

#[test]
fn partial_parity_logs_of_some_members_are_refused() {
    for device in 0..4 {
        let mut devices = equal("r5-ls-ppl");
        change(&mut devices, device, |own| {
            own.feature_map -= Features::PPL | Features::MULTIPLE_PPLS;
        });
        let why = of_all_orders("logs", &devices).unwrap_err();
        assert!(why.contains(" has no partial parity logs") && why.contains("neither"), "{why}");
    }
}

#[test]
fn a_bitmap_that_any_member_has_is_kept() {
    for device in 0..4 {
        let mut devices = equal("r5-ls-bitmap");
        change(&mut devices, device, |own| own.feature_map -= Features::BITMAP_OFFSET);
        devices[device].bitmap = None;
        let array = of_all_orders("bitmap", &devices).unwrap();
        assert!(array.fresh.bitmap_offset().is_some() && array.start == Start::Whole, "m{device}");
        assert_eq!(array.bitmap, drystone_raid::metadata::assemble::BitmapUse::Good);
    }
}
