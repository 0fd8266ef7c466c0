//! No throttle, as if it were compiled out.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::{BioList, Channel, ChannelId, Env};
use drystone_throttle::{DeviceThrottle, Throttle, ThrottleChannel};

/// A throttle that lets every bio pass and counts nothing. It is its own channel.
pub struct NoThrottle;

impl Throttle for NoThrottle {
    type Channel = NoThrottle;

    fn over(_: Arc<DeviceThrottle>) -> Arc<Self> {
        Arc::new(NoThrottle)
    }

    fn open(self: &Arc<Self>, _: &mut Env, _: ChannelId) -> NoThrottle {
        NoThrottle
    }
}

impl ThrottleChannel for NoThrottle {
    #[inline(always)]
    fn admit(&mut self, _: &mut Env, _: &mut impl Channel, _: &mut BioList) {}

    #[inline(always)]
    fn message(&mut self, _: &mut Env, _: &Arc<Message>, _: &mut BioList) -> bool {
        false
    }

    #[inline(always)]
    fn deadline(&self) -> Option<Ns> {
        None
    }

    #[inline(always)]
    fn tick(&mut self, _: &mut Env, _: Ns, _: &mut BioList) {}

    #[inline(always)]
    fn waiting(&self) -> usize {
        0
    }

    fn cancel(&mut self, _: &mut Env) {}

    fn try_end(&mut self) -> bool {
        true
    }
}
