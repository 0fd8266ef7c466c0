//! Serving a stack: devices, data threads, front ends, stopping.
//!
//! Invariants:
//! - Devices are opened before front ends make anything, so that a refused start leaves no socket.
//! - Each data thread has one context and runs one [`Worker`].
//! - Front ends end first, while the data threads answer, because the user of a file may have
//!   something to write.
//! - Nothing is flushed before every worker has returned, so a flush covers all that clients wrote.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use drystone_core::blocking::as_data_thread;
use drystone_core::clock::{Clock, Ns, SystemClock};
use drystone_core::op::OpGroup;
use drystone_core::ring::{self, Engine};
use drystone_core::stats::GroupStats;
use drystone_core::sync::LockCounters;
use drystone_core::{Context, ContextSet, threads};
use drystone_exports::server::{Budget, Inbox, Worker};
use drystone_raid::ShardCounts;
use drystone_stack::StackSpec;
use drystone_stack::live::{LiveStack, OpenEnv, SleepFn};
use drystone_stack::runtime::Runtime;

use crate::descriptors;
use crate::ending::Ending;
use crate::events::Teller;
use crate::front_ends::{self, At, FrontEnd};
use crate::memory;
use crate::output;
use crate::server_handle::{ServerHandle, StopMode};
use crate::stop_limit::{Progress, StopLimit};

/// A stack that is served.
pub struct Server {
    stack: LiveStack,
    inboxes: Vec<Arc<Inbox>>,
    workers: Vec<JoinHandle<()>>,
    front_ends: Vec<Box<dyn FrontEnd>>,
    /// Clients may have come, and written.
    lets_in: bool,
    locks: Arc<LockCounters>,
    /// The pool that buffers of NBD clients' requests are taken from.
    budget: Arc<Budget>,
    /// The lowest number of a descriptor that no client gets.
    descriptors_max: i32,
    ending: Ending,
    /// Dropped when all else has ended.
    _teller: Teller,
}

/// Opens the devices and starts the exports of a stack.
///
/// # Errors A device that cannot be opened or an address that cannot be bound; then nothing is left
/// running.
pub fn start(stack: &StackSpec, ending: &Ending) -> anyhow::Result<Box<dyn ServerHandle>> {
    start_by(stack, ending, SystemClock::new())
}

