//! Requests in flight together, over several sessions on several threads, on a disk whose I/O ends in any
//! order: beside an obvious model.

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
    Write(u8),
    Zero,
}

/// What is done to a range of bytes, and through which session.
#[derive(Clone, Debug)]
struct Step {
    session: usize,
    what: What,
    start: usize,
    end: usize,
}

/// Ranges that follow one another, so that none overlap, though they share blocks.
fn batch() -> impl Strategy<Value = Vec<Step>> {
    let what = prop_oneof![2 => Just(What::Read), 5 => (1_u8..).prop_map(What::Write), 1 => Just(What::Zero)];
    // Most ends are near the borders of blocks.
    let length =
        prop_oneof![3 => 1_usize..600, 2 => (1_usize..8).prop_map(|n| n * 512), 1 => 1_usize..6000];
    let gap = prop_oneof![6 => Just(0_usize), 1 => 0_usize..700];
    let step = (0..SESSIONS, what, length, gap);
    (0_usize..2000, proptest::collection::vec(step, 1..24)).prop_map(|(first, steps)| {
        let mut at = first / 512 * 512 + if first % 3 == 0 { first % 512 } else { 0 };
        let mut batch = Vec::new();
        for (session, what, length, gap) in steps {
            let (start, end) = (at + gap, (at + gap + length).min(SIZE));
            if start < end {
                batch.push(Step { session, what, start, end });
            }
            at = end;
        }
        batch
    })
}

fn send(kernel: &mut Kernel, step: &Step) -> u64 {
    let (start, length) = (step.start as u64, step.end - step.start);
    let (opcode, body) = match step.what {
        What::Read => (READ, read(0, start, length as u32)),
        What::Write(byte) => (WRITE, write(0, start, &vec![byte; length])),
        What::Zero => (FALLOCATE, fallocate(start, length as u64, 16)),
    };
    kernel.send(step.session, opcode, 1, &body)
}

fn run(block: u32, batches: &[(Vec<Step>, bool)]) -> Result<(), TestCaseError> {
    let disk = Disk::new(SIZE, block);
    let mut kernel = Kernel::file(Arc::new(Handle(disk.clone())), SESSIONS);
    let mut model = vec![0; SIZE];
    for (batch, slow) in batches {
        disk.delay_ns.store(if *slow { 300_000 } else { 0 }, Relaxed);
        let sent: Vec<_> = batch.iter().map(|step| send(&mut kernel, step)).collect();
        for (step, unique) in batch.iter().zip(sent) {
            let answer = kernel.wait_for(step.session, unique);
            let answer = answer.map_err(|errno| TestCaseError::fail(format!("errno {errno}")))?;
            let bytes = &mut model[step.start..step.end];
            match step.what {
                What::Read => prop_assert!(answer == bytes, "{step:?}"),
                What::Write(byte) => {
                    prop_assert_eq!(u32_at(&answer, 0) as usize, bytes.len());
                    bytes.fill(byte);
                }
                What::Zero => bytes.fill(0),
            }
        }
        let disk = disk.bytes.lock().unwrap();
        let wrong = (0..SIZE).find(|at| disk[*at] != model[*at]);
        prop_assert_eq!(wrong, None, "the first byte that is not what was written");
    }
    kernel.end();
    Ok(())
}

/// Writes of parts of a block lose nothing that others write to the rest of it at the same time.
#[test]
fn neighbours_in_a_block_lose_nothing() {
    let mut runner =
        TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let batches = proptest::collection::vec((batch(), prop::bool::weighted(0.7)), 1..12);
    let blocks = prop_oneof![Just(512_u32), Just(4096)];
    runner.run(&(blocks, batches), |(block, batches)| run(block, &batches)).unwrap();
}
