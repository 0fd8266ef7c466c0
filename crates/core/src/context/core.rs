//! The state of a context, behind its gate.

use super::env::Env;
use super::set::{Handle, Kicks, Other};
use super::waiting::{For, PollMode, Waiting};
use crate::clock::Ns;
use crate::device::{Channel, Device};
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::list::BioList;
use crate::mailbox::{Mailbox, Message};
use crate::mistake;
use crate::op::BioFlags;
use crate::ring::bell::Bell;
use crate::ring::{RingEvent, Token};
use crate::status::Status;
use crate::sync::{LockClass, between_polls, pause};
use crate::units::{ChannelId, ContextId};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Calls of reap between two checks of the channels' deadlines, for loops that never wait.
const REAPS_A_TICK: u32 = 256;

/// Polls of [`ContextCore::busy_poll_before_sleep`]: a microsecond of spinning, then some rounds
/// that offer the core to others.
const BUSY_POLL_TRIES: u32 = 140;
/// Waits between two tries are two to the power of the failures in a row, of which at most so many
/// count.
const BUSY_POLL_FAILURES_MAX: u32 = 7;

/// Polls between two readings of the clock, and readings of one wait: a bound for clocks that stand
/// still.
const POLLS_A_READING: u32 = 8;
const READINGS_MAX: u32 = 8192;

/// Most devices a context may open: a token names the channel in 16 bits.
const MAX_DEVICES: usize = 60_000;

pub(crate) struct ContextCore {
    pub(crate) env: Env,
    /// By number; a gap is a number without a device, or a channel that could not be opened, which
    /// is tried again.
    channels: Vec<Option<Box<dyn Channel>>>,
    /// Scratch for events, kept to save its allocation.
    events: Vec<RingEvent>,
    messages: Vec<Arc<Message>>,
    /// The contexts whose rings this one watches.
    watching: Vec<Other>,
    /// Memory to list them.
    others: Vec<Other>,
    /// Calls of reap, for [`REAPS_A_TICK`].
    reaps: u32,
    /// Busy polls in a row that found nothing, and waits left until the next try.
    busy_poll_failures: u32,
    busy_poll_pause: u32,
    pub(crate) waiting: Waiting,
    /// There may be I/O in flight that is polled because of the poll mode.
    polled: bool,
    /// The owner has started a plug. It holds only what the owner submits: what follows from the
    /// end of something else would else be held when the plug has just been flushed for a wait.
    has_plug: bool,
    /// The descriptor for the owner's event loop, once it was asked for.
    pub(super) bell: Option<Bell>,
}

impl ContextCore {
    pub(crate) fn new(env: Env) -> Self {
        ContextCore {
            env,
            channels: Vec::new(),
            events: Vec::new(),
            messages: Vec::new(),
            watching: Vec::new(),
            others: Vec::new(),
            reaps: 0,
            busy_poll_failures: 0,
            busy_poll_pause: 0,
            waiting: Waiting::new(),
            polled: false,
            has_plug: false,
            bell: None,
        }
    }

    pub(crate) fn open(&mut self, device: &Arc<dyn Device>) -> Result<ChannelId> {
        self.free_channels_if_many();
        // Devices that a volume named meanwhile and that are not used yet.
        self.unopened().into_iter().for_each(|id| _ = self.open_channel(id));
        let gaps = self.unopened();
        let id = self.env.channel_of(device);
        let mut opened = Vec::new();
        if let Err(error) = self.open_all(id, &gaps, &mut opened) {
            // Perhaps at a member: nothing stays of what was opened for it.
            opened.into_iter().for_each(|id| self.close_channel(id));
            self.free_channels();
            return Err(error);
        }
        self.env.links.give_to_owner(id);
        Ok(id)
    }

    /// Open a channel unless it is open, and all that have a number by now but for `gaps`: the
    /// members that it names.
    fn open_all(
        &mut self,
        id: ChannelId,
        gaps: &[ChannelId],
        opened: &mut Vec<ChannelId>,
    ) -> Result<()> {
        let mut next = Some(id).filter(|_| !self.is_open(id));
        while let Some(id) = next {
            self.open_channel(id)?;
            opened.push(id);
            next = self.unopened().into_iter().find(|id| !gaps.contains(id));
        }
        Ok(())
    }

