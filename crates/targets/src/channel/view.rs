//! A volume as one context sees it: a copy of the published state, and the channels of the members.
//!
//! Invariants:
//! * `members` are the context's channels of the live table's members, by the members' numbers.
//! * The port is open as long as the view exists. It is opened before the published state is read,
//!   so that a suspension between the two finds the port.
//! * [`VolumeView::report`] reports the channel as quiesced only with an epoch that this view has
//!   seen.

use crate::shared::{Live, Port, Shared};
use crate::table::{Table, To};
use drystone_core::check::{check, is_plain};
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioFlags, BioList, ChannelId, Env, Op, Sector, Status, Subscription};
use std::sync::Arc;

/// See the module's text.
pub(super) struct VolumeView {
    shared: Arc<Shared>,
    port: Arc<Port>,
    channel: ChannelId,
    live: Subscription<Live>,
    members: Vec<ChannelId>,
    /// The fast path is not for bios with one of these flags.
    special: BioFlags,
}

/// The path of a bio that was just submitted.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// The bio lies on one member: go to this member and sector.
    Move(u32, u64),
    /// The bio must be divided.
    Divide,
    /// The bio takes the slow path, with all checks and parts.
    Slow,
}

impl VolumeView {
    /// The view of `channel`; the caller completes it with [`VolumeView::follow`].
    pub(super) fn new(shared: Arc<Shared>, env: &mut Env, channel: ChannelId) -> Self {
        let port = shared.open_port(Message::to(env.handle(), channel, 0));
        let live = Subscription::new(&shared.live, &env.locks);
        let special = BioFlags::empty();
        VolumeView { shared, port, channel, live, members: Vec::new(), special }
    }

