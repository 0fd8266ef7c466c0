//! `blk-throttle` as Linux had it before the series of 2011: every bio, also of the root and of
//! groups without a rule, takes the device's queue lock, looks its group up under it, is charged
//! where a rule applies, and is counted under the group's lock of statistics.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::sync::Lock;
use drystone_core::{Bio, ChannelId, Env};
use drystone_throttle::{DeviceThrottle, Throttle};

use super::keeping::{Gate, Keeping};
use super::queue::Queue;

/// See the module's text.
pub struct Baseline {
    device: Arc<DeviceThrottle>,
    queue: Lock<Queue>,
}

impl Throttle for Baseline {
    type Channel = Keeping<Arc<Baseline>>;

    fn over(device: Arc<DeviceThrottle>) -> Arc<Self> {
        Arc::new(Baseline { device, queue: Queue::locked() })
    }

    fn open(self: &Arc<Self>, _: &mut Env, _: ChannelId) -> Self::Channel {
        Keeping::new(self.clone())
    }
}

impl Gate for Arc<Baseline> {
    #[inline]
    fn ask(&mut self, env: &mut Env, bio: &Bio, now: Option<Ns>) -> Result<(), Ns> {
        let mut queue = self.queue.lock(&env.locks);
        queue.refresh(&self.device, &env.locks);
        queue.charge(bio, || now.unwrap_or_else(|| env.time.submit_time()))?;
        queue.count(&self.device, &env.locks, bio);
        Ok(())
    }
}