    fn is_open(&self, id: ChannelId) -> bool {
        self.channels.get(id.index()).is_some_and(Option::is_some)
    }

    /// Channels that have a number only.
    fn unopened(&self) -> Vec<ChannelId> {
        self.env.links.numbers().filter(|id| !self.is_open(*id)).collect()
    }

    fn open_channel(&mut self, id: ChannelId) -> Result<()> {
        let at = id.index();
        if at >= MAX_DEVICES {
            return Err(Error::invalid(format!("a context can open {MAX_DEVICES} devices")));
        }
        if self.channels.len() <= at {
            self.channels.resize_with(at + 1, || None);
        }
        let device = self.env.links.device(id).expect("it has a number").clone();
        self.channels[at] = Some(device.open_channel(&mut self.env, id)?);
        Ok(())
    }

    #[inline]
    fn free_channels_if_many(&mut self) {
        if self.env.links.has_grown() {
            self.free_channels();
        }
    }

    /// Give up the channels that are not needed any more, with their numbers: of devices that are
    /// over, and those that were named and never opened.
    #[cold]
    fn free_channels(&mut self) {
        let named: BTreeSet<ChannelId> =
            self.open_channels().flat_map(|c| c.members()).copied().collect();
        let numbers: Vec<_> = self.env.links.numbers().collect();
        for id in numbers.into_iter().filter(|id| !named.contains(id)) {
            self.env.links.end_run();
            if self.env.links.is_idle(id) && self.try_retire(id) {
                self.env.links.forget(id);
                self.close_channel(id);
            }
        }
        self.env.links.swept();
    }

    fn close_channel(&mut self, id: ChannelId) {
        let channel = self.channels.get_mut(id.index()).and_then(Option::take);
        if let Some(mut channel) = channel {
            channel.close(&mut self.env);
        }
    }

    pub(crate) fn release(&mut self, id: ChannelId) {
        self.env.links.take_from_owner(id);
        self.free_channels();
    }

    fn try_retire(&mut self, id: ChannelId) -> bool {
        match self.channels.get_mut(id.index()) {
            Some(Some(channel)) => channel.in_flight() == 0 && channel.try_retire(),
            _ => true,
        }
    }

    #[inline]
    pub(crate) fn submit(&mut self, id: ChannelId, bios: &mut BioList) {
        if bios.is_empty() {
            return;
        }
        debug_assert!(!self.env.draining, "nothing is submitted to a context that winds up");
        self.env.outstanding += bios.len();
        if let Some(polled) = self.waiting.polls() {
            bios.set_flags(BioFlags::POLLED, polled);
            self.polled |= polled;
        }
        self.env.plugged = self.has_plug;
        match &mut self.channels[id.index()] {
            Some(channel) => channel.submit(&mut self.env, bios),
            None => self.env.links.send_all_down(id, bios),
        }
        self.env.time.begin_below();
        self.run_links();
        self.env.time.end_below();
        self.env.plugged &= mistake!("plug_goes_on");
        self.env.ring.submit();
    }

    /// Hand on what channels passed to one another, until nothing is left.
    #[inline]
    fn run_links(&mut self) {
        while let Some(id) = self.env.links.next_ready() {
            self.run_link(id);
        }
    }

    #[inline]
    fn run_link(&mut self, id: ChannelId) {
        let at = id.index();
        if self.channels.get(at).is_none_or(Option::is_none) && !self.open_late(id) {
            let mut bios = self.env.links.link(id).down.take();
            while let Some(bio) = bios.pop() {
                self.env.end_with(bio, Status::IoError);
            }
            return;
        }
        let link = self.env.links.link(id);
        let (mut down, mut returned) = (link.down.take(), link.returned.take());
        let is_called_again = std::mem::take(&mut link.is_called_again);
        // Taken only with something in it: its memory must stay there.
        let mut done = match link.remapped_done.is_empty() {
            true => Vec::new(),
            false => std::mem::take(&mut link.remapped_done),
        };
        let Some(channel) = &mut self.channels[at] else { return };
        if !done.is_empty() {
            channel.remapped_done(&mut self.env, &done);
            done.clear();
            self.env.links.link(id).remapped_done = done;
        }
        if !returned.is_empty() || is_called_again {
            channel.returned(&mut self.env, &mut returned);
        }
        if !down.is_empty() {
            channel.submit(&mut self.env, &mut down);
        }
    }

