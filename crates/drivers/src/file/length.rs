//! Whether a file still has the length of its device, for contexts that read and write it at once.
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
//! * The file had `bytes` bytes when that was stored: one that is shorter was cut off by somebody
//!   else.
//! * `cut_short` is never taken back.
//! * The mark of a queue is set from before a change of the file is issued until the length was
//!   looked at after every change that the queue has issued ended.
//! * So no read is acknowledged with the hole that a write has made. The mark was set before the
//!   write, and the kernel did the write before the read that met it: the reader finds the mark
//!   set, and looks itself; or finds it cleared, and then sees what was noted before that (Release
//!   and Acquire). It loads the marks first.
//! * While an opening before this one is in use by queues ([`Doubt`]), everybody looks at the
//!   length himself: what they change they note with the length of that opening. A queue looks at
//!   this one before it leaves the other.
//! * A mark is written by its queue alone, twice for a row of changes. A queue that found none free
//!   counts as one whose mark is set.

use super::backing::Backing;
use crossbeam_utils::CachePadded;
use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use drystone_core::{mistake, mutated};
use std::sync::Arc;

/// Queues that have a mark of their own. Few for the model checker, which follows each.
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

    /// True if somebody saw that it was cut short.
    pub(crate) fn was_cut_short(&self) -> bool {
        self.cut_short.load(Relaxed)
    }

    /// Look whether it is cut short now, or was before. Never waits.
    pub(crate) fn look(&self, backing: &dyn Backing) -> bool {
        if !self.was_cut_short() && backing.is_shorter_than(self.bytes()) {
            self.cut_short.store(true, Relaxed);
        }
        self.was_cut_short()
    }

    /// Look as far as that needs a system call: whether what has ended must not be acknowledged.
    fn look_if_changed(&self, backing: &dyn Backing) -> bool {
        let before = mutated!("length_marks_last") && self.was_cut_short();
        if self.may_have_changed() {
            return self.look(backing);
        }
        if mutated!("length_marks_last") { before } else { self.was_cut_short() }
    }

    /// True if a queue may have changed the file and not looked at its length since.
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

    /// The number of a mark that had no owner.
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

/// As long as it lives the marks of a length do not tell all: the file is changed by others.
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

/// The mark of a queue, as its owner has it.
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

    /// A change of the file is issued next.
    pub(crate) fn change_begins(&mut self) {
        self.in_flight += 1;
        if !self.is_set {
            self.set(true);
        }
    }

    /// A change of the file has ended, well or not.
    pub(crate) fn change_ended(&mut self) {
        self.in_flight -= 1;
    }

    /// For what has ended, changes and reads, before it is acknowledged: whether the file was cut
    /// short. Makes a system call only where somebody may have changed the file since the last
    /// look.
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
        // If nobody has looked since, all others go on to do it.
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
