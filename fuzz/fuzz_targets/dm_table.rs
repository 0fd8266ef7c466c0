//! Feeds a table of dmsetup to the reader of stack files.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    drystone_stack::fuzz_table(input);
});
