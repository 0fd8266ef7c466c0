//! Chains of all shapes, each refusal with its sentence, and notifications.

pub(in crate::vhost) mod driver;
mod refusals;

use super::super::memory::GuestMemory;
use super::super::proto::{Features, GuestAddress};
use super::{Chain, RingError};
use driver::{BYTES, DATA, Driver, GUEST, USER, region};
use std::sync::Arc;

const NONE: Features = Features::empty();
const TABLES: Features = Features::RING_INDIRECT_DESC;
const EVENTS: Features = Features::RING_EVENT_IDX;

/// The bytes of pieces, readable then writable.
fn contents(chain: &Chain<'_>) -> (Vec<u8>, Vec<u8>) {
    let gather = |pieces: &[_], bytes: u32| {
        let mut found = vec![0; bytes as usize];
        let count = chain.memory().gather(pieces.iter().copied(), &mut found);
        assert_eq!(count, bytes as usize);
        found
    };
    let readable = gather(chain.readable(), chain.readable_bytes());
    (readable, gather(chain.writable(), chain.writable_bytes()))
}

#[test]
fn a_chain_has_the_memory_of_its_descriptors() {
    for (features, indirect) in [(NONE, false), (TABLES, false), (TABLES, true)] {
        let mut driver = Driver::new(8, features);
        driver.write(DATA, b"abcdefghij");
        let mut ring = driver.ring();
        assert!(ring.take().expect("it is whole").is_none());
        let buffers =
            [(DATA + 4, 2, false), (DATA, 0, false), (DATA, 3, false), (DATA + 6, 4, true)];
        let head = driver.add(&buffers, indirect).expect("room");
        let chain = ring.take().expect("it is whole").expect("a chain");
        assert_eq!((chain.head(), chain.descriptors()), (head, 4));
        assert_eq!(contents(&chain), (b"efabc".to_vec(), b"ghij".to_vec()));
        assert!(ring.take().expect("it is whole").is_none());
        assert_eq!((ring.in_flight(), ring.base()), (1, 1));
        ring.put(head, 3);
        assert_eq!((ring.in_flight(), driver.take_used()), (0, None));
        ring.publish();
        assert_eq!(driver.take_used(), Some((head, 3)));
    }
}

#[test]
fn descriptors_before_a_table_belong_to_the_chain() {
    let mut driver = Driver::new(4, TABLES);
    driver.write(DATA, b"abcd");
    driver.set_descriptor(2, (DATA + 2, 2, driver::NEXT, 1));
    // The device ignores WRITE of a descriptor that names a table.
    let flags = driver::INDIRECT | driver::WRITE;
    driver.set_descriptor(1, (driver.table_of(1), 32, flags, 0));
    driver.describe(driver.table_of(1), (DATA, 1, driver::NEXT, 1));
    driver.describe(driver.table_of(1) + 16, (DATA + 1, 1, driver::WRITE | 0xfff0, 77));
    driver.offer(2);
    let mut ring = driver.ring();
    let chain = ring.take().expect("it is whole").expect("a chain");
    assert_eq!(contents(&chain), (b"cda".to_vec(), b"b".to_vec()));
    assert_eq!(chain.descriptors(), 3, "the one that names the table is not counted");
}

#[test]
fn a_buffer_goes_on_in_the_next_region() {
    let driver = Driver::new(4, NONE);
    let more = region(GUEST + BYTES, 0x1000, 0x1000);
    let memory = driver.memory.with(more.0, more.1);
    let mut driver = driver.with_memory(memory);
    driver.write(GUEST + BYTES - 3, b"abcdef");
    let end = GUEST + BYTES;
    driver.add(&[(end - 3, 6, false), (end - 1, 2, true)], false).expect("room");
    let mut ring = driver.ring();
    let chain = ring.take().expect("it is whole").expect("a chain");
    assert_eq!((chain.readable().len(), chain.writable().len(), chain.descriptors()), (2, 2, 2));
    assert_eq!(contents(&chain), (b"abcdef".to_vec(), b"cd".to_vec()));
}

#[test]
fn chains_are_taken_in_order_and_put_back_in_any() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    for byte in 0..4 {
        driver.write(DATA + byte, &[byte as u8]);
        driver.add(&[(DATA + byte, 1, false)], false).expect("room");
    }
    assert_eq!(driver.add(&[(DATA, 1, false)], false), None, "the ring is full");
    let mut heads = Vec::new();
    while let Some(chain) = ring.take().expect("it is whole") {
        assert_eq!(contents(&chain).0, [heads.len() as u8]);
        heads.push(chain.head());
    }
    ring.put(heads[2], 0);
    ring.put(heads[0], 5);
    assert!(ring.publish());
    assert!(!ring.publish(), "nothing is new");
    assert_eq!(driver.take_used(), Some((heads[2], 0)));
    assert_eq!(driver.take_used(), Some((heads[0], 5)));
    assert_eq!((driver.take_used(), ring.in_flight()), (None, 2));
}

