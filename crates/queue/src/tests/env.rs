//! A context's environment for tests of parts that need one.

use super::fake::FakeQueue;
use crate::driver::{Driver, HwQueues};
use crate::queue::{QueueOptions, RequestQueue};
use drystone_core::clock::ManualClock;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{ContextSet, Device, Env, Error, Extent, Limits, Result};
use std::sync::{Arc, Mutex};

/// A driver that runs a test in the place of opening its queue.
struct Lender<F>(Arc<Mutex<Option<F>>>);

impl<F: FnOnce(&mut Env) + Send + 'static> Driver for Lender<F> {
    type Queue = FakeQueue;

    fn kind(&self) -> &'static str {
        "lender"
    }

    fn size_bytes(&self) -> u64 {
        512
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn hw_queues(&self) -> HwQueues {
        HwQueues { default: 1, poll: 0, depth: 1 }
    }

    fn open_queue(&self, env: &mut Env, _: u32, _: u32) -> Result<FakeQueue> {
        let test = self.0.lock().unwrap().take();
        test.expect("one test")(env);
        Err(Error::invalid("there is no queue"))
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }
}

/// Run `test` in the environment of a new context.
pub(crate) fn with_env(test: impl FnOnce(&mut Env) + Send + 'static) {
    let clock = ManualClock::new(1);
    let test = Arc::new(Mutex::new(Some(test)));
    let locks = LockCounters::new(clock.clone());
    let queue = RequestQueue::new("d0", Lender(test.clone()), &QueueOptions::default(), locks);
    let device: Arc<dyn Device> = Arc::new(queue.expect("a queue"));
    let mut cx = ContextSet::new(clock).open(Engine::Plain).expect("a ring");
    assert!(cx.open(&device).is_err() && test.lock().unwrap().is_none(), "the test has run");
}
