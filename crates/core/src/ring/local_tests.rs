//! The writes of a ring's own helper, on io_uring.

use super::tests::temp_file;
use super::*;
use crate::buf::IoBuf;
use crate::clock::{Clock, SystemClock};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

struct Fixture {
    ring: Box<dyn Ring>,
    events: Vec<RingEvent>,
    data: IoBuf,
    near: UnixStream,
    far: UnixStream,
}

impl Fixture {
    /// A ring of a thread of its own. `None` where the kernel forbids io_uring.
    fn new() -> Option<Self> {
        let Ok(mut ring) = uring::UringRing::open(SystemClock::new()) else {
            eprintln!("SKIPPED: io_uring is not to be had here");
            return None;
        };
        ring.own_thread(true);
        let data = IoBuf::from_slice(&[7; 128 << 10]);
        let (near, far) = UnixStream::pair().unwrap();
        let mut f = Fixture { ring, events: Vec::new(), data, near, far };
        f.be_alone();
        Some(f)
    }

    /// Receives so often from one client that it counts as the only one.
    fn be_alone(&mut self) {
        for number in 0..40 {
            self.far.write_all(b"x").unwrap();
            self.recv(number);
            self.sleep_for(1);
            self.events.clear();
        }
    }

    fn recv(&mut self, number: u64) {
        let op = NetOp::Recv { buf: IoBuf::zeroed(8), range: 0..8 };
        self.ring.net(self.near.as_raw_fd(), op, Token::new(Token::FRONT_END, number));
    }

    fn write(&mut self, file: &std::fs::File, len: usize, number: u64) {
        let segment = self.data.segment(0..len);
        let op = FileOp::Write { segment, offset: number * 4096, dsync: false };
        // SAFETY: every test waits for its writes, and the fixture keeps the memory till then.
        unsafe { self.ring.waiting_file(RingFile::Fd(file.as_raw_fd()), op, token(number)) };
    }

    /// Sleeps until so many events have come.
    fn sleep_for(&mut self, count: usize) {
        while self.events.len() < count {
            self.ring.wait(None);
            self.ring.reap(&mut self.events);
        }
    }

    /// The event numbers of writes that have ended well.
    fn done(&self) -> Vec<u64> {
        let all = self.events.iter();
        all.filter(|e| e.result > 0).map(|e| e.token.value()).collect()
    }
}

fn token(value: u64) -> Token {
    Token::new(7, value)
}

fn has_written(file: &std::fs::File, number: u64) -> bool {
    let mut block = [0; 4096];
    file.read_exact_at(&mut block, number * 4096).is_ok() && block == [7; 4096]
}

/// Threads of this process by that name.
fn threads_called(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|own| own.trim() == name).count()
}

#[test]
fn short_writes_are_done_while_the_owner_sleeps() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    (0..3).for_each(|number| f.write(&file, 4096, number));
    f.ring.submit();
    assert!(f.ring.needs_core());
    assert_eq!((f.ring.in_flight(), file.metadata().unwrap().len()), (3, 0), "not before");
    f.sleep_for(3);
    assert_eq!(f.done(), [0, 1, 2], "in order");
    assert!((0..3).all(|number| has_written(&file, number)));
    assert!(!f.ring.needs_core());
    assert_eq!(f.ring.in_flight(), 0);
    for number in 3..300 {
        f.write(&file, 4096, number);
        f.sleep_for(number as usize + 1);
    }
    assert!((0..300).all(|number| has_written(&file, number)));
}

#[test]
fn more_writes_than_there_are_places_all_end() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    (0..150).for_each(|number| f.write(&file, 4096, number));
    f.sleep_for(150);
    let mut done = f.done();
    done.sort_unstable();
    assert_eq!(done, (0..150).collect::<Vec<_>>());
    assert!((0..150).all(|number| has_written(&file, number)));
}

#[test]
fn a_write_that_fails_says_why() {
    let Some(mut f) = Fixture::new() else { return };
    let read_only = std::fs::File::open("/proc/self/exe").unwrap();
    f.write(&read_only, 4096, 1);
    f.sleep_for(1);
    assert_eq!(f.events[0].result, -libc::EBADF);
}

