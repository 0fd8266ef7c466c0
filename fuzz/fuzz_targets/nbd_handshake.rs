//! Feeds bytes of a hostile client to the NBD negotiation.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::nbd::fuzz::fuzz_handshake(input));
