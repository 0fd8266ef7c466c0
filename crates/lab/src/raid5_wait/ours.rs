//! Drystone's own array: each writer submits bios in a context of its own, and no thread sleeps
//! until it syncs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, IoBuf, Sector};
use drystone_stack::live::{LiveDevice, LiveStack, SleepFn};

use super::array::{Array, Counts, Opening, Writer};
use super::fill::fill;
use super::scene::{ARRAY, Members};

/// See the module's text.
struct Ours {
    stack: LiveStack,
    live: Arc<LiveDevice>,
    contexts: Arc<ContextSet>,
    written: AtomicU64,
}

/// Opens new members with an array over them.
///
/// # Errors
/// When one cannot be opened.
pub(super) fn ours(opening: &Opening<'_>) -> anyhow::Result<Box<dyn Array>> {
    let contexts = opening.at.contexts.clone();
    let stack = opening.scene.open(true, opening.at)?;
    if opening.scene.members == Members::Ram {
        fill(opening.scene, &opening.scene.members_of(&stack), &contexts)?;
    }
    let live = stack.devices().into_iter().find(|live| live.name == ARRAY);
    let live = live.context("the stack has no array")?;
    Ok(Box::new(Ours { stack, live, contexts, written: AtomicU64::new(0) }))
}

impl Array for Ours {
    fn writer(&self) -> Box<dyn Writer + '_> {
        let mut cx = self.contexts.open(Engine::Auto).expect("a context for each thread");
        let device = cx.open(&self.live.device).expect("the array is open");
        let (idle, data) = (BioList::new(), Arc::from([]));
        Box::new(OursWriter { array: self, cx, device, idle, data, in_flight: 0, failed: false })
    }

    fn counts(&self) -> Counts {
        let counts = self.live.array.as_ref().map(|array| array.counts()).unwrap_or_default();
        Counts { woken: counts.woken, freed: counts.freed, written: self.written.load(Relaxed) }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let pause: SleepFn = Box::new(|ns| thread::sleep(Duration::from_nanos(ns)));
        let stopped = self.stack.stop_arrays(&pause);
        debug_assert!(stopped.is_ok(), "{stopped:?}");
    }
}

/// A writer that keeps its bios, with their data, for the next file. Like the pages of a page
/// cache, the data is not copied for a submission.
struct OursWriter<'a> {
    array: &'a Ours,
    cx: Context,
    device: ChannelId,
    /// Bios that have ended, each with a part of `data`; `user_data` says where it begins there.
    idle: BioList,
    data: Arc<[u8]>,
    in_flight: usize,
    failed: bool,
}

impl Writer for OursWriter<'_> {
    fn write(&mut self, sector: u64, data: &Arc<[u8]>, range: Range<usize>) {
        if !Arc::ptr_eq(&self.data, data) {
            self.wait_for_all();
            (self.idle, self.data) = (BioList::new(), data.clone());
        }
        let mut bio = self.take_idle(&range).unwrap_or_else(|| {
            let mut bio = Bio::write(Sector(0), IoBuf::from_slice(&data[range.clone()]));
            bio.user_data = range.start as u64;
            bio
        });
        bio.sector = Sector(sector);
        self.submit(bio);
        self.reap();
    }

    fn wait(&mut self) -> Result<(), String> {
        self.wait_for_all();
        if self.failed { Err("I/O of the array failed".to_owned()) } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), String> {
        self.wait_for_all();
        self.submit(Bio::flush());
        self.wait()
    }
}

impl OursWriter<'_> {
    fn take_idle(&mut self, range: &Range<usize>) -> Option<Box<Bio>> {
        for _ in 0..self.idle.len() {
            let bio = self.idle.pop()?;
            if (bio.user_data, bio.bytes) == (range.start as u64, range.len() as u64) {
                return Some(bio);
            }
            self.idle.push(bio);
        }
        None
    }

    fn submit(&mut self, bio: Box<Bio>) {
        let mut bios = BioList::new();
        bios.push(bio);
        self.cx.submit(self.device, &mut bios);
        self.in_flight += 1;
    }

    fn wait_for_all(&mut self) {
        while self.in_flight > 0 {
            if !self.reap() {
                self.cx.wait(None);
            }
        }
    }

    fn reap(&mut self) -> bool {
        let mut ended = BioList::new();
        self.in_flight -= self.cx.reap(&mut ended);
        let any = !ended.is_empty();
        while let Some(bio) = ended.pop() {
            self.failed |= !bio.status.is_ok();
            if !bio.is_flush() {
                self.array.written.fetch_add(bio.bytes, Relaxed);
                self.idle.push(bio);
            }
        }
        any
    }
}
