//! The write-intent bitmap as contexts use it: a word for each chunk of the members, which says
//! whether the members know that the chunk may be out of step.
//!
//! ```text
//!          writer               manager, durable             writer
//! CLEAN ------------> WANTED ---------------------> SET <-----------------> SET, used
//!   ^                                                |     manager's pass
//!   '------------------------------------------------'
//!      manager's next pass, no write is under way
//! ```
//!
//! Invariants:
//! * A stripe's first write to a member begins in the turn that found its word `SET` and used, or
//!   marked the word so. While a word is `SET`, the bit on the members is set.
//! * `SET` becomes `CLEAN` only if no writer used the word between two passes of the manager, nor
//!   during the second one. Within that pass the manager takes the turn at every shard and finds no
//!   write under way. It finds each write that began earlier; a write that begins later has marked
//!   the word as used.
//! * The manager, which also sets the bits, clears a bit on the members only after the bit's word
//!   is `CLEAN`. So it never clears the bit of a word that is `SET` again.
//!
//! Memory order: the manager releases `SET` after the bit is durable, and writers acquire it. If a
//! pass takes back the mark that a word is used, every turn at a shard sees so once the next pass
//! has had that shard's turn.

use crate::layout::STRIPE_SECTORS;
use drystone_core::mistake;
use drystone_core::primitive::{AtomicU8, Ordering::*};

const STATE: u8 = 0b11;
const CLEAN: u8 = 0;
const WANTED: u8 = 1;
const SET: u8 = 2;
/// A writer has used the word since the manager's last pass.
const USED: u8 = 1 << 2;
/// The chunk has to be synchronised.
const NEEDED: u8 = 1 << 3;

/// Whether a stripe may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The bit on the members is set.
    Known,
    /// The manager has been asked already.
    Awaited,
    /// The manager must be asked.
    New,
}

/// See the module's text. Words stand for at least one stripe each.
pub(crate) struct Bitmap {
    chunk_sectors: u64,
    words: Box<[AtomicU8]>,
}

impl Bitmap {
    /// A bitmap for `sectors` member sectors, with all words clean. `chunk_sectors` is a power of
    /// two.
    pub(crate) fn new(sectors: u64, chunk_sectors: u64) -> Self {
        let chunk_sectors = chunk_sectors.max(STRIPE_SECTORS);
        debug_assert!(chunk_sectors.is_power_of_two());
        let words = (0..sectors.div_ceil(chunk_sectors)).map(|_| AtomicU8::new(CLEAN));
        Bitmap { chunk_sectors, words: words.collect() }
    }

    /// The member sectors that one word stands for.
    pub(crate) fn chunk_sectors(&self) -> u64 {
        self.chunk_sectors
    }

    /// The number of words.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// The word of a member sector.
    #[inline]
    pub(crate) fn word_of(&self, sector: u64) -> usize {
        (sector >> self.chunk_sectors.trailing_zeros()) as usize
    }

    /// May a stripe of this word be written? The caller has the turn at the stripe's shard; the
    /// answer holds for that turn.
    #[inline]
    pub(crate) fn intend(&self, word: usize) -> Intent {
        if self.is_in_use(word) {
            return Intent::Known;
        }
        self.intend_slowly(word, self.words[word].load(Acquire))
    }

    /// As [`Bitmap::intend`] if the answer is [`Intent::Known`] and the word stays as it is.
    #[inline]
    pub(crate) fn is_in_use(&self, word: usize) -> bool {
        self.words[word].load(Acquire) & (STATE | USED) == SET | USED
    }

    #[cold]
    fn intend_slowly(&self, word: usize, mut seen: u8) -> Intent {
        loop {
            let (next, intent) = match seen & STATE {
                CLEAN => (WANTED, Intent::New),
                WANTED => return Intent::Awaited,
                _ if mistake!("bitmap_used") => return Intent::Known,
                _ => (SET | USED, Intent::Known),
            };
            match self.change(word, seen, next) {
                Ok(()) => return intent,
                Err(now) => seen = now,
            }
        }
    }

