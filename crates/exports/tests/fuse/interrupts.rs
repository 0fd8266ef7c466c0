//! Askers that give up: what takes long ends, in whatever order the kernel's two requests are read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use drystone_core::Op;

use crate::disk::{Disk, Handle};
use crate::kernel::*;

const EINTR: i32 = 4;
const PIECES: usize = 64;

/// A disk that is zeroed piece by piece, each of which takes a fifth of a second, with two sessions.
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
    for _ in 0..60_000 {
        if disk.count(Op::Write) >= count {
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
