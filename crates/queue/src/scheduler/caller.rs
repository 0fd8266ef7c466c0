//! The channel in whose call a shared scheduler runs, as the scheduler gets it.

use super::deadline::Insertion;
use super::port::{self, Grant, Port};
use crate::channel::in_flight::InFlight;
use crate::channel::tag_line::TagLine;
use crate::config::{Config, ConfigCell};
use crate::driver::INLINE_BYTES_MAX;
use crate::queues::HctxId;
use crate::request::Request;
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, BioList, PortId, Status, Subscription};
use std::sync::Arc;

/// True if a unit may not end as it is issued, though others do.
#[inline]
fn needs_slot(unit: &Unit) -> bool {
    let is_long = unit.bytes > INLINE_BYTES_MAX && !unit.op.has_data();
    unit.flags.intersects(BioFlags::POLLED | BioFlags::FUA) || is_long
}

/// Requests for a driver that ends them at once, with the ports they are of. Their memory is
/// kept when they were run, so that units are made in place.
#[derive(Default)]
pub(crate) struct ToRun {
    requests: Vec<(PortId, Request)>,
    len: usize,
}

impl ToRun {
    /// The place of one more unit, of `port`.
    #[inline]
    fn next(&mut self, port: PortId) -> &mut Unit {
        if self.len == self.requests.len() {
            self.requests.push((port, Request::default()));
        }
        let place = &mut self.requests[self.len];
        self.len += 1;
        place.0 = port;
        &mut place.1.unit
    }

    /// The requests, in order; the list is empty when they were used.
    #[inline]
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = &mut (PortId, Request)> {
        let len = std::mem::take(&mut self.len);
        self.requests[..len].iter_mut()
    }

    /// True without any.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if the request that was placed last may stay with the driver after all, so that it
    /// needs a tag and a slot of its own.
    #[inline]
    fn last_needs_slot(&self) -> bool {
        let last = self.len.checked_sub(1).map(|last| &self.requests[last].1.unit);
        last.is_some_and(needs_slot)
    }

    fn take_last(&mut self) -> (PortId, Unit) {
        self.len -= 1;
        let (port, rq) = &mut self.requests[self.len];
        (*port, std::mem::take(&mut rq.unit))
    }
}

/// The places where the caller takes units that may go.
pub struct Outlet<'a> {
    /// The caller's channel.
    pub port: &'a Arc<Port>,
    pub(crate) tags: &'a mut TagLine,
    pub(crate) flight: &'a mut InFlight,
    /// The driver ends what it takes at once, so that the caller runs units of all channels.
    pub(crate) completes_inline: bool,
    pub(crate) to_run: &'a mut ToRun,
    /// Slots of the channel's own that were granted, in order.
    pub(crate) granted: &'a mut Vec<u32>,
    /// A unit that was just placed, of another channel or without a tag.
    pub(crate) aside: Option<(PortId, Unit)>,
}

impl Outlet<'_> {
    /// The memory for a unit of port `owner` that may go: of the caller's own driver queue (if the
    /// unit is the caller's, or ends at once there), or for the channel that it came through.
    /// [`Caller::grant_placed`] follows, before the next one is asked for.
    #[inline]
    pub fn place(&mut self, owner: PortId) -> &mut Unit {
        if self.completes_inline {
            return self.to_run.next(owner);
        }
        if owner == self.port.id()
            && let Some(tag) = self.tags.pop()
        {
            self.granted.push(tag);
            return &mut self.flight.request(tag).unit;
        }
        &mut self.aside.insert((owner, Unit::default())).1
    }
}

/// A channel that runs the scheduler, with what is needed to send units on.
pub struct Caller<'a> {
    /// Where units go.
    pub out: Outlet<'a>,
    /// The counts of the scheduler's locks.
    pub locks: &'a LockCounters,
    /// The time of the call.
    pub now: Ns,
    /// The driver takes nothing now: bios are only taken in.
    pub device_busy: bool,
    pub(crate) config: &'a mut Subscription<Config>,
    pub(crate) cell: &'a ConfigCell,
    /// The channel is about to leave that queue: it begins nothing that would stay in a slot.
    pub(crate) moving: bool,
    /// The hardware queue that had no tag.
    pub(crate) missing: Option<HctxId>,
    /// Another channel whose unit had to stay, because it is between two queues.
    pub(crate) moving_peer: Option<PortId>,
    /// Doorbells of other channels, to be rung once the scheduler has been left.
    pub(crate) doorbells: &'a mut Vec<Arc<Message>>,
    /// Bios that end without having been taken in.
    pub(crate) refused: &'a mut BioList,
}