    /// Change a word from `seen` to `next`, and keep its `NEEDED` bit. Fails with the word's value
    /// if that is not `seen` any more.
    fn change(&self, word: usize, seen: u8, next: u8) -> Result<(), u8> {
        let next = next | seen & NEEDED;
        self.words[word].compare_exchange(seen, next, AcqRel, Acquire).map(|_| ())
    }

    /// As [`Bitmap::change`], but from any state.
    fn replace(&self, word: usize, next: u8) {
        let mut seen = self.words[word].load(Acquire);
        while let Err(now) = self.change(word, seen, next) {
            seen = now;
        }
    }

    /// Note that the bit is durable on the members. Only the manager calls this and the functions
    /// below.
    pub(crate) fn set(&self, word: usize) {
        match mistake!("bitmap_set") {
            true => self.words[word].store(SET | USED, Relaxed),
            false => self.replace(word, SET | USED),
        }
    }

    /// Note that the bit was already set on the members at the start.
    pub(crate) fn found_set(&self, word: usize) {
        self.replace(word, SET);
    }

    /// May the bit be cleared, if no write is under way? Not if a writer used the word since the
    /// previous call, nor if the chunk must be synchronised.
    pub(crate) fn is_unused(&self, word: usize) -> bool {
        match self.words[word].load(Acquire) {
            SET => true,
            seen if seen & (STATE | USED) == SET | USED => {
                // A failure means that the word has changed meanwhile: the next pass looks again.
                let _ = self.change(word, seen, SET);
                false
            }
            _ => false,
        }
    }

    /// Keep the bit, because a write is under way. A synchronisation's write may have no bit to
    /// keep.
    pub(crate) fn keep(&self, word: usize) {
        if self.is_set(word) {
            let _ = self.intend(word);
        }
    }

    /// Mark a word as clean. False if a writer has used it meanwhile.
    pub(crate) fn clear(&self, word: usize) -> bool {
        self.change(word, SET, CLEAN).is_ok()
    }

    /// The bit is set on the members.
    pub(crate) fn is_set(&self, word: usize) -> bool {
        self.words[word].load(Acquire) & STATE == SET
    }

    /// Note whether the chunk must be synchronised. Its bit is not cleared before that is done.
    pub(crate) fn set_needed(&self, word: usize, on: bool) {
        match on {
            true => self.words[word].fetch_or(NEEDED, AcqRel),
            false => self.words[word].fetch_and(!NEEDED, AcqRel),
        };
    }