    /// A volume's table names a device that this context has not used so far.
    #[cold]
    fn open_late(&mut self, id: ChannelId) -> bool {
        self.free_channels_if_many();
        self.open_channel(id).is_ok()
    }

    #[inline]
    pub(crate) fn reap(&mut self, mailbox: &Mailbox, gate: &Gate, out: &mut BioList) -> usize {
        let mut processed = self.process_pending(mailbox, gate);
        if self.polled {
            self.poll_channels();
            self.polled = self.must_poll();
        }
        if self.env.expected_remote > 0 {
            self.push_shared_work();
            processed = true;
        }
        if processed {
            // I/O that the channels started in answer must not wait for the owner's next call.
            self.env.ring.submit();
        }
        self.reaps = self.reaps.wrapping_add(1);
        if self.reaps.is_multiple_of(REAPS_A_TICK) {
            self.tick_channels();
        }
        let n = self.env.done.len();
        self.env.outstanding -= n;
        out.append(&mut self.env.done);
        n
    }

    /// For loops that never wait, and so watch no peer: the owner of the context that holds what
    /// this one needs may be away.
    #[inline]
    pub(super) fn reap_for_owner(&mut self, handle: &Handle, out: &mut BioList) -> usize {
        let n = self.reap(&handle.mailbox, &handle.gate, out);
        if self.reaps.is_multiple_of(REAPS_A_TICK) && self.waits_on_peer() {
            handle.set.others_do(self.env.id, |other| {
                if !other.parking().will_recheck() {
                    self.env.kick_later(other.clone());
                }
            });
        }
        n
    }

    /// The work of a visit, done by the visitor or by the owner in its place.
    pub(crate) fn run_pending(&mut self, gate: &Gate, mailbox: &Mailbox) {
        self.process_pending(mailbox, gate);
        self.poll_channels();
        if self.env.is_orphaned && self.env.expected_remote > 0 {
            // No wait will push these any more.
            self.push_shared_work();
        }
        self.env.ring.submit();
        if self.env.is_orphaned {
            self.free_done();
        }
    }

    /// Deliver messages and ring events to the channels; true if there were any. Never waits. The
    /// ring comes first: reaping it forgets the wake-ups so far, and the sender of a message with a
    /// wake-up relies on a later read of the mailbox.
    #[inline]
    fn process_pending(&mut self, mailbox: &Mailbox, gate: &Gate) -> bool {
        gate.take_visit_request();
        self.env.time.new_batch();
        self.env.ring.reap(&mut self.events);
        let (messages, events) = (!mailbox.is_empty(), !self.events.is_empty());
        if messages {
            self.deliver_messages(mailbox);
        }
        if events {
            self.deliver_events();
        }
        messages || events
    }

    fn deliver_messages(&mut self, mailbox: &Mailbox) {
        let mut messages = std::mem::take(&mut self.messages);
        mailbox.take(|m| messages.push(m));
        for message in messages.drain(..) {
            if let Some(Some(channel)) = self.channels.get_mut(message.channel().index()) {
                channel.message(&mut self.env, message);
            }
        }
        self.messages = messages;
        self.after_delivery();
        self.free_channels_if_many();
    }

