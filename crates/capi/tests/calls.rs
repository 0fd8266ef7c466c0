//! Promises of the header's functions, called as C calls them.
//!
//! Every unsafe block here is a call into the C face: texts and places are locals that outlive the
//! call, handles are open, and buffers outlive their context, which is closed before them or waits
//! for them when it is dropped.
#![allow(clippy::undocumented_unsafe_blocks, reason = "argued above, once for all")]
#![allow(unsafe_code, reason = "they call what C programs call")]

mod common;

use std::ffi::CString;
use std::ptr::null_mut;

use common::*;
use drystone_capi::abi::{ABI_VERSION, Completion, FOREVER, Info, Io};
use drystone_capi::calls::*;

#[test]
fn the_version_is_compared() {
    assert_eq!(drystone_abi_version(), ABI_VERSION);
    let text = CString::new(RAM).unwrap();
    let mut stack = std::ptr::null();
    let given = unsafe {
        drystone_stack_open_text(ABI_VERSION + 1, text.as_ptr(), null_mut(), 0, &raw mut stack)
    };
    assert_eq!(given, -libc::EPROTO);
    assert!(stack.is_null());
    assert!(last_error().contains("version 2"), "{}", last_error());
}

#[test]
fn bad_stacks_are_refused_with_their_place() {
    assert_eq!(try_open("[device.d]\ntype = \"rma\"\n", "."), Err(-libc::EINVAL));
    let said = last_error();
    assert!(said.contains("rma") && said.contains("`ram`"), "{said}");
    let path = CString::new("/nowhere/stack.toml").unwrap();
    let mut stack = std::ptr::null();
    let given = unsafe { drystone_stack_open_file(ABI_VERSION, path.as_ptr(), 0, &raw mut stack) };
    assert_eq!(given, -libc::ENOENT);
    assert!(last_error().starts_with("/nowhere/stack.toml: "), "{}", last_error());
    let given =
        unsafe { drystone_stack_open_file(ABI_VERSION, c"\xff".as_ptr(), 0, &raw mut stack) };
    assert_eq!((given, last_error().as_str()), (-22, "path is no UTF-8 text: see its byte 0"));
}

/// C could never close a thing that it has no handle of.
#[test]
fn without_a_place_for_the_result_nothing_is_opened() {
    let text = CString::new(RAM).unwrap();
    let stack = Stack::open(RAM);
    unsafe {
        let open =
            |place| drystone_stack_open_text(ABI_VERSION, text.as_ptr(), null_mut(), 0, place);
        assert_eq!(open(null_mut()), -libc::EINVAL);
        assert_eq!(drystone_context_open(stack.raw, null_mut()), -libc::EINVAL);
        assert!(last_error().starts_with("the place for the result is NULL"), "{}", last_error());
        let context = stack.context();
        assert_eq!(drystone_context_memory(context.raw, 4096, null_mut()), -libc::EINVAL);
    }
    // Both are closed here, which says that nothing else was open.
}

#[test]
fn every_operation_does_what_it_says() {
    let stack = Stack::open(RAM);
    let mut context = stack.context();
    let d = context.device("d");
    assert_eq!(context.device("d"), d, "the same number again");
    let (mut first, mut second) = (vec![7u8; 4096], vec![9u8; 4096]);
    let vectors = [piece(&mut first), piece(&mut second)];
    let mut write = io(1, 4096, &mut []);
    write.buffer = vectors.as_ptr().cast_mut().cast();
    (write.vectors, write.length) = (2, 8192);
    let fua = Io { op: WRITE, flags: 1, priority_class: 3, priority_level: 7, ..write };
    assert_eq!(context.run(&[fua]), [(1, 0)]);
    let mut back = vec![0u8; 8192];
    assert_eq!(context.run(&[io(2, 4096, &mut back)]), [(2, 0)]);
    assert_eq!((&back[..4096], &back[4096..]), (&first[..], &second[..]));
    let zeroes = Io { op: WRITE_ZEROES, tag: 3, length: 512, ..io(0, 4096, &mut []) };
    let flush = Io { op: FLUSH, ..io(4, 0, &mut []) };
    let discard = Io { op: DISCARD, tag: 5, length: 4096, ..io(0, 8192, &mut []) };
    let mut done = context.run(&[zeroes, flush, discard]);
    done.sort();
    assert_eq!(done, [(3, 0), (4, 0), (5, 0)]);
    assert_eq!(context.run(&[io(6, 4096, &mut back)]), [(6, 0)]);
    assert!(back[..512].iter().all(|b| *b == 0) && back[512] == 7);
    assert!(back[4096..].iter().all(|b| *b == 0));
}

