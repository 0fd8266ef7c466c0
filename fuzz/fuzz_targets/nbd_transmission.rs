//! Feeds bytes of a hostile client to the NBD transmission phase.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::nbd::fuzz::fuzz_transmission(input));
