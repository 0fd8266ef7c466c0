//! A device behind its throttle.
//!
//! Invariant: waiting bios have not reached the device. All other calls pass through unchanged, so
//! the device below knows nothing of groups.

use drystone_core::clock::Ns;
use drystone_core::context::RemappedDone;
use drystone_core::device::TypedDevice;
use drystone_core::failures::Failures;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::ring::RingEvent;
use drystone_core::stats::DiskStats;
use drystone_core::{
    Bio, BioList, Channel, ChannelId, Device, DeviceInfo, Env, Extent, Holders, Result,
};
use std::ops::Range;
use std::sync::Arc;

use crate::device::DeviceThrottle;

/// The throttle of a device's bios. A laboratory may replace [`DeviceThrottle`] by another one.
pub trait Throttle: Send + Sync + Sized + 'static {
    /// The throttle as one context uses it.
    type Channel: ThrottleChannel;

    /// A throttle for the groups of a device.
    fn over(device: Arc<DeviceThrottle>) -> Arc<Self>;

    /// Open the throttle for a context; the device has channel `id` there.
    fn open(self: &Arc<Self>, env: &mut Env, id: ChannelId) -> Self::Channel;
}

/// The throttle as one context uses it. Callers pass that context.
pub trait ThrottleChannel: Send {
    /// Leave in `bios` those that may go on to `device` now, in their order. The others wait; a
    /// later call below returns them.
    fn admit(&mut self, env: &mut Env, device: &mut impl Channel, bios: &mut BioList);

    /// Handle a message. True if it was for the throttle; `pass` then gets the bios that may go on.
    fn message(&mut self, env: &mut Env, message: &Arc<Message>, pass: &mut BioList) -> bool;

    /// The time at which [`ThrottleChannel::tick`] must be called next.
    fn deadline(&self) -> Option<Ns>;

    /// Handle the time `now`. `pass` gets the bios that may go on.
    fn tick(&mut self, env: &mut Env, now: Ns, pass: &mut BioList);

    /// The number of waiting bios.
    fn waiting(&self) -> usize;

    /// End the waiting bios with `user_data` in `range` as cancelled. `pass` gets the bios that may
    /// go on.
    fn withdraw(&mut self, _env: &mut Env, _range: &Range<u64>, _pass: &mut BioList) {}

    /// End the waiting bios as cancelled, because the context was dropped.
    fn cancel(&mut self, env: &mut Env);

    /// End the throttle, because the device ends too. True if no other code can reach it any more.
    fn try_end(&mut self) -> bool;
}

/// A device behind its throttle. Clones are cheap if the device's are.
pub struct Throttled<D, T = DeviceThrottle> {
    device: D,
    throttle: Arc<T>,
}

impl<D: TypedDevice, T: Throttle> Throttled<D, T> {
    /// Put `throttle` in front of `device`.
    pub fn new(device: D, throttle: Arc<T>) -> Self {
        Throttled { device, throttle }
    }

    /// The device itself.
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D: TypedDevice, T: Throttle> Device for Throttled<D, T> {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        let device = self.device.open_typed(env, id)?;
        let throttle = self.throttle.open(env, id);
        Ok(Box::new(ThrottledChannel { throttle, device }))
    }

    fn has_volatile_cache(&self) -> bool {
        self.device.has_volatile_cache()
    }

    fn fills_pipes(&self) -> bool {
        self.device.fills_pipes()
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.device.extents(offset, length, max)
    }

    fn stats(&self) -> DiskStats {
        self.device.stats()
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        self.device.latencies(group)
    }

    fn failures(&self) -> Option<&Failures> {
        self.device.failures()
    }

    fn holders(&self) -> Option<&Holders> {
        self.device.holders()
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.device.attribute(name)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.device.set_attribute(name, value)
    }

    fn retire(&self) {
        self.device.retire();
    }
}

/// One context's way into a [`Throttled`] device. On cache lines of its own.
#[repr(align(128))]
struct ThrottledChannel<T, C> {
    throttle: T,
    device: C,
}

impl<T: ThrottleChannel, C: Channel + 'static> ThrottledChannel<T, C> {
    /// Send on bios that did not come by a submission.
    #[cold]
    fn pass(&mut self, env: &mut Env, bios: &mut BioList) {
        if !bios.is_empty() {
            // A call through `dyn` suffices here: only the path of every bio is worth a copy of the
            // device's code.
            let device: &mut dyn Channel = &mut self.device;
            device.submit(env, bios);
        }
    }
}

impl<T: ThrottleChannel, C: Channel + 'static> Channel for ThrottledChannel<T, C> {
    #[inline]
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.throttle.admit(env, &mut self.device, bios);
        if !bios.is_empty() {
            self.device.submit(env, bios);
        }
    }

    fn max_io_bytes(&self) -> u64 {
        self.device.max_io_bytes()
    }

    fn first_part(&self, bio: &Bio) -> u64 {
        self.device.first_part(bio)
    }

    fn members(&self) -> &[ChannelId] {
        self.device.members()
    }

    #[inline]
    fn remapped_done(&mut self, env: &mut Env, done: &[RemappedDone]) {
        self.device.remapped_done(env, done);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        self.device.returned(env, bios);
    }

    fn flush_plug(&mut self, env: &mut Env) {
        self.device.flush_plug(env);
    }

    #[inline]
    fn ring_event(&mut self, env: &mut Env, event: RingEvent) {
        self.device.ring_event(env, event);
    }

    fn message(&mut self, env: &mut Env, message: Arc<Message>) {
        let mut bios = BioList::new();
        match self.throttle.message(env, &message, &mut bios) {
            true => self.pass(env, &mut bios),
            false => self.device.message(env, message),
        }
    }

    #[inline]
    fn delivered(&mut self, env: &mut Env) {
        self.device.delivered(env);
    }

    #[inline]
    fn poll(&mut self, env: &mut Env) -> usize {
        self.device.poll(env)
    }

    #[inline]
    fn must_poll(&self) -> bool {
        self.device.must_poll()
    }

    fn deadline(&self) -> Option<Ns> {
        self.device.deadline().into_iter().chain(self.throttle.deadline()).min()
    }

    fn tick(&mut self, env: &mut Env, now: Ns) {
        let mut bios = BioList::new();
        self.throttle.tick(env, now, &mut bios);
        self.pass(env, &mut bios);
        if self.device.deadline().is_some_and(|due| due <= now) {
            self.device.tick(env, now);
        }
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight() + self.throttle.waiting()
    }

    fn try_retire(&mut self) -> bool {
        self.throttle.waiting() == 0 && self.device.try_retire() && self.throttle.try_end()
    }

    fn close(&mut self, env: &mut Env) {
        self.device.close(env);
    }

    fn waits_on_peer(&self) -> bool {
        self.device.waits_on_peer()
    }

    fn push_shared_work(&mut self, env: &mut Env) -> bool {
        self.device.push_shared_work(env)
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>) {
        let mut bios = BioList::new();
        self.throttle.withdraw(env, range, &mut bios);
        self.pass(env, &mut bios);
        self.device.withdraw(env, range);
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        self.throttle.cancel(env);
        self.device.cancel_pending(env);
    }
}
