//! Feeds superblocks of members to md's metadata and its assembly.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| drystone_raid::fuzz::fuzz_superblock(input));
