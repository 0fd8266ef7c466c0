//! A driver that records its requests, answers as the test says, and gives requests back when the
//! test says so.

use crate::{Driver, DriverQueue, HwQueues, Issue, Request, Slots};
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::{
    BioFlags, ChannelId, Env, Error, Extent, Limits, Op, Priority, Result, Status,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// The driver's answer to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// It is done.
    Done(Status),
    /// Take it, until the test gives it back.
    Hold,
    /// Busy until the given time.
    Busy(u64),
}

/// A request as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) context: u32,
    pub(super) op: Op,
    pub(super) sector: u64,
    pub(super) bytes: u64,
    pub(super) flags: BioFlags,
    pub(super) bios: usize,
    pub(super) segments: u32,
    pub(super) priority: Priority,
}

struct Held {
    key: (u32, u32),
    seen: Seen,
    message: Arc<Message>,
}

#[derive(Default)]
struct Script {
    seen: Vec<Seen>,
    refused: Vec<Seen>,
    answers: VecDeque<Answer>,
    otherwise: Option<Answer>,
    held: Vec<Held>,
    given: BTreeMap<(u32, u32), Status>,
    timed_out: Vec<u64>,
    refreshes: usize,
    poll_queues: BTreeMap<u32, Option<u32>>,
    bad: BTreeMap<u64, Status>,
}

impl Script {
    /// The status with which a request ends: `status`, unless one of its sectors is bad.
    fn end_of(&self, seen: &Seen, status: Status) -> Status {
        let end = seen.sector + seen.bytes.div_ceil(512);
        match self.bad.range(seen.sector..end).next() {
            Some((_, bad)) if status.is_ok() => *bad,
            _ => status,
        }
    }
}

/// The test's orders to the driver, and the requests that the driver has seen.
pub(crate) struct Stage {
    script: Mutex<Script>,
    pub(crate) size_bytes: AtomicU64,
    pub(super) no_discard: AtomicBool,
}

impl Stage {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Stage {
            script: Mutex::default(),
            size_bytes: AtomicU64::new(1 << 30),
            no_discard: AtomicBool::new(false),
        })
    }

    /// Give this answer to the next request after those with scripted answers.
    pub(super) fn next(&self, answer: Answer) {
        self.script.lock().unwrap().answers.push_back(answer);
    }

    /// Give this answer to every request without a scripted one; `Done(Ok)` at first.
    pub(super) fn otherwise(&self, answer: Answer) {
        self.script.lock().unwrap().otherwise = Some(answer);
    }

    /// From now on a request that touches `sector` ends with `status`.
    pub(super) fn spoil(&self, sector: u64, status: Status) {
        self.script.lock().unwrap().bad.insert(sector, status);
    }

    /// The requests taken so far.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.script.lock().unwrap().seen.clone()
    }

    /// Sectors of the requests that were answered busy.
    pub(super) fn refused(&self) -> Vec<u64> {
        self.script.lock().unwrap().refused.iter().map(|s| s.sector).collect()
    }

    /// The number of times that driver queues were informed of a change.
    pub(crate) fn refreshes(&self) -> usize {
        self.script.lock().unwrap().refreshes
    }

    /// Sectors of the requests that were reported as too slow.
    pub(super) fn timed_out(&self) -> Vec<u64> {
        self.script.lock().unwrap().timed_out.clone()
    }

    /// The requests that the driver holds, in the order in which it took them.
    pub(super) fn held_requests(&self) -> Vec<Seen> {
        self.script.lock().unwrap().held.iter().map(|held| held.seen).collect()
    }

    /// The poll queue that context `context` uses.
    pub(super) fn poll_queue_of(&self, context: u32) -> Option<u32> {
        self.script.lock().unwrap().poll_queues[&context]
    }

    pub(super) fn held(&self) -> usize {
        self.script.lock().unwrap().held.len()
    }

    /// Give back held request number `index`. False if there is none.
    pub(super) fn give_back(&self, index: usize, status: Status) -> bool {
        let mut script = self.script.lock().unwrap();
        if index >= script.held.len() {
            return false;
        }
        let held = script.held.remove(index);
        let status = script.end_of(&held.seen, status);
        script.given.insert(held.key, status);
        drop(script);
        held.message.send();
        true
    }
}

/// The properties that the driver reports.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(super) limits: Limits,
    pub(super) hw: HwQueues,
    /// The driver reports that it completes requests at once.
    pub(super) completes_inline: bool,
}

impl Setup {
    /// `depth` tags of one hardware queue; every operation supported.
    pub(crate) fn depth(depth: u32) -> Self {
        let limits = Limits {
            max_discard_bytes: 1 << 30,
            max_write_zeroes_bytes: 1 << 30,
            ..Limits::default()
        };
        Setup { limits, hw: HwQueues { default: 1, poll: 0, depth }, completes_inline: false }
    }

