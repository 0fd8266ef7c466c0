//! The state that a volume and its channels share: the published state, the ports, and the locks of
//! both.
//!
//! Invariants:
//! * `control` serialises all changes of a volume. Contexts never take it.
//! * A port that was opened is told of each change until it is closed, by its doorbell.

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
    /// `None` until the first resume with a table: every I/O fails.
    pub(crate) table: Option<Arc<Table>>,
    pub(crate) limits: Limits,
    pub(crate) size_bytes: u64,
    /// New bios are held.
    pub(crate) suspended: bool,
    /// The volume is over; there is no table.
    pub(crate) closed: bool,
    pub(crate) iostats: bool,
    /// Bios may be polled: everything below can, and it is not switched off here.
    pub(crate) io_poll: bool,
    pub(crate) can_poll: bool,
    pub(crate) wants_poll: bool,
}

/// The state that the control side of a volume and one of its channels share.
pub(crate) struct PortState {
    /// Nothing of the channel is in flight since a suspension.
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
    /// Count the locks of `live`, `control` and `ports`, each written only while it is held.
    live_locks: Arc<LockCounters>,
    control_locks: Arc<LockCounters>,
    ports_locks: Arc<LockCounters>,
}

impl Shared {
    /// That of a volume of size 0 without a table, not suspended. `locks` are its own.
    pub(crate) fn new(name: &str, options: VolumeOptions, locks: Arc<LockCounters>) -> Arc<Self> {
        let live = Live {
            table: None,
            limits: Limits { read_only: options.read_only, ..Limits::default() },
            size_bytes: 0,
            suspended: false,
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

    /// Take part in the control calls. Waits for the present one.
    pub(crate) fn control(&self) -> Guard<'_, Control> {
        self.control.lock(&self.control_locks)
    }

    /// The published state, and its epoch.
    pub(crate) fn published(&self) -> (u64, Arc<Live>) {
        self.live.get(&self.live_locks)
    }

    pub(crate) fn open_port(&self, doorbell: Arc<Message>) -> Arc<Port> {
        self.ports.lock(&self.ports_locks).open(doorbell, PortState { quiesced: Quiesced::new() })
    }

    pub(crate) fn close_port(&self, port: &Arc<Port>) {
        port.quiesced.set_gone();
        self.ports.lock(&self.ports_locks).close(port);
    }

    pub(crate) fn ports(&self) -> Ports {
        self.ports.lock(&self.ports_locks).clone()
    }

    pub(crate) fn live(&self) -> Arc<Live> {
        self.published().1
    }

    pub(crate) fn publish(&self, change: impl FnOnce(&mut Live)) {
        let published = self.live.update(&self.live_locks, |live| {
            change(live);
            Ok(())
        });
        debug_assert!(published.is_ok());
    }

    pub(crate) fn kick_all(&self) {
        self.ports().iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// Make `table` the live one, by its members as they are now.
    pub(crate) fn take_over(&self, live: &mut Live, table: Arc<Table>) {
        let limits = table.limits();
        live.limits = Limits { read_only: limits.read_only || self.options.read_only, ..limits };
        live.size_bytes = table.size_bytes();
        live.can_poll = can_poll(&table);
        live.io_poll = live.wants_poll && live.can_poll;
        live.table = Some(table);
    }
}

/// A member's changes become the volume's, and its holders hear of them.
impl Holder for Shared {
    fn polling_ends(&self) {
        if !self.live().io_poll {
            return;
        }
        self.holders.polling_ends();
        self.publish(|live| (live.io_poll, live.can_poll) = (false, false));
        // No context goes on with what it knew before.
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

/// State of the control calls alone.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) inactive: Option<Arc<Table>>,
}

/// The choices of a volume's maker.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// `queue/iostats` switched off.
    pub no_iostats: bool,
}

/// The attribute of members, and of the volume, that says whether polled I/O is taken.
pub(crate) const IO_POLL: &str = "queue/io_poll";

fn can_poll(table: &Table) -> bool {
    let polls = |device: &Arc<dyn Device>| device.attribute(IO_POLL).as_deref() == Some("1");
    !table.members().is_empty() && table.members().iter().all(polls)
}