    /// The chunk has to be synchronised.
    pub(crate) fn is_needed(&self, word: usize) -> bool {
        self.words[word].load(Acquire) & NEEDED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_set_once_and_cleared_after_two_passes() {
        let bitmap = Bitmap::new(129, 64);
        assert_eq!((bitmap.len(), bitmap.word_of(127), bitmap.word_of(128)), (3, 1, 2));
        assert_eq!([bitmap.intend(1), bitmap.intend(1)], [Intent::New, Intent::Awaited]);
        assert!(!bitmap.is_set(1) && !bitmap.is_unused(1));
        bitmap.set(1);
        assert!(bitmap.is_set(1) && !bitmap.is_set(0));
        assert_eq!(bitmap.intend(1), Intent::Known);
        assert!(!bitmap.is_unused(1), "it was used");
        assert!(bitmap.is_unused(1));
        assert_eq!((bitmap.intend(1), bitmap.clear(1)), (Intent::Known, false));
        assert!(!bitmap.is_unused(1) && bitmap.is_unused(1) && bitmap.clear(1));
        assert_eq!(bitmap.intend(1), Intent::New);
    }

    #[test]
    fn what_is_needed_is_not_cleared() {
        let bitmap = Bitmap::new(128, 8);
        bitmap.found_set(2);
        bitmap.set_needed(2, true);
        assert_eq!(bitmap.intend(2), Intent::Known);
        assert!(!bitmap.is_unused(2) && !bitmap.is_unused(2) && bitmap.is_needed(2));
        bitmap.set_needed(2, false);
        assert!(bitmap.is_unused(2));
        bitmap.keep(2);
        assert!(!bitmap.clear(2) && bitmap.is_set(2));
        bitmap.keep(3);
        assert_eq!(bitmap.intend(3), Intent::New, "what is synchronised asks for nothing");
    }

    #[test]
    fn chunks_smaller_than_a_stripe_share_a_word() {
        let bitmap = Bitmap::new(64, 1);
        assert_eq!((bitmap.len(), bitmap.chunk_sectors()), (8, 8));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use drystone_core::primitive::AtomicBool;
    use loom::sync::Mutex;
    use std::sync::Arc;

    /// A word, its bit on the members, and a stripe of that chunk in each of two shards.
    struct Model {
        bitmap: Bitmap,
        on_disk: AtomicBool,
        shards: [Mutex<Stripe>; 2],
    }

    #[derive(Default)]
    struct Stripe {
        is_being_written: bool,
    }

    impl Model {
        fn new(is_set: bool) -> Arc<Self> {
            let bitmap = Bitmap::new(8, 8);
            if is_set {
                bitmap.found_set(0);
            }
            let shards = [Mutex::default(), Mutex::default()];
            Arc::new(Model { bitmap, on_disk: AtomicBool::new(is_set), shards })
        }

        /// A write in two turns. False if the write has to wait.
        fn write(&self, shard: usize) -> bool {
            let mut stripe = self.shards[shard].lock().unwrap();
            if self.bitmap.intend(0) != Intent::Known {
                return false;
            }
            assert!(self.on_disk.load(Relaxed), "it is written before the members know");
            stripe.is_being_written = true;
            drop(stripe);
            loom::thread::yield_now();
            let mut stripe = self.shards[shard].lock().unwrap();
            assert!(self.on_disk.load(Relaxed), "the members know no longer");
            stripe.is_being_written = false;
            true
        }

        /// Two passes of the manager.
        fn clear(&self) {
            for _ in 0..2 {
                if !self.bitmap.is_unused(0) {
                    continue;
                }
                if self.is_busy() && !drystone_core::mutated!("bitmap_look") {
                    self.bitmap.keep(0);
                }
                if self.bitmap.clear(0) {
                    self.on_disk.store(false, Relaxed);
                }
            }
        }

        fn is_busy(&self) -> bool {
            self.shards.iter().any(|shard| shard.lock().unwrap().is_being_written)
        }

        /// The manager sets the bit that a writer asked for.
        fn set(&self) {
            self.on_disk.store(true, Relaxed);
            self.bitmap.set(0);
        }
    }

    fn check(is_set: bool, manager: impl Fn(&Model) + Send + Sync + Copy + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Model::new(is_set);
            let other = model.clone();
            let writer = loom::thread::spawn(move || other.write(1));
            let third = model.clone();
            let managing = loom::thread::spawn(move || manager(&third));
            model.write(0);
            writer.join().unwrap();
            managing.join().unwrap();
            assert_eq!(model.on_disk.load(Relaxed), model.bitmap.is_set(0));
        });
    }

    /// The manager clears the bit while writers go on: either the bit stays, or the writers ask
    /// again.
    #[test]
    fn loom_bitmap_clears() {
        check(true, |model| model.clear());
    }

    /// The same when the bit was set a moment ago.
    #[test]
    fn loom_bitmap_sets() {
        check(false, |model| {
            // A writer asked for the bit.
            if model.bitmap.intend(0) == Intent::New || !model.bitmap.is_set(0) {
                model.set();
            }
            model.clear();
        });
    }
}
