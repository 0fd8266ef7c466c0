//! Feeds bytes and descriptors of a hostile front end to the vhost-user session.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::vhost::fuzz::fuzz_message(input));