#[test]
fn what_makes_no_sense_is_refused_and_nothing_is_submitted() {
    let stack = Stack::open(RAM);
    let mut context = stack.context();
    let mut memory = vec![0u8; 4096];
    let good = io(0, 0, &mut memory);
    let wrong = [
        (Io { op: 2 + 2, ..good }, "there is no operation 4"),
        (Io { device: 1, ..good }, "there is no device 1 in this context"),
        (Io { offset: 100, ..good }, "4096 bytes at 100 are not a whole number of sectors"),
        (Io { flags: 1 << 15, ..good }, "there are no flags 0x8000"),
        (Io { priority_class: 4, ..good }, "priority_class is above 3"),
        (Io { reserved: 1, ..good }, "reserved not 0"),
        (Io { length: 0, ..good }, "its length is 0"),
        (Io { op: DISCARD, length: 0, ..good }, "its length is 0"),
        (Io { buffer: null_mut(), ..good }, "its buffer is NULL"),
        (Io { vectors: 2000, ..good }, "2000 vectors, at most 1024"),
    ];
    context.device("d");
    for (io, why) in wrong {
        assert_eq!(context.submit(&[good, io]), -libc::EINVAL);
        let said = last_error();
        assert!(said.starts_with("I/O number 1 of the call: ") && said.contains(why), "{said}");
    }
    let short = [piece(&mut memory[..512])];
    let short = Io { vectors: 1, buffer: short.as_ptr().cast_mut().cast(), ..good };
    assert_eq!(context.submit(&[short]), -libc::EINVAL);
    assert!(last_error().contains("do not add up to 4096"), "{}", last_error());
    assert_eq!(context.outstanding(), 0);
    let behind = Io { offset: 1 << 30, ..good };
    assert_eq!(context.run(&[behind]), [(0, -libc::EIO)], "the device refuses it");
}

#[test]
fn devices_are_described() {
    let stack = Stack::open(RAM);
    let info = stack.info("d").unwrap();
    assert_eq!((info.size, info.logical_block), (1 << 20, 512));
    assert_eq!(info.features & 1, 0, "not read-only");
    assert_eq!(stack.info("e"), Err(-libc::ENOENT));
    assert!(last_error().contains("there is no device `e`"), "{}", last_error());
    assert_eq!(stack.info("ro").unwrap().features & 1, 1);
    let mut context = stack.context();
    let ro = context.device("ro");
    let mut memory = vec![0u8; 512];
    let write = Io { op: WRITE, device: ro, ..io(1, 0, &mut memory) };
    assert_eq!(context.run(&[write]), [(1, -libc::EPERM)]);
}

#[test]
fn attributes_are_read_and_set() {
    let stack = Stack::open(RAM);
    assert_eq!(stack.get("d", "size").unwrap(), "1048576");
    assert_eq!(stack.set("d", "queue/nr_requests", "7"), 0);
    assert_eq!(stack.get("d", "queue/nr_requests").unwrap(), "7");
    assert_eq!(stack.set("d", "queue/nr_requests", "many"), -libc::ERANGE);
    assert_eq!(stack.set("x", "queue/nr_requests", "7"), -libc::ENOENT);
    assert_eq!(stack.set("d", "queue/nothing", "7"), -libc::ENOENT);
    assert_eq!(stack.get("d", "queue/nothing"), Err(-libc::ENOENT));
    assert_eq!(stack.set("d", "size", "1MiB"), -libc::EOPNOTSUPP);
    assert!(last_error().contains("keeps its size"), "{}", last_error());
}

#[test]
fn the_control_protocol_is_at_hand() {
    let stack = Stack::open(RAM);
    let said = stack.control("{\"command\":\"list\"}");
    assert!(said.contains("\"name\":\"d\""), "{said}");
    let said = stack.control("{\"command\":\"lisst\"}");
    assert!(said.contains("did you mean `list`?"), "{said}");
    let mut cut = [1 as libc::c_char; 8];
    let request = c"{\"command\":\"version\"}";
    let whole =
        unsafe { drystone_stack_control(stack.raw, request.as_ptr(), cut.as_mut_ptr(), cut.len()) };
    assert!(whole > 8 && cut[7] == 0 && cut[6] != 1, "cut, with its end");
}

