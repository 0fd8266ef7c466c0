//! The context: one thread's queue pair into the block layer. It submits bios, reaps
//! completions, waits with a deadline, polls. A completion always arrives in the context that
//! submitted, whichever thread ran the device.
//!
//! Invariants:
//! * All state of a context is behind its [`crate::gate::Gate`]: touched by the owner inside a
//!   call, or by a visitor while the owner is away ([`ContextSet::kick`]). So everything inside is
//!   written as if there were one thread.
//! * The owner may stay away for ever after any call: other threads advance what its context holds
//!   for them. A bio in a plug holds nothing for others.
//! * A bio handed in ends exactly once. Its buffers are given back only after the driver has
//!   given them back.
//!
//! I/O in flight outlives its owner:
//! * **The context is dropped** (also by a panic that unwinds its thread): bios that no driver
//!   has end cancelled and are freed; the others stay with the set until their drivers give
//!   them back, and are then freed by the next call that opens or drops a context of the set,
//!   or [`ContextSet::free_idle_orphans`]. Nothing waits. Operations of front ends end without
//!   an event; a buffer that the kernel may still use is leaked.
//! * **A thread exits** without dropping the context: as if it stayed away.
//! * **fork**: the child must not use a context; dropping one there does nothing at all (its
//!   memory is leaked), so the parent's I/O is not disturbed.

#![allow(unsafe_code, reason = "owns what drivers hold until they give it back")]

mod cookie;
mod core;
mod deliver;
mod divide;
mod env;
mod event;
mod links;
mod open;
mod park;
mod parts;
mod set;
mod waiting;
mod wake;

pub(crate) use cookie::PolledTo;
pub use cookie::{Cookie, PollPath};
pub use env::{Env, PLUG_MAX_BIOS, PLUG_MAX_BYTES};
pub use links::RemappedDone;
pub use parts::Parts;
pub use set::{ContextSet, Handle};
pub use waiting::{PollMode, PollSwitch, WaitCounts};

use self::core::ContextCore;
use crate::buf::Arena;
use crate::clock::Ns;
use crate::device::Device;
use crate::error::Result;
use crate::list::BioList;
use crate::ring::{NetOp, Query, RingEvent, Token};
use crate::sync::LockCounters;
use crate::units::{ChannelId, ContextId};
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// A thread's queue pair. May be moved to another thread, but is used by one at a time.
pub struct Context {
    handle: Arc<Handle>,
}

/// A call in progress: the gate is ours until this is dropped.
struct Call<'a> {
    handle: &'a Handle,
}

impl<'a> Call<'a> {
    #[inline]
    fn begin(handle: &'a Handle) -> Self {
        handle.gate.enter(&handle.locks);
        Call { handle }
    }

    #[inline]
    fn core(&mut self) -> &mut ContextCore {
        // SAFETY: we are inside the gate, which admits one at a time, and only this borrow of
        // the call hands the state out.
        unsafe { &mut *self.handle.core.get() }
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        loop {
            let handle = self.handle;
            self.core().announce(handle);
            let kicks = self.core().take_kicks();
            let expects = self.core().env.expected_remote > 0;
            let requested = self.handle.gate.leave(expects);
            if !kicks.is_empty() {
                Handle::kick_all(kicks);
            }
            let called = requested || expects && self.handle.mail_came();
            if !called {
                return;
            }
            let handle = self.handle;
            handle.gate.enter(&handle.locks);
            self.core().run_pending(&handle.gate, &handle.mailbox);
        }
    }
}

impl Context {
    pub(crate) fn new(handle: Arc<Handle>) -> Self {
        Context { handle }
    }

    /// Number of this context in its set. Numbers of dropped contexts are used again.
    pub fn id(&self) -> ContextId {
        self.handle.id
    }

    /// The set it belongs to.
    pub fn set(&self) -> &Arc<ContextSet> {
        &self.handle.set
    }

    /// Open `device` for this context, which gets a channel of it. Opening it again gives the same
    /// one.
    ///
    /// # Errors
    /// When the device's channel cannot be opened; the message says why.
    pub fn open(&mut self, device: &Arc<dyn Device>) -> Result<ChannelId> {
        Call::begin(&self.handle).core().open(device)
    }

    /// Release a channel, which the owner does not need any more and must not name again. The
    /// context closes it when nothing else here needs it, if its device is over
    /// ([`Device::retire`]).
    pub fn release(&mut self, channel: ChannelId) {
        Call::begin(&self.handle).core().release(channel);
    }

