//! Feeds a write-intent bitmap to md's metadata.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_raid::fuzz::fuzz_bitmap(input));
