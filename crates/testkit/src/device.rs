//! Devices of tests: one that calls a hook before it answers, one that runs a test in the
//! environment of a context, and the part of [`Device`] that most fake devices share.

use std::sync::Arc;

use drystone_core::clock::Clock;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::ring::Engine;
use drystone_core::stats::DiskStats;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{
    Channel, ChannelId, ContextSet, Device, DeviceInfo, Env, Error, Extent, Limits, Result,
};

/// The methods of a [`Device`] without statistics and attributes, to stand in its `impl`.
///
/// ```
/// use drystone_core::{Channel, ChannelId, Device, DeviceInfo, Env, Error, Extent, Limits, Result};
///
/// struct Fake;
///
/// impl Device for Fake {
///     drystone_testkit::no_statistics!();
///     drystone_testkit::no_attributes!();
///
///     fn info(&self) -> DeviceInfo {
///         let limits = Limits::default();
///         DeviceInfo { name: "fake".into(), kind: "test", size_bytes: 512, limits }
///     }
///
///     fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
///         panic!("nobody opens it")
///     }
///
///     fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
///         Ok(vec![Extent::data(offset, length)])
///     }
/// }
///
/// assert_eq!(Fake.attribute("queue/scheduler"), None);
/// assert_eq!(Fake.stats().groups[0].completed, 0);
/// ```
#[macro_export]
macro_rules! no_statistics {
    () => {
        fn stats(&self) -> $crate::core::stats::DiskStats {
            $crate::core::stats::DiskStats::default()
        }

        $crate::no_latencies!();
    };
}

/// As [`no_statistics!`], of a device that counts but does not time its I/Os.
#[macro_export]
macro_rules! no_latencies {
    () => {
        fn latencies(
            &self,
            _group: $crate::core::op::OpGroup,
        ) -> $crate::core::histogram::Snapshot {
            $crate::core::histogram::Snapshot::default()
        }
    };
}

/// As [`no_statistics!`], the methods that read and set attributes.
#[macro_export]
macro_rules! no_attributes {
    () => {
        fn attribute(&self, _name: &str) -> Option<String> {
            None
        }

        fn set_attribute(&self, _name: &str, _value: &str) -> $crate::core::Result<()> {
            Ok(())
        }
    };
}

/// Something that a test does inside a call.
pub type Hook = Box<dyn Fn() + Send + Sync>;

/// A device that answers as the one inside it does, after a hook.
pub struct HookedDevice {
    inner: Arc<dyn Device>,
    before_info: Option<Hook>,
    before_extents: Option<Hook>,
}

impl HookedDevice {
    /// Without hooks.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        HookedDevice { inner, before_info: None, before_extents: None }
    }

    /// Calls `hook` before each answer about its size and limits.
    #[must_use]
    pub fn before_info(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_info = Some(Box::new(hook));
        self
    }

    /// Calls `hook` before each answer about its extents.
    #[must_use]
    pub fn before_extents(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_extents = Some(Box::new(hook));
        self
    }
}

impl Device for HookedDevice {
    fn info(&self) -> DeviceInfo {
        self.before_info.iter().for_each(|hook| hook());
        self.inner.info()
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        self.inner.open_channel(env, id)
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.before_extents.iter().for_each(|hook| hook());
        self.inner.extents(offset, length, max)
    }

    fn stats(&self) -> DiskStats {
        self.inner.stats()
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        self.inner.latencies(group)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.inner.attribute(name)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.inner.set_attribute(name, value)
    }
}

/// A device that runs a test in the place of opening a channel.
struct TestRunner<F>(Lock<Option<F>>);

impl<F: FnOnce(&mut Env) + Send> Device for TestRunner<F> {
    no_statistics!();
    no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "test".into(), kind: "test", size_bytes: 512, limits }
    }

    fn open_channel(&self, env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
        let test = self.0.lock(&env.locks).take();
        test.expect("one test")(env);
        Err(Error::invalid("there is no channel"))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }
}

/// Runs `test` in the environment of a new context, whose ring is of this engine.
///
/// # Panics
/// When the machine has no such ring.
pub fn with_env(
    clock: Arc<dyn Clock>,
    engine: Engine,
    test: impl FnOnce(&mut Env) + Send + 'static,
) {
    let locks = LockCounters::new(clock.clone());
    let runner = Arc::new(TestRunner(Lock::new(LockClass::Control, Some(test))));
    let device: Arc<dyn Device> = runner.clone();
    let mut cx = ContextSet::new(clock).open(engine).expect("a ring");
    assert!(cx.open(&device).is_err(), "it has no channel");
    assert!(runner.0.lock(&locks).is_none(), "the test has run");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    struct Fake;

    impl Device for Fake {
        crate::no_statistics!();
        crate::no_attributes!();

        fn info(&self) -> DeviceInfo {
            let limits = drystone_core::Limits::default();
            DeviceInfo { name: "fake".into(), kind: "test", size_bytes: 512, limits }
        }

        fn open_channel(&self, _env: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
            unreachable!("nobody opens it")
        }

        fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
            Ok(vec![Extent::data(offset, length)])
        }
    }

    #[test]
    fn hooks_come_before_the_answers_that_they_are_for() {
        let asked = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let (of_info, of_extents) = (asked.clone(), asked.clone());
        let device = HookedDevice::new(Arc::new(Fake))
            .before_info(move || _ = of_info[0].fetch_add(1, Relaxed))
            .before_extents(move || _ = of_extents[1].fetch_add(1, Relaxed));
        assert_eq!(device.info().size_bytes, 512);
        assert_eq!(asked.each_ref().map(|count| count.load(Relaxed)), [1, 0]);
        assert_eq!(device.extents(0, 512, 1).unwrap(), [Extent::data(0, 512)]);
        assert_eq!(asked.each_ref().map(|count| count.load(Relaxed)), [1, 1]);
        assert_eq!(device.attribute("queue/scheduler"), None);
    }

    #[test]
    fn a_test_runs_once_in_the_environment_of_a_context() {
        let runs = Arc::new(AtomicU32::new(0));
        let ran = runs.clone();
        let clock = drystone_core::clock::ManualClock::new(7);
        with_env(clock, Engine::Plain, move |env| {
            assert_eq!(env.time.submit_time(), 7);
            ran.fetch_add(1, Relaxed);
        });
        assert_eq!(runs.load(Relaxed), 1);
    }
}