    /// Submit `bios` (emptied) to the device of a channel. Nothing waits. Without a plug they are
    /// on their way when this returns, so submit what belongs together in one call: it is one plug.
    #[inline]
    pub fn submit(&mut self, channel: ChannelId, bios: &mut BioList) {
        Call::begin(&self.handle).core().submit(channel, bios);
    }

    /// Move completed bios to `out`, without waiting. Returns how many came.
    #[inline]
    pub fn reap(&mut self, out: &mut BioList) -> usize {
        let handle = &*self.handle;
        Call::begin(handle).core().reap_for_owner(handle, out)
    }

    /// Look for completions of polled I/O and reap. Returns how many came.
    pub fn poll(&mut self, out: &mut BioList) -> usize {
        let handle = &*self.handle;
        let mut call = Call::begin(handle);
        call.core().poll_channels();
        call.core().reap_for_owner(handle, out)
    }

    /// Submit `bios` (emptied), of which some may be polled ([`crate::BioFlags::POLLED`]). The
    /// cookie tells where to look for their ends.
    pub fn submit_polled(&mut self, channel: ChannelId, bios: &mut BioList) -> Cookie {
        let mut call = Call::begin(&self.handle);
        call.core().env.polled_to = PolledTo::Nobody;
        call.core().submit(channel, bios);
        let to = call.core().env.polled_to;
        Cookie { context: self.handle.id, serial: self.handle.serial(), to }
    }

    /// Which way [`Context::poll_for`] goes.
    pub fn poll_path(&self, cookie: &Cookie) -> PollPath {
        let own = (cookie.context, cookie.serial) == (self.handle.id, self.handle.serial());
        match cookie.to {
            PolledTo::Nobody => PollPath::None,
            _ if !own => PollPath::Other,
            PolledTo::One(_) => PollPath::Queue,
            PolledTo::Several => PollPath::Context,
        }
    }

    /// Look for completions of what `cookie` was given for, and reap this context's own. Returns
    /// how many came. If another context submitted it, its bios are reaped there.
    pub fn poll_for(&mut self, cookie: &Cookie, out: &mut BioList) -> usize {
        let path = self.poll_path(cookie);
        if path == PollPath::Other
            && let Some(other) = self.handle.set.find(cookie.context)
            && other.serial() == cookie.serial
        {
            other.kick();
        }
        let handle = &*self.handle;
        let mut call = Call::begin(handle);
        match (path, cookie.to) {
            (PollPath::Queue, PolledTo::One(channel)) => call.core().poll_channel(channel),
            (PollPath::Context, _) => call.core().poll_channels(),
            _ => {}
        }
        call.core().reap(&handle.mailbox, &handle.gate, out)
    }

    /// Flush the plug, then wait until a bio has completed, a front end's operation has ended,
    /// somebody woke the context, or the clock passed `deadline`: asleep or polling, as
    /// [`Context::set_poll_mode`] says. Reap afterwards; it may return with nothing. Without a poll
    /// mode it polls once instead of sleeping while polled I/O is in flight.
    pub fn wait(&mut self, deadline: Option<Ns>) {
        let mut call = Call::begin(&self.handle);
        let handle = call.handle;
        call.core().wait(handle, deadline);
    }

    /// How waits find completions from now on. *Poll* and *adaptive* also decide which bios are
    /// polled ([`crate::BioFlags::POLLED`]), whatever the submitter said; a device that cannot be
    /// polled, or may not (`queue/io_poll`), takes them as others.
    pub fn set_poll_mode(&mut self, mode: PollMode) {
        Call::begin(&self.handle).core().waiting.set_mode(mode);
    }

    /// Take the poll mode of `switch`, now and at the beginning of each wait.
    pub fn follow_poll_mode(&mut self, switch: Arc<PollSwitch>) {
        Call::begin(&self.handle).core().waiting.follow(switch);
    }

    /// From now on, this context is used by a thread that does nothing else: it comes back to
    /// [`Context::wait`] after each round. The context may choose the processor it runs on while it
    /// sleeps there ([`crate::ring::Ring::own_thread`]).
    pub fn own_thread(&mut self) {
        Call::begin(&self.handle).core().env.ring.own_thread(true);
    }

    /// The poll mode.
    pub fn poll_mode(&self) -> PollMode {
        Call::begin(&self.handle).core().waiting.mode()
    }

    /// The counts of the waits so far.
    pub fn wait_counts(&self) -> WaitCounts {
        Call::begin(&self.handle).core().waiting.counts()
    }

