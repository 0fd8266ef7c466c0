//! Feeds a log of dm-log-writes to its reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    drystone_targets::fuzz_write_log(input);
});
