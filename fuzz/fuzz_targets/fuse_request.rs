//! Feeds any bytes to the parser of the kernel's FUSE requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::fuse::fuzz::fuzz_request(input));