    /// True if nothing was published since this view was taken.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.live.is_current(&self.shared.live)
    }

    /// The state that is published now, for [`VolumeView::replace`].
    pub(super) fn published(&self, env: &mut Env) -> Subscription<Live> {
        Subscription::new(&self.shared.live, &env.locks)
    }

    /// Take `live` as the published value. True if its table is another one. The caller then calls
    /// [`VolumeView::follow`].
    pub(super) fn replace(&mut self, live: Subscription<Live>) -> bool {
        let former = std::mem::replace(&mut self.live, live);
        let address = |live: &Live| live.table.as_deref().map(std::ptr::from_ref);
        address(&former) != address(&self.live)
    }

    /// Find the channels of the members, which may have changed.
    pub(super) fn follow(&mut self, env: &mut Env) {
        let members = self.table().map(Table::members).unwrap_or_default();
        self.members = members.iter().map(|device| env.channel_of(device)).collect();
        self.special = match self.live.io_poll {
            true => BioFlags::PREFLUSH,
            false => BioFlags::PREFLUSH | BioFlags::POLLED,
        };
    }

    /// The live table, by which all passed bios go on.
    #[inline]
    pub(super) fn table(&self) -> Option<&Table> {
        self.live.table.as_deref()
    }

    /// New bios are held.
    #[inline]
    pub(super) fn is_suspended(&self) -> bool {
        self.live.suspended
    }

    /// The volume was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.live.closed
    }

    /// `queue/iostats` is on.
    #[inline]
    pub(super) fn has_iostats(&self) -> bool {
        self.live.iostats
    }

    /// The number of this channel in its context.
    #[inline]
    pub(super) fn channel(&self) -> ChannelId {
        self.channel
    }

    /// The members' channels.
    pub(super) fn members(&self) -> &[ChannelId] {
        &self.members
    }

    /// The message that makes this channel check what other contexts did.
    pub(super) fn doorbell(&self) -> &Arc<Message> {
        self.port.doorbell()
    }

    /// The number of bios that passed and have not ended.
    #[inline]
    pub(super) fn in_flight(&self, env: &mut Env) -> usize {
        env.remapped_in_flight(self.channel)
    }

    /// Report that the channel is quiesced, if the volume is suspended and nothing is in flight.
    pub(super) fn report(&self, env: &mut Env) {
        if self.live.suspended {
            self.port.quiesced.report(self.live.epoch(), self.in_flight(env));
        }
    }

    /// Close the port. True if no other thread can ring its doorbell any more.
    pub(super) fn close(&mut self) -> bool {
        self.shared.close_port(&self.port);
        Port::is_ours_alone(&mut self.port)
    }

    /// The path of a bio that was just submitted.
    #[inline(always)]
    pub(super) fn way(&self, bio: &Bio) -> Way {
        let Some(table) = self.table() else { return Way::Slow };
        if !self.is_plain(bio) || bio.is_trail_full() {
            return Way::Slow;
        }
        let (to, sector, bytes) = table.piece(bio.sector.0);
        match to {
            To::Member(member) if bio.bytes <= bytes => Way::Move(member, sector),
            _ if bio.flags.contains(BioFlags::NOWAIT) => Way::Slow,
            _ => Way::Divide,
        }
    }

    /// True for a bio that needs no check and no part of its own.
    #[inline(always)]
    pub(super) fn is_plain(&self, bio: &Bio) -> bool {
        is_plain(bio, &self.live.limits, self.live.size_bytes, self.special)
    }

    /// Check `bio` as Linux's `submit_bio_noacct` does, and clear its polling flag if polling is
    /// off.
    pub(super) fn check(&self, bio: &mut Bio) -> Result<(), Status> {
        if !self.live.io_poll {
            bio.flags.remove(BioFlags::POLLED);
        }
        check(bio, &self.live.limits, self.live.size_bytes)?;
        if self.live.table.is_none() { Err(Status::IoError) } else { Ok(()) }
    }

    /// Send `bio` to a sector of a member.
    #[inline]
    pub(super) fn send_to_sector(
        &self,
        env: &mut Env,
        (member, sector): (u32, u64),
        mut bio: Box<Bio>,
    ) {
        bio.sector = Sector(sector);
        env.send_down(self.members[member as usize], bio);
    }

    /// Send `bios` to a member, whose sectors they have, and empty the list.
    #[inline]
    pub(super) fn send_all(&self, env: &mut Env, member: u32, bios: &mut BioList) {
        env.send_all_down(self.members[member as usize], bios);
    }

    /// Send a part to a member. The sectors of the part are the volume's; `add` is added to them. A
    /// flush has no sector.
    pub(super) fn send_moved(&self, env: &mut Env, (member, add): (u32, u64), mut bio: Box<Bio>) {
        if bio.op != Op::Flush {
            bio.sector = Sector(bio.sector.0.wrapping_add(add));
        }
        env.send_down(self.members[member as usize], bio);
    }
}

