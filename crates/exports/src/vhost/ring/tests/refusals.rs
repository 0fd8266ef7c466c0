//! Every reason that breaks a ring, with its sentence.

use super::super::super::proto::Features;
use super::super::RingError;
use super::driver::{BYTES, DATA, Driver, GUEST, INDIRECT, NEXT, WRITE, region};
use super::{NONE, TABLES};

/// Takes a chain from the ring of a driver that did something wrong; the sentence.
fn broken(features: Features, wrong: impl FnOnce(&mut Driver)) -> String {
    let mut driver = Driver::new(4, features);
    let mut ring = driver.ring();
    wrong(&mut driver);
    let base = ring.base();
    let reason = ring.take().expect_err("the ring is broken");
    assert_eq!(ring.broken(), Some(reason));
    assert_eq!((ring.in_flight(), ring.base()), (0, base), "the chain was not taken");
    driver.set_available(0);
    assert_eq!(ring.take().expect_err("it stays so"), reason);
    assert!(!ring.enable_notifications());
    reason.to_string()
}

/// The same with one descriptor, which is the first of a chain.
fn with_descriptor(features: Features, fields: (u64, u32, u16, u16)) -> String {
    broken(features, |driver| {
        driver.set_descriptor(0, fields);
        driver.offer(0);
    })
}

/// The same with a table.
fn with_table(entries: &[(u64, u32, u16, u16)]) -> String {
    broken(TABLES, |driver| {
        let table = driver.table_of(0);
        for (index, fields) in entries.iter().enumerate() {
            driver.describe(table + 16 * index as u64, *fields);
        }
        driver.set_descriptor(0, (table, 16 * entries.len() as u32, INDIRECT, 0));
        driver.offer(0);
    })
}

#[test]
fn indices_and_heads() {
    let sentence = "the available index is 5 ahead, in a ring of 4 entries";
    assert_eq!(broken(NONE, |driver| driver.set_available(5)), sentence);
    let sentence = "the available index is 65535 ahead, in a ring of 4 entries";
    assert_eq!(broken(NONE, |driver| driver.set_available(0xffff)), sentence);
    let sentence = "a chain begins at descriptor 4: there are 4";
    assert_eq!(broken(NONE, |driver| driver.offer(4)), sentence);
}

#[test]
fn a_head_that_is_available_twice() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    driver.set_descriptor(3, (DATA, 1, WRITE, 0));
    driver.offer(3);
    driver.offer(3);
    assert!(ring.take().expect("it is whole").is_some());
    assert_eq!(
        ring.take().expect_err("it is broken").to_string(),
        "the chain at descriptor 3 is available again before it was used"
    );
    assert_eq!((ring.in_flight(), ring.base()), (1, 1));
    ring.put(3, 0);
    assert!(ring.publish(), "what is in flight can be put back");
}

#[test]
fn chains_with_loops() {
    let sentence = "a chain is longer than its table of 4 entries";
    assert_eq!(with_descriptor(NONE, (DATA, 1, NEXT, 0)), sentence);
    let sentence = "a chain is longer than its table of 2 entries";
    assert_eq!(with_table(&[(DATA, 1, NEXT, 1), (DATA, 1, NEXT, 0)]), sentence);
}

#[test]
fn next_descriptors_that_do_not_exist() {
    let sentence = "a descriptor is followed by number 4: its table has 4";
    assert_eq!(with_descriptor(NONE, (DATA, 1, NEXT, 4)), sentence);
    let sentence = "a descriptor is followed by number 1: its table has 1";
    assert_eq!(with_table(&[(DATA, 1, NEXT, 1)]), sentence);
}

#[test]
fn tables_that_are_none() {
    let table = GUEST + 0x4_0000;
    let named = |bytes, flags| with_descriptor(TABLES, (table, bytes, INDIRECT | flags, 1));
    assert_eq!(
        with_descriptor(NONE, (table, 16, INDIRECT, 0)),
        "a descriptor names a table, but RING_INDIRECT_DESC was not negotiated"
    );
    assert_eq!(named(16, NEXT), "a descriptor names a table and a next descriptor");
    for bytes in [0, 8, 17, 16 * 1025, 0xffff_fff0] {
        let sentence =
            format!("an indirect table has {bytes} bytes: 1 to 1024 entries of 16 are possible");
        assert_eq!(named(bytes, 0), sentence);
    }
    let sentence = "an indirect table names another table";
    assert_eq!(with_table(&[(table, 16, INDIRECT, 0)]), sentence);
    assert_eq!(
        with_descriptor(TABLES, (GUEST + BYTES - 16, 32, INDIRECT, 0)),
        "a descriptor names memory that is not there: 32 bytes at guest address 0x1ffff0 are not \
         all in memory"
    );
}

#[test]
fn buffers_outside_of_memory() {
    let cases = [(GUEST - 1, 1), (GUEST + BYTES - 1, 2), (u64::MAX, 2), (0, u32::MAX)];
    for (address, bytes) in cases {
        let sentence = format!(
            "a descriptor names memory that is not there: {bytes} bytes at guest address \
             {address:#x} are not all in memory"
        );
        assert_eq!(with_descriptor(NONE, (address, bytes, 0, 0)), sentence);
        assert_eq!(with_table(&[(address, bytes, WRITE, 0)]), sentence);
    }
}

#[test]
fn readable_after_writable() {
    let sentence = "a descriptor that is read comes after one that is written";
    assert_eq!(with_table(&[(DATA, 1, NEXT | WRITE, 1), (DATA, 1, 0, 0)]), sentence);
}

