//! The environment of a channel: its device, its driver queue and its copy of the configuration.
//!
//! Invariants:
//! * The copy is as recent as the last [`Setup::refresh`] or the last turn at the shared scheduler,
//!   which also refreshes it. If either finds a change, the channel also reads the size and informs
//!   the driver queue ([`Setup::follow_change`]).
//! * The numbers of the channel and of its context never change.

use super::in_flight::InFlight;
use crate::config::{Config, ConfigCell};
use crate::driver::{Driver, DriverQueue};
use crate::scheduler::{Scheduler, SchedulerKind};
use crate::shared::Shared;
use drystone_core::check::{Plain, check};
use drystone_core::failures::Failure;
use drystone_core::{Bio, BioFlags, ChannelId, ContextId, Env, Limits, Op, Status, Subscription};
use std::sync::Arc;

/// A bio with none of these flags needs only a check of its range.
const SPECIAL: BioFlags =
    BioFlags::FUA.union(BioFlags::PREFLUSH).union(BioFlags::NOWAIT).union(BioFlags::POLLED);

/// See the module's text.
pub(crate) struct Setup<D: Driver, S> {
    shared: Arc<Shared<D, S>>,
    config: Subscription<Config>,
    /// The size of the device in bytes at the last refresh.
    size_bytes: u64,
    context: ContextId,
    /// The number of this channel in its context.
    channel: ChannelId,
    driver: D::Queue,
}

/// What decides whether a bio is ordinary; see [`Setup::is_ordinary`].
#[derive(Clone, Copy)]
pub(crate) struct Ordinary(Plain);

impl Ordinary {
    #[inline(always)]
    pub(crate) fn has(&self, bio: &Bio) -> bool {
        self.allows(bio.op) && self.has_range_of(bio)
    }

    /// The part of [`Ordinary::has`] that bios with the same operation share.
    #[inline(always)]
    pub(crate) fn allows(&self, op: Op) -> bool {
        self.0.allows(op)
    }

    /// The other part.
    #[inline(always)]
    pub(crate) fn has_range_of(&self, bio: &Bio) -> bool {
        self.0.has_range_of(bio) && bio.is_contiguous()
    }
}

impl<D: Driver, S: Scheduler> Setup<D, S> {
    /// The setup of a channel of the context of `env`.
    pub(crate) fn new(
        shared: Arc<Shared<D, S>>,
        driver: D::Queue,
        channel: ChannelId,
        env: &mut Env,
    ) -> Self {
        Setup {
            config: Subscription::new(&shared.config, &env.locks),
            size_bytes: shared.driver.size_bytes(),
            context: env.context_id(),
            channel,
            driver,
            shared,
        }
    }