impl Drop for VolumeView {
    fn drop(&mut self) {
        self.shared.close_port(&self.port);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{area, member, publish, run, shared, table};
    use super::*;
    use crate::table::TargetSpec::Linear;
    use drystone_core::IoBuf;

    fn read(sector: u64, sectors: usize) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::zeroed(sectors * 512))
    }

    /// Call `look` with the view of a channel of `shared`.
    fn with_view(
        shared: &Arc<Shared>,
        look: impl FnOnce(&mut VolumeView, &mut Env) + Send + 'static,
    ) {
        let shared = shared.clone();
        let ended = run(Bio::flush(), move |env, id, bio| {
            let mut view = VolumeView::new(shared, env, id);
            view.follow(env);
            look(&mut view, env);
            env.end_with(bio, Status::Ok);
        });
        assert!(ended.status.is_ok());
    }

    #[test]
    fn a_bio_is_moved_whole_where_one_piece_takes_it() {
        let (device, _) = member();
        let shared = shared();
        publish(&shared, table(vec![Linear(area(&device, 100)), Linear(area(&device, 50))]));
        with_view(&shared, |view, _| {
            let with = |mut bio: Box<Bio>, flags| {
                bio.flags |= flags;
                bio
            };
            assert!(matches!(view.way(&read(2, 6)), Way::Move(0, 102)));
            assert!(matches!(view.way(&read(9, 1)), Way::Move(0, 51)));
            assert!(matches!(view.way(&read(2, 7)), Way::Divide));
            for bio in [
                with(read(2, 7), BioFlags::NOWAIT),
                with(read(2, 6), BioFlags::PREFLUSH),
                with(read(2, 6), BioFlags::POLLED),
                read(15, 2),
            ] {
                assert!(matches!(view.way(&bio), Way::Slow), "{bio:?}");
            }
        });
    }

    #[test]
    fn checks_are_those_of_the_table_that_is_there() {
        let shared = shared();
        with_view(&shared, |view, _| {
            assert!(matches!(view.way(&read(0, 1)), Way::Slow));
            assert_eq!(view.check(&mut Bio::flush()), Err(Status::IoError), "there is no table");
        });
        let (device, _) = member();
        publish(&shared, table(vec![Linear(area(&device, 0))]));
        with_view(&shared, |view, _| {
            let mut bio = read(0, 8);
            bio.flags |= BioFlags::POLLED;
            assert_eq!((view.check(&mut bio), bio.flags), (Ok(()), BioFlags::empty()));
            assert!(view.check(&mut read(4, 8)).is_err(), "it is past the end");
        });
    }

    #[test]
    fn a_view_stays_as_it_is_until_it_is_replaced() {
        let (device, _) = member();
        let shared = shared();
        publish(&shared, table(vec![Linear(area(&device, 0))]));
        let other = table(vec![Linear(area(&device, 8))]);
        with_view(&shared.clone(), move |view, env| {
            assert!(view.is_current() && !view.is_suspended());
            shared.publish(|live| live.suspended = true);
            assert!(!view.is_current() && !view.is_suspended());
            let live = view.published(env);
            assert!(!view.replace(live), "the table is the same");
            assert!(view.is_current() && view.is_suspended());
            publish(&shared, other);
            let live = view.published(env);
            assert!(view.replace(live));
        });
    }

    #[test]
    fn a_suspension_is_reported_by_the_epoch_that_was_seen() {
        let shared = shared();
        with_view(&shared.clone(), move |view, env| {
            shared.suspend();
            let epoch = shared.live().suspended_since;
            let is_quiesced = || shared.ports().iter().all(|port| port.quiesced.is_since(epoch));
            view.report(env);
            assert!(!is_quiesced(), "the view has not seen it");
            let live = view.published(env);
            view.replace(live);
            view.report(env);
            assert!(is_quiesced());
            shared.publish(|live| live.iostats = false);
            assert!(shared.live().suspended_since == epoch && is_quiesced(), "another change");
        });
    }

    /// A thread that opens a channel between the look at all ports and the swap has nothing in
    /// flight.
    #[test]
    fn a_channel_that_opens_in_a_suspension_is_quiesced_at_once() {
        let shared = shared();
        with_view(&shared.clone(), move |view, env| {
            let open =
                |env: &mut Env| shared.open_port(Message::to(env.handle(), view.channel(), 0));
            let before = open(env);
            shared.suspend();
            let epoch = shared.live().suspended_since;
            let after = open(env);
            assert!(!before.quiesced.is_since(epoch), "it may have begun I/O");
            assert!(after.quiesced.is_since(epoch));
            shared.publish(|live| live.suspended = false);
            shared.suspend();
            assert!(!after.quiesced.is_since(shared.live().suspended_since), "the next one");
        });
    }

    #[test]
    fn the_port_is_open_as_long_as_the_view_is() {
        let shared = shared();
        let seen = shared.clone();
        with_view(&shared, move |_, _| assert_eq!(seen.ports().iter().count(), 1));
        assert_eq!(shared.ports().iter().count(), 0);
    }
}
