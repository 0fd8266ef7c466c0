//! The cases that are measured: arrays, file systems and loads, as in the mail's tables.

use super::served::Task;

/// Bytes of a file of the load.
pub(super) const FILE_BYTES: u64 = 4 << 20;
/// The mail's threads.
const THREADS: u32 = 64;
/// Room for the metadata of file systems: a quarter and this.
const ROOM_BYTES: u64 = 1 << 30;

/// The device below the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    /// An array of so many members of RAM.
    Ram(u32),
    /// An array of so many simulated disks.
    Disks(u32),
    /// No array: a loop device of one file on tmpfs.
    Ceiling,
}

/// A line of the mail's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) below: Below,
    pub(super) file_system: &'static str,
    pub(super) threads: u32,
    /// True if each file is synced before it is closed.
    pub(super) sync: bool,
    /// The least bytes of all files of a run.
    pub(super) bytes: u64,
}

/// All cases in which each of `only` occurs in the name; `bytes` for each run and `most` threads.
pub(super) fn cases(bytes: u64, most: u32, only: &[String]) -> Vec<Case> {
    let case = |below, file_system, threads, sync| Case {
        below,
        file_system,
        threads: most.min(threads),
        sync,
        bytes,
    };
    let mut cases = Vec::new();
    for below in [Below::Ram(4), Below::Ram(9), Below::Ceiling] {
        for file_system in ["btrfs", "ext4", "xfs"] {
            cases.push(case(below, file_system, THREADS, true));
        }
        cases.push(case(below, "btrfs", 1, false));
    }
    for file_system in ["btrfs", "xfs"] {
        cases.push(case(Below::Disks(3), file_system, THREADS, true));
    }
    cases.push(case(Below::Disks(3), "xfs", 1, true));
    cases.retain(|case| only.iter().all(|word| case.name().contains(word.as_str())));
    cases
}

impl Case {
    /// Its name, as in the mail as far as that distinguishes cases.
    pub(super) fn name(&self) -> String {
        let members = self.members().map(|members| format!("{members} ")).unwrap_or_default();
        let Case { threads, file_system, .. } = self;
        format!("{threads}t-{members}{}-{file_system}-{}", self.device(), self.sync_name())
    }

    /// The kind of its members.
    pub(super) fn device(&self) -> &'static str {
        match self.below {
            Below::Ram(_) => "ram",
            Below::Disks(_) => "simulated disks",
            Below::Ceiling => "tmpfs",
        }
    }

    pub(super) fn members(&self) -> Option<u32> {
        match self.below {
            Below::Ram(members) | Below::Disks(members) => Some(members),
            Below::Ceiling => None,
        }
    }

    /// The mail's word.
    pub(super) fn sync_name(&self) -> &'static str {
        if self.sync { "fsyncBeforeClose" } else { "NoSync" }
    }

    pub(super) fn variants(&self) -> &'static [&'static str] {
        match self.below {
            Below::Ceiling => &["ceiling"],
            _ => &["before", "mailed", "ours"],
        }
    }

    /// Files that each thread writes.
    pub(super) fn files_each(&self) -> u64 {
        self.bytes.div_ceil(FILE_BYTES * u64::from(self.threads)).max(1)
    }

    /// Files of a run.
    pub(super) fn files(&self) -> u64 {
        self.files_each() * u64::from(self.threads)
    }

    /// Bytes of the device below the file system, about.
    pub(super) fn device_bytes(&self) -> u64 {
        self.files() * FILE_BYTES * 5 / 4 + ROOM_BYTES
    }

    /// The task of the child that serves a variant; `None` without an array.
    pub(super) fn task(&self, variant: &str) -> Option<Task> {
        let members = self.members()?;
        let member_bytes = (self.device_bytes() / u64::from(members - 1)).next_multiple_of(1 << 20);
        let disks = matches!(self.below, Below::Disks(_));
        Some(Task { variant: variant.to_owned(), disks, members, member_bytes })
    }
}