    fn deliver_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event.token.owner() {
                Token::FRONT_END => self.env.events.push(event),
                Token::CONTEXT => self.watched(event),
                owner => {
                    let Some(channel) = &mut self.channels[owner as usize] else { continue };
                    channel.ring_event(&mut self.env, event);
                }
            }
        }
        self.events = events;
        self.after_delivery();
    }

    /// Let the channels push on what they share with other contexts. True while others work at it.
    fn push_shared_work(&mut self) -> bool {
        let env = &mut self.env;
        let mut busy = false;
        for channel in self.channels.iter_mut().flatten() {
            busy |= channel.push_shared_work(env);
        }
        self.run_links();
        busy
    }

    /// Before a sleep: wait a moment for what other contexts are just about to give, spinning and
    /// then offering the core to them, which takes far less than a sleep and a wake-up would. Each
    /// failure makes the next try rarer.
    #[cold]
    fn busy_poll_before_sleep(&mut self, handle: &Handle) {
        if self.busy_poll_pause > 0 {
            self.busy_poll_pause -= 1;
            return;
        }
        let locks = self.env.locks.clone();
        if locks.waited(LockClass::SchedulerGrant, || self.busy_poll_for_news(handle)) {
            self.busy_poll_failures = 0;
        } else {
            self.busy_poll_failures = (self.busy_poll_failures + 1).min(BUSY_POLL_FAILURES_MAX);
            self.busy_poll_pause = (1 << self.busy_poll_failures) - 1;
        }
    }

    /// True if news came, or the shared work stopped.
    fn busy_poll_for_news(&mut self, handle: &Handle) -> bool {
        let mut tries = 0;
        while tries < BUSY_POLL_TRIES {
            if !handle.mailbox.is_empty() {
                self.process_pending(&handle.mailbox, &handle.gate);
            }
            if self.has_news(handle) || !self.env.kicks.is_empty() || !self.push_shared_work() {
                return true;
            }
            pause(&mut tries);
        }
        false
    }

    fn after_delivery(&mut self) {
        for channel in self.channels.iter_mut().flatten() {
            channel.delivered(&mut self.env);
        }
        self.run_links();
    }

    /// A ring that we watch has news: the owner of the context that holds what we wait for may be
    /// away. The watches end here if nothing is waited for any more: otherwise two contexts with
    /// absent owners would kick each other for ever.
    fn watched(&mut self, event: RingEvent) {
        if !self.waits_on_peer() {
            return self.unwatch_all();
        }
        if let Some(handle) = self.env.handle.upgrade() {
            self.kick_unless_parked(&handle, ContextId(event.token.value() as u32));
        }
    }

    /// Kick context `id`, unless its owner sleeps there and so runs the work itself.
    fn kick_unless_parked(&mut self, handle: &Handle, id: ContextId) {
        if let Some(other) = handle.set.find(id).filter(|other| !other.parking().will_recheck()) {
            self.env.kick_later(other);
        }
    }

    pub(super) fn waits_on_peer(&self) -> bool {
        self.open_channels().any(|c| c.waits_on_peer())
    }

    fn unwatch_all(&mut self) {
        for gone in self.watching.drain(..) {
            self.env.ring.unwatch(gone.descriptors, gone.token());
        }
    }

    /// Contexts to be kicked once this one has been left.
    #[inline]
    pub(crate) fn take_kicks(&mut self) -> Kicks {
        if self.env.kicks.is_empty() {
            return Kicks::new();
        }
        std::mem::take(&mut self.env.kicks)
    }

    pub(crate) fn poll_channels(&mut self) {
        let mut found = 0;
        for channel in self.channels.iter_mut().flatten().filter(|channel| channel.must_poll()) {
            found += channel.poll(&mut self.env);
        }
        self.polled(found);
    }

    /// The same for one channel.
    pub(crate) fn poll_channel(&mut self, id: ChannelId) {
        if let Some(Some(channel)) = self.channels.get_mut(id.index()) {
            let found = channel.poll(&mut self.env);
            self.polled(found);
        }
    }

    fn polled(&mut self, found: usize) {
        if found > 0 {
            self.run_links();
            self.env.ring.submit();
        }
    }

    pub(crate) fn start_plug(&mut self) {
        self.has_plug = true;
    }

    pub(crate) fn finish_plug(&mut self) {
        self.env.plugged = false;
        if std::mem::take(&mut self.has_plug) {
            self.flush_plugs();
            self.env.ring.submit();
        }
    }

    fn flush_plugs(&mut self) {
        for channel in self.channels.iter_mut().flatten() {
            channel.flush_plug(&mut self.env);
        }
        self.run_links();
    }

    pub(crate) fn withdraw(&mut self, range: &Range<u64>) {
        for channel in self.channels.iter_mut().flatten() {
            channel.withdraw(&mut self.env, range);
        }
        self.run_links();
        self.env.ring.submit();
    }

    fn open_channels(&self) -> impl Iterator<Item = &dyn Channel> {
        self.channels.iter().flatten().map(|channel| &**channel)
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.env.outstanding
    }

    /// True when a wait has something to return for.
    fn has_news(&self, handle: &Handle) -> bool {
        !self.env.done.is_empty()
            || !self.env.events.is_empty()
            || !handle.mailbox.is_empty()
            || handle.is_woken()
    }

    pub(crate) fn wait(&mut self, handle: &Handle, deadline: Option<Ns>) {
        self.flush_plugs();
        self.process_pending(&handle.mailbox, &handle.gate);
        if self.env.expected_remote > 0 && !self.has_news(handle) && self.push_shared_work() {
            self.busy_poll_before_sleep(handle);
        }
        if self.has_news(handle) {
            handle.take_wake();
            self.tick_channels();
            self.env.ring.end_round();
            return;
        }
        self.watch_peers_if_needed(handle);
        self.waiting.begin();
        match self.waiting.mode() {
            // Sleep would miss what only polling finds: poll, and let the caller come again.
            PollMode::Interrupt if self.must_poll() => self.sleep(handle, Some(0)),
            PollMode::Interrupt => self.sleep(handle, self.until(deadline)),
            PollMode::Poll => {
                self.poll_for_news(handle, deadline, Ns::MAX);
            }
            PollMode::Adaptive if self.env.ring.needs_core() && !self.must_poll() => {
                self.sleep(handle, self.until(deadline));
            }
            PollMode::Adaptive => self.poll_or_sleep(handle, deadline),
        }
        self.tick_channels();
    }

    /// When a wait has to end even without news.
    pub(super) fn until(&self, deadline: Option<Ns>) -> Option<Ns> {
        self.open_channels().filter_map(|c| c.deadline()).chain(deadline).min()
    }

    pub(super) fn must_poll(&self) -> bool {
        self.open_channels().any(|c| c.must_poll())
    }

    fn sleep(&mut self, handle: &Handle, until: Option<Ns>) {
        self.env.time.slept();
        handle.parking().park();
        // Kicks are given only once this context has been left, so it may not sleep on them.
        if self.env.kicks.is_empty() && !self.has_news(handle) && !handle.has_visit_request() {
            self.waiting.slept(until);
            self.env.ring.wait(until);
        } else {
            self.env.ring.end_round();
        }
        handle.parking().unpark();
        handle.take_wake();
        if self.process_pending(&handle.mailbox, &handle.gate) {
            self.env.ring.submit();
        }
        self.poll_channels();
    }

    /// A wait that learns; see [`super::waiting`].
    fn poll_or_sleep(&mut self, handle: &Handle, deadline: Option<Ns>) {
        let what = match self.env.outstanding {
            0 => For::Requests,
            _ => For::Completions,
        };
        let (start, must_poll) = (self.env.time.now(), self.must_poll());
        let polls = self.waiting.polls_now(what);
        let longest = match must_poll {
            true => Some(Ns::MAX),
            false => self.waiting.longest_poll(what),
        };
        let found = longest
            .is_some_and(|ns| self.poll_for_news(handle, deadline, start.saturating_add(ns)));
        if !found && !self.must_poll() {
            self.sleep(handle, self.until(deadline));
        }
        // Polled I/O has to be polled in any case: nothing is learned from that.
        if polls || !must_poll {
            let waited = self.env.time.now() - start;
            self.waiting.waited(what, waited, found);
        }
    }

    /// Poll for news until the clock passes `until` or the deadline. True if there is any.
    fn poll_for_news(&mut self, handle: &Handle, deadline: Option<Ns>, until: Ns) -> bool {
        let until = self.until(deadline).unwrap_or(Ns::MAX).min(until);
        self.env.ring.submit();
        self.env.ring.set_polling(true);
        self.env.time.slept();
        let mut tries = 0;
        let found =
            (0..READINGS_MAX).find_map(|_| match self.poll_until_reading(handle, &mut tries) {
                true => Some(true),
                false => (until < Ns::MAX && self.env.time.now() >= until).then_some(false),
            });
        let found = found.unwrap_or(false);
        self.env.ring.set_polling(false);
        if found {
            handle.take_wake();
        }
        self.waiting.polled(found);
        found
    }

    /// The thread that brings the news may need this core: after a while it is offered.
    fn poll_until_reading(&mut self, handle: &Handle, tries: &mut u32) -> bool {
        (0..POLLS_A_READING).any(|_| {
            self.poll_once(handle);
            let news = self.has_news(handle) || !self.env.kicks.is_empty();
            if !news {
                between_polls(tries);
            }
            news
        })
    }

    fn poll_once(&mut self, handle: &Handle) {
        if self.process_pending(&handle.mailbox, &handle.gate) {
            self.env.ring.submit();
        }
        self.poll_channels();
        if self.env.expected_remote > 0 {
            self.push_shared_work();
            self.env.ring.submit();
        }
    }

    /// Call the channels whose deadline has passed. Without a deadline no clock is read, else
    /// the reading is the one of the completions just delivered, if there were any.
    #[cold]
    fn tick_channels(&mut self) {
        let due = self.open_channels().filter_map(|c| c.deadline()).min();
        let Some(due) = due else { return };
        let now = self.env.time.completion_time();
        if now < due {
            return;
        }
        for channel in self.channels.iter_mut().flatten() {
            if channel.deadline().is_some_and(|d| d <= now) {
                channel.tick(&mut self.env, now);
            }
        }
        self.run_links();
        self.env.ring.submit();
    }

    /// While a channel waits for a tag that another context holds, that context's ring is
    /// watched, so that its completions are reaped even if its thread stays away.
    fn watch_peers_if_needed(&mut self, handle: &Handle) {
        let waits = self.waits_on_peer();
        if !waits && self.watching.is_empty() {
            return;
        }
        let mut others = std::mem::take(&mut self.others);
        if waits {
            handle.set.others(self.env.id, &mut others);
        }
        for gone in self.watching.extract_if(.., |w| !others.contains(w)) {
            self.env.ring.unwatch(gone.descriptors, gone.token());
        }
        for other in others.drain(..) {
            if !self.watching.contains(&other) {
                self.env.ring.watch(other.descriptors, other.token());
                self.kick_unless_parked(handle, other.id);
                self.watching.push(other);
            }
        }
        self.others = others;
    }

    /// One round of a wait, for an owner that sleeps elsewhere than in [`ContextCore::wait`].
    pub(super) fn poll_for_owner(&mut self, handle: &Handle) {
        self.poll_once(handle);
        self.tick_channels();
        self.env.ring.submit();
    }

    /// End what no driver has, now and whenever a driver gives back what would have to wait again.
    pub(super) fn wind_up(&mut self) {
        self.env.draining = true;
        self.has_plug = false;
        for channel in self.channels.iter_mut().flatten() {
            channel.cancel_pending(&mut self.env);
        }
        self.run_links();
        self.env.ring.submit();
    }

    /// The owner is gone: end what no driver has, free completed bios.
    pub(crate) fn abandon(&mut self) {
        self.env.is_orphaned = true;
        self.env.ring.own_thread(false);
        self.wind_up();
        self.env.ring.submit_all();
        self.free_done();
    }

    fn free_done(&mut self) {
        self.env.outstanding -= self.env.done.len();
        drop(self.env.done.take());
        self.env.events.clear();
    }

    /// True when no driver and no kernel operation refers to this context any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.open_channels().all(|c| c.in_flight() == 0)
    }
}
