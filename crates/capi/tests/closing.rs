//! Contexts that are closed while I/O of theirs is on its way, at every place where it may be.
//!
//! Every unsafe block here is in `common`.

#![allow(unsafe_code, reason = "they call what C programs call")]

mod common;

use common::*;
use drystone_capi::abi::{FOREVER, Io};

fn writes(memory: &mut [u8], count: u64) -> Vec<Io> {
    let one = |n| Io { op: WRITE, ..io(n, n * 8192, &mut memory[..4096]) };
    (0..count).map(one).collect()
}

/// Requests that wait for tags, at a scheduler that contexts share: one context is closed, the
/// others go on.
#[test]
fn what_waits_for_tags_is_cancelled_and_others_go_on() {
    for scheduler in ["none", "mq-deadline"] {
        let text = format!(
            "[device.n]\ntype = \"null\"\nirqmode = \"timer\"\ncompletion_nsec = \"2ms\"\n\
             submit_queues = 1\nhw_queue_depth = 4\n\
             queue = {{ scheduler = \"{scheduler}\", nr_requests = 4 }}\n"
        );
        let stack = Stack::open(&text);
        let (mut left, mut right) = (stack.context(), stack.context());
        left.device("n");
        right.device("n");
        let mut memory = vec![0u8; 4096];
        let ios = writes(&mut memory, 16);
        for round in 0..3 {
            assert_eq!(left.submit(&ios), 16);
            assert_eq!(right.submit(&ios), 16);
            assert_eq!(left.close(FOREVER), 0, "{scheduler} {round}: {}", last_error());
            let mut done = Vec::new();
            while done.len() < 16 {
                done.extend(right.wait(16, FOREVER));
            }
            assert!(done.iter().all(|(_, result)| *result == 0), "{scheduler}: {done:?}");
            left = stack.context();
            left.device("n");
            assert_eq!(left.run(&ios[..1]), [(0, 0)]);
        }
    }
}

/// It would take an hour.
#[test]
fn what_a_limit_keeps_is_cancelled() {
    let text = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
        [group.slow]\nio.max = [\"d wbps=4096\"]\n";
    let stack = Stack::open(text);
    let mut context = stack.context();
    context.device("d");
    assert_eq!(context.group("slow"), 0, "{}", last_error());
    let mut memory = vec![0u8; 4096];
    assert_eq!(context.submit(&writes(&mut memory, 100)), 100);
    assert_eq!(context.close(FOREVER), 0);
}

#[test]
fn a_close_does_not_wait_for_what_a_delay_holds() {
    let text = "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n\
        [device.v]\ntable = \"0 2048 delay r 0 20\"\n";
    let stack = Stack::open(text);
    let mut context = stack.context();
    context.device("v");
    let mut memory = vec![0u8; 4096];
    assert_eq!(context.submit(&writes(&mut memory, 3)), 3);
    assert_eq!(context.close(FOREVER), 0);
}

fn suspend_command(command: &str) -> String {
    format!("{{\"command\":\"{command}\",\"arguments\":{{\"device\":\"v0\"}}}}")
}

/// A member of the array is suspended: its stripes wait, and the buffers are the array's meanwhile.
#[test]
fn what_an_array_waits_for_keeps_its_context_open() {
    let ram = |n| {
        format!(
            "[device.r{n}]\ntype = \"ram\"\nsize = \"8MiB\"\n\
             [device.v{n}]\ntable = \"0 16384 linear r{n} 0\"\n"
        )
    };
    let members: String = (0..3).map(ram).collect();
    let text = format!(
        "{members}[device.a]\ntype = \"raid5\"\nmembers = [\"v0\", \"v1\", \"v2\"]\n\
         chunk = \"4KiB\"\n"
    );
    let stack = Stack::open(&text);
    let mut context = stack.context();
    context.device("a");
    let mut memory = vec![1u8; 4096];
    assert_eq!(context.run(&writes(&mut memory, 4)).len(), 4);
    let said = stack.control(&suspend_command("suspend"));
    assert!(said.contains("result"), "{said}");
    let ios = writes(&mut memory, 8);
    assert_eq!(context.submit(&ios), 8);
    let given = context.close(50_000_000);
    assert_eq!(given, -libc::ETIMEDOUT, "{}", last_error());
    let said = stack.control(&suspend_command("resume"));
    assert!(said.contains("result"), "{said}");
    assert_eq!(context.close(FOREVER), 0);
    // The array works, though I/O was cancelled half-way.
    let mut again = stack.context();
    again.device("a");
    for n in 0..8 {
        memory.fill(n as u8);
        let write = Io { op: WRITE, ..io(n, n * 8192, &mut memory) };
        assert_eq!(again.run(&[write]), [(n, 0)]);
    }
    for n in 0..8 {
        assert_eq!(again.run(&[io(n, n * 8192, &mut memory)]), [(n, 0)]);
        assert!(memory.iter().all(|b| *b == n as u8));
    }
}

/// The stack is closed while a volume is suspended.
#[test]
fn a_stack_with_a_suspended_volume_is_closed() {
    let stack = Stack::open(&LINEAR.replace("device.v", "device.v0"));
    let mut context = stack.context();
    context.device("v0");
    let said = stack.control(&suspend_command("suspend"));
    assert!(said.contains("result"), "{said}");
    let mut memory = vec![1u8; 4096];
    assert_eq!(context.submit(&writes(&mut memory, 2)), 2);
    drop(context);
    assert_eq!(stack.close(), 0, "{}", last_error());
}
