//! The header's sentences on errors, one by one: wrong pointers, wrong texts, what has no length,
//! children of fork.
//!
//! Every unsafe block here is a call into the C face: texts and places are locals that outlive the
//! call, handles are open or NULL, and buffers outlive their context.
#![allow(clippy::undocumented_unsafe_blocks, reason = "argued above, once for all")]
#![allow(unsafe_code, reason = "they call what C programs call")]

mod common;

use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};

use common::*;
use drystone_capi::abi::{ABI_VERSION, Completion, FOREVER, Info, Io};
use drystone_capi::calls::*;
use drystone_capi::stack::Stack as RawStack;

/// A call by its name, and what it gave.
type Given = (&'static str, i64);

/// The result of every function that takes a stack.
fn on_stack(stack: *const RawStack) -> Vec<Given> {
    let (name, mut info) = (c"d".as_ptr(), Info::default());
    let (attribute, mut context) = (c"size".as_ptr(), null_mut());
    let request = c"{\"command\":\"list\"}".as_ptr();
    unsafe {
        vec![
            ("control", drystone_stack_control(stack, request, null_mut(), 0).into()),
            ("info", drystone_device_info(stack, name, &raw mut info).into()),
            ("get", drystone_attribute_get(stack, name, attribute, null_mut(), 0).into()),
            ("set", drystone_attribute_set(stack, name, attribute, c"1".as_ptr()).into()),
            ("open", drystone_context_open(stack, &raw mut context).into()),
        ]
    }
}

/// The result of every function that takes a context, but for the one that closes it.
fn on_context(context: *mut Cell) -> Vec<Given> {
    let mut done = [Completion::default(); 1];
    let (place, mut memory) = (done.as_mut_ptr().cast(), null_mut());
    let flush = Io { op: FLUSH, ..io(1, 0, &mut []) };
    unsafe {
        vec![
            ("device", drystone_context_device(context, c"d".as_ptr()).into()),
            ("group", drystone_context_group(context, c"".as_ptr()).into()),
            ("memory", drystone_context_memory(context, 4096, &raw mut memory).into()),
            ("submit", drystone_submit(context, &raw const flush, 1).into()),
            ("reap", drystone_reap(context, place, 1).into()),
            ("poll", drystone_poll(context, place, 1).into()),
            ("wait", drystone_wait(context, place, 1, 1, FOREVER).into()),
            ("wake", drystone_context_wake(context).into()),
            ("outstanding", drystone_outstanding(context)),
            ("event", drystone_context_event(context).into()),
            ("clear", drystone_context_clear(context).into()),
            ("timeout", drystone_context_timeout(context)),
        ]
    }
}

#[test]
fn without_a_handle_every_call_is_refused() {
    for (call, given) in on_stack(null()).into_iter().chain(on_context(null_mut())) {
        assert_eq!(given, i64::from(-libc::EINVAL), "{call}");
    }
    assert_eq!(last_error(), "the context is NULL");
    unsafe {
        assert_eq!(drystone_context_close(null_mut(), 0), 0);
        assert_eq!(drystone_stack_close(null()), 0);
    }
}

#[test]
fn pointers_are_null_only_where_the_header_permits_it() {
    let stack = Stack::open(RAM);
    let context = stack.context();
    let (raw, name, value) = (stack.raw, c"d".as_ptr(), c"size".as_ptr());
    let mut info = Info::default();
    unsafe {
        for given in [
            drystone_stack_control(raw, null(), null_mut(), 0),
            drystone_device_info(raw, null(), &raw mut info),
            drystone_device_info(raw, name, null_mut()),
            drystone_attribute_get(raw, null(), value, null_mut(), 0),
            drystone_attribute_get(raw, name, null(), null_mut(), 0),
            drystone_attribute_set(raw, null(), value, value),
            drystone_attribute_set(raw, name, null(), value),
            drystone_attribute_set(raw, name, value, null()),
            drystone_context_open(raw, null_mut()),
            drystone_context_device(context.raw, null()),
            drystone_context_group(context.raw, null()),
            drystone_context_memory(context.raw, 4096, null_mut()),
            drystone_submit(context.raw, null(), 1),
            drystone_reap(context.raw, null_mut(), 1),
            drystone_poll(context.raw, null_mut(), 1),
            drystone_wait(context.raw, null_mut(), 1, 1, FOREVER),
        ] {
            assert_eq!(given, -libc::EINVAL, "{}", last_error());
        }
        let length = drystone_attribute_get(raw, name, value, null_mut(), 0);
        assert_eq!(length, "1048576".len() as i32, "only its length is asked for");
        assert!(drystone_stack_control(raw, c"{}".as_ptr(), null_mut(), 9) > 10);
        assert_eq!(drystone_submit(context.raw, null(), 0), 0);
        assert_eq!(drystone_reap(context.raw, null_mut(), 0), 0);
        assert_eq!(drystone_poll(context.raw, null_mut(), 0), 0);
        assert_eq!(drystone_wait(context.raw, null_mut(), 0, 5, FOREVER), 0);
    }
}

#[test]
fn texts_are_utf_8_and_arrays_no_longer_than_an_int() {
    let stack = Stack::open(RAM);
    let context = stack.context();
    let (bad, mut raw) = (c"d\xff", null());
    let open =
        unsafe { drystone_stack_open_text(ABI_VERSION, bad.as_ptr(), null_mut(), 0, &raw mut raw) };
    assert_eq!(
        (open, last_error().as_str()),
        (-libc::EINVAL, "text is no UTF-8 text: see its byte 1")
    );
    let given = unsafe { drystone_context_device(context.raw, bad.as_ptr()) };
    assert_eq!((given, last_error().starts_with("device is no UTF-8")), (-libc::EINVAL, true));
    let flush = Io { op: FLUSH, ..io(1, 0, &mut []) };
    let too_many = i32::MAX as usize + 1;
    let given = unsafe { drystone_submit(context.raw, &raw const flush, too_many) };
    assert_eq!(
        (given, last_error().as_str()),
        (-libc::EINVAL, "ios is NULL, out of line, or too long")
    );
}

#[test]
fn names_and_values_that_are_too_long_are_told_apart() {
    let stack = Stack::open(RAM);
    let long = |length| "x".repeat(length);
    assert_eq!(stack.info(&long(65)), Err(-libc::ENOENT));
    assert_eq!(stack.get(&long(65), "size"), Err(-libc::ENOENT));
    assert_eq!(stack.set(&long(65), "queue/nr_requests", "7"), -libc::ENOENT);
    assert_eq!(stack.get("d", &long(65)), Err(-libc::ENOENT));
    assert_eq!(stack.set("d", &long(65), "7"), -libc::EINVAL);
    assert_eq!(stack.set("d", &long(64), "7"), -libc::ENOENT);
    assert_eq!(stack.set("d", "queue/nr_requests", &long(257)), -libc::EINVAL);
    assert_eq!(stack.set("d", "queue/nr_requests", &long(256)), -libc::ERANGE);
    assert_eq!(stack.set("d", "queue/fua", "1"), -libc::EOPNOTSUPP, "it can only be read");
    assert!(last_error().contains("read-only"), "{}", last_error());
}

/// The 17th time is no error either: its memory serves as well, and why it is not known is said.
#[test]
fn memory_is_there_also_where_the_kernel_does_not_know_it() {
    let folder = tempfile::tempdir().unwrap();
    let stack = Stack::open_in(&file(""), folder.path());
    let mut context = stack.context();
    context.device("f");
    let mut none = null_mut();
    let given = unsafe { drystone_context_memory(context.raw, 0, &raw mut none) };
    assert_eq!((given, last_error().as_str()), (-libc::EINVAL, "memory of 0 bytes"));
    assert!(none.is_null());
    let given = unsafe { drystone_context_memory(context.raw, usize::MAX, &raw mut none) };
    assert_eq!(given, -libc::ENOMEM);
    for number in 0..20 {
        let mut memory = null_mut();
        let given = unsafe { drystone_context_memory(context.raw, 4096, &raw mut memory) };
        assert!((0..=1).contains(&given), "{number}: {given}");
        assert!(given == 0 || !last_error().is_empty());
        let memory = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 4096) };
        assert!(memory.iter().all(|byte| *byte == 0));
        memory.fill(number);
        assert_eq!(context.run(&[Io { op: WRITE, ..io(1, 0, memory) }]), [(1, 0)]);
    }
}

