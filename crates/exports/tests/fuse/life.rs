//! Flow control, groups, stopping.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use drystone_core::Op;
use drystone_core::ring::Engine;
use drystone_exports::fuse::server::{IN_FLIGHT_MAX, Kind, MountOptions, Transport};

use crate::disk::{Disk, Handle};
use crate::kernel::*;

const SIZE: usize = 1 << 20;

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

#[test]
fn a_session_at_its_bound_reads_no_more() {
    let disk = Disk::new(SIZE, 512);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 2);
    disk.delay_ns.store(200_000_000, Relaxed);
    let sent: Vec<_> = (0..IN_FLIGHT_MAX + 20)
        .map(|n| kernel.send(0, READ, 1, &read(0, u64::from(n) * 512, 512)))
        .collect();
    wait_until("all that may be are in flight", || disk.count(Op::Read) >= IN_FLIGHT_MAX as usize);
    let most = disk.count(Op::Read);
    // The other session goes on: an answer that needs no I/O.
    kernel.call_at(1, GETATTR, 1, &[0; 16]).unwrap();
    for unique in sent {
        assert_eq!(kernel.wait_for(0, unique).unwrap(), [0; 512]);
    }
    assert_eq!(disk.count(Op::Read), IN_FLIGHT_MAX as usize + 20);
    assert!(most <= IN_FLIGHT_MAX as usize + 20, "{most} at once");
    assert!(most_in_flight(&disk) <= IN_FLIGHT_MAX as usize, "{}", most_in_flight(&disk));
}

fn most_in_flight(disk: &Disk) -> usize {
    disk.most_held.load(Relaxed) as usize
}

#[test]
fn requests_belong_to_the_group_of_whoever_opened() {
    let groups = groups();
    for path in ["all", "thousand"] {
        groups.create(path).unwrap();
    }
    let disk = Disk::new(SIZE, 512);
    let mut shared = volume("vol", Arc::new(Handle(disk.clone())), &groups);
    shared.membership = drystone_exports::server::Membership::new(groups.clone(), "all");
    shared.membership.set_uid(1000, "thousand");
    let mut kernel = Kernel::new(options(Kind::File), vec![shared], 1, Engine::Auto);
    kernel.initialise();
    let opened = kernel.call(OPEN, 1, &bytes![2_u32, 0_u32]).unwrap();
    let handle = u64_at(&opened, 0);
    kernel.call(READ, 1, &read(handle, 0, 512)).unwrap();
    kernel.call(WRITE, 1, &write(handle, 5, &[1; 3])).unwrap();
    let group = groups.join("thousand").unwrap().id().as_u32();
    let of: Vec<_> = disk.counts.lock().unwrap().iter().map(|(.., group)| *group).collect();
    assert_eq!(of, [group; 3], "a read, and a write that reads first");
    kernel.call(SETATTR, 1, &setattr(1 << 3, 0)).unwrap();
    let last = disk.counts.lock().unwrap().last().unwrap().2;
    assert_eq!(last, group, "a cut, which names no handle");
    assert!(groups.remove("thousand").is_err(), "while a file is open");
    kernel.call(RELEASE, 1, &bytes![handle, 0_u64, 0_u64]).unwrap();
    groups.remove("thousand").unwrap();
    let opened = kernel.call(OPEN, 1, &bytes![2_u32, 0_u32]).unwrap();
    kernel.call(READ, 1, &read(u64_at(&opened, 0), 0, 512)).unwrap();
    let last = disk.counts.lock().unwrap().last().unwrap().2;
    assert_eq!(last, groups.join("all").unwrap().id().as_u32(), "the next rule counts");
}

#[test]
fn a_stopping_server_answers_until_the_mount_is_gone() {
    let disk = Disk::new(SIZE, 512);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 2);
    kernel.inboxes.iter().for_each(|inbox| inbox.stop());
    for at in [0, 1, 0, 1] {
        kernel.call_at(at, WRITE, 1, &write(0, 512, &[9; 512])).unwrap();
    }
    assert_eq!(kernel.mount.sessions_serving(), 2);
    kernel.end();
}

#[test]
fn a_server_that_gives_up_answers_nobody() {
    let disk = Disk::new(SIZE, 512);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 2);
    disk.delay_ns.store(300_000_000, Relaxed);
    kernel.send(0, WRITE, 1, &write(0, 0, &[1; 4096]));
    wait_until("one is in flight", || disk.count(Op::Write) > 0);
    kernel.send(0, WRITE, 1, &write(0, 4096, &[1; 5]));
    kernel.send(1, WRITE, 1, &write(0, 8192, &[1; 5]));
    kernel.send(1, WRITE, 1, &write(0, 8192, &[1; 512]));
    kernel.call_at(1, GETATTR, 1, &[0; 16]).unwrap();
    kernel.inboxes.iter().for_each(|inbox| {
        inbox.stop();
        inbox.abort();
    });
    let mount = kernel.mount.clone();
    wait_until("the sessions end", || mount.sessions_serving() == 0);
    assert!(disk.bytes.lock().unwrap()[..4096] == [1; 4096], "what was in flight has ended");
    kernel.end();
}

/// FUSE over io_uring switched on for the machine, until this is dropped.
struct SwitchedOn(String);

impl SwitchedOn {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    fn new() -> Option<Self> {
        let before = std::fs::read_to_string(Self::PATH).ok()?;
        std::fs::write(Self::PATH, "Y").ok()?;
        Some(SwitchedOn(before))
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, self.0.trim());
    }
}

/// The kernel agrees on rings and then takes none: here a socket, which knows no such commands. All
/// sessions end, so that a kernel would answer all that wait.
#[test]
fn sessions_whose_rings_are_refused_end() {
    let Some(_on) = SwitchedOn::new() else {
        return println!("SKIPPED: FUSE over io_uring cannot be switched on (Linux 6.14, by root)");
    };
    for threads in [1, 2] {
        let disk = Disk::new(SIZE, 512);
        let volumes = vec![volume("vol", Arc::new(Handle(disk)), &groups())];
        let options = MountOptions { over_ring: true, ..options(Kind::File) };
        let mut kernel = Kernel::new(options, volumes, threads, Engine::Auto);
        kernel.initialise();
        let mount = kernel.mount.clone();
        wait_until("the sessions end", || mount.sessions_serving() == 0);
        assert_eq!(mount.transport(), Transport::Ring);
        let told = mount.failure().expect("it has failed");
        assert!(told.contains("FUSE over io_uring is refused"), "{told}");
        assert!(!mount.is_initialised());
        kernel.end();
    }
}

/// Sessions that end keep no others waiting, whatever they were waiting for.
#[test]
fn a_session_that_ends_lets_others_write() {
    let disk = Disk::new(SIZE, 512);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), 3);
    for round in 0..20 {
        disk.delay_ns.store(2_000_000, Relaxed);
        for n in 0..4 {
            kernel.send(0, WRITE, 1, &write(0, n * 512 + 3, &[1; 5]));
            kernel.send(1, WRITE, 1, &write(0, n * 512 + 9, &[2; 5]));
        }
        let unique = kernel.send(2, WRITE, 1, &write(0, 512, &[3; 512]));
        assert_eq!(
            kernel.wait_for(2, unique).map(|body| u32_at(&body, 0)),
            Ok(512),
            "round {round}"
        );
        if round % 4 == 3 {
            // With writes under way, in line, and staying.
            kernel.hang_up(0);
            let mount = kernel.mount.clone();
            wait_until("the session ends", || mount.sessions_serving() == 2);
            kernel.replace(0);
        }
    }
    kernel.end();
}