/// Memory of 2 GiB, whose pages are never touched, and a ring in a region of its own.
#[test]
fn more_bytes_than_a_length_can_say() {
    let driver = Driver::new(4, NONE);
    let long = region(1 << 40, 1 << 40, 1 << 31);
    let memory = driver.memory.with(long.0, long.1);
    let mut driver = driver.with_memory(memory);
    let half = (1 << 40, 1 << 31, true);
    driver.add(&[half, (1 << 40, (1 << 31) - 1, true)], false).expect("room");
    driver.add(&[half, half], false).expect("room");
    let mut ring = driver.ring();
    let chain = ring.take().expect("it is whole").expect("a chain");
    assert_eq!(chain.writable_bytes(), u32::MAX);
    let reason = ring.take().expect_err("it is broken");
    assert_eq!(reason.to_string(), "a chain has more than 2^32 - 1 bytes");
}

#[test]
fn more_pieces_than_there_is_room_for() {
    let driver = Driver::new(4, NONE);
    let regions = (0..100).map(|n| region((1 << 40) + 16 * n, (1 << 40) + 16 * n, 16));
    let known = driver.memory.regions().map(|(region, memory)| (*region, memory.clone()));
    let memory = super::GuestMemory::new(known.chain(regions));
    let mut driver = driver.with_memory(memory);
    let mut ring = driver.ring();
    let most = ring.pieces_max();
    assert!((68..100).contains(&most));
    driver.add(&[(1 << 40, 16 * most as u32, true)], false).expect("room");
    driver.add(&[(1 << 40, 16 * most as u32 + 1, true)], false).expect("room");
    let chain = ring.take().expect("it is whole").expect("a chain");
    assert_eq!((chain.writable().len(), chain.descriptors()), (most, 1));
    let reason = ring.take().expect_err("it is broken");
    assert_eq!(reason.to_string(), format!("a chain has more than {most} pieces of memory"));
}

#[test]
fn a_chain_that_its_reader_refuses() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    let first = driver.add(&[(DATA, 1, true)], false).expect("room");
    let second = driver.add(&[(DATA, 1, false)], false).expect("room");
    assert!(ring.take().expect("it is whole").is_some());
    assert!(ring.take().expect("it is whole").is_some());
    ring.refuse(second, RingError::NoStatus);
    assert_eq!((ring.in_flight(), ring.base(), ring.broken()), (1, 1, Some(RingError::NoStatus)));
    assert_eq!(ring.take().err(), Some(RingError::NoStatus));
    ring.put(first, 1);
    ring.publish();
    assert_eq!((ring.in_flight(), driver.take_used()), (0, Some((first, 1))));
}

#[test]
#[should_panic(expected = "another chain was taken last")]
fn a_chain_that_was_not_taken_last_is_not_refused() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    for _ in 0..2 {
        driver.add(&[(DATA, 1, true)], false).expect("room");
        assert!(ring.take().expect("it is whole").is_some());
    }
    ring.refuse(0, RingError::NoStatus);
}

/// Descriptor 0 and so on, `direct` of them, then a table of as many entries as are missing to
/// `total`: what the device says to it.
fn with_descriptors(direct: u16, total: u16) -> Result<u32, RingError> {
    let mut driver = Driver::new(2048, TABLES);
    let (table, entries) = (driver.table_of(0), total - direct);
    for index in 0..direct {
        driver.set_descriptor(index, (DATA, 1, NEXT, index + 1));
    }
    match entries {
        0 => driver.set_descriptor(direct - 1, (DATA, 1, 0, 0)),
        _ => driver.set_descriptor(direct, (table, 16 * u32::from(entries), INDIRECT, 0)),
    }
    for index in 0..entries {
        let flags = if index + 1 < entries { NEXT } else { 0 };
        driver.describe(table + 16 * u64::from(index), (DATA, 1, flags, index + 1));
    }
    driver.offer(0);
    let mut ring = driver.ring();
    let chain = ring.take()?.expect("a chain");
    assert_eq!(chain.readable().len(), total.into());
    Ok(chain.descriptors())
}

#[test]
fn more_descriptors_than_a_chain_may_have() {
    for direct in [0, 1, 500, 1024] {
        assert_eq!(with_descriptors(direct, 1024), Ok(1024), "{direct} of the ring");
    }
    for direct in [1, 2, 1024, 1025, 1500] {
        let reason = with_descriptors(direct, 1025.max(direct)).expect_err("it is broken");
        assert_eq!(reason.to_string(), "a chain has more than 1024 descriptors", "{direct}");
    }
}

#[test]
fn a_head_that_is_available_before_it_can_be_seen_as_used() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    driver.set_descriptor(0, (DATA, 1, 0, 0));
    (0..4).for_each(|_| driver.offer(0));
    let mut taken = 0;
    // Each head is put back at once, and the driver offers it again without having seen that.
    while let Some(chain) = ring.take().expect("it is whole") {
        let head = chain.head();
        ring.put(head, 0);
        driver.offer(0);
        taken += 1;
        assert!(taken <= 4, "the round ends");
    }
    assert_eq!(taken, 4);
    assert!(ring.enable_notifications() && ring.publish());
    assert!(ring.take().expect("it is whole").is_some());
}

#[test]
fn one_head_more_than_there_are_breaks_the_ring() {
    let mut driver = Driver::new(2, NONE);
    let mut ring = driver.ring();
    for _ in 0..2 {
        driver.add(&[(DATA, 1, true)], false).expect("room");
        assert!(ring.take().expect("it is whole").is_some());
    }
    assert!(ring.take().expect("it is whole").is_none());
    driver.offer(0);
    assert!(ring.enable_notifications());
    assert_eq!(ring.take().err(), Some(RingError::HeadTwice(0)));
}