/// Failed calls leave the places of their results alone.
#[test]
fn what_fails_gives_nothing() {
    let stack = Stack::open(RAM);
    let mut info = Info { size: 77, ..Info::default() };
    let given = unsafe { drystone_device_info(stack.raw, c"e".as_ptr(), &raw mut info) };
    assert_eq!((given, info.size), (-libc::ENOENT, 77));
    let (mut other, text) = (stack.raw, CString::new("[device.d]\n").unwrap());
    let given = unsafe {
        drystone_stack_open_text(ABI_VERSION, text.as_ptr(), null_mut(), 0, &raw mut other)
    };
    assert_eq!((given, other), (-libc::EINVAL, stack.raw));
}

/// Runs `child` in a child of fork, and says whether it returned true and ended by itself.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs is killed.
        unsafe { libc::alarm(60) };
        let is_right = catch_unwind(AssertUnwindSafe(child)).unwrap_or(false);
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// The child has none of the threads and rings; while it tries, I/O of the parent's is in flight.
#[test]
fn a_child_of_fork_is_refused_and_its_parent_goes_on() {
    let stack = Stack::open(&format!("{RAM}{SLOW}"));
    let mut context = stack.context();
    let slow = context.device("slow");
    let mut memory = vec![0u8; 512];
    assert_eq!(context.submit(&[Io { device: slow, ..io(1, 0, &mut memory) }]), 1);
    let raw = (stack.raw, context.raw);
    assert!(in_child(|| {
        let refused = |given: i64| {
            let said = unsafe { CStr::from_ptr(drystone_last_error()) }.to_bytes();
            given == i64::from(-libc::EPERM) && said.starts_with(b"this is a child of fork")
        };
        let (open, mut all) = (on_context(raw.1), on_stack(raw.0));
        all.extend(open);
        all.push(("close", unsafe { drystone_context_close(raw.1, 0) }.into()));
        all.push(("end", unsafe { drystone_stack_close(raw.0) }.into()));
        all.len() == 19 && all.into_iter().all(|(_, given)| refused(given))
    }));
    assert_eq!(context.wait(1, FOREVER), [(1, 0)]);
    assert_eq!(context.run(&[Io { device: slow, ..io(2, 0, &mut memory) }]), [(2, 0)]);
}

