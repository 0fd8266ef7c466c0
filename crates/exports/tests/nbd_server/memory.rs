//! The memory of requests: one budget for all connections.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use drystone_core::Op;
use drystone_core::clock::ManualClock;
use drystone_core::sync::LockCounters;
use drystone_exports::nbd::proto::{Command, CommandFlags};
use drystone_exports::nbd::server::Settings;
use drystone_exports::server::Budget;
use drystone_testkit::nbd::{ClientError, Connection};

use crate::disk::Disk;
use crate::served::{Served, export, until};

const LONG: u64 = 16 << 20;
const NONE: CommandFlags = CommandFlags::empty();

/// A disk behind two data threads, and the budget, in which one request of [`LONG`] bytes finds
/// room.
struct Fixture {
    disk: Arc<Disk>,
    budget: Arc<Budget>,
    user: Arc<LockCounters>,
    served: Served,
}

impl Fixture {
    fn new(settings: Settings) -> Self {
        Self::of(settings, |_| {})
    }

    fn of(settings: Settings, change: impl FnOnce(&mut Disk)) -> Self {
        let mut disk = Disk::new(LONG as usize, 512);
        change(Arc::get_mut(&mut disk).unwrap());
        disk.bytes.lock().unwrap().fill(7);
        // An eighth of it is for first requests.
        let budget = Budget::new(LONG + (3 << 20));
        let exports = vec![export("vol", disk.clone())];
        let served = Served::with_budget(exports, 2, settings, budget.clone());
        Fixture { disk, budget, user: LockCounters::new(ManualClock::new(1)), served }
    }

    /// A client that has asked for a long read.
    fn asks(&self, at: usize) -> Connection<UnixStream> {
        let mut client = self.served.client(at);
        client.send(Command::Read, NONE, 0, LONG, &[]).unwrap();
        client
    }

    /// The same, of one that waits behind so many others.
    fn asks_behind(&self, others: usize, at: usize) -> Connection<UnixStream> {
        let client = self.asks(at);
        until("it waits", || self.waiting() == others + 1);
        client
    }

    fn free(&self) -> u64 {
        self.budget.free(&self.user)
    }

    fn waiting(&self) -> usize {
        self.budget.waiting(&self.user)
    }

    fn reads(&self) -> usize {
        self.disk.count(Op::Read)
    }
}

fn takes(client: &mut Connection<UnixStream>) {
    let data = client.receive().unwrap().data;
    assert!(data.len() as u64 == LONG && data.iter().all(|byte| *byte == 7));
}

#[test]
fn requests_of_all_connections_wait_for_one_budget() {
    let all = Fixture::new(Settings::default());
    let mut first = all.asks(0);
    until("the first is read", || all.reads() == 1);
    let mut others: Vec<_> = (0..4).map(|number| all.asks_behind(number, number % 2)).collect();
    assert_eq!((all.reads(), all.budget.total() - all.free()), (1, LONG));
    // A client that wants little is served all the same, on each thread.
    for at in 0..2 {
        let mut small = all.served.client(at);
        assert_eq!(small.read(4096, 65536, NONE).unwrap(), [7; 65536]);
        small.write(0, &[7; 65536], NONE).unwrap();
    }
    assert_eq!((all.reads(), all.waiting()), (3, 4));
    takes(&mut first);
    others.iter_mut().for_each(takes);
    assert_eq!(all.waiting(), 0);
    drop((first, others));
    until("all of it is free again", || all.free() == all.budget.total());
}

/// Four that ask for much and take nothing keep nobody of the same device from his requests.
#[test]
fn long_replies_that_nobody_takes_hold_up_no_short_request() {
    let all = Fixture::new(Settings::default());
    let mut greedy = vec![all.asks(0)];
    until("the first is read", || all.reads() == 1);
    (0..3).for_each(|number| greedy.push(all.asks_behind(number, number % 2)));
    for at in 0..2 {
        let mut other = all.served.client(at);
        assert_eq!(other.read(0, 1 << 20, NONE).unwrap().len(), 1 << 20);
        other.write(0, &[7; 1 << 20], NONE).unwrap();
    }
    assert_eq!((all.reads(), all.waiting()), (3, 3), "nobody was cut off for that");
    greedy.iter_mut().for_each(takes);
}

