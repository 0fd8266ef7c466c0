//! Lets a hostile guest's memory be the ring and the requests of a vhost-user queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::vhost::fuzz_ring::fuzz_ring(input));
