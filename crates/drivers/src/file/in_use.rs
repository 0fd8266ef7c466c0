//! The openings of a file that one queue uses: the present one for new requests, and the previous
//! one while requests are in flight on it.
//!
//! Invariants:
//! * A request ends on the opening that it began on.
//! * A queue has at most two openings: a file is not reopened before all queues have left the
//!   previous opening.

use super::length::Mark;
use super::opened::Opened;
use super::shared::FileShared;
use drystone_core::Env;
use drystone_core::ring::RingFile;
use std::sync::Arc;

/// An opening of the file, as a queue uses it.
pub(super) struct InUse {
    opened: Arc<Opened>,
    file: RingFile,
    mark: Mark,
    /// Requests that were begun on it and have not ended.
    in_flight: u32,
}

impl InUse {
    fn new(opened: Arc<Opened>, env: &mut Env) -> Self {
        let (file, mark) = (env.ring.register(opened.fd()), Mark::new(opened.length.clone()));
        InUse { opened, file, mark, in_flight: 0 }
    }

    /// The opening.
    #[inline]
    pub(super) fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The ring's name for the file.
    #[inline]
    pub(super) fn file(&self) -> RingFile {
        self.file
    }

    /// Notes that a request begins, which `changes` the file or not.
    #[inline]
    pub(super) fn begin(&mut self, changes: bool) {
        if changes {
            self.mark.change_begins();
        }
        self.in_flight += 1;
    }

    /// Notes that a change has ended in the kernel.
    #[inline]
    pub(super) fn end_change(&mut self) {
        self.mark.change_ended();
    }

    /// Notes that requests have ended.
    #[inline]
    pub(super) fn end(&mut self, count: u32) {
        self.in_flight -= count;
    }

    /// Checks the length for requests that have ended, before they are acknowledged. True if the
    /// file was cut short.
    #[inline]
    pub(super) fn check_length(&mut self) -> bool {
        self.mark.look(&**self.opened.backing)
    }
}

/// The openings that a queue uses.
pub(super) struct OpeningsInUse {
    now: InUse,
    /// The number of the exchange that brought `now`.
    epoch: u64,
    before: Option<InUse>,
}

impl OpeningsInUse {
    /// The opening that is present now.
    pub(super) fn new(shared: &FileShared, env: &mut Env) -> Self {
        let (epoch, opened) = shared.current(&env.locks);
        OpeningsInUse { now: InUse::new(opened, env), epoch, before: None }
    }

    /// The number of the exchange that new requests begin with.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The opening for new requests.
    #[inline]
    pub(super) fn now(&mut self) -> &mut InUse {
        &mut self.now
    }

    /// True while requests are in flight on the previous opening.
    #[inline]
    pub(super) fn has_two(&self) -> bool {
        self.before.is_some()
    }

    /// The opening that requests of `epoch` began on.
    #[inline]
    pub(super) fn of(&self, epoch: u64) -> &InUse {
        match &self.before {
            Some(before) if epoch != self.epoch => before,
            _ => &self.now,
        }
    }

    /// The same opening, mutable.
    #[inline]
    pub(super) fn of_mut(&mut self, epoch: u64) -> &mut InUse {
        match &mut self.before {
            Some(before) if epoch != self.epoch => before,
            _ => &mut self.now,
        }
    }

    /// Checks the lengths of both openings. Returns whether the present file and the previous one
    /// were cut short.
    pub(super) fn check_lengths(&mut self) -> (bool, bool) {
        let is_cut = self.now.check_length();
        (is_cut, self.before.as_mut().is_some_and(InUse::check_length))
    }

    /// Takes over the new opening after the file was reopened.
    #[cold]
    pub(super) fn follow(&mut self, shared: &FileShared, env: &mut Env) {
        debug_assert!(self.before.is_none(), "all leave an opening before the next exchange");
        let (epoch, opened) = shared.current(&env.locks);
        self.before = Some(std::mem::replace(&mut self.now, InUse::new(opened, env)));
        self.epoch = epoch;
        self.leave(env);
    }

    /// Gives up the previous opening once nothing is in flight on it.
    #[cold]
    pub(super) fn leave(&mut self, env: &mut Env) {
        if let Some(before) = self.before.take_if(|before| before.in_flight == 0) {
            self.now.opened.is_cut_short();
            env.ring.unregister(before.file);
        }
    }

