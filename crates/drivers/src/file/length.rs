//! Checks that a file still has the length of its device, while contexts read and write it
//! concurrently.
//!
//! ```text
//!   context that writes                        context that reads
//!   its mark set                               reads (the file is longer: zeroes of a hole)
//!   writes (the file is longer, with a hole)   loads all marks: one is set? looks at the length
//!   it ended: looks at the length              loads whether the file was cut short
//!   notes that the file was cut short
//!   its mark cleared (Release)
//! ```
//!
//! Invariants:
//! * The file had `bytes` bytes when that number was stored, so a shorter file was cut by another
//!   program.
//! * `cut_short` is never cleared.
//! * The mark of a queue is set before it issues a change of the file. It is cleared only after all
//!   issued changes have ended and the queue has then checked the length.
//! * So no acknowledged read returns the hole that a write has left. The writer set its mark before
//!   the write, and the kernel did the write before the read that met the hole. The reader loads
//!   the marks first. It finds the mark set and checks the length itself, or finds it cleared and
//!   then sees what the writer noted before (Release and Acquire).
//! * While queues still use the previous opening ([`Doubt`]), every queue checks the length itself,
//!   because the changes on that opening set no marks here. A queue checks this length before it
//!   leaves the previous opening.
//! * Only its queue writes a mark, twice for a series of changes. A queue that found no free mark
//!   counts as one whose mark is set.

use super::backing::Backing;
use crossbeam_utils::CachePadded;
use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use drystone_core::{mistake, mutated};
use std::sync::Arc;

/// The number of marks. The model checker gets few, because it follows each.
const MARKS: usize = if cfg!(loom) { 2 } else { 64 };

/// The length of a file, and the queues that may be changing it.
#[derive(Debug)]
pub(crate) struct Length {
    bytes: AtomicU64,
    cut_short: AtomicBool,
    /// The marks that have an owner, a bit for each.
    owned: AtomicU64,
    /// Queues that have no mark.
    without_mark: AtomicU32,
    marks: Box<[CachePadded<AtomicBool>; MARKS]>,
}

impl Length {
    /// The length of a file of so many bytes.
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Length {
            bytes: AtomicU64::new(bytes),
            cut_short: AtomicBool::new(false),
            owned: AtomicU64::new(0),
            without_mark: AtomicU32::new(0),
            marks: Box::new(std::array::from_fn(|_| CachePadded::new(AtomicBool::new(false)))),
        })
    }

    /// The bytes that the file has, or had before it was cut short.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// The file has grown to so many bytes.
    pub(crate) fn note_growth(&self, bytes: u64) {
        self.bytes.store(bytes, Release);
    }

    /// True if any thread saw that the file was cut short.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.cut_short.load(Relaxed)
    }

    /// Check whether the file is cut short now, or was before. Never waits.
    pub(crate) fn look(&self, backing: &dyn Backing) -> bool {
        if !self.was_cut_short() && backing.is_shorter_than(self.bytes()) {
            self.cut_short.store(true, Relaxed);
        }
        self.was_cut_short()
    }

    /// Check the length if it may have changed. True if the ended requests must not be
    /// acknowledged.
    fn look_if_changed(&self, backing: &dyn Backing) -> bool {
        let before = mutated!("length_marks_last") && self.was_cut_short();
        if self.may_have_changed() {
            return self.look(backing);
        }
        if mutated!("length_marks_last") { before } else { self.was_cut_short() }
    }

    /// True if a queue may have changed the file and not checked its length since.
    fn may_have_changed(&self) -> bool {
        let mut owned = self.owned.load(Acquire);
        while owned != 0 {
            if self.marks[owned.trailing_zeros() as usize].load(Acquire) {
                return true;
            }
            owned &= owned - 1;
        }
        self.without_mark.load(Acquire) > 0
    }

    /// Claims a free mark. Returns its number.
    fn claim(&self) -> Option<usize> {
        let mut owned = self.owned.load(Relaxed);
        while (owned.trailing_ones() as usize) < MARKS {
            let number = owned.trailing_ones() as usize;
            match self.owned.compare_exchange(owned, owned | 1 << number, Acquire, Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => owned = now,
            }
        }
        self.without_mark.fetch_add(1, Relaxed);
        None
    }
}

/// While this value lives, the marks of a length are incomplete, because queues change the file by
/// another opening.
#[derive(Debug)]
pub(crate) struct Doubt(Arc<Length>);

impl Doubt {
    /// For a length that no queue has yet.
    pub(crate) fn of(length: Arc<Length>) -> Self {
        length.without_mark.fetch_add(1, Relaxed);
        Doubt(length)
    }
}

impl Drop for Doubt {
    fn drop(&mut self) {
        let order = if mutated!("length_doubt") { Relaxed } else { Release };
        self.0.without_mark.fetch_sub(1, order);
    }
}

/// A queue's handle of its mark.
#[derive(Debug)]
pub(crate) struct Mark {
    length: Arc<Length>,
    /// `None` if there was none left.
    number: Option<usize>,
    /// Changes that were issued and have not ended.
    in_flight: u32,
    is_set: bool,
}

impl Mark {
    /// The mark of a queue that is opened.
    pub(crate) fn new(length: Arc<Length>) -> Self {
        Mark { number: length.claim(), length, in_flight: 0, is_set: false }
    }

    /// Note that a change of the file is issued next.
    pub(crate) fn change_begins(&mut self) {
        self.in_flight += 1;
        if !self.is_set {
            self.set(true);
        }
    }

    /// Note that a change of the file has ended, successful or not.
    pub(crate) fn change_ended(&mut self) {
        self.in_flight -= 1;
    }

