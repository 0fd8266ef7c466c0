//! The state that a volume and its channels share: the published state, the ports, and the locks of
//! both.
//!
//! Invariants:
//! * `control` serialises all changes of a volume. Contexts never take it.
//! * Until it is closed, the doorbell of an open port rings at each change.

use crate::table::Table;
use drystone_core::mailbox::Message;
use drystone_core::quiesced::Quiesced;
use drystone_core::stats::DeviceStats;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_core::{Device, Holder, Holders, Limits, Published};
use std::sync::Arc;

/// The published state of a volume, as contexts see it.
#[derive(Clone)]
pub(crate) struct Live {
    /// `None` until the first resume with a table; every I/O fails then.
    pub(crate) table: Option<Arc<Table>>,
    pub(crate) limits: Limits,
    pub(crate) size_bytes: u64,
    /// New bios are held.
    pub(crate) suspended: bool,
    /// The epoch of the last suspension. Others follow while it lasts, when a member changes.
    pub(crate) suspended_since: u64,
    /// The volume was closed; it has no table.
    pub(crate) closed: bool,
    pub(crate) iostats: bool,
    /// Bios may be polled: everything below can poll, and `queue/io_poll` is on.
    pub(crate) io_poll: bool,
    pub(crate) can_poll: bool,
    pub(crate) wants_poll: bool,
}

/// The state that the control side of a volume and one of its channels share.
pub(crate) struct PortState {
    /// The channel has nothing in flight since a suspension.
    pub(crate) quiesced: Quiesced,
}

/// A channel's port. Its doorbell makes the channel read what is published.
pub(crate) type Port = drystone_core::Port<PortState>;

/// The open ports, by number.
pub(crate) type Ports = drystone_core::Ports<PortState>;

/// See the module's text.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) live: Published<Live>,
    pub(crate) stats: DeviceStats,
    control: Lock<Control>,
    ports: Lock<Ports>,
    pub(crate) holders: Holders,
    pub(crate) options: VolumeOptions,
    /// Each of these counts the locks of `live`, `control` or `ports`; the lock's holder writes it.
    live_locks: Arc<LockCounters>,
    control_locks: Arc<LockCounters>,
    ports_locks: Arc<LockCounters>,
}

impl Shared {
    /// The state of a volume of size 0 without a table, not suspended. `locks` are its own.
    pub(crate) fn new(name: &str, options: VolumeOptions, locks: Arc<LockCounters>) -> Arc<Self> {
        let live = Live {
            table: None,
            limits: Limits { read_only: options.read_only, ..Limits::default() },
            size_bytes: 0,
            suspended: false,
            suspended_since: 0,
            closed: false,
            iostats: !options.no_iostats,
            io_poll: false,
            can_poll: false,
            wants_poll: true,
        };
        Arc::new(Shared {
            name: name.to_owned(),
            live: Published::new(live),
            stats: DeviceStats::new(locks.sibling()),
            control: Lock::new(LockClass::Control, Control::default()),
            ports: Lock::new(LockClass::Control, Ports::default()),
            holders: Holders::new(locks.sibling()),
            options,
            live_locks: locks.sibling(),
            control_locks: locks.sibling(),
            ports_locks: locks,
        })
    }

    /// Take the lock of the control calls. Waits for the call that has it.
    pub(crate) fn control(&self) -> Guard<'_, Control> {
        self.control.lock(&self.control_locks)
    }

    /// The port of a channel that has not read what is published. In a suspension it is quiesced
    /// from the first: nobody finds a channel in flight that only opens. Whoever found all others
    /// quiesced had the lock before, so the suspension is seen here.
    pub(crate) fn open_port(&self, doorbell: Arc<Message>) -> Arc<Port> {
        let mut ports = self.ports.lock(&self.ports_locks);
        let (live, quiesced) = (self.live(), Quiesced::new());
        if live.suspended {
            quiesced.report(live.suspended_since, 0);
        }
        ports.open(doorbell, PortState { quiesced })
    }

    pub(crate) fn close_port(&self, port: &Arc<Port>) {
        port.quiesced.set_gone();
        self.ports.lock(&self.ports_locks).close(port);
    }

    pub(crate) fn ports(&self) -> Ports {
        self.ports.lock(&self.ports_locks).clone()
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.live.get(&self.live_locks).1
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut Live)) {
        let published = self.live.update(&self.live_locks, |live| {
            change(live);
            Ok(())
        });
        debug_assert!(published.is_ok());
    }

    /// Hold new bios from now on.
    pub(crate) fn suspend(&self) {
        self.publish(|live| {
            // The lock under which this change is made is also the one that counts epochs.
            (live.suspended, live.suspended_since) = (true, self.live.epoch() + 1);
        });
    }

    pub(crate) fn kick_all(&self) {
        self.ports().iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// Make `table` the live one, with the present limits of its members.
    pub(crate) fn take_over(&self, live: &mut Live, table: Arc<Table>) {
        let limits = table.limits();
        live.limits = Limits { read_only: limits.read_only || self.options.read_only, ..limits };
        live.size_bytes = table.size_bytes();
        live.can_poll = can_poll(&table);
        live.io_poll = live.wants_poll && live.can_poll;
        live.table = Some(table);
    }
}

/// Pass changes of a member on to the volume and its holders.
impl Holder for Shared {
    fn polling_ends(&self) {
        if !self.live().io_poll {
            return;
        }
        self.holders.polling_ends();
        self.publish(|live| (live.io_poll, live.can_poll) = (false, false));
        // No context may go on with the state that it read before.
        self.kick_all();
    }

    fn member_changed(&self) {
        let control = self.control();
        self.publish(|live| {
            if let Some(table) = live.table.take() {
                self.take_over(live, table);
            }
        });
        drop(control);
        self.holders.changed();
    }
}

/// The state of the control calls alone.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) inactive: Option<Arc<Table>>,
}

/// The options of a new volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Switch `queue/iostats` off.
    pub no_iostats: bool,
}

/// The attribute of members, and of the volume, that says whether polled I/O is accepted.
pub(crate) const IO_POLL: &str = "queue/io_poll";

fn can_poll(table: &Table) -> bool {
    let polls = |device: &Arc<dyn Device>| device.attribute(IO_POLL).as_deref() == Some("1");
    !table.members().is_empty() && table.members().iter().all(polls)
}