#[test]
fn indices_wrap_around() {
    for features in [NONE, EVENTS] {
        let mut driver = Driver::from_base(4, features, 0xfffe);
        let mut ring = driver.ring();
        for _ in 0..0x1_0010 {
            let head = driver.add(&[(DATA, 1, false)], false).expect("room");
            let chain = ring.take().expect("it is whole").expect("a chain");
            assert_eq!(chain.head(), head);
            driver.set_used_event(driver.available().wrapping_sub(1));
            ring.put(head, 1);
            assert!(ring.publish());
            assert_eq!(driver.take_used(), Some((head, 1)));
        }
        assert_eq!((ring.base(), driver.used_index()), (0xe, 0xe));
    }
}

#[test]
fn flags_say_whether_the_driver_wants_calls() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    for (flags, called) in [(0, true), (1, false), (0, true), (1, false)] {
        driver.set_available_flags(flags);
        let head = driver.add(&[(DATA, 1, false)], false).expect("room");
        ring.take().expect("it is whole").expect("a chain");
        ring.put(head, 0);
        assert_eq!(ring.publish(), called);
        driver.take_used();
    }
}

#[test]
fn an_event_says_when_the_driver_wants_a_call() {
    let mut driver = Driver::new(8, EVENTS);
    let mut ring = driver.ring();
    // Flags do not count.
    driver.set_available_flags(1);
    // How many chains are published at a time, the event before, and whether there is a call. The
    // first time there is always one.
    let steps =
        [(1, 7, true), (1, 7, false), (3, 3, true), (3, 4, false), (2, 9, true), (1, 9, false)];
    for (count, event, called) in steps {
        driver.set_used_event(event);
        let heads: Vec<u16> =
            (0..count).map(|_| driver.add(&[(DATA, 1, false)], false).expect("room")).collect();
        for _ in &heads {
            ring.take().expect("it is whole").expect("a chain");
        }
        heads.iter().for_each(|head| ring.put(*head, 0));
        assert_eq!(ring.publish(), called, "{count} chains, event {event}");
        while driver.take_used().is_some() {}
    }
}

#[test]
fn the_device_asks_for_kicks_and_looks_again() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    ring.disable_notifications();
    assert_eq!(driver.used_flags(), 1);
    assert!(!ring.enable_notifications());
    assert_eq!(driver.used_flags(), 0);
    driver.add(&[(DATA, 1, false)], false).expect("room");
    assert!(ring.enable_notifications(), "one came");
    ring.take().expect("it is whole").expect("a chain");
    assert!(!ring.enable_notifications());

    let mut driver = Driver::new(4, EVENTS);
    let mut ring = driver.ring();
    ring.disable_notifications();
    driver.add(&[(DATA, 1, false)], false).expect("room");
    assert!(ring.enable_notifications());
    assert_eq!((driver.available_event(), driver.used_flags()), (0, 0));
    ring.take().expect("it is whole").expect("a chain");
    assert!(!ring.enable_notifications());
    ring.disable_notifications();
    assert_eq!((driver.available_event(), driver.used_flags()), (1, 0));
}

#[test]
fn a_new_map_without_the_ring_pauses_it() {
    let mut driver = Driver::new(4, NONE);
    let mut ring = driver.ring();
    let head = driver.add(&[(DATA, 1, false)], false).expect("room");
    ring.take().expect("it is whole").expect("a chain");
    driver.add(&[(DATA, 1, false)], false).expect("room");
    let reason = ring.set_memory(Arc::new(GuestMemory::default())).expect_err("no ring");
    assert_eq!(
        reason.to_string(),
        "a part of the ring cannot be used: 64 bytes at user address 0x70000000 lie in no region \
         of memory"
    );
    assert_eq!(ring.broken(), None);
    assert!(ring.take().expect("it is whole").is_none());
    assert!(!ring.enable_notifications(), "what came cannot be taken");
    ring.put(head, 0);
    assert!(ring.publish());
    assert_eq!(driver.take_used(), Some((head, 0)), "the parts stay mapped");
    assert_eq!(ring.set_memory(driver.memory.clone()), Ok(()));
    // No kick will come for the chain that could not be taken meanwhile.
    assert!(ring.take().expect("it is whole").is_some());
}

#[test]
fn a_ring_goes_on_where_its_used_index_is() {
    let mut driver = Driver::from_base(4, NONE, 9);
    let mut ring = driver.ring();
    assert_eq!(ring.base(), 9);
    let head = driver.add(&[(DATA, 1, false)], false).expect("room");
    ring.take().expect("it is whole").expect("a chain");
    ring.put(head, 0);
    ring.publish();
    assert_eq!((driver.used_index(), driver.take_used()), (10, Some((head, 0))));
}

#[test]
#[should_panic(expected = "chain 3 is not in flight")]
fn a_chain_that_was_not_taken_is_our_mistake() {
    Driver::new(4, NONE).ring().put(3, 0);
}

#[test]
fn a_ring_outside_of_memory_does_not_start() {
    let driver = Driver::new(4, NONE);
    let mut setup = driver.setup();
    setup.addresses.used.0 = USER + BYTES;
    let error = super::SplitRing::new(setup, driver.memory.clone()).expect_err("outside");
    assert_eq!(
        error.to_string(),
        "a part of the ring cannot be used: 36 bytes at user address 0x70100000 lie in no region \
         of memory"
    );
    let outside = super::super::memory::Outside { address: GuestAddress(1), bytes: 2 };
    assert!(matches!(RingError::from(outside), RingError::Outside(_)));
}