    /// Gives up all openings, because the queue closes.
    pub(super) fn close(&mut self, env: &mut Env) {
        env.ring.unregister(self.now.file);
        if let Some(before) = self.before.take() {
            env.ring.unregister(before.file);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::backing::Backing;
    use super::super::testing::all_data;
    use super::*;
    use crate::testing::with_env;
    use std::io;
    use std::os::fd::{AsRawFd, RawFd};
    use std::path::Path;
    use std::sync::Weak;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    const BYTES: u64 = 1 << 20;

    /// A file whose length the test sets.
    struct Sized(std::fs::File, Arc<AtomicU64>);

    impl Backing for Sized {
        all_data!();

        fn descriptor(&self) -> RawFd {
            self.0.as_raw_fd()
        }

        fn size(&self) -> io::Result<u64> {
            Ok(self.1.load(SeqCst))
        }
    }

    /// An opening, and the length of its file.
    fn opened() -> (Opened, Arc<AtomicU64>) {
        let bytes = Arc::new(AtomicU64::new(BYTES));
        let file = tempfile::tempfile().expect("a file");
        (Opened::over(Box::new(Sized(file, bytes.clone())), BYTES, 512), bytes)
    }

    /// Exchanges the open file for another one.
    fn exchange(shared: &FileShared) -> (Weak<Opened>, Arc<AtomicU64>) {
        let (before, (next, bytes)) = (shared.opened(), opened());
        shared.exchange(&before, next, false).expect("an exchange");
        (Arc::downgrade(&before), bytes)
    }

    fn shared() -> (FileShared, Arc<AtomicU64>) {
        let (opened, bytes) = opened();
        (FileShared::new(Path::new("disk"), None, 512, opened), bytes)
    }

    #[test]
    fn requests_end_on_the_opening_that_they_began_on() {
        with_env(|env| {
            let (shared, _) = shared();
            let mut openings = OpeningsInUse::new(&shared, env);
            let (first, first_fd) = (openings.epoch(), openings.now().opened().fd());
            openings.now().begin(true);
            let (before, _) = exchange(&shared);
            openings.follow(&shared, env);
            assert!(openings.has_two() && openings.epoch() == shared.epoch());
            openings.now().begin(false);
            assert_eq!(openings.of(first).opened().fd(), first_fd);
            assert_ne!(openings.of(openings.epoch()).opened().fd(), first_fd);
            openings.of_mut(first).end_change();
            openings.leave(env);
            assert!(openings.has_two(), "it is not acknowledged yet");
            openings.of_mut(first).end(1);
            openings.leave(env);
            assert!(!openings.has_two() && before.upgrade().is_none(), "the last user closes it");
            assert!(!shared.is_exchanging());
            openings.close(env);
        });
    }

    #[test]
    fn a_queue_without_requests_leaves_at_once() {
        with_env(|env| {
            let (shared, _) = shared();
            let mut openings = OpeningsInUse::new(&shared, env);
            let (before, _) = exchange(&shared);
            assert!(before.upgrade().is_some() && shared.is_exchanging());
            openings.follow(&shared, env);
            assert!(!openings.has_two() && before.upgrade().is_none());
            openings.close(env);
        });
    }

    #[test]
    fn each_file_is_cut_short_by_itself() {
        with_env(|env| {
            let (shared, first_bytes) = shared();
            let mut openings = OpeningsInUse::new(&shared, env);
            let first = openings.epoch();
            openings.now().begin(true);
            let (_, bytes) = exchange(&shared);
            openings.follow(&shared, env);
            openings.now().begin(true);
            assert_eq!(openings.check_lengths(), (false, false));
            first_bytes.store(BYTES - 1, SeqCst);
            assert_eq!(openings.check_lengths(), (false, true));
            bytes.store(BYTES - 1, SeqCst);
            assert_eq!(openings.check_lengths(), (true, true));
            openings.of_mut(first).end_change();
            openings.of_mut(first).end(1);
            openings.leave(env);
            assert_eq!(openings.check_lengths(), (true, false), "there is one file now");
            openings.close(env);
        });
    }

    #[test]
    fn a_queue_that_closes_gives_its_places_in_the_ring_back() {
        with_env(|env| {
            let (shared, _) = shared();
            let mut openings = OpeningsInUse::new(&shared, env);
            openings.now().begin(false);
            exchange(&shared);
            let before = openings.now().file();
            openings.follow(&shared, env);
            let held = [before, openings.now().file()];
            openings.close(env);
            let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            for file in [first, second].map(|file| env.ring.register(file.as_raw_fd())) {
                // The plain engine registers no files; it uses their descriptors.
                if let RingFile::Registered(_) = file {
                    assert!(held.contains(&file), "{file:?} instead of one of {held:?}");
                }
            }
        });
    }
}