    /// Hold bios back, so that neighbours merge, until [`Context::finish_plug`], a wait, or the
    /// plug's limits ([`PLUG_MAX_BIOS`], [`PLUG_MAX_BYTES`]). Starting twice is starting once.
    pub fn start_plug(&mut self) {
        Call::begin(&self.handle).core().start_plug();
    }

    /// End the plug: what it holds is on its way when this returns.
    pub fn finish_plug(&mut self) {
        Call::begin(&self.handle).core().finish_plug();
    }

    /// Give up the bios of this context whose `user_data` lies in `range`. Bios that wait for a
    /// limit of their throttle group, on any device, end cancelled at once. So do long discards and
    /// writes of zeroes that a driver does piece by piece; a part of their range is zeroes then.
    /// Other bios that a driver has go on. Ask again when some have ended, since others may have
    /// come to the driver. Reap follows.
    pub fn withdraw(&mut self, range: Range<u64>) {
        Call::begin(&self.handle).core().withdraw(&range);
    }

    /// Bios submitted here that have not been reaped.
    pub fn outstanding(&mut self) -> usize {
        Call::begin(&self.handle).core().outstanding()
    }

    /// Start an operation of a front end on the context's ring; its event comes through
    /// [`Context::take_events`]. `value` (48 bits) comes back in the token. It is handed to the
    /// kernel by the next wait or [`Context::submit_ring`].
    pub fn start_net(&mut self, fd: RawFd, op: NetOp, value: u64) {
        let token = Token::new(Token::FRONT_END, value);
        Call::begin(&self.handle).core().env.ring.net(fd, op, token);
    }

    /// Ask something on behalf of a front end: [`crate::ring::Ring::query`]. The answer comes
    /// through [`Context::take_events`] with `value`.
    pub fn start_query(&mut self, query: impl Into<Query>, value: u64) {
        let token = Token::new(Token::FRONT_END, value);
        Call::begin(&self.handle).core().env.ring.query(query.into(), token);
    }

    /// A front end's timer: an event with `value` when the clock passes `at`.
    pub fn start_timer(&mut self, at: Ns, value: u64) {
        let token = Token::new(Token::FRONT_END, value);
        Call::begin(&self.handle).core().env.ring.timer(at, token);
    }

    /// Ask for the operation started with `value` to end early. Its event still comes.
    pub fn cancel_net(&mut self, value: u64) {
        let token = Token::new(Token::FRONT_END, value);
        Call::begin(&self.handle).core().env.ring.cancel(token);
    }

    /// Close a descriptor that the ring was used on.
    pub fn close(&mut self, fd: OwnedFd) {
        Call::begin(&self.handle).core().env.ring.close(fd);
    }

    /// Hand started operations to the kernel without waiting.
    pub fn submit_ring(&mut self) {
        Call::begin(&self.handle).core().env.ring.submit_all();
    }

    /// Move the events of a front end's operations to `out`. Call after reap or wait.
    pub fn take_events(&mut self, out: &mut Vec<RingEvent>) {
        out.append(&mut Call::begin(&self.handle).core().env.events);
    }

    /// Make `arena` known to the kernel for this context's I/O; see
    /// [`crate::ring::Ring::register_memory`].
    ///
    /// # Errors
    /// When the kernel refuses; everything works as before.
    pub fn register_memory(&mut self, arena: Arc<Arena>) -> Result<()> {
        Call::begin(&self.handle).core().env.ring.register_memory(arena)
    }

    /// The shared clock reading if there is a fresh one, else a new one.
    pub fn now(&mut self) -> Ns {
        Call::begin(&self.handle).core().env.time.now()
    }

    /// The latest reading that this context took (0 if none is kept), without taking one.
    pub fn last_time(&mut self) -> Ns {
        Call::begin(&self.handle).core().env.time.last()
    }

    /// How often this context has read the clock.
    pub fn clock_reads(&mut self) -> u64 {
        Call::begin(&self.handle).core().env.time.reads()
    }

    /// Lock acquisitions and waits of this context.
    pub fn locks(&self) -> &Arc<LockCounters> {
        &self.handle.locks
    }

    /// The handle by which others reach this context: wake it, or send it messages.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// The ring's engine: `io_uring` or `plain`.
    pub fn engine(&mut self) -> &'static str {
        Call::begin(&self.handle).core().env.ring.engine()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if std::process::id() != self.handle.set.pid() {
            return;
        }
        {
            let mut call = Call::begin(&self.handle);
            call.core().abandon();
        }
        self.handle.set.orphan(&self.handle);
    }
}

#[cfg(all(test, not(loom)))]
mod split_tests;
#[cfg(all(test, not(loom)))]
mod tests;
