//! Requests in flight together, over several sessions on several threads, on a disk whose I/O ends
//! in any order: beside an obvious model of what each byte may be.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::disk::{Disk, Handle};
use crate::kernel::*;

const SIZE: usize = 32 << 10;
const SESSIONS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    /// Of a byte that its place in the batch tells.
    Write,
    Zero,
}

/// A change to a range of bytes, and the session through which it is made.
#[derive(Clone, Debug)]
struct Step {
    session: usize,
    what: What,
    start: usize,
    end: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![2 => Just(What::Read), 6 => Just(What::Write), 1 => Just(What::Zero)];
    // Few blocks, so that requests meet.
    let start = prop_oneof![
        2 => (0_usize..6).prop_map(|n| n * 512),
        1 => (0_usize..3).prop_map(|n| n * 4096),
        3 => 0_usize..3000,
        1 => SIZE - 900..SIZE,
    ];
    let length = prop_oneof![
        3 => 1_usize..600,
        3 => (1_usize..8).prop_map(|n| n * 512),
        2 => Just(4096_usize),
        1 => 1_usize..9000,
    ];
    (0..SESSIONS, what, start, length).prop_map(|(session, what, start, length)| {
        let end = (start + length).min(SIZE);
        Step { session, what, start, end }
    })
}

fn value(place: usize) -> u8 {
    place as u8 + 1
}

fn send(kernel: &mut Kernel, place: usize, step: &Step) -> u64 {
    let (start, length) = (step.start as u64, step.end - step.start);
    let (opcode, body) = match step.what {
        What::Read => (READ, read(0, start, length as u32)),
        What::Write => (WRITE, write(0, start, &vec![value(place); length])),
        What::Zero => (FALLOCATE, fallocate(start, length as u64, 16)),
    };
    kernel.send(step.session, opcode, 1, &body)
}

/// The bytes that requests of the batch leave at `at`.
fn left_at(batch: &[Step], at: usize) -> Vec<u8> {
    let writes = batch
        .iter()
        .enumerate()
        .filter(|(_, step)| step.what != What::Read && (step.start..step.end).contains(&at));
    writes.map(|(place, step)| if step.what == What::Zero { 0 } else { value(place) }).collect()
}

/// A batch that is in flight together: each byte is then what one of those left that wrote it, or
/// as before if none did.
fn run_batch(kernel: &mut Kernel, disk: &Disk, batch: &[Step]) -> Result<(), TestCaseError> {
    let before = disk.bytes.lock().unwrap().clone();
    let send = |(place, step)| send(kernel, place, step);
    let sent: Vec<_> = batch.iter().enumerate().map(send).collect();
    for (step, unique) in batch.iter().zip(sent) {
        let answer = kernel.wait_for(step.session, unique);
        let answer = answer.map_err(|errno| TestCaseError::fail(format!("errno {errno}")))?;
        if step.what == What::Read {
            prop_assert_eq!(answer.len(), step.end - step.start);
            let wrong = (step.start..)
                .zip(&answer)
                .find(|(at, byte)| before[*at] != **byte && !left_at(batch, *at).contains(*byte));
            prop_assert_eq!(wrong, None, "{:?}", step);
        }
    }
    let after = disk.bytes.lock().unwrap();
    let wrong = (0..SIZE).find(|at| match &left_at(batch, *at)[..] {
        [] => after[*at] != before[*at],
        left => !left.contains(&after[*at]),
    });
    prop_assert_eq!(wrong, None, "the first byte that nobody wrote so");
    Ok(())
}

fn run(block: u32, batches: &[(Vec<Step>, bool)]) -> Result<(), TestCaseError> {
    let disk = Disk::new(SIZE, block);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), SESSIONS);
    for (batch, slow) in batches {
        disk.delay_ns.store(if *slow { 300_000 } else { 0 }, Relaxed);
        run_batch(&mut kernel, &disk, batch)?;
    }
    kernel.end();
    Ok(())
}

/// Writes of parts of a block lose nothing that others write to the rest of it at the same time.
#[test]
fn neighbours_in_a_block_lose_nothing() {
    let config = Config { cases: 48, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let batch = proptest::collection::vec(step(), 1..24);
    let batches = proptest::collection::vec((batch, prop::bool::weighted(0.8)), 1..10);
    let blocks = prop_oneof![Just(512_u32), Just(4096)];
    runner.run(&(blocks, batches), |(block, batches)| run(block, &batches)).unwrap();
}