    /// The configuration at the last refresh.
    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The epoch of that configuration.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.config.epoch()
    }

    /// The limits of that configuration.
    #[inline]
    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The state that the channels of the device share.
    #[inline]
    pub(crate) fn shared(&self) -> &Shared<D, S> {
        &self.shared
    }

    /// The shared scheduler.
    #[inline]
    pub(crate) fn scheduler(&self) -> &S {
        &self.shared.scheduler
    }

    /// The parts for a run of the shared scheduler: itself, the copy of the configuration, and its
    /// source.
    #[inline]
    pub(crate) fn for_scheduler(&mut self) -> (&S, &mut Subscription<Config>, &ConfigCell) {
        (&self.shared.scheduler, &mut self.config, &self.shared.config)
    }

    /// The driver as this context uses it.
    #[inline]
    pub(crate) fn driver(&mut self) -> &mut D::Queue {
        &mut self.driver
    }

    /// True if the queue of [`Setup::driver`] has requests that only a poll can find.
    pub(crate) fn must_poll(&self) -> bool {
        self.driver.must_poll()
    }

    /// True if the driver completes ordinary requests as they are issued.
    #[inline]
    pub(crate) fn completes_inline(&self) -> bool {
        self.driver.completes_inline()
    }

    /// The context.
    pub(crate) fn context(&self) -> ContextId {
        self.context
    }

    /// The number of this channel in its context.
    pub(crate) fn channel(&self) -> ChannelId {
        self.channel
    }

    /// True if bios go through the shared scheduler.
    #[inline]
    pub(crate) fn has_scheduler(&self) -> bool {
        self.config.scheduler != SchedulerKind::None
    }

    /// True if every bio goes through the shared scheduler, even if the driver could take it now.
    #[inline]
    pub(crate) fn schedules_all(&self) -> bool {
        self.has_scheduler() && !self.config.straight
    }

    /// Follow a configuration or size that has changed. True if one has.
    #[inline]
    pub(crate) fn refresh(&mut self, env: &mut Env, flight: &mut InFlight) -> bool {
        let changed = !self.config.is_current(&self.shared.config);
        if changed {
            self.take_over(env, flight);
        }
        changed
    }

    #[cold]
    fn take_over(&mut self, env: &mut Env, flight: &mut InFlight) {
        self.config.refresh(&self.shared.config, &env.locks);
        self.follow_change(env, flight);
    }

    /// Follow the copy of the configuration, which has changed.
    #[cold]
    pub(crate) fn follow_change(&mut self, env: &mut Env, flight: &mut InFlight) {
        self.size_bytes = self.shared.driver.size_bytes();
        self.driver.refresh(env);
        // The time-out may have become shorter.
        flight.check_timeouts_soon();
    }

    /// Refresh the copy of the configuration only, without the context's lock counts. This serves a
    /// channel that ends: its old copy refers to its port.
    pub(crate) fn refresh_to_close(&mut self) {
        self.shared.refresh(&mut self.config);
    }

    /// True for a read or write that fits one request and needs no further check.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self, bio: &Bio) -> bool {
        self.ordinary().has(bio)
    }

    /// What decides that, for a loop.
    #[inline(always)]
    pub(crate) fn ordinary(&self) -> Ordinary {
        let limits = &self.config.limits;
        let max_bytes = if limits.chunk_bytes == 0 { limits.max_bytes } else { 0 };
        Ordinary(Plain::new(limits, self.size_bytes, max_bytes, SPECIAL))
    }

    /// Check `bio`, with the present size of the device if it has grown since the last refresh.
    ///
    /// # Errors
    /// The status of the check that failed.
    pub(crate) fn check(&mut self, bio: &Bio) -> Result<(), Status> {
        let limits = &self.config.limits;
        check(bio, limits, self.size_bytes).or_else(|_| {
            self.size_bytes = self.shared.driver.size_bytes();
            check(bio, limits, self.size_bytes)
        })
    }

    /// Note a failure, for a later report ([`Device::failures`](drystone_core::Device::failures)).
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.status.is_failure() {
            self.shared.stats.failures.note(failure);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::scheduler::MqDeadline;
    use crate::tags::TagSet;
    use crate::tests::fake::{Fake, Setup as FakeSetup, Stage};
    use crate::tests::with_env;
    use drystone_core::{IoBuf, Sector};
    use std::sync::atomic::Ordering::SeqCst;

    const MIB: u64 = 1 << 20;

    /// A channel's setup on a device of 1 MiB, and the shared state of that device.
    struct Parts {
        stage: Arc<Stage>,
        shared: Arc<Shared<Fake, MqDeadline>>,
        setup: Setup<Fake, MqDeadline>,
        flight: InFlight,
    }

    impl Parts {
        fn new(env: &mut Env) -> Self {
            let stage = Stage::new();
            stage.size_bytes.store(MIB, SeqCst);
            let shared = Arc::new(Shared::for_test(Fake::new(FakeSetup::depth(4), &stage)));
            let queue = shared.driver.open_queue(env, ChannelId(3), 4).expect("a queue");
            let setup = Setup::new(shared.clone(), queue, ChannelId(3), env);
            let flight = InFlight::new(&TagSet::new(4), shared.stats.for_channel());
            Parts { stage, shared, setup, flight }
        }

        /// Change the configuration of the device.
        fn change(&self, change: impl FnOnce(&mut Config)) {
            let changed = self.shared.config.update(&self.shared.locks, |config| {
                change(config);
                Ok(())
            });
            changed.expect("nothing refuses it");
        }

        fn refresh(&mut self, env: &mut Env) -> bool {
            self.setup.refresh(env, &mut self.flight)
        }
    }

    fn read(sector: u64, bytes: usize) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::zeroed(bytes))
    }

    #[test]
    fn a_change_is_taken_over_once_with_the_size_and_by_the_driver() {
        with_env(|env| {
            let mut parts = Parts::new(env);
            assert_eq!(
                (parts.setup.channel(), parts.setup.context()),
                (ChannelId(3), env.context_id())
            );
            parts.change(|config| config.nomerges = 2);
            parts.stage.size_bytes.store(MIB / 2, SeqCst);
            let last = read(MIB / 512 - 1, 512);
            assert!(parts.setup.config().nomerges == 0 && parts.setup.is_ordinary(&last));
            assert!(parts.refresh(env));
            assert!(parts.setup.config().nomerges == 2 && !parts.setup.is_ordinary(&last));
            assert!(!parts.refresh(env), "nothing has changed since");
            assert_eq!(parts.stage.refreshes(), 1);
        });
    }

    #[test]
    fn a_change_has_requests_checked_for_time_outs() {
        with_env(|env| {
            let mut parts = Parts::new(env);
            parts.flight.build(0, read(0, 512), &Limits::default());
            parts.flight.issue(0);
            parts.flight.started(0, 10, &Config { timeout_ns: 100, ..Config::for_test() });
            assert_eq!(parts.flight.deadline(), Some(110));
            parts.change(|config| config.timeout_ns = 50);
            parts.refresh(env);
            assert_eq!(parts.flight.deadline(), Some(1), "at the next chance");
        });
    }

    #[test]
    fn a_device_that_grew_refuses_nothing_inside_its_new_size() {
        with_env(|env| {
            let mut parts = Parts::new(env);
            parts.stage.size_bytes.store(2 * MIB, SeqCst);
            let (inside, outside) = (read(3000, 512), read(2 * MIB / 512, 512));
            assert!(!parts.setup.is_ordinary(&inside), "not that it knows");
            assert_eq!(parts.setup.check(&inside), Ok(()));
            assert!(parts.setup.is_ordinary(&inside));
            assert_eq!(parts.setup.check(&outside), Err(Status::IoError));
        });
    }

    #[test]
    fn an_ordinary_bio_fits_one_request_and_asks_for_nothing_special() {
        with_env(|env| {
            let mut parts = Parts::new(env);
            parts.change(|config| config.limits.max_bytes = 4096);
            parts.refresh(env);
            assert!(parts.setup.is_ordinary(&read(8, 4096)));
            assert!(!parts.setup.is_ordinary(&read(8, 4608)), "longer than a request");
            for flag in SPECIAL.iter() {
                let mut bio = read(8, 512);
                bio.flags.insert(flag);
                assert!(!parts.setup.is_ordinary(&bio), "{flag:?}");
            }
            assert!(!parts.setup.is_ordinary(&Bio::without_data(Op::Discard, Sector(0), 512)));
            parts.change(|config| config.limits.chunk_bytes = 1 << 16);
            parts.refresh(env);
            assert!(!parts.setup.is_ordinary(&read(8, 4096)), "it might cross a chunk");
        });
    }

    #[test]
    fn a_scheduler_gets_every_bio_unless_batches_may_go_past_it() {
        with_env(|env| {
            let mut parts = Parts::new(env);
            let mut asked = |scheduler, straight| {
                parts.change(|c| (c.scheduler, c.straight) = (scheduler, straight));
                parts.refresh(env);
                (parts.setup.has_scheduler(), parts.setup.schedules_all())
            };
            assert_eq!(asked(SchedulerKind::None, false), (false, false));
            assert_eq!(asked(SchedulerKind::MqDeadline, true), (true, false));
            assert_eq!(asked(SchedulerKind::MqDeadline, false), (true, true));
        });
    }
}