/// The same by another clock than the machine's, for tests of what takes long.
///
/// # Errors
/// As those of [`start`].
pub fn start_by(
    stack: &StackSpec,
    ending: &Ending,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Box<dyn ServerHandle>> {
    Ok(Box::new(Server::start(stack, ending, clock)?))
}

impl Server {
    /// Opens the stack's devices, starts the data threads, and lets clients in; as little of that
    /// as is left to do once `ending` is asked for. All goes by `clock`.
    ///
    /// # Errors A device that cannot be opened or an address that cannot be bound; then nothing is
    /// left running and no socket is left.
    pub fn start(spec: &StackSpec, ending: &Ending, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let threads = data_threads(spec.server.threads);
        let at = OpenEnv::new(threads, clock);
        at.locks.time_holds(spec.server.lockstat);
        let descriptors = descriptors::raise();
        let short = descriptors::shortage(spec, threads, descriptors);
        short.inspect(|text| output::warning(text));
        let mut front_ends = front_ends::all();
        front_ends.iter_mut().for_each(|front_end| front_end.prepare(spec));
        let stack = LiveStack::open(spec, &at)?;
        tell_notices(&stack);
        warn_of_arrays(&stack);
        let pause_of_start: SleepFn = Box::new(pause);
        stack.await_arrays(&pause_of_start);
        let teller = Teller::start(stack.event_reader(), stack.clock().clone());
        let teller = teller.context("cannot start the thread that reports events")?;
        let opened = open_contexts(stack.contexts(), stack.engine(), threads)?;
        let inboxes = opened.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
        let (locks, workers) = (stack.locks().counters(), Vec::new());
        let (lets_in, descriptors_max) = (false, descriptors::max_of_clients(descriptors));
        let budget = Budget::new(spec.server.memory.unwrap_or_else(memory::for_clients));
        let mut server = Server {
            stack,
            budget,
            inboxes,
            workers,
            front_ends,
            lets_in,
            locks,
            descriptors_max,
            ending: ending.clone(),
            _teller: teller,
        };
        match server.begin(opened, ending) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.give_up();
                Err(error)
            }
        }
    }

    /// Ends a start that has failed.
    fn give_up(mut self) {
        self.front_ends.iter_mut().for_each(|front_end| front_end.leave());
        for inbox in &self.inboxes {
            inbox.stop();
            // The start does not wait for users of files that were mounted already: it reports why
            // it failed.
            inbox.abort();
        }
        let _ = self.end();
        if !self.lets_in {
            self.stack.remove_made_files();
        }
    }

    /// The counts of the stripe caches of its arrays, all together.
    pub fn array_counts(&self) -> ShardCounts {
        let mut sum = ShardCounts::default();
        for live in self.stack.devices() {
            live.array.iter().for_each(|array| sum += array.counts());
        }
        sum
    }

    /// Starts the data threads and the front ends.
    fn begin(&mut self, contexts: Vec<Context>, ending: &Ending) -> anyhow::Result<()> {
        self.each_front_end(ending, |front_end, at| front_end.open(at))?;
        self.run(contexts)?;
        self.lets_in = true;
        self.each_front_end(ending, |front_end, at| front_end.begin(at))
    }

    fn each_front_end(
        &mut self,
        ending: &Ending,
        act: impl Fn(&mut dyn FrontEnd, &At<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (inboxes, descriptors_max) = (&self.inboxes, self.descriptors_max);
        let at = At { stack: &self.stack, inboxes, locks: &self.locks, descriptors_max, ending };
        self.front_ends.iter_mut().try_for_each(|front_end| act(&mut **front_end, &at))
    }

    /// Starts the data threads.
    fn run(&mut self, contexts: Vec<Context>) -> anyhow::Result<()> {
        let mut unregistered = None;
        for (number, mut cx) in contexts.into_iter().enumerate() {
            cx.follow_poll_mode(self.stack.poll_switch().clone());
            cx.own_thread();
            let mut worker = Worker::new(cx, self.inboxes[number].clone());
            worker.share_budget(self.budget.clone());
            if let Err(error) = worker.register_memory(REGISTERED_BYTES) {
                unregistered = Some(error);
            }
            let thread =
                threads::start(&format!("data{number}"), move || as_data_thread(|| worker.run()));
            self.workers.push(thread.context("cannot start a data thread")?);
        }
        if let Some(error) = unregistered {
            output::note(&format!(
                "{error}; buffers stay unregistered, which makes direct I/O slower: see the limit \
                 of locked memory (ulimit -l)"
            ));
        }
        Ok(())
    }

    /// Ends the process although I/O has not ended within a limit.
    fn given_up(&self) -> impl FnOnce(Duration) + Send + use<> {
        let ending = self.ending.clone();
        move |limit| {
            let _held = ending.leave();
            output::error(&format!(
                "I/O did not end in {} s and is given up. Unflushed data may be lost. Arrays that \
                 were not stopped are resynchronised at the next start.",
                limit.as_secs()
            ));
            std::process::exit(1);
        }
    }

    /// Gives up when I/O is in flight and none of any device ends, though somebody has a file open:
    /// he may be waiting for that I/O. Not while writes wait for `room`: that is said when they
    /// begin to.
    fn limit_standstill(&self, mut room: Room) -> Option<StopLimit> {
        let stack = self.stack.clone();
        let clock = stack.clock().clone();
        let look = move || Progress { waits_for_room: room.look(&stack), ..progress(&stack) };
        or_without_limit(StopLimit::of_standstill(clock, look, self.given_up()))
    }

    /// Gives up when the rest of the stop takes too long.
    fn limit_end(&self) -> Option<StopLimit> {
        let stack = self.stack.clone();
        let clock = stack.clock().clone();
        let look = move || Progress {
            waits_for_room: !stack.without_room().is_empty(),
            ..progress(&stack)
        };
        or_without_limit(StopLimit::of_end(clock, look, self.given_up()))
    }

    /// Takes nothing new, lets what is in flight end, closes all connections.
    fn end(&mut self) -> anyhow::Result<()> {
        self.stack.stop();
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        let ended = self.workers.drain(..).map(JoinHandle::join);
        let failed = ended.filter(Result::is_err).count();
        match failed {
            0 => Ok(()),
            failed => {
                Err(anyhow!("{failed} data threads ended by a panic, which is a bug of Drystone"))
            }
        }
    }
}

impl ServerHandle for Server {
    fn announce(&self) -> Vec<String> {
        self.front_ends.iter().flat_map(|front_end| front_end.announce()).collect()
    }

    fn runtime(&self) -> Box<dyn Runtime> {
        Box::new(self.stack.runtime(Box::new(pause)))
    }

