//! Feeds devices to md's metadata: superblocks, with the structures that they place beside them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_raid::fuzz::fuzz_places(input));
