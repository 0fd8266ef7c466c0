//! Cutting bios: parts cover the parent's memory, and end it once.

use super::{Call, ContextSet, Env};
use crate::bio::Bio;
use crate::buf::IoBuf;
use crate::clock::SystemClock;
use crate::op::{BioFlags, Op};
use crate::ring::Engine;
use crate::status::Status;
use crate::units::Sector;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A part, and where in its parent it must be.
struct Part {
    bio: Box<Bio>,
    sector: u64,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Case {
    op: Op,
    /// Lengths of the parent's segments, in sectors; the bio begins some bytes into them.
    segments: Vec<usize>,
    /// The parent is divided first, as a volume does it: where.
    divided: Option<u64>,
    /// Which part to cut, where, and how far to move it before (a target's remapping).
    cuts: Vec<(usize, u64, u64)>,
    /// In which order the parts end, and how.
    ends: Vec<(usize, u8)>,
}

fn cases() -> impl Strategy<Value = Case> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Discard)];
    let cut = (any::<usize>(), any::<u64>(), 0..1u64 << 40);
    let end = (any::<usize>(), 0..8u8);
    (
        op,
        prop::collection::vec(1..6usize, 1..5),
        any::<Option<u64>>(),
        prop::collection::vec(cut, 0..10),
        prop::collection::vec(end, 12),
    )
        .prop_map(|(op, segments, divided, cuts, ends)| Case {
            op,
            segments,
            divided,
            cuts,
            ends,
        })
}

fn parent(case: &Case, memory: &IoBuf) -> Box<Bio> {
    let (mut at, mut pieces) = (0, Vec::new());
    for sectors in &case.segments {
        // A gap after each piece, so that a part that reads over its end is found out.
        pieces.push(memory.segment(at..at + sectors * 512));
        at += sectors * 512 + 512;
    }
    let mut bio = match case.op {
        Op::Discard => Bio::without_data(Op::Discard, Sector(0), at as u64 / 1024 * 512 + 512),
        // SAFETY: the memory outlives the bio, which no driver touches.
        op => unsafe { Bio::from_raw_segments(op, Sector(0), &pieces) },
    };
    (bio.sector, bio.user_data, bio.group) = (Sector(1 << 20), 99, 3);
    // Left over from its last use.
    bio.status = Status::Medium;
    bio.flags = BioFlags::SYNC;
    bio
}

fn bytes_of(bio: &Bio) -> Vec<usize> {
    let mut addresses = Vec::new();
    if bio.op.has_data() {
        bio.each_segment(|s| addresses.extend(s.ptr.addr()..s.ptr.addr() + s.len));
    }
    addresses
}

fn cut(env: &mut Env, parts: &mut Vec<Part>, (which, at, moved): (usize, u64, u64)) {
    let index = which % parts.len();
    let sectors = parts[index].bytes / 512;
    if sectors < 2 {
        return;
    }
    let mut part = parts.remove(index);
    part.sector = part.sector.wrapping_add(moved);
    part.bio.sector = Sector(part.sector);
    let bytes = (1 + at % (sectors - 1)) * 512;
    let (front, rest) = env.split(part.bio, bytes);
    let (sector, offset) = (part.sector, part.offset);
    let rest = Part {
        bio: rest,
        sector: sector + bytes / 512,
        offset: offset + bytes,
        bytes: part.bytes - bytes,
    };
    parts.insert(index, rest);
    parts.insert(index, Part { bio: front, sector, offset, bytes });
}

fn check_parts(parts: &[Part], case: &Case, memory: &[usize]) {
    let mut covered = Vec::new();
    for part in parts {
        let bio = &part.bio;
        assert_eq!((bio.sector.0, bio.bytes), (part.sector, part.bytes));
        assert_eq!((bio.op, bio.group, bio.user_data), (case.op, 3, 99));
        assert!(bio.flags.contains(BioFlags::SYNC));
        if case.op.has_data() {
            assert_eq!(bytes_of(bio).len() as u64, part.bytes);
        }
        covered.extend(bytes_of(bio));
    }
    assert_eq!(covered, memory, "the parts cover the parent's memory, in order");
}

fn status(choice: u8) -> Status {
    [Status::NoSpace, Status::IoError, Status::Timeout]
        .get(usize::from(choice))
        .copied()
        .unwrap_or(Status::Ok)
}

/// `bio` in two parts, or one, made as a volume makes them.
fn divide(env: &mut Env, bio: Box<Bio>, at: u64) -> Vec<Part> {
    let (sector, mut parts) = (bio.sector.0, env.divide(bio));
    let bytes = parts.left();
    let first = if bytes > 512 { (1 + at % (bytes / 512 - 1)) * 512 } else { bytes };
    let mut made = Vec::new();
    for (offset, bytes) in [(0, first), (first, bytes - first)] {
        if bytes > 0 {
            let bio = parts.next(env, bytes);
            made.push(Part { bio, sector: sector + offset / 512, offset, bytes });
        }
    }
    env.divided(parts);
    made
}

/// Boxes of parts that have ended are used for other bios at once.
fn use_idle_boxes(env: &mut Env) {
    let other = IoBuf::zeroed(8 * 512);
    let parts = divide(env, Bio::read(Sector(7), other), 3);
    for part in parts {
        let (front, rest) = env.split(part.bio, 512);
        env.end_with(rest, Status::Ok);
        env.end_with(front, Status::Ok);
    }
    drop(env.done.pop());
}

fn check(env: &mut Env, case: &Case, memory: &IoBuf) {
    let bio = parent(case, memory);
    let (addresses, bytes) = (bytes_of(&bio), bio.bytes);
    let sector = bio.sector.0;
    let mut parts = match case.divided {
        Some(at) => divide(env, bio, at),
        None => vec![Part { bio, sector, offset: 0, bytes }],
    };
    case.cuts.iter().for_each(|c| cut(env, &mut parts, *c));
    let split = parts.len() > 1 || case.divided.is_some();
    assert!(parts.iter().all(|p| p.bio.is_part() == split));
    if split {
        check_parts(&parts, case, &addresses);
    }
    let mut first_error = Status::Ok;
    for (which, choice) in &case.ends {
        assert!(env.done.is_empty(), "ended before its last part");
        let part = parts.remove(which % parts.len());
        let left: Vec<_> = parts.iter().map(|part| bytes_of(&part.bio)).collect();
        let status = status(*choice);
        if first_error.is_ok() {
            first_error = status;
        }
        env.end_with(part.bio, status);
        if parts.is_empty() {
            break;
        }
        use_idle_boxes(env);
        assert!(parts.iter().map(|part| bytes_of(&part.bio)).eq(left), "memory has moved");
    }
    assert!(parts.is_empty(), "the case has an end for each part");
    let bio = env.done.pop().expect("ended with its last part");
    assert!(env.done.is_empty(), "and once");
    assert_eq!((bio.status, bio.user_data, bio.bytes), (first_error, 99, bytes));
    assert!(!bio.is_part());
    assert_eq!(bytes_of(&bio), addresses);
}

#[test]
fn parts_end_their_parent_once_and_cover_its_memory() {
    let mut context = ContextSet::new(SystemClock::new()).open(Engine::Plain).unwrap();
    let memory = IoBuf::zeroed(4 * 6 * 512);
    let context = std::cell::RefCell::new(&mut context);
    let config = Config { failure_persistence: None, cases: 500, ..Config::default() };
    TestRunner::new(config)
        .run(&cases(), |case| {
            let context = context.borrow_mut();
            check(&mut Call::begin(&context.handle).core().env, &case, &memory);
            Ok(())
        })
        .unwrap();
}