#[test]
fn what_an_idle_client_has_goes_back() {
    let all = Fixture::new(Settings::default());
    let mut client = all.served.client(0);
    for _ in 0..8 {
        client.send(Command::Read, NONE, 0, 1 << 20, &[]).unwrap();
    }
    (0..8).for_each(|_| assert_eq!(client.receive().unwrap().data.len(), 1 << 20));
    until("all of it is free again", || all.free() == all.budget.total());
    assert_eq!(client.read(0, 512, NONE).unwrap(), [7; 512]);
}

/// One that asks for something all the time, and for little, keeps no idle memory that another
/// waits for.
#[test]
fn what_a_client_that_is_never_quiet_has_idle_goes_back() {
    let all = Fixture::new(Settings::default());
    let mut busy = all.served.client(0);
    assert_eq!(busy.read(0, 4 << 20, NONE).unwrap().len(), 4 << 20);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                busy.command(Command::Flush, 0, 0, NONE).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let answer = all.asks(1).receive();
        over.store(true, Relaxed);
        assert_eq!(answer.unwrap().data.len(), LONG as usize);
    });
}

/// Requests for parts of blocks that fail, one after the other, take more than the budget together.
fn unaligned_ones_that_fail(change: impl FnOnce(&mut Disk)) {
    let all = Fixture::of(Settings::default(), change);
    let mut client = all.served.client(0);
    let long = (1 << 20) + 1;
    let data = vec![1; long];
    let fails = |result| assert!(matches!(result, Err(ClientError::Failed { .. })), "{result:?}");
    for _ in 0..LONG as usize / long + 4 {
        fails(client.write(1, &data, NONE));
        fails(client.command(Command::WriteZeroes, 1, long as u64, NONE));
    }
    until("all of it is free again", || all.free() == all.budget.total());
}

#[test]
fn parts_of_blocks_that_cannot_be_read_give_their_memory_back() {
    unaligned_ones_that_fail(|disk| disk.fails = true);
}

#[test]
fn parts_of_blocks_that_cannot_be_written_give_their_memory_back() {
    unaligned_ones_that_fail(|disk| disk.fails_writes = true);
    // Zeroes by writes have a piece of 1 MiB.
    unaligned_ones_that_fail(|disk| (disk.fails_writes, disk.zeroes) = (true, false));
}

#[test]
fn who_goes_while_it_waits_does_no_harm() {
    let all = Fixture::new(Settings::default());
    let mut first = all.asks(0);
    until("the first is read", || all.reads() == 1);
    let second = all.asks_behind(0, 0);
    let mut third = all.asks_behind(1, 1);
    drop(second);
    takes(&mut first);
    takes(&mut third);
}

#[test]
fn who_takes_nothing_is_cut_off_when_others_wait() {
    let all = Fixture::new(Settings { stall_timeout_ns: 1_000_000_000, ..Settings::default() });
    let mut stalled = all.asks(0);
    until("it is read", || all.reads() == 1);
    let mut waiting = all.asks(1);
    takes(&mut waiting);
    assert!(stalled.receive().is_err(), "cut off before its reply was whole");
}

/// A few bytes now and then are not enough.
#[test]
fn who_takes_little_is_cut_off_when_others_wait() {
    let all = Fixture::new(Settings { stall_timeout_ns: 2_000_000_000, ..Settings::default() });
    let mut slow = all.asks(0).into_stream();
    until("it is read", || all.reads() == 1);
    let mut waiting = all.asks(1);
    let is_served = Arc::new(AtomicBool::new(false));
    let served = is_served.clone();
    let slow = std::thread::spawn(move || {
        let (mut taken, mut some) = (0, [0; 10 << 10]);
        while !served.load(Relaxed) && slow.read_exact(&mut some).is_ok() {
            taken += some.len() as u64;
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut rest = Vec::new();
        let _ = slow.read_to_end(&mut rest);
        taken + rest.len() as u64
    });
    takes(&mut waiting);
    is_served.store(true, Relaxed);
    assert!(slow.join().unwrap() < LONG, "cut off before its reply was whole");
}

#[test]
fn who_waits_for_the_device_is_not_cut_off() {
    let all = Fixture::new(Settings { stall_timeout_ns: 1_000_000_000, ..Settings::default() });
    // As long as a limit might keep it: some sweeps.
    all.disk.delay_ns.store(1, Relaxed);
    all.disk.least_ns.store(3_500_000_000, Relaxed);
    let mut first = all.asks(0);
    until("the first is with the device", || all.reads() == 1);
    let mut second = all.asks_behind(0, 1);
    takes(&mut first);
    takes(&mut second);
}
