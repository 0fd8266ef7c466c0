//! Askers that are interrupted: long requests of killed askers end, in whatever order the kernel's
//! two requests are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use drystone_core::Op;
use drystone_core::ring::Engine;
use drystone_exports::fuse::server::{Kind, MountOptions};

use crate::disk::{Disk, Handle};
use crate::kernel::*;

const EINTR: i32 = 4;
const PIECES: usize = 64;

/// A disk that is zeroed piece by piece, each of which takes a fifth of a second, with two
/// sessions.
fn served() -> (Arc<Disk>, Kernel) {
    let mut disk = Arc::into_inner(Disk::new(PIECES << 20, 512)).unwrap();
    disk.zeroes = false;
    let disk = Arc::new(disk);
    disk.delay_ns.store(1, Relaxed);
    disk.least_ns.store(200_000_000, Relaxed);
    let kernel = Kernel::file(Arc::new(Handle(disk.clone())), 2);
    (disk, kernel)
}

fn truncate(kernel: &mut Kernel, size: u64) -> u64 {
    kernel.send(0, SETATTR, 1, &setattr(1 << 3, size))
}

fn until_written(disk: &Disk, count: usize) {
    until(|| disk.count(Op::Write) >= count);
}

fn until(is_so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("not within a minute");
}

/// A request that is answered after what came before it to that session.
fn catch_up(kernel: &mut Kernel, at: usize) {
    kernel.call_at(at, GETATTR, 1, &[0; 16]).unwrap();
}

#[test]
fn a_cut_ends_with_the_piece_under_way() {
    for at in [0, 1] {
        let (disk, mut kernel) = served();
        // With the rest of a block, and without.
        let asked = truncate(&mut kernel, 4096 + 100 * at as u64);
        until_written(&disk, 2);
        kernel.send(at, INTERRUPT, 0, &bytes![asked]);
        assert_eq!(kernel.wait_for(0, asked), Err(EINTR), "by session {at}");
        let written = disk.count(Op::Write);
        assert!(written < PIECES, "{written} pieces");
        assert_eq!(kernel.write(0, &[5; 512]), Ok(512), "others go on");
        assert_eq!(disk.count(Op::Write), written + 1, "nothing of it follows");
    }
}

#[test]
fn an_interrupt_may_be_read_before_its_request() {
    for at in [0, 1] {
        let (disk, mut kernel) = served();
        // Numbers go by twos.
        let first = kernel.send(0, GETATTR, 1, &[0; 16]);
        let asked = first + 6;
        kernel.send(at, INTERRUPT, 0, &bytes![asked]);
        catch_up(&mut kernel, at);
        assert_eq!(truncate(&mut kernel, 0), asked);
        assert_eq!(kernel.wait_for(0, asked), Err(EINTR), "by session {at}");
        assert!(disk.count(Op::Write) <= 1, "no more than was begun");
    }
}

#[test]
fn an_interrupt_that_names_nothing_long_changes_nothing() {
    let (disk, mut kernel) = served();
    for unique in [0, 1, 7777, u64::MAX] {
        kernel.send(0, INTERRUPT, 0, &bytes![unique]);
    }
    // More than are remembered.
    for unique in 0..2000_u64 {
        kernel.send(1, INTERRUPT, 0, &bytes![1_000_000 + unique]);
    }
    let sent = kernel.send(0, WRITE, 1, &write(0, 0, &[5; 4096]));
    kernel.send(1, INTERRUPT, 0, &bytes![sent]);
    assert_eq!(kernel.wait_for(0, sent).map(|answer| u32_at(&answer, 0)), Ok(4096));
    disk.least_ns.store(1, Relaxed);
    let asked = truncate(&mut kernel, 0);
    assert!(kernel.wait_for(0, asked).is_ok());
    kernel.send(0, INTERRUPT, 0, &bytes![asked]);
    catch_up(&mut kernel, 0);
    catch_up(&mut kernel, 1);
}

