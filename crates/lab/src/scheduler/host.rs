//! The host of a scheduler: the channel in whose call it runs. The channel's [`Caller`] answers in
//! a stack; a test answers for itself, because only a channel can make a `Caller`.

use drystone_core::PortId;
use drystone_core::clock::Ns;
use drystone_core::op::OpGroup;
use drystone_core::sync::LockCounters;
use drystone_queue::scheduler::deadline::{Deadline, Insertion, Position};
use drystone_queue::scheduler::{Caller, ended_of_all};
use drystone_queue::unit::Unit;

use super::counts::Counts;

/// See the module's text; the methods are those of [`Caller`].
pub(super) trait Host {
    fn port_id(&self) -> PortId;
    fn locks(&self) -> &LockCounters;
    fn now(&self) -> Ns;
    fn held(&self) -> bool;
    fn insertion(&self) -> Insertion<'_>;
    fn count_merged(&self, group: OpGroup);
    fn reserve_tags(&mut self, units: usize) -> bool;
    fn tags_came_free(&self) -> bool;
    /// Put the unit that goes next where it is wanted: its port and lane.
    fn place_next(
        &mut self,
        trees: &mut Deadline,
        position: &mut Position,
        counts: &mut Counts,
    ) -> Option<(PortId, usize)>;
    fn grant_placed(&mut self) -> Result<(), Unit>;
    fn ended(&mut self, class: usize) -> u64;
    /// Port number `id` has units that wait for tags.
    fn starve(&mut self, id: PortId);
}

impl Host for Caller<'_> {
    #[inline]
    fn port_id(&self) -> PortId {
        self.port().id()
    }

    #[inline]
    fn locks(&self) -> &LockCounters {
        self.locks
    }

    #[inline]
    fn now(&self) -> Ns {
        self.now
    }

    fn held(&self) -> bool {
        self.device_busy
    }

    #[inline]
    fn insertion(&self) -> Insertion<'_> {
        Caller::insertion(self)
    }

    fn count_merged(&self, group: OpGroup) {
        Caller::count_merged(self, group);
    }

    #[inline]
    fn reserve_tags(&mut self, units: usize) -> bool {
        Caller::reserve_tags(self, units)
    }

    fn tags_came_free(&self) -> bool {
        Caller::tags_came_free(self)
    }

    #[inline]
    fn place_next(
        &mut self,
        trees: &mut Deadline,
        position: &mut Position,
        counts: &mut Counts,
    ) -> Option<(PortId, usize)> {
        let now = self.now;
        let (config, out) = self.split();
        trees.dispatch_into(
            position,
            now,
            &config.tunables,
            |class| {
                counts.in_flight(class, || {
                    ended_of_all(&config.ports, 2 * class)
                        + ended_of_all(&config.ports, 2 * class + 1)
                })
            },
            |port| out.place(port),
        )
    }

    #[inline]
    fn grant_placed(&mut self) -> Result<(), Unit> {
        Caller::grant_placed(self)
    }

    fn ended(&mut self, class: usize) -> u64 {
        Caller::ended(self, 2 * class) + Caller::ended(self, 2 * class + 1)
    }

    fn starve(&mut self, id: PortId) {
        if id == self.port().id() {
            self.port().set_lacks_tags();
            return;
        }
        let port = self.port_of(id);
        if port.set_lacks_tags() {
            self.notify_lazily(&port);
        }
    }
}
