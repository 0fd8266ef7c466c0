//! Properties that hold for all inputs.

use std::sync::Arc;

use drystone_exports::fuse::fuzz::fuzz_request;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::disk::{Disk, Handle};
use crate::kernel::*;

/// Requests that often make sense, and often lie.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![4 => 0_u64..20_000, 1 => any::<u64>(), 1 => Just(u64::MAX)];
    let numbers = proptest::collection::vec(number, 0..12);
    let opcode = prop_oneof![9 => 1_u32..54, 1 => any::<u32>()];
    let tail = proptest::collection::vec(any::<u8>(), 0..40);
    let lie = prop_oneof![6 => Just(0_u8), 1 => any::<u8>()];
    (opcode, 0_u64..4, numbers, tail, lie).prop_map(|(opcode, node, numbers, tail, lie)| {
        let mut body: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        body.extend(tail);
        let mut bytes = request(opcode, 1, node, 0, &body);
        bytes[0] = bytes[0].wrapping_add(lie);
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz_request(&bytes);
    }

    #[test]
    fn likely_bytes_are_a_request_or_none(bytes in message()) {
        fuzz_request(&bytes);
    }
}

/// The server answers each proper request, whatever else comes.
#[test]
fn nothing_stops_the_server() {
    let disk = Disk::new(16 << 10, 512);
    let mut kernel = Kernel::file(Arc::new(Handle(disk)), 1);
    let mut runner =
        TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
    let kernel = std::cell::RefCell::new(&mut kernel);
    let messages = proptest::collection::vec(message(), 1..20);
    runner
        .run(&messages, |messages| {
            let mut kernel = kernel.borrow_mut();
            messages.iter().for_each(|bytes| kernel.send_raw(0, bytes));
            prop_assert!(kernel.call(GETATTR, 1, &[0; 16]).is_ok());
            Ok(())
        })
        .unwrap();
}