impl<'a> Caller<'a> {
    /// The configuration in force.
    pub fn config(&self) -> &Config {
        self.config
    }

    /// Count a bio of `group` that an other unit took in.
    pub fn count_merged(&self, group: OpGroup) {
        self.out.flight.count_merged(group);
    }

    /// The way bios are inserted now.
    pub fn insertion(&self) -> Insertion<'_> {
        Insertion::of(self.config)
    }

    /// Reserve tags for `units` units. False if none of them can be dispatched; with several
    /// hardware queues only the unit decides.
    #[inline]
    pub fn reserve_tags(&mut self, units: usize) -> bool {
        let any = self.out.tags.has_spare() || self.take_spare(units);
        !self.device_busy && (any || !self.out.completes_inline && self.config.map.has_several())
    }

    fn take_spare(&mut self, units: usize) -> bool {
        if !self.takes_own() {
            return false;
        }
        let want = if self.out.completes_inline { 1 } else { units as u32 };
        let any = self.out.tags.reserve_scheduled(want);
        if !any {
            self.missing = Some(self.out.tags.slot().hctx);
        }
        any
    }

    /// True if the channel takes tags of its own queue. A unit that completes inline needs no slot.
    #[inline]
    fn takes_own(&self) -> bool {
        !self.moving || self.out.completes_inline
    }

    /// Give back the tags that no unit needs, while no other context can be missing them. Where
    /// units are run after the turn, one tag serves all of them and stays until then.
    #[inline]
    pub(crate) fn free_spare(&mut self) {
        if !self.out.to_run.is_empty() || !self.out.tags.has_spare() {
            return;
        }
        if self.out.tags.release_spare() {
            self.out.tags.wake(self.locks, |doorbell| self.doorbells.push(doorbell));
        }
    }

    /// True if a tag is free now where there was none, or the moving peer has arrived.
    pub fn tags_came_free(&self) -> bool {
        let tags = self.missing.map(|hctx| self.config.map.set(hctx));
        let first = self.out.tags.is_scheduler_first();
        tags.is_some_and(|tags| (first || !tags.has_waiters()) && tags.any_free())
            || self.moving_peer.is_some_and(|peer| self.has_arrived(peer))
    }

    #[cold]
    fn has_arrived(&self, peer: PortId) -> bool {
        self.config.ports.get(peer).is_some_and(|port| port.current_hctx.has_arrived())
    }

    /// Send `unit` of port `owner` on its way.
    ///
    /// # Errors
    /// The unit, if its hardware queue has no tag.
    pub fn grant(&mut self, owner: PortId, unit: Unit) -> Result<(), Unit> {
        *self.out.place(owner) = unit;
        self.grant_placed()
    }

    /// The unit that was just placed goes on its way.
    ///
    /// # Errors
    /// The unit, if its hardware queue has no tag.
    #[inline]
    pub fn grant_placed(&mut self) -> Result<(), Unit> {
        match self.out.aside.take() {
            None if self.out.completes_inline && self.out.to_run.last_needs_slot() => {
                let (owner, unit) = self.out.to_run.take_last();
                self.grant_aside(owner, unit)
            }
            None => Ok(()),
            Some((owner, unit)) => self.grant_aside(owner, unit),
        }
    }

    /// Dispatch the unit that was just placed, of the caller's own, exclusively.
    pub(crate) fn grant_exclusive(&mut self, lane: usize) {
        self.out.port.count_exclusive(lane);
        assert!(self.grant_placed().is_ok(), "there are tags for all");
    }

    #[cold]
    fn grant_aside(&mut self, owner: PortId, unit: Unit) -> Result<(), Unit> {
        let port = self.port_of(owner);
        let Some((hctx, tag)) = self.tag_for(&port) else { return Err(unit) };
        if owner == self.out.port.id() {
            self.out.flight.request(tag).unit = unit;
            self.out.granted.push(tag);
            return Ok(());
        }
        port.grant(Grant { tag, hctx, unit });
        self.notify_lazily(&port);
        Ok(())
    }

    /// A tag for a unit of `port`, and its hardware queue.
    fn tag_for(&mut self, port: &Port) -> Option<(HctxId, u32)> {
        let (hctx, hint) = self.hctx_of(port)?;
        // The spare tag serves all units where they end at once.
        let is_spare = !self.out.completes_inline || self.out.to_run.is_empty();
        if hctx == self.out.tags.slot().hctx && self.takes_own() && is_spare {
            return self.out.tags.pop().map(|tag| (hctx, tag));
        }
        if hctx.index() >= self.config.map.sets().len() {
            // The channel has seen a change that came after this call's last refresh.
            self.refresh();
        }
        let tags = self.config.map.set(hctx);
        let tag = if tags.has_waiters() { None } else { tags.take(hint, 1).pop() };
        if tag.is_none() {
            self.missing = Some(hctx);
        }
        tag.map(|tag| (hctx, tag))
    }

    /// The hardware queue and the hint for tags of `port`'s units; `None` while its channel moves.
    fn hctx_of(&mut self, port: &Port) -> Option<(HctxId, u32)> {
        if port.id() == self.out.port.id() {
            // It lets its units go itself when it has arrived.
            let slot = self.out.tags.slot();
            return (!self.moving).then_some((slot.hctx, slot.hint));
        }
        let at = port.current_hctx.get();
        if at.is_none() {
            self.moving_peer = Some(port.id());
        }
        at
    }

    /// Ring the doorbell of `port`'s channel after this call.
    pub fn notify_lazily(&mut self, port: &Arc<Port>) {
        if !self.doorbells.iter().any(|doorbell| Arc::ptr_eq(doorbell, port.doorbell())) {
            self.doorbells.push(port.doorbell().clone());
        }
    }

    /// Port number `id`, of a channel that has something with the scheduler.
    ///
    /// # Panics
    /// If there is none: a channel is closed only when it has nothing here.
    pub fn port_of(&mut self, id: PortId) -> Arc<Port> {
        self.refresh();
        self.config.ports.get(id).expect("a channel with bios here is open").clone()
    }

    /// Take over a configuration that changed since the call began: a channel whose bios are
    /// here was opened before it handed them over.
    fn refresh(&mut self) {
        if !self.config.is_current(self.cell) {
            self.config.refresh(self.cell, self.locks);
        }
    }

    /// Requests of `lane` that ended, of all open channels.
    pub fn ended(&mut self, lane: usize) -> u64 {
        self.refresh();
        port::ended_of_all(&self.config.ports, lane)
    }

    /// Requests with the driver, or about to be; those that end at once are not.
    pub(crate) fn in_use(&self) -> u32 {
        match self.out.completes_inline {
            true => 0,
            false => {
                let in_use: u32 = self.config.map.sets().iter().map(|tags| tags.in_use()).sum();
                in_use - self.out.tags.spare_count()
            }
        }
    }

    /// The most that [`Caller::in_use`] can be.
    pub(crate) fn most_in_use(&self) -> u32 {
        if self.out.completes_inline { 0 } else { self.config.map.most_in_use() }
    }

    /// Units that may be kept or in flight, of all hardware queues.
    pub(crate) fn nr_requests(&self) -> u32 {
        self.of_all_queues(self.config.nr_requests)
    }

    /// A depth that is given for each hardware queue.
    pub(crate) fn of_all_queues(&self, depth: u32) -> u32 {
        depth.saturating_mul(self.config.map.hw().default)
    }

    /// `bio` cannot be taken in now and may not wait: it ends with [`Status::Again`].
    #[cold]
    pub(crate) fn refuse(&mut self, mut bio: Box<Bio>) {
        bio.status = Status::Again;
        self.refused.push(bio);
    }

    /// The caller's channel.
    pub fn port(&self) -> &Arc<Port> {
        self.out.port
    }

    /// Borrow configuration and outlet together. Refreshes first, since only channels with an open
    /// port may have bios here.
    #[inline]
    pub fn split(&mut self) -> (&Config, &mut Outlet<'a>) {
        self.refresh();
        (self.config, &mut self.out)
    }
}
