//! The arrays of the exchange: every layout of every level, their guards against the write hole,
//! and the positions of their members.
//!
//! On the host each member is a file of its own. A guest has few disks, so member `n` of every
//! array is a part of its disk `s<n>`, and a device of device-mapper there.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a member.
pub const MEMBER_BYTES: u64 = 16 << 20;
/// Most members of an array.
pub const SLOTS: usize = 5;
/// Bytes of each array that are written and compared: some rows of chunks for every member.
pub const DATA_BYTES: usize = 1 << 20;

/// An array: its level, layout, and further options.
#[derive(Clone, Copy)]
pub struct Shape {
    pub level: u32,
    pub layout: &'static str,
    /// As mdadm's `--consistency-policy`; empty for a plain resync.
    pub policy: &'static str,
}

const fn shape(level: u32, layout: &'static str, policy: &'static str) -> Shape {
    Shape { level, layout, policy }
}

/// All layouts that mdadm knows, both levels of parity, bitmap, partial parity log and neither.
pub const SHAPES: [Shape; 22] = [
    shape(4, "", "bitmap"),
    shape(5, "left-asymmetric", ""),
    shape(5, "right-asymmetric", "bitmap"),
    shape(5, "left-symmetric", "bitmap"),
    shape(5, "left-symmetric", "ppl"),
    shape(5, "right-symmetric", "ppl"),
    shape(5, "parity-first", ""),
    shape(5, "parity-last", "ppl"),
    shape(6, "left-asymmetric", ""),
    shape(6, "right-asymmetric", "bitmap"),
    shape(6, "left-symmetric", "bitmap"),
    shape(6, "right-symmetric", ""),
    shape(6, "parity-first", "bitmap"),
    shape(6, "parity-last", ""),
    shape(6, "ddf-zero-restart", "bitmap"),
    shape(6, "ddf-N-restart", ""),
    shape(6, "ddf-N-continue", "bitmap"),
    shape(6, "left-asymmetric-6", ""),
    shape(6, "right-asymmetric-6", "bitmap"),
    shape(6, "left-symmetric-6", ""),
    shape(6, "right-symmetric-6", "bitmap"),
    shape(6, "parity-first-6", ""),
];

impl Shape {
    pub fn members(&self) -> usize {
        if self.level == 6 { 5 } else { 4 }
    }

    /// The options with which both programs make it.
    pub fn options(&self) -> Vec<String> {
        let mut words = vec![format!("--level={}", self.level), "--chunk=16".to_owned()];
        words.push(format!("--raid-devices={}", self.members()));
        if !self.layout.is_empty() {
            words.push(format!("--layout={}", self.layout));
        }
        words.push(match self.policy {
            "bitmap" => "--bitmap=internal".to_owned(),
            "ppl" => "--consistency-policy=ppl".to_owned(),
            _ => "--consistency-policy=resync".to_owned(),
        });
        words
    }
}

/// An array of the exchange: its number gives its position on the disks.
pub struct Array {
    pub name: String,
    pub shape: Shape,
    number: u64,
    /// The contents of its first [`DATA_BYTES`].
    pub data: Vec<u8>,
}

impl Array {
    /// An array of nothing but zeroes.
    pub fn new(name: String, shape: Shape, number: usize) -> Array {
        Array { name, shape, number: number as u64, data: vec![0; DATA_BYTES] }
    }

    /// The name of member `n` on the host.
    pub fn member(&self, n: usize) -> String {
        format!("{}-{n}", self.name)
    }

    pub fn members(&self) -> impl Iterator<Item = String> {
        (0..self.shape.members()).map(|n| self.member(n))
    }

    /// A member's start on its disk.
    fn start(&self) -> u64 {
        self.number * MEMBER_BYTES
    }

    /// The commands that make the members devices of a guest, `/dev/mapper/NAME`.
    pub fn map(&self) -> String {
        let sectors = (MEMBER_BYTES / 512, self.start() / 512);
        let map = |n| {
            let table = format!("0 {} linear /dev/disk/s{n} {}", sectors.0, sectors.1);
            format!("dmsetup create {} --table '{table}'\n", self.member(n))
        };
        (0..self.shape.members()).map(map).collect()
    }

    /// Carries the members from the guest's disks to files of their own.
    pub fn take_out(&self, folder: &Path) {
        for n in 0..self.shape.members() {
            let to = File::create(folder.join(self.member(n))).expect("a member");
            to.set_len(MEMBER_BYTES).expect("a member");
            copy((&disk(folder, n), self.start()), (&to, 0), false);
        }
    }

    /// Carries the members from their files to the guest's disks.
    pub fn put_in(&self, folder: &Path) {
        for n in 0..self.shape.members() {
            let from = File::open(folder.join(self.member(n))).expect("a member");
            copy((&from, 0), (&disk(folder, n), self.start()), true);
        }
    }
}

/// Makes the guest's disks, with room for so many arrays.
pub fn make_disks(folder: &Path, arrays: usize) {
    for n in 0..SLOTS {
        let disk = File::create(folder.join(format!("s{n}"))).expect("a disk");
        disk.set_len(arrays as u64 * MEMBER_BYTES).expect("a disk");
    }
}

fn disk(folder: &Path, n: usize) -> File {
    let path = folder.join(format!("s{n}"));
    OpenOptions::new().read(true).write(true).open(path).expect("a disk")
}

/// Copies a member. It skips zeroes, unless the target may hold data there.
fn copy(from: (&File, u64), to: (&File, u64), over: bool) {
    let mut bytes = vec![0; 64 << 10];
    for at in (0..MEMBER_BYTES).step_by(bytes.len()) {
        from.0.read_exact_at(&mut bytes, from.1 + at).expect("it can be read");
        if over || bytes.iter().any(|byte| *byte != 0) {
            to.0.write_all_at(&bytes, to.1 + at).expect("it can be written");
        }
    }
}
