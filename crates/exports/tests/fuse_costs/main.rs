//! The cost of a FUSE request in the steady state, in heap allocations, which an allocator counts.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

#[path = "../fuse/disk.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod disk;
#[path = "../fuse/kernel.rs"]
#[allow(dead_code, unused_macros, unused_imports, reason = "a part of it is used here")]
mod kernel;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use drystone_core::ring::Engine;
use drystone_exports::fuse::server::{IN_FLIGHT_MAX, Incoming, Kind, Mount};
use drystone_testkit::alloc::CountingAllocator;
use rustix::net::{RecvFlags, SendFlags};

use disk::{Disk, Handle};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Send all requests, then take an answer to each.
fn round(socket: &OwnedFd, requests: &[Vec<u8>], buffer: &mut [u8]) {
    for request in requests {
        rustix::io::retry_on_intr(|| rustix::net::send(socket, request, SendFlags::empty()))
            .unwrap();
    }
    for _ in requests {
        let receive =
            || rustix::net::recv(socket, &mut *buffer, RecvFlags::empty()).map(|(_, n)| n);
        let mut receive = receive;
        let length = rustix::io::retry_on_intr(&mut receive).unwrap();
        let error = i32::from_ne_bytes(buffer[4..8].try_into().unwrap());
        assert!(length >= 16 && error == 0, "errno {error}");
    }
}

fn requests() -> Vec<Vec<u8>> {
    let write = |offset, length| {
        kernel::request(kernel::WRITE, 2, 1, 0, &kernel::write(0, offset, &vec![1; length]))
    };
    let read =
        |offset, length| kernel::request(kernel::READ, 2, 1, 0, &kernel::read(0, offset, length));
    vec![
        read(0, 4096),
        write(4096, 4096),
        write(0, 100 << 10),
        read(0, 100 << 10),
        read(77, 1000),
        write(512, 512),
        kernel::request(kernel::FSYNC, 2, 1, 0, &[0; 16]),
        kernel::request(kernel::FALLOCATE, 2, 1, 0, &kernel::fallocate(8192, 4096, 3)),
    ]
}

/// As many as a session may have in flight, of the kinds that take most: parts of blocks, of which
/// only one is at work, so that all others are kept; the longest; and whole blocks that stay before
/// them.
fn worst() -> Vec<Vec<u8>> {
    let write = |offset, length| {
        kernel::request(kernel::WRITE, 2, 1, 0, &kernel::write(0, offset, &vec![1; length]))
    };
    let zeroes =
        |offset| kernel::request(kernel::FALLOCATE, 2, 1, 0, &kernel::fallocate(offset, 5000, 3));
    let few = |n: u64| match n % 4 {
        0 => write(n * 1000 + 77, 700),
        1 => write(n * 1000 + 1, 8000),
        2 => zeroes(n * 1000),
        _ => write(n * 4096, 4096),
    };
    let long = (0..4).map(|n| write((n << 20) + 5, 1 << 20));
    long.chain((4..u64::from(IN_FLIGHT_MAX)).map(few)).collect()
}

/// One test, because the count is the process's. Without io_uring each wait for a request
/// allocates.
#[test]
fn requests_allocate_nothing() {
    let disk = Disk::new(8 << 20, 512);
    disk.counts.lock().unwrap().reserve(1 << 16);
    let volume = kernel::volume("vol", Arc::new(Handle(disk.clone())), &kernel::groups());
    let mount = Mount::new(kernel::options(Kind::File), vec![volume], 1);
    let (inboxes, threads) = kernel::workers(1, Engine::Uring);
    let (socket, device) = kernel::pair();
    inboxes[0].put(Incoming { mount, number: 0, device }, &kernel::user());
    let (requests, mut buffer) = (requests(), vec![0; 1 << 20]);
    (0..20).for_each(|_| round(&socket, &requests, &mut buffer));
    // The thread that runs tests may allocate while this one has begun: once.
    let counted = (0..3).map(|_| {
        let before = ALLOCATOR.allocations();
        (0..200).for_each(|_| round(&socket, &requests, &mut buffer));
        ALLOCATOR.allocations() - before
    });
    assert_eq!(counted.min(), Some(0));
    // All of a session's memory in use for the first time.
    let worst = worst();
    disk.delay_ns.store(1_000_000, Relaxed);
    let before = ALLOCATOR.allocations();
    (0..3).for_each(|_| round(&socket, &worst, &mut buffer));
    assert_eq!(ALLOCATOR.allocations() - before, 0, "in the worst case");
    assert!(disk.most_held.load(Relaxed) > 0, "I/O was held");
    drop(socket);
    inboxes[0].stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