#[test]
fn memory_of_any_alignment_is_good_for_direct_io() {
    let folder = tempfile::tempdir().unwrap();
    let stack = Stack::open_in(&file("direct = true"), folder.path());
    let mut context = stack.context();
    context.device("f");
    let mut memory = vec![3u8; 4096 + 1];
    let write = Io { op: WRITE, ..io(1, 8192, &mut memory[1..]) };
    assert_eq!(context.run(&[write]), [(1, 0)]);
    let mut back = vec![0u8; 4096 + 3];
    assert_eq!(context.run(&[io(2, 8192, &mut back[3..])]), [(2, 0)]);
    assert!(back[3..].iter().all(|b| *b == 3) && back[..3] == [0; 3]);
}

#[test]
fn memory_of_the_context_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let stack = Stack::open_in(&file(""), folder.path());
    let mut context = stack.context();
    context.device("f");
    let mut memory = null_mut();
    let given = unsafe { drystone_context_memory(context.raw, 8192, &raw mut memory) };
    assert!(given == 0 || given == 1 && !last_error().is_empty(), "{given}");
    let memory = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 8192) };
    memory.fill(5);
    assert_eq!(context.run(&[Io { op: WRITE, ..io(1, 0, memory) }]), [(1, 0)]);
    memory.fill(0);
    assert_eq!(context.run(&[io(2, 0, memory)]), [(2, 0)]);
    assert!(memory.iter().all(|b| *b == 5));
}

#[test]
fn a_stack_with_contexts_stays_open() {
    let stack = Stack::open(RAM);
    let context = stack.context();
    assert_eq!(unsafe { drystone_stack_close(stack.raw) }, -libc::EBUSY);
    assert_eq!(last_error(), "a context of the stack is open");
    drop(context);
}

/// I/O that a suspended volume keeps would never end.
#[test]
fn a_context_of_a_suspended_volume_is_closed() {
    let stack = Stack::open(LINEAR);
    let mut context = stack.context();
    context.device("v");
    let suspend = "{\"command\":\"suspend\",\"arguments\":{\"device\":\"v\"}}";
    let said = stack.control(suspend);
    assert!(said.contains("result"), "{said}");
    let mut memory = vec![1u8; 4096];
    assert_eq!(context.submit(&[Io { op: WRITE, ..io(1, 0, &mut memory) }]), 1);
    assert_eq!(context.wait(1, 1_000_000), [], "it is kept");
    assert_eq!(context.outstanding(), 1);
    assert_eq!(context.close(FOREVER), 0);
}

#[test]
fn a_context_whose_driver_has_something_is_not_closed_before_its_time() {
    let stack = Stack::open(SLOW);
    let mut context = stack.context();
    context.device("slow");
    let mut memory = vec![0u8; 512];
    assert_eq!(context.submit(&[io(1, 0, &mut memory)]), 1);
    assert_eq!(context.close(0), -libc::ETIMEDOUT);
    assert_eq!(last_error(), "1 I/Os of the context have not ended in time");
    assert_eq!(context.submit(&[io(2, 0, &mut memory)]), -libc::ESHUTDOWN);
    assert_eq!(context.wait(1, FOREVER), [(1, 0)], "it can be reaped");
    assert_eq!(context.close(FOREVER), 0);
}

#[test]
fn waits_end_in_time_and_by_a_wake_up() {
    let stack = Stack::open(SLOW);
    let mut context = stack.context();
    context.device("slow");
    assert_eq!(context.wait(1, FOREVER), [], "nothing is in flight");
    let mut memory = vec![0u8; 512];
    assert_eq!(context.submit(&[io(1, 0, &mut memory)]), 1);
    assert_eq!(context.wait(1, 1000), []);
    let raw = context.raw as usize;
    std::thread::scope(|s| {
        let waker = s.spawn(move || unsafe { drystone_context_wake(raw as *mut Cell) });
        assert_eq!(waker.join().unwrap(), 0);
    });
    assert_eq!(context.wait(1, FOREVER), [], "the wake-up came before");
    assert_eq!(context.wait(1, FOREVER), [(1, 0)]);
}

