//! The array in Linux's design: writers put their pages into stripes, and one thread does the rest.

#![expect(clippy::disallowed_types, reason = "a laboratory joins its threads, and serves nobody")]

use std::ops::Range;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use anyhow::Context as _;
use drystone_core::ContextSet;
use drystone_core::context::Handle;
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::*};
use drystone_core::ring::Engine;
use drystone_core::sync::{Lock, LockClass};

use super::array::{Array, Counts, Opening, Ticket, Writer};
use super::cache::{Cache, HASH_LOCKS, STRIPE_SECTORS, STRIPES, Scheme, User};
use super::raid5d::Raid5d;
use super::shared::{PAGE, Page, Shared};
use super::wait::Sleeper;

/// See the module's text.
struct Shaped {
    shared: Arc<Shared>,
    /// Wakes raid5d.
    handle: Arc<Handle>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the array with one wait queue.
///
/// # Errors
/// When a context or a thread cannot be had.
pub(super) fn before(opening: &Opening<'_>) -> anyhow::Result<Box<dyn Array>> {
    Ok(Box::new(open(Scheme::Baseline, opening)?))
}

/// Opens the array with a queue for each hash lock.
///
/// # Errors
/// When a context or a thread cannot be had.
pub(super) fn mailed(opening: &Opening<'_>) -> anyhow::Result<Box<dyn Array>> {
    Ok(Box::new(open(Scheme::Patched, opening)?))
}

fn open(scheme: Scheme, opening: &Opening<'_>) -> anyhow::Result<Shaped> {
    let registry = opening.at.locks.clone();
    let mut cx = ContextSet::counted_by(registry.clone()).open(Engine::Auto)?;
    let handle = cx.handle().clone();
    let members = opening.members.iter().map(|member| cx.open(member));
    let members = members.collect::<Result<Vec<_>, _>>()?;
    let shared = Arc::new(Shared {
        cache: Cache::new(scheme, HASH_LOCKS, STRIPES),
        layout: opening.layout,
        flushes: Lock::new(LockClass::Other, Vec::new()),
        written: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        own: registry.counters(),
        registry,
    });
    let thread = Raid5d::new(shared.clone(), cx, members);
    let thread = Builder::new().name("raid5d".to_owned()).spawn(|| thread.run());
    Ok(Shaped { shared, handle, thread: Some(thread.context("no thread for the array")?) })
}

impl Array for Shaped {
    fn writer(&self) -> Box<dyn Writer + '_> {
        let locks = self.shared.registry.counters();
        let user = User { locks, sleeper: Arc::new(Sleeper::default()) };
        let held = Vec::with_capacity(STRIPES);
        Box::new(ShapedWriter { array: self, user, held, ticket: Arc::default() })
    }

    fn counts(&self) -> Counts {
        Counts {
            woken: self.shared.cache.woken(),
            freed: self.shared.cache.freed(),
            written: self.shared.written.load(Relaxed) * PAGE as u64,
        }
    }

    fn rescue(&self) -> usize {
        self.shared.cache.rescue(&self.shared.own)
    }
}

impl Drop for Shaped {
    fn drop(&mut self) {
        self.shared.stop.store(true, Release);
        self.handle.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        debug_assert!(!matches!(ended, Some(Err(_))), "raid5d ended by a panic");
    }
}

/// A writer for one thread. It holds the stripes of a bio until the whole bio is submitted or it
/// has to wait, like a plug, so that a stripe gets all of its pages before raid5d handles it.
struct ShapedWriter<'a> {
    array: &'a Shaped,
    user: User,
    held: Vec<u32>,
    ticket: Arc<Ticket>,
}

impl Writer for ShapedWriter<'_> {
    fn write(&mut self, sector: u64, data: &Arc<[u8]>, range: Range<usize>) {
        let shared = &self.array.shared;
        for (n, from) in range.step_by(PAGE).enumerate() {
            let place = shared.layout.map_sector(sector + n as u64 * STRIPE_SECTORS);
            let held = &mut self.held;
            let unplug = || self.array.release_all(held);
            let number = shared.cache.get(&self.user, place.sector, unplug);
            self.ticket.add();
            let ticket = self.ticket.clone();
            let page = Page { role: place.role.0, data: data.clone(), from, ticket };
            shared.cache.stripe(number).add(page, &self.user.locks);
            self.held.push(number);
        }
        self.array.release_all(&mut self.held);
    }

    fn wait(&mut self) -> Result<(), String> {
        self.ticket.wait(&self.user.locks);
        match self.array.shared.failed.load(Relaxed) {
            true => Err("I/O of a member failed".to_owned()),
            false => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), String> {
        self.wait()?;
        self.ticket.add();
        self.array.shared.flushes.lock(&self.user.locks).push(self.ticket.clone());
        self.array.handle.wake();
        self.wait()
    }
}

impl Shaped {
    fn release_all(&self, held: &mut Vec<u32>) {
        let wake = held.drain(..).filter(|number| self.shared.cache.release(*number)).count();
        if wake > 0 {
            self.handle.wake();
        }
    }
}
