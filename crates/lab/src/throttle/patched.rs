//! The series of 2011: the look-up of a bio's group takes no lock, and the bio is counted for its
//! context alone. Only if the group has a rule in the bio's direction, the device's queue lock is
//! taken and the group charged, as before.
//!
//! Linux reads under RCU. Here each channel keeps a copy and checks whether it is current
//! ([`drystone_core::Published`]). A second look-up, under the lock, finds the counters to charge.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::sync::Lock;
use drystone_core::{Bio, ChannelId, Env};
use drystone_throttle::{DeviceThrottle, GroupCounter, GroupId, Throttle};

use super::keeping::{Gate, Keeping};
use super::queue::{Queue, direction};
use super::table::Table;

/// See the module's text.
pub struct Patched {
    device: Arc<DeviceThrottle>,
    queue: Lock<Queue>,
}

impl Throttle for Patched {
    type Channel = Keeping<MailedGate>;

    fn over(device: Arc<DeviceThrottle>) -> Arc<Self> {
        Arc::new(Patched { device, queue: Queue::locked() })
    }

    fn open(self: &Arc<Self>, _: &mut Env, _: ChannelId) -> Self::Channel {
        Keeping::new(MailedGate { shared: self.clone(), epoch: 0, groups: Table::default() })
    }
}

/// A group as a channel knows it.
struct Group {
    has_rule: [bool; 2],
    stats: Option<GroupCounter>,
}

/// A context's copy of the groups of [`Patched`].
pub struct MailedGate {
    shared: Arc<Patched>,
    epoch: u64,
    groups: Table<Group>,
}

impl MailedGate {
    #[cold]
    fn rebuild(&mut self, env: &Env) {
        let (epoch, all) = self.shared.device.bounds(&env.locks);
        self.epoch = epoch;
        self.groups.rebuild(all, |now, before| Group {
            has_rule: [!now.reads.is_empty(), !now.writes.is_empty()],
            stats: before.and_then(|group| group.stats),
        });
    }
}

impl Gate for MailedGate {
    #[inline]
    fn ask(&mut self, env: &mut Env, bio: &Bio, now: Option<Ns>) -> Result<(), Ns> {
        if self.shared.device.epoch() != self.epoch {
            self.rebuild(env);
        }
        let Some(group) = self.groups.get(GroupId::of(bio)) else { return Ok(()) };
        let Patched { device, queue } = &*self.shared;
        if group.has_rule[direction(bio)] {
            let mut queue = queue.lock(&env.locks);
            queue.refresh(device, &env.locks);
            queue.charge(bio, || now.unwrap_or_else(|| env.time.submit_time()))?;
        }
        group.stats.get_or_insert_with(|| device.counter(GroupId::of(bio))).count(bio);
        Ok(())
    }
}