#[test]
fn an_event_loop_learns_of_everything() {
    let folder = tempfile::tempdir().unwrap();
    for text in [&file(""), RAM, SLOW, LINEAR] {
        let stack = Stack::open_in(text, folder.path());
        let mut context = stack.context();
        let name = ["f", "v", "slow", "d"].into_iter().find(|name| stack.info(name).is_ok());
        context.device(name.unwrap());
        let fd = unsafe { drystone_context_event(context.raw) };
        assert!(fd >= 0);
        let mut memory = vec![0u8; 512 * 4];
        let ios: Vec<Io> =
            memory.chunks_mut(512).enumerate().map(|(n, m)| io(n as u64, 0, m)).collect();
        assert_eq!(context.submit(&ios), 4);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            assert_eq!(unsafe { drystone_context_clear(context.raw) }, 0);
            // One at a time: what is left must show.
            let came = context.reap(1);
            if came.is_empty() {
                assert!(sleep_on(fd, unsafe { drystone_context_timeout(context.raw) }));
            } else if seen.len() + came.len() < 4 && context.outstanding() == 3 - seen.len() {
                seen.extend(came);
                continue;
            }
            seen.extend(came);
        }
        seen.sort();
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    }
}

#[test]
fn groups_count_what_belongs_to_them() {
    let stack = Stack::open(GROUP);
    let mut context = stack.context();
    context.device("d");
    let group =
        |path: &std::ffi::CStr| unsafe { drystone_context_group(context.raw, path.as_ptr()) };
    assert_eq!(group(c"tenants/none"), -libc::ENOENT);
    assert_eq!(group(c"tenants/a"), 0);
    let mut memory = vec![0u8; 4096];
    assert_eq!(context.run(&[io(1, 0, &mut memory)]), [(1, 0)]);
    let said = stack.control("{\"command\":\"group-stat\",\"arguments\":{\"path\":\"tenants/a\"}}");
    assert!(said.contains("\"rios\":1"), "{said}");
}

#[test]
fn polled_io_is_found_by_polling_and_by_waiting() {
    let stack = Stack::open(POLLED);
    let mut context = stack.context();
    context.device("n");
    let mut memory = vec![0u8; 512];
    let polled = Io { flags: 16, ..io(1, 0, &mut memory) };
    assert_eq!(context.submit(&[polled]), 1);
    let mut done = [Completion::default(); 4];
    let mut came = 0;
    while came == 0 {
        came = unsafe { drystone_poll(context.raw, done.as_mut_ptr().cast(), 4) };
    }
    assert_eq!((came, done[0].tag, done[0].result), (1, 1, 0));
    assert_eq!(context.run(&[polled]), [(1, 0)]);
    // Its flag says so, and nothing else.
    assert_eq!(context.submit(&[Io { flags: 16, ..polled }]), 1);
    assert_eq!(unsafe { drystone_context_timeout(context.raw) }, 0, "somebody must look");
    assert_eq!(context.wait(1, FOREVER), [(1, 0)]);
    // A wait without time looks, too, and so does a close.
    assert_eq!(context.submit(&[polled]), 1);
    assert!((0..100_000).any(|_| context.wait(1, 0) == [(1, 0)]), "a loop of waits ends");
    assert_eq!(context.submit(&[Io { flags: 0, ..polled }]), 1);
    assert_ne!(unsafe { drystone_context_timeout(context.raw) }, 0);
    assert_eq!(context.wait(1, FOREVER), [(1, 0)]);
    assert_eq!(context.submit(&[polled]), 1);
    // I/O that the one look of a close finds has ended in time.
    assert_eq!(context.close(0), 0);
}

/// The stack is ended as a server ends it: the array is on record as clean, and assembled again.
#[test]
fn arrays_are_clean_after_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let text = array();
    let mut memory = vec![6u8; 4096];
    for round in 0..2 {
        let stack = Stack::open_in(&text, folder.path());
        let mut context = stack.context();
        context.device("array");
        if round == 0 {
            assert_eq!(context.run(&[Io { op: WRITE, ..io(1, 0, &mut memory) }]), [(1, 0)]);
        } else {
            memory.fill(0);
            assert_eq!(context.run(&[io(1, 0, &mut memory)]), [(1, 0)]);
            assert_eq!(stack.get("array", "md/array_state").unwrap().trim(), "clean");
        }
        drop(context);
        assert_eq!(stack.close(), 0, "{}", last_error());
    }
    assert!(memory.iter().all(|b| *b == 6));
}