/// A stack that the child opens itself is as good as any other, and is refused to its own children
/// in turn.
#[test]
fn a_child_of_fork_may_open_a_stack_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let parents = Stack::open_in(&file(""), folder.path());
    let mut memory = vec![1u8; 4096];
    let mut context = parents.context();
    context.device("f");
    assert_eq!(context.run(&[Io { op: WRITE, ..io(1, 0, &mut memory) }]), [(1, 0)]);
    assert!(in_child(|| {
        let text = file("").replace("f.img", "g.img");
        let Ok(stack) = try_open(&text, folder.path()) else { return false };
        let mut own = stack.context();
        own.device("f");
        let mut back = vec![0u8; 4096];
        let mut written = vec![2u8; 4096];
        let is_done = own.run(&[Io { op: WRITE, ..io(1, 0, &mut written) }]) == [(1, 0)]
            && own.run(&[io(2, 0, &mut back)]) == [(2, 0)];
        let raw = own.raw;
        let is_refused =
            in_child(|| unsafe { drystone_outstanding(raw) } == i64::from(-libc::EPERM));
        drop(own);
        is_done && is_refused && back == written && stack.close() == 0
    }));
    assert_eq!(context.run(&[io(2, 0, &mut memory)]), [(2, 0)]);
    assert!(memory.iter().all(|byte| *byte == 1), "the parent's file is as it was");
}
