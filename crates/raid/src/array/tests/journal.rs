//! Arrays with a journal on a device of its own. Linux calls these clean even while they are
//! written.

use super::*;
use crate::metadata::assemble::Start;
use crate::metadata::journal::BLOCK_BYTES;
use crate::metadata::superblock::Superblock;
use crate::testing::{journal_block, journal_data, journal_flush};

const JOURNAL: usize = 4;
/// The place of this test's blocks in the journal, behind those of the vector.
const TAIL: u64 = 1024;
const UUID_OF: &str = "r5-ls-journal";

/// The vector, with a journal that begins with a meta block of these payloads and the blocks behind
/// it.
fn stand(payloads: &[u8], blocks: &[Vec<u8>]) -> Stand {
    let mut stand = Stand::of_vector(UUID_OF);
    stand.is_read_only = true;
    let own = set_tail(&stand, TAIL);
    let mut bytes = journal_block(own.set_uuid, TAIL, 5, payloads);
    bytes.extend(blocks.concat());
    stand.memories[JOURNAL].put(own.data_offset + TAIL, &bytes);
    stand
}

/// Make Linux's replay begin at `tail`. Returns the journal's superblock.
fn set_tail(stand: &Stand, tail: u64) -> Superblock {
    let own = Superblock { recovery_offset: tail, ..stand.memories[JOURNAL].superblock() };
    stand.memories[JOURNAL].put(8, &own.to_bytes());
    own
}

fn uuid_of_array() -> crate::metadata::Uuid {
    Stand::of_vector(UUID_OF).memories[JOURNAL].superblock().set_uuid
}

/// The contents of a block of the array, by the rule of the vector.
fn tag(block: u64) -> Vec<u8> {
    (0xB10C_0000_0000_0000 + block).to_le_bytes().repeat(512)
}

fn refusal(stand: &mut Stand) -> String {
    stand.try_open().err().expect("it is refused").message
}

fn starts(stand: &mut Stand) -> String {
    stand.start();
    assert!(stand.read(0, 4096).1 == tag(0), "the first block");
    let notices = stand.array.as_ref().unwrap().0.notices().join("\n");
    stand.stop();
    assert!(stand.power.take().iter().all(|entry| entry.op == Op::Read));
    notices
}

#[test]
fn a_journal_that_holds_nothing_is_no_obstacle() {
    assert_eq!(starts(&mut stand(&[], &[])), "");
    // Data that Linux has logged and has written to its members: the vector's own log, without its
    // tail.
    let mut stand = Stand::of_vector(UUID_OF);
    stand.is_read_only = true;
    set_tail(&stand, 8);
    let (_, candidates, _) = stand.look();
    let journal = candidates[JOURNAL].journal.clone().unwrap().unwrap();
    assert!(journal.stripes().count() > 10, "{journal:?}");
    assert!(journal.stripes().all(|(_, logged)| logged.has_parity));
    assert_eq!(starts(&mut stand), "");
}

#[test]
fn writes_that_are_in_the_journal_only_are_not_passed_over() {
    let (uuid, new) = (uuid_of_array(), vec![7; BLOCK_BYTES]);
    let payload = journal_data(uuid, 8 * 21, &new);
    let mut lacking = stand(&payload, std::slice::from_ref(&new));
    let why = refusal(&mut lacking);
    assert!(why.contains("d4: the journal holds writes that the members do not have"), "{why}");
    assert!(why.contains("86016-90111") && why.contains("mdadm on Linux"), "{why}");
    lacking.is_forced = true;
    assert!(starts(&mut lacking).contains("86016-90111"));
    // One block is the same as on the members, one was torn when the power failed, and of one a
    // later payload says that the members have it.
    let same = tag(21);
    starts(&mut stand(&journal_data(uuid, 8 * 21, &same), &[same]));
    starts(&mut stand(&payload, &[vec![8; BLOCK_BYTES]]));
    let stripe = stand(&[], &[]).look().2.unwrap().layout.map_sector(8 * 21).sector;
    starts(&mut stand(&[&payload[..], &journal_flush(&[stripe])].concat(), &[new]));
}

#[test]
fn where_a_member_is_missing_the_whole_stripe_is_suspect() {
    let (uuid, new) = (uuid_of_array(), vec![7; BLOCK_BYTES]);
    for lost in 0..4 {
        let mut stand = stand(&journal_data(uuid, 8 * 21, &new), std::slice::from_ref(&new));
        stand.devices.remove(lost);
        stand.memories.remove(lost);
        let why = refusal(&mut stand);
        let all = "20480-24575, 86016-90111, 151552-155647";
        assert!(why.contains(all), "{why}");
    }
}

#[test]
fn without_its_journal_an_array_is_not_taken_for_clean() {
    let mut missing = stand(&[], &[]);
    missing.devices.pop();
    missing.memories.pop();
    let Start::Force(why) = missing.look().2.unwrap().start else { panic!("it starts") };
    assert!(
        why.contains("is not among the devices") && why.contains("name its device too"),
        "{why}"
    );
    assert!(refusal(&mut missing).contains(&why));
    missing.is_forced = true;
    assert!(starts(&mut missing).contains("may be read as they were before"));
    // The first meta block is missing, or the device has other events.
    let mut damaged = stand(&[], &[]);
    set_tail(&damaged, 2048);
    assert!(refusal(&mut damaged).contains("no block where its superblock says"));
    damaged.is_forced = true;
    assert!(starts(&mut damaged).contains("at sector 2048 of its data"));
    let mut old = stand(&[], &[]);
    let own = Superblock { events: 3, ..old.memories[JOURNAL].superblock() };
    old.memories[JOURNAL].put(8, &own.to_bytes());
    assert!(refusal(&mut old).contains("is not among the devices that can be used"));
}

#[test]
fn payloads_that_make_no_sense_end_the_journal() {
    let uuid = uuid_of_array();
    let block = vec![9; BLOCK_BYTES];
    let good = journal_data(uuid, 8 * 21, &block);
    for (at, value) in [(0, 9), (4, 16), (4, 0)] {
        let mut bad = good.clone();
        bad[at] = value;
        // The block is not a meta block, so the journal has none.
        let why = refusal(&mut stand(&bad, std::slice::from_ref(&block)));
        assert!(why.contains("no block where its superblock says"), "{why}");
    }
    let far = journal_data(uuid, u64::MAX - 7, &block);
    assert!(
        refusal(&mut stand(&far, std::slice::from_ref(&block)))
            .contains("the journal has a block for")
    );
}

/// An array with a journal cannot be resized, so a journal with another size does not belong to it.
#[test]
fn a_journal_that_says_another_size_is_not_read() {
    let block = vec![9; BLOCK_BYTES];
    let far = journal_data(uuid_of_array(), u64::MAX - 7, &block);
    for behind in [0, 1] {
        let mut stand = stand(&far, std::slice::from_ref(&block));
        let mut own = stand.memories[JOURNAL].superblock();
        (own.size, own.events) = (u64::MAX - 127, own.events - behind);
        stand.memories[JOURNAL].put(8, &own.to_bytes());
        let why = refusal(&mut stand);
        assert!(why.contains("is not among the devices that can be used"), "{why}");
    }
}
