//! The configuration by which a channel works, with its context's channels of the members.
//!
//! Invariants:
//! * `channels` belongs to the configuration `conf`. It lists the channel of each role's member,
//!   then that of each role's replacement, with `NO_CHANNEL` where the role has none.
//! * `in_use` lists the channels of `channels` that exist, in the same order.

use crate::engine::conf::{Conf, Member};
use crate::ids::{MemberNumber, Role};
use drystone_core::sync::LockCounters;
use drystone_core::{ChannelId, Device, Published, Subscription};
use std::sync::Arc;

/// Stands in for a channel that does not exist.
const NO_CHANNEL: ChannelId = ChannelId(u32::MAX);

/// See the module's text.
pub(super) struct Membership {
    conf: Subscription<Conf>,
    channels: Vec<ChannelId>,
    in_use: Vec<ChannelId>,
}

impl Membership {
    /// The current configuration, without channels: [`Membership::refresh`] opens them.
    pub(super) fn new(published: &Published<Conf>, locks: &LockCounters) -> Self {
        let conf = Subscription::new(published, locks);
        Membership { conf, channels: Vec::new(), in_use: Vec::new() }
    }

    #[inline]
    pub(super) fn conf(&self) -> &Conf {
        &self.conf
    }

    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.conf.epoch()
    }

    /// Nothing has been published since [`Membership::refresh`].
    #[inline]
    pub(super) fn is_current(&self, published: &Published<Conf>) -> bool {
        self.conf.is_current(published)
    }

    /// Take over the published configuration. `channel_of` gives the context's channel of a device.
    /// True if some channel is not needed any more.
    pub(super) fn refresh(
        &mut self,
        published: &Published<Conf>,
        locks: &LockCounters,
        mut channel_of: impl FnMut(&Arc<dyn Device>) -> ChannelId,
    ) -> bool {
        self.conf.refresh(published, locks);
        let number = |at| match member_at(&self.conf, at) {
            Some(member) => channel_of(&member.device),
            None => NO_CHANNEL,
        };
        self.channels = (0..2 * self.conf.role_slots.len()).map(number).collect();
        let exists = |channel: &ChannelId| *channel != NO_CHANNEL;
        let in_use = self.channels.iter().copied().filter(exists).collect();
        let before = std::mem::replace(&mut self.in_use, in_use);
        before.iter().any(|channel| !self.in_use.contains(channel))
    }

    /// The channel of a role's member, or of its replacement.
    #[inline]
    pub(super) fn channel(&self, role: Role, is_replacement: bool) -> ChannelId {
        let replacements = if is_replacement { self.conf.role_slots.len() } else { 0 };
        self.channels[role.index() + replacements]
    }

    /// All channels that exist.
    pub(super) fn in_use(&self) -> &[ChannelId] {
        &self.in_use
    }

    /// All members and replacements, each with its channel.
    pub(super) fn devices(&self) -> impl Iterator<Item = (ChannelId, &Member)> {
        let all = self.channels.iter().enumerate();
        all.filter_map(|(at, channel)| Some((*channel, member_at(&self.conf, at)?)))
    }

    fn find(&self, number: MemberNumber) -> Option<&Member> {
        let mut members = self.devices().map(|(_, member)| member);
        members.find(|member| member.number == number)
    }

    /// The device is a member or a replacement.
    pub(super) fn has(&self, number: MemberNumber) -> bool {
        self.find(number).is_some()
    }

    /// Parity could not make up for the loss of this device.
    pub(super) fn is_needed(&self, number: MemberNumber) -> bool {
        let is_in_sync = self.find(number).is_some_and(Member::is_in_sync);
        is_in_sync && self.conf.lost().len() >= self.conf.layout.level().parity_disks()
    }
}

/// The device at a position of `channels`.
fn member_at(conf: &Conf, at: usize) -> Option<&Member> {
    let slots = &conf.role_slots;
    match at.checked_sub(slots.len()) {
        None => slots[at].member.as_ref(),
        Some(at) => slots[at].replacement.as_ref(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::conf::IN_SYNC;
    use crate::engine::shard::tests::{conf, member};
    use drystone_core::clock::ManualClock;

    fn change(published: &Published<Conf>, locks: &LockCounters, change: impl FnOnce(&mut Conf)) {
        let changed = published.update(locks, |conf| {
            change(conf);
            conf.role_slots_changed();
            Ok(())
        });
        changed.unwrap();
    }

    #[test]
    fn channels_follow_the_members() {
        let locks = LockCounters::new(ManualClock::new(1));
        let published = Published::new(conf(3));
        let mut membership = Membership::new(&published, &locks);
        let mut opened = (10..).map(ChannelId);
        let mut open = |_: &Arc<dyn Device>| opened.next().unwrap();
        assert!(!membership.refresh(&published, &locks, &mut open));
        assert_eq!(membership.in_use(), [10, 11, 12].map(ChannelId));
        assert_eq!(membership.channel(Role(2), false), ChannelId(12));
        assert!(membership.is_current(&published));

        change(&published, &locks, |conf| {
            conf.role_slots[1].member = None;
            conf.role_slots[2].replacement = Some(member(7, 0));
        });
        assert!(!membership.is_current(&published));
        assert!(membership.refresh(&published, &locks, &mut open), "a channel is not needed");
        assert_eq!(membership.in_use(), [13, 14, 15].map(ChannelId));
        assert_eq!(membership.channel(Role(2), true), ChannelId(15));
        let numbers: Vec<u32> = membership.devices().map(|(_, member)| member.number.0).collect();
        assert_eq!(numbers, [0, 2, 7]);
    }

    #[test]
    fn a_member_is_needed_if_parity_does_not_make_up_for_it() {
        let locks = LockCounters::new(ManualClock::new(1));
        let published = Published::new(conf(3));
        let mut membership = Membership::new(&published, &locks);
        membership.refresh(&published, &locks, |_| ChannelId(0));
        assert!(membership.has(MemberNumber(1)) && !membership.is_needed(MemberNumber(1)));
        change(&published, &locks, |conf| {
            conf.role_slots[0].member = Some(member(5, 0));
            conf.role_slots[2].replacement = Some(member(6, IN_SYNC));
        });
        membership.refresh(&published, &locks, |_| ChannelId(0));
        let needed = [0, 1, 2, 5].map(|number| membership.is_needed(MemberNumber(number)));
        assert_eq!(needed, [false, true, true, false]);
    }
}