/// The kernel tells of the first signal, whichever it is, and of none after it. So the server
/// checks what the asker does.
#[test]
fn only_who_is_killed_is_not_answered_in_full() {
    static LOOKS: AtomicU32 = AtomicU32::new(0);
    static KILLED: AtomicBool = AtomicBool::new(false);
    let is_killed = |task| {
        // As the requests of these tests say.
        assert_eq!(task, 1);
        LOOKS.fetch_add(1, SeqCst);
        KILLED.load(SeqCst)
    };
    for (at, killed) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut disk = Arc::into_inner(Disk::new(PIECES << 20, 512)).unwrap();
        disk.zeroes = false;
        let disk = Arc::new(disk);
        disk.bytes.lock().unwrap().fill(7);
        disk.delay_ns.store(1, Relaxed);
        disk.least_ns.store(200_000_000, Relaxed);
        let options = MountOptions { is_killed, ..options(Kind::File) };
        let volumes = vec![volume("vol", Arc::new(Handle(disk.clone())), &groups())];
        let mut kernel = Kernel::new(options, volumes, 2, Engine::Auto);
        kernel.initialise();
        let before = LOOKS.load(SeqCst);
        let asked = truncate(&mut kernel, 0);
        until_written(&disk, 1);
        assert_eq!(
            LOOKS.load(SeqCst),
            before,
            "an asker that was not interrupted is not looked at"
        );
        kernel.send(at, INTERRUPT, 0, &bytes![asked]);
        until(|| LOOKS.load(SeqCst) >= before + 3);
        KILLED.store(killed, SeqCst);
        match killed {
            true => {
                assert_eq!(kernel.wait_for(0, asked), Err(EINTR), "by session {at}");
                assert!(disk.count(Op::Write) < PIECES);
                KILLED.store(false, SeqCst);
            }
            false => {
                disk.least_ns.store(1, Relaxed);
                assert!(kernel.wait_for(0, asked).is_ok(), "by session {at}");
                assert!(disk.bytes.lock().unwrap().iter().all(|byte| *byte == 0));
            }
        }
    }
}

/// A client of another file of the device has the block, and is slow.
#[test]
fn who_waits_for_others_is_not_kept_by_them() {
    let disk = Disk::new(1 << 20, 512);
    let volume = volume("vol", Arc::new(Handle(disk.clone())), &groups());
    let new = || {
        let volumes = vec![volume.clone()];
        let mut kernel = Kernel::new(options(Kind::File), volumes, 2, Engine::Auto);
        kernel.initialise();
        kernel
    };
    let (mut slow, mut kernel) = (new(), new());
    disk.holds.store(true, SeqCst);
    let held = slow.send(0, WRITE, 1, &write(0, 100, &[5; 100]));
    until(|| disk.count(Op::Read) == 1);
    let requests = [
        (SETATTR, setattr(1 << 3, 0)),
        (SETATTR, setattr(1 << 3, 10)),
        (FALLOCATE, fallocate(0, 4096, 3)),
        (FALLOCATE, fallocate(100, 4096, 3)),
        (WRITE, write(0, 0, &[6; 4096])),
        (WRITE, write(0, 100, &[6; 100])),
    ];
    for at in [0, 1] {
        for (opcode, body) in &requests {
            let asked = kernel.send(0, *opcode, 1, body);
            catch_up(&mut kernel, 0);
            kernel.send(at, INTERRUPT, 0, &bytes![asked]);
            assert_eq!(kernel.wait_for(0, asked), Err(EINTR), "{opcode}, by session {at}");
        }
    }
    assert_eq!(disk.counts.lock().unwrap().len(), 1, "none of it began");
    disk.released.store(true, SeqCst);
    assert!(slow.wait_for(0, held).is_ok());
    assert_eq!(kernel.write(100, &[7; 100]), Ok(100), "the line goes on");
}