#[test]
fn others_are_the_kernels() {
    let Some(mut f) = Fixture::new() else { return };
    let (file, other) = (temp_file(), temp_file());
    f.write(&file, 128 << 10, 0);
    assert!(!f.ring.needs_core(), "long ones");
    f.write(&file, 4096, 40);
    f.write(&other, 4096, 41);
    f.sleep_for(2);
    assert!(has_written(&other, 41) || has_written(&file, 40));
    f.sleep_for(3);
    assert!(has_written(&file, 31) && has_written(&file, 40) && has_written(&other, 41));
    let op = NetOp::Recv { buf: IoBuf::zeroed(8), range: 0..8 };
    f.ring.net(f.far.as_raw_fd(), op, Token::new(Token::FRONT_END, 60));
    f.write(&file, 4096, 50);
    assert!(!f.ring.needs_core(), "those beside another client's");
    f.sleep_for(4);
    f.events.clear();
    for number in 0..40 {
        f.far.write_all(b"x").unwrap();
        f.ring.net(f.near.as_raw_fd(), NetOp::PollIn, Token::new(Token::FRONT_END, number));
        f.sleep_for(1);
        f.events.clear();
    }
    f.write(&file, 4096, 50);
    assert!(!f.ring.needs_core(), "those of a front end that waits for a descriptor");
    f.sleep_for(1);
    f.ring = uring::UringRing::open(SystemClock::new()).unwrap();
    (f.near, f.far) = UnixStream::pair().unwrap();
    f.events.clear();
    f.be_alone();
    f.write(&file, 4096, 50);
    assert!(!f.ring.needs_core(), "those of a thread that may not return");
    f.sleep_for(1);
}

#[test]
fn a_write_waits_for_one_round_only() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    f.write(&file, 4096, 1);
    f.ring.end_round();
    assert!(f.ring.needs_core());
    f.ring.end_round();
    assert!(!f.ring.needs_core(), "the kernel has it");
    f.sleep_for(1);
    f.write(&file, 4096, 2);
    f.ring.set_polling(true);
    assert!(!f.ring.needs_core(), "the owner keeps its core");
    f.ring.set_polling(false);
    f.write(&file, 4096, 3);
    f.ring.submit_all();
    assert!(!f.ring.needs_core(), "all was asked for");
    f.sleep_for(3);
    assert!((1..4).all(|number| has_written(&file, number)));
}

/// The owner comes to its sleep again and again, and never sleeps.
#[test]
fn a_write_is_not_held_while_other_events_come() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    f.write(&file, 4096, 1);
    for round in 0..2 {
        assert!(f.ring.needs_core(), "round {round}");
        f.ring.timer(0, token(50 + round));
        f.ring.submit();
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
    }
    assert!(!f.ring.needs_core(), "the kernel has it");
    f.sleep_for(3);
    assert!(has_written(&file, 1));
}

/// A client that is alone, and whose owner polls: its receive is held, but not for long.
#[test]
fn a_receive_comes_although_a_write_is_under_way() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    f.recv(100);
    f.ring.set_polling(true);
    f.ring.set_polling(false);
    f.write(&file, 4096, 1);
    f.sleep_for(1);
    f.far.write_all(b"y").unwrap();
    f.sleep_for(2);
    assert_eq!(f.events.iter().map(|e| e.token.value()).sum::<u64>(), 101);
    f.write(&file, 4096, 2);
    let deadline = SystemClock::new().now() + 1;
    f.ring.wait(Some(deadline));
    f.sleep_for(3);
}

#[test]
fn a_ring_that_is_dropped_ends_its_helper() {
    let Some(mut f) = Fixture::new() else { return };
    let file = temp_file();
    f.write(&file, 4096, 0);
    f.sleep_for(1);
    f.write(&file, 4096, 1);
    let before = threads_called("drystone-write");
    assert!(before > 0);
    drop(f);
    for _ in 0..1000 {
        if threads_called("drystone-write") < before {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the helper goes on");
}
