//! Feeds a certificate to the reader of its names and times.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_exports::nbd::fuzz::fuzz_certificate(input));