    pub(super) fn limits(change: impl FnOnce(&mut Limits)) -> Self {
        let mut setup = Self::depth(64);
        change(&mut setup.limits);
        setup
    }

    /// With a volatile write cache, and FUA if `fua`.
    pub(super) fn cache(fua: bool) -> Self {
        Self::limits(|l| (l.write_cache, l.fua) = (true, fua))
    }
}

pub(crate) struct Fake {
    setup: Setup,
    stage: Arc<Stage>,
}

impl Fake {
    pub(crate) fn new(setup: Setup, stage: &Arc<Stage>) -> Self {
        Fake { setup, stage: stage.clone() }
    }
}

impl Driver for Fake {
    type Queue = FakeQueue;

    fn kind(&self) -> &'static str {
        "fake"
    }

    fn size_bytes(&self) -> u64 {
        self.stage.size_bytes.load(SeqCst)
    }

    fn limits(&self) -> Limits {
        let mut limits = self.setup.limits;
        if self.stage.no_discard.load(SeqCst) {
            limits.max_discard_bytes = 0;
        }
        limits
    }

    fn hw_queues(&self) -> HwQueues {
        self.setup.hw
    }

    fn has_settable_hw_queues(&self) -> bool {
        true
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<FakeQueue> {
        let message = |slot: u32| Message::to(env.handle(), channel, slot.into());
        Ok(FakeQueue {
            context: env.context_id().0,
            completes_inline: self.setup.completes_inline,
            stage: self.stage.clone(),
            messages: (0..slots).map(message).collect(),
        })
    }

    fn extents(&self, offset: u64, length: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }

    fn attribute(&self, name: &str) -> Option<String> {
        (name == "no_discard").then(|| self.stage.no_discard.load(SeqCst).to_string())
    }

    fn set_attribute(&self, name: &str, value: &str) -> Option<Result<()>> {
        (name == "no_discard").then(|| {
            let value = value.parse().map_err(|_| Error::invalid("no_discard: true or false"))?;
            self.stage.no_discard.store(value, SeqCst);
            Ok(())
        })
    }
}

pub(crate) struct FakeQueue {
    context: u32,
    completes_inline: bool,
    stage: Arc<Stage>,
    messages: Vec<Arc<Message>>,
}

impl DriverQueue for FakeQueue {
    fn queue_rq(&mut self, _: &mut Env, rq: &mut Request) -> Issue {
        let seen = Seen {
            context: self.context,
            op: rq.unit.op,
            sector: rq.unit.sector.0,
            bytes: rq.unit.bytes,
            flags: rq.unit.flags,
            bios: rq.unit.bios.len(),
            segments: rq.unit.segments,
            priority: rq.unit.priority,
        };
        let mut script = self.stage.script.lock().unwrap();
        let otherwise = script.otherwise.unwrap_or(Answer::Done(Status::Ok));
        let answer = script.answers.pop_front().unwrap_or(otherwise);
        match answer {
            Answer::Busy(until) => {
                script.refused.push(seen);
                return Issue::Busy(until);
            }
            Answer::Done(status) => {
                let status = script.end_of(&seen, status);
                script.seen.push(seen);
                return Issue::Done(status);
            }
            Answer::Hold => script.seen.push(seen),
        }
        let slot = rq.slot();
        let (key, message) = ((self.context, slot), self.messages[slot as usize].clone());
        assert!(script.held.iter().all(|held| held.key != key), "a slot is used twice");
        script.held.push(Held { key, seen, message });
        Issue::Started
    }

    fn refresh(&mut self, _: &mut Env) {
        self.stage.script.lock().unwrap().refreshes += 1;
    }

    fn use_poll_queue(&mut self, _: &mut Env, queue: Option<u32>) {
        let mut script = self.stage.script.lock().unwrap();
        assert!(script.held.iter().all(|held| held.key.0 != self.context), "it was not drained");
        script.poll_queues.insert(self.context, queue);
    }

    fn completes_inline(&self) -> bool {
        self.completes_inline
    }

    fn ring_event(&mut self, _: &mut Env, _: RingEvent, _: &mut Slots, _: &mut Vec<u32>) {}

    fn message(
        &mut self,
        _: &mut Env,
        message: Arc<Message>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        let slot = message.payload() as u32;
        let status = self.stage.script.lock().unwrap().given.remove(&(self.context, slot));
        slots.in_flight(slot).expect("a request in flight").status = status.expect("given back");
        done.push(slot);
    }

    fn timed_out(&mut self, _: &mut Env, rq: &mut Request) {
        self.stage.script.lock().unwrap().timed_out.push(rq.unit.sector.0);
    }
}