/// Past the array or volume that stands on it nobody writes to a device.
#[test]
fn what_is_part_of_something_is_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = array()
        + "[device.half]\ntable = \"0 8 linear d 0\"\n[device.d]\ntype = \"ram\"\nsize = \
            \"1MiB\"\n";
    let stack = Stack::open_in(&text, folder.path());
    let mut memory = vec![6u8; 4096];
    for (part, whole) in [("m0", "array"), ("d", "half")] {
        let mut context = stack.context();
        context.device(part);
        for op in [WRITE, DISCARD, WRITE_ZEROES] {
            let write = Io { op, ..io(1, 0, &mut memory) };
            assert_eq!(unsafe { drystone_submit(context.raw, &raw const write, 1) }, -libc::EINVAL);
            let why = format!("`{part}` is part of `{whole}`, so nobody else must write to it");
            assert!(last_error().ends_with(&why), "{}", last_error());
        }
        assert_eq!(context.run(&[io(1, 0, &mut memory)]), [(1, 0)]);
    }
}

/// A context belongs to one thread at a time. A thread that calls it while another does is told,
/// and touches nothing.
#[test]
fn a_second_thread_is_refused_by_a_context_in_use() {
    let stack = Stack::open(LINEAR);
    let mut context = stack.context();
    context.device("v");
    // The thread waits for I/O that a suspended volume keeps, until another thread wakes it.
    stack.control("{\"command\":\"suspend\",\"arguments\":{\"device\":\"v\"}}");
    let mut memory = vec![0u8; 512];
    assert_eq!(context.submit(&[io(1, 0, &mut memory)]), 1);
    let raw = context.raw as usize;
    let fault = -libc::ENOTRECOVERABLE;
    std::thread::scope(|s| {
        let waits = s.spawn(move || {
            let mut done = [Completion::default(); 1];
            let place = done.as_mut_ptr().cast();
            let wait = || unsafe { drystone_wait(raw as *mut Cell, place, 1, 1, FOREVER) };
            // The other thread may be in its call.
            std::iter::repeat_with(wait).find(|given| *given != fault)
        });
        let is_refused = || {
            std::thread::yield_now();
            unsafe { drystone_outstanding(raw as *mut Cell) == i64::from(fault) }
        };
        let began = std::time::Instant::now();
        let refused = std::iter::repeat_with(is_refused)
            .find(|refused| *refused || began.elapsed().as_secs() > 60);
        let said = last_error();
        assert_eq!(unsafe { drystone_context_wake(raw as *mut Cell) }, 0, "any thread may");
        assert_eq!(waits.join().unwrap(), Some(0), "nothing came");
        assert_eq!(refused, Some(true), "both were let in");
        assert!(said.starts_with("another thread is in a call on this context"), "{said}");
    });
    stack.control("{\"command\":\"resume\",\"arguments\":{\"device\":\"v\"}}");
    assert_eq!(context.wait(1, FOREVER), [(1, 0)], "the context is as good as before");
}

/// Several threads, each with a context, on one stack.
#[test]
fn contexts_of_several_threads() {
    let stack = Stack::open(RAM);
    let raw = stack.raw as usize;
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            s.spawn(move || {
                let mut context = Context::of(raw as *const _);
                context.device("d");
                for round in 0..200u64 {
                    let mut memory = vec![thread as u8 + 1; 4096];
                    let at = thread * 65536 + round % 16 * 4096;
                    let write = Io { op: WRITE, ..io(round, at, &mut memory) };
                    assert_eq!(context.run(&[write]), [(round, 0)]);
                    memory.fill(0);
                    assert_eq!(context.run(&[io(round, at, &mut memory)]), [(round, 0)]);
                    assert!(memory.iter().all(|b| *b == thread as u8 + 1));
                }
            });
        }
    });
    let info: Info = stack.info("d").unwrap();
    assert_eq!(info.size, 1 << 20);
}