    /// Check the length for ended changes and reads, before they are acknowledged. True if the file
    /// was cut short. Makes a system call only if a queue may have changed the file since the last
    /// check.
    pub(crate) fn look(&mut self, backing: &dyn Backing) -> bool {
        let may_clear = self.is_set && (self.in_flight == 0 || mutated!("length_in_flight"));
        if may_clear && mutated!("length_look_late") {
            self.set(false);
        }
        let is_cut = match mistake!("read_beside_cut") && !self.is_set {
            true => false,
            false => self.length.look_if_changed(backing),
        };
        if may_clear {
            self.set(false);
        }
        is_cut
    }

    fn set(&mut self, is_set: bool) {
        self.is_set = is_set;
        if let Some(number) = self.number {
            let order = if mutated!("length_clear") { Relaxed } else { Release };
            self.length.marks[number].store(is_set, order);
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The mark stays set if no check followed: the other queues then check themselves.
        if self.is_set {
            return;
        }
        let order = if mutated!("length_leave") { Relaxed } else { Release };
        let _ = match self.number {
            Some(number) => self.length.owned.fetch_and(!(1 << number), order),
            None => u64::from(self.length.without_mark.fetch_sub(1, order)),
        };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_queue_counts_with_a_mark_or_without() {
        let length = Length::new(4096);
        let mut marks: Vec<_> = (0..MARKS).map(|_| Mark::new(length.clone())).collect();
        assert!(!length.may_have_changed());
        marks[MARKS - 1].change_begins();
        assert!(length.may_have_changed());
        marks[MARKS - 1].change_ended();
        marks[MARKS - 1].set(false);
        assert!(!length.may_have_changed());
        let more = [Mark::new(length.clone()), Mark::new(length.clone())];
        assert!(more.iter().all(|mark| mark.number.is_none()) && length.may_have_changed());
        drop(more);
        assert!(!length.may_have_changed());
        marks.remove(5);
        let again = Mark::new(length.clone());
        assert_eq!(again.number, Some(5));
    }

    #[test]
    fn a_change_that_nobody_looked_at_is_one_for_ever() {
        let length = Length::new(4096);
        let mut mark = Mark::new(length.clone());
        mark.change_begins();
        drop(mark);
        assert!(length.may_have_changed());
        assert_eq!(Mark::new(length.clone()).number, Some(1));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::testing::all_data;
    use super::*;
    use loom::sync::Mutex;
    use std::io;
    use std::os::fd::RawFd;

    /// A file of 4 blocks: its length, which the kernel changes and reads one at a time.
    struct Blocks(Mutex<u64>);

    const BLOCKS: u64 = 4;

    impl Backing for Blocks {
        all_data!();

        fn descriptor(&self) -> RawFd {
            -1
        }

        fn size(&self) -> io::Result<u64> {
            Ok(*self.0.lock().unwrap())
        }
    }

    /// A device of such a file.
    struct Model {
        file: Blocks,
        length: Arc<Length>,
    }

    impl Model {
        /// The first block is written, which changes no length, beside the third one. Each end
        /// is told; then the queue is closed.
        fn write(&self, mut mark: Mark) {
            mark.change_begins();
            mark.change_begins();
            mark.change_ended();
            mark.look(&self.file);
            let was_cut = {
                let mut length = self.file.0.lock().unwrap();
                let was_cut = *length < BLOCKS;
                *length = (*length).max(3);
                was_cut
            };
            mark.change_ended();
            assert!(mark.look(&self.file) || !was_cut, "a write that made a hole is acknowledged");
        }

        /// The second block is read, whole.
        fn read(&self, mark: &mut Mark) {
            let length = *self.file.0.lock().unwrap();
            let is_hole = (2..BLOCKS).contains(&length);
            assert!(mark.look(&self.file) || !is_hole, "a read of a hole is acknowledged");
        }
    }

    fn check(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    /// A queue reads while another thread does `write`, and a third one cuts the file to a block.
    fn read_beside_a_cut(
        length: Arc<Length>,
        reader: &mut Mark,
        write: impl FnOnce(&Model) + 'static,
    ) {
        let model = Arc::new(Model { file: Blocks(Mutex::new(BLOCKS)), length });
        let [writing, cutting] = [model.clone(), model.clone()];
        let writing = loom::thread::spawn(move || write(&writing));
        let cutting = loom::thread::spawn(move || *cutting.file.0.lock().unwrap() = 1);
        model.read(reader);
        writing.join().unwrap();
        cutting.join().unwrap();
    }

    /// The other queue has a mark or not.
    fn check_queue(has_mark: bool) {
        check(move || {
            let length = Length::new(BLOCKS);
            let mut reader = Mark::new(length.clone());
            let idle = (!has_mark).then(|| Mark::new(length.clone()));
            let writer = Mark::new(length.clone());
            assert_eq!(writer.number.is_some(), has_mark);
            read_beside_a_cut(length, &mut reader, |model| model.write(writer));
            drop(idle);
        });
    }

    /// The file is opened again: one queue reads on the new opening while another one writes on the
    /// one before, and leaves it.
    #[test]
    fn loom_length_of_a_file_opened_again() {
        check(|| {
            let (before, length) = (Length::new(BLOCKS), Length::new(BLOCKS));
            let doubt = Doubt::of(length.clone());
            let (mut reader, writer) = (Mark::new(length.clone()), Mark::new(before));
            read_beside_a_cut(length, &mut reader, |model| {
                model.write(writer);
                if !mutated!("length_left_unseen") {
                    model.length.look(&model.file);
                }
                drop(doubt);
            });
        });
    }

    #[test]
    fn loom_length_of_a_queue_with_a_mark() {
        check_queue(true);
    }

    #[test]
    fn loom_length_of_a_queue_without_a_mark() {
        check_queue(false);
    }
}
