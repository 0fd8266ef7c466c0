//! Files on both engines and on two file systems.

mod data;
mod fault_ring;
mod faults;
mod opening;
mod pipes;
mod reopening;
mod retired;

use super::*;
use crate::testing::{ENGINES, Rig, pattern};
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioFlags, IoBuf, Op, Sector, Status};
use std::path::Path;
use tempfile::TempDir;

const NONE: BioFlags = BioFlags::empty();
const MIB: u64 = 1 << 20;

/// A directory on a disk's file system, and one in memory.
fn places() -> [TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()]
}

fn options(dir: &Path, size_bytes: Option<u64>) -> FileOptions {
    FileOptions { path: dir.join("disk.img"), size_bytes, ..FileOptions::default() }
}

fn file(dir: &Path, size_bytes: u64) -> File {
    File::open(&options(dir, Some(size_bytes))).expect("a new file")
}

/// Calls `test` with a fresh file of 4 MiB on each engine and file system.
fn everywhere(test: impl Fn(Rig, &Path)) {
    for engine in ENGINES {
        for dir in places() {
            test(Rig::new(file(dir.path(), 4 * MIB), engine), dir.path());
        }
    }
}