    fn stop(mut self: Box<Self>, mode: StopMode) -> anyhow::Result<()> {
        let mut room = Room::default();
        room.look(&self.stack);
        let _standstill = (mode == StopMode::Drain).then(|| self.limit_standstill(room));
        // Before any user is waited for: that user may itself wait for a limit, or for a suspended
        // volume.
        self.stack.stop();
        self.front_ends.iter_mut().for_each(|front_end| front_end.close());
        let mut left = Ok(());
        for front_end in &mut self.front_ends {
            left = left.and(front_end.end());
        }
        if let Err(why) = &left {
            // A file that is not unmounted is served until nobody has it open.
            output::warning(&format!("{why:#}"));
        }
        // All users of files have ended, so this cuts off nobody who could still save anything.
        let _limit = (mode == StopMode::Drain).then(|| self.limit_end());
        let ended = self.end();
        if mode == StopMode::Now {
            return ended;
        }
        let pause: SleepFn = Box::new(pause);
        let finished = self.stack.finish(&pause).map_err(|why| anyhow!(why));
        left.and(ended).and(finished)
    }
}

fn or_without_limit(started: io::Result<StopLimit>) -> Option<StopLimit> {
    let without = |why: &io::Error| {
        output::warning(&format!(
            "the stop has no time limit, because its thread cannot be started: {why}"
        ));
    };
    started.inspect_err(without).ok()
}

/// The messages so far about full disks that writes wait for.
#[derive(Default)]
struct Room {
    told: Vec<String>,
}

impl Room {
    /// Looks whether writes wait for room, and says what is new of it.
    fn look(&mut self, stack: &LiveStack) -> bool {
        let texts = stack.without_room();
        for text in texts.iter().filter(|text| !self.told.contains(text)) {
            output::warning(&format!("{text}; stop the server once more to give these writes up"));
        }
        self.told = texts;
        !self.told.is_empty()
    }
}

/// The progress of the I/O of all devices that count it.
fn progress(stack: &LiveStack) -> Progress {
    let mut progress = Progress::default();
    for live in stack.devices() {
        let stats = live.device.stats();
        for group in stats.groups {
            progress.in_flight += in_flight(&group);
            progress.ended += group.completed;
        }
        progress.flushes_in_flight += in_flight(stats.group(OpGroup::Flush));
    }
    progress
}

fn in_flight(group: &GroupStats) -> u64 {
    group.started.saturating_sub(group.completed)
}

/// Says what users may not expect of what devices stand on.
fn tell_notices(stack: &LiveStack) {
    for live in stack.devices() {
        let notice = live.device.attribute("notice");
        notice.inspect(|text| output::note(&format!("device `{}`: {text}", live.name)));
    }
}

/// Says which members arrays started without, and what may be wrong of those that were forced to
/// start.
fn warn_of_arrays(stack: &LiveStack) {
    for live in stack.devices() {
        let Some(array) = &live.array else { continue };
        for why in array.left_out() {
            output::warning(&format!("array `{}`: left out: {why}", live.name));
        }
        for notice in array.notices() {
            output::warning(&format!("array `{}`: {notice}", live.name));
        }
        if let Some(suspects) = array.doubtful_ranges() {
            // Its ranges stand on lines of their own.
            output::draw(&format!("warning: array `{}`: {suspects}", live.name));
        }
    }
}

/// Lets the calling thread rest.
fn pause(ns: Ns) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// As many as asked for; 0 is as many as cores.
fn data_threads(wanted: u32) -> u32 {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        wanted => wanted,
    }
}

/// Bytes of each data thread's buffers that its ring knows beforehand: a thousand requests of
/// 4 KiB. A usual limit of locked memory (8 MiB) covers this for one thread.
const REGISTERED_BYTES: usize = 8 << 20;

/// Opens a context for each data thread, and says so when they have to do without io_uring.
fn open_contexts(
    set: &Arc<ContextSet>,
    engine: Engine,
    count: u32,
) -> anyhow::Result<Vec<Context>> {
    let opened: drystone_core::Result<Vec<Context>> =
        (0..count).map(|_| set.open(engine)).collect();
    let mut contexts = opened?;
    if let (Engine::Auto, Some("plain")) = (engine, contexts.first_mut().map(Context::engine)) {
        let reason = ring::open(Engine::Uring, set.clock().clone()).err();
        let reason = reason.map_or("not for every thread".to_owned(), |error| error.message);
        output::note(&format!(
            "io_uring is not available ({reason}); epoll and helper threads do its work"
        ));
    }
    Ok(contexts)
}
