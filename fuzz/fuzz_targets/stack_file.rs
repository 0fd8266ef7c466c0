//! Feeds arbitrary bytes to the reader of stack files.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    drystone_stack::fuzz_stack_file(input);
});
