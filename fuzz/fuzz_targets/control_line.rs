//! Feeds bytes to the control socket's protocol, before a server that records the requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    drystone_stack::control::fuzz_control(input);
});
