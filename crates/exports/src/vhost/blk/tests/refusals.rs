//! Requests that make no sense, and their status.

use super::super::super::ring::RingError;
use super::super::BlkStatus::{IoError, Ok as Done, Unsupported};
use super::*;

const IN: u32 = 0;
const OUT: u32 = 1;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

fn end(status: BlkStatus) -> Parsed {
    Parsed::End(status)
}

#[test]
fn types_that_are_not_known_or_not_negotiated() {
    let mut queue = Queue::new(features());
    for kind in [2, 3, 5, 6, 7, 9, 10, 12, 14, 0x8000_0000, u32::MAX] {
        assert_eq!(queue.command(kind, 0, &[]), end(Unsupported), "type {kind}");
    }
    let mut queue = Queue::new(features() - Features::DISCARD);
    assert_eq!(queue.with_payload(DISCARD, &range(0, 1, 0)), end(Unsupported));
    assert!(matches!(queue.with_payload(WRITE_ZEROES, &range(0, 1, 0)), Parsed::WriteZeroes(_)));
    let mut queue = Queue::new(features() - Features::WRITE_ZEROES);
    assert_eq!(queue.with_payload(WRITE_ZEROES, &range(0, 1, 0)), end(Unsupported));
}

#[test]
fn an_answer_says_what_was_refused() {
    let mut queue = Queue::new(features());
    let buffers = [(HEADER, 16, false), (PAYLOAD, 512, true), (STATUS, 1, true)];
    assert_eq!(queue.send(header(99, 0), &buffers), (end(Unsupported), 2, 0));
    assert_eq!(queue.send(header(IN, CAPACITY), &buffers), (end(IoError), 1, 0));
}

#[test]
fn a_header_that_is_cut() {
    let mut queue = Queue::new(features());
    let found = queue.send(header(IN, 0), &[(HEADER, 15, false), (STATUS, 1, true)]);
    assert_eq!(found, (end(IoError), 1, 1));
    assert_eq!(queue.send(header(IN, 0), &[(STATUS, 1, true)]).0, end(IoError));
}

#[test]
fn a_request_without_a_byte_for_its_status() {
    for buffers in [vec![(HEADER, 16, false)], vec![(HEADER, 16, false), (STATUS, 0, true)]] {
        let mut queue = Queue::new(features());
        assert_eq!(queue.command(4, 0, &[]), Parsed::Flush);
        queue.driver.add(&buffers, false).expect("room");
        let chain = queue.ring.take().expect("it is whole").expect("a chain");
        let reason = queue.parser.parse(&chain).expect_err("it cannot be answered");
        assert_eq!(reason, RingError::NoStatus);
        let head = chain.head();
        queue.ring.refuse(head, reason);
        assert_eq!((queue.ring.in_flight(), queue.ring.base()), (0, 1));
        let reason = queue.ring.take().expect_err("it is broken");
        assert_eq!(reason.to_string(), "a request has no byte that its status can be written to");
    }
}

#[test]
fn data_that_is_no_whole_blocks_or_not_on_the_device() {
    for (kind, writes) in [(IN, true), (OUT, false)] {
        let mut queue = Queue::new(features());
        let mut status =
            |sector, bytes| match queue.command(kind, sector, &[(PAYLOAD, bytes, writes)]) {
                Parsed::End(status) => Some(status),
                _ => None,
            };
        assert_eq!(status(0, 511), Some(IoError));
        assert_eq!(status(0, 513), Some(IoError));
        assert_eq!(status(CAPACITY, 512), Some(IoError));
        assert_eq!(status(CAPACITY - 1, 1024), Some(IoError));
        assert_eq!(status(u64::MAX, 512), Some(IoError));
        assert_eq!(status(CAPACITY - 1, 512), None);
        assert_eq!(status(CAPACITY, 0), Some(Done), "nothing to do");
        queue.parser.set_capacity(CAPACITY + 1);
        assert!(!matches!(
            queue.command(kind, CAPACITY, &[(PAYLOAD, 512, writes)]),
            Parsed::End(_)
        ));
    }
}

#[test]
fn blocks_of_the_device_are_whole() {
    let config = BlkConfig { block_bytes: 4096, ..config() };
    for features in [features(), features() - Features::BLK_SIZE] {
        let mut queue = Queue::of(Driver::new(16, features), &config);
        assert_eq!(queue.command(IN, 0, &[(PAYLOAD, 512, true)]), end(IoError));
        assert_eq!(queue.command(IN, 1, &[(PAYLOAD, 4096, true)]), end(IoError));
        assert_eq!(queue.with_payload(DISCARD, &range(8, 9, 0)), end(IoError));
        assert!(matches!(queue.with_payload(DISCARD, &range(8, 16, 0)), Parsed::Discard(_)));
        assert!(matches!(queue.command(IN, 8, &[(PAYLOAD, 4096, true)]), Parsed::Read(8, _)));
    }
}

#[test]
fn writes_to_a_read_only_device() {
    let mut queue = Queue::read_only();
    assert_eq!(queue.command(OUT, 0, &[(PAYLOAD, 512, false)]), end(IoError));
    assert_eq!(queue.with_payload(DISCARD, &range(0, 1, 0)), end(IoError));
    assert_eq!(queue.with_payload(WRITE_ZEROES, &range(0, 1, 0)), end(IoError));
    assert!(matches!(queue.command(IN, 0, &[(PAYLOAD, 512, true)]), Parsed::Read(0, _)));
}

#[test]
fn ranges_that_are_none() {
    let mut queue = Queue::new(features());
    for kind in [DISCARD, WRITE_ZEROES] {
        let whole = range(0, 1, 0);
        for payload in [&[][..], &whole[..15], &[&whole[..], &[0]].concat(), &whole.repeat(4)] {
            assert_eq!(queue.with_payload(kind, payload), end(IoError));
        }
        for (sector, sectors) in [(0, 101), (CAPACITY, 1), (CAPACITY - 1, 2), (u64::MAX, 1)] {
            assert_eq!(queue.with_payload(kind, &range(sector, sectors, 0)), end(IoError));
        }
        assert_eq!(queue.with_payload(kind, &range(0, 1, 2)), end(Unsupported));
        // One wrong range is enough.
        let both = [range(0, 1, 0), range(0, 1, 0x8000_0000)].concat();
        assert_eq!(queue.with_payload(kind, &both), end(Unsupported));
    }
    assert_eq!(queue.with_payload(DISCARD, &range(0, 1, 1)), end(Unsupported));
    assert_eq!(queue.with_payload(WRITE_ZEROES, &range(0, 51, 0)), end(IoError));
    assert_eq!(queue.with_payload(WRITE_ZEROES, &range(0, 1, 0).repeat(3)), end(IoError));
}
