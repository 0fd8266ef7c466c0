//! A volume: a device with a live table and perhaps an inactive one (Linux `struct mapped_device`).
//!
//! Invariants:
//! * `control` serialises all that changes a volume. Contexts never take it.
//! * What contexts need is published as [`Live`]; each keeps a copy and looks at its epoch once a
//!   call. A live table is replaced only while the volume is suspended and quiet.
//! * Quiet: every channel has seen the suspension, and none of the bios that it let pass is in
//!   flight. A channel says so in its port, with the epoch that it has seen, from inside its
//!   context's gate. A context that is outside a call is visited; nobody waits for its owner.
//!
//! Source: `dm-ioctl` and dmsetup(8): load fills the inactive slot, resume makes it live.

use crate::channel::VolumeChannel;
use crate::table::Table;
use drystone_core::attribute::{self, parse_in};
use drystone_core::device::TypedDevice;
use drystone_core::extent::ExtentList;
use drystone_core::histogram::Snapshot;
use drystone_core::mailbox::Message;
use drystone_core::op::OpGroup;
use drystone_core::quiesced::Quiesced;
use drystone_core::stats::{DeviceStats, DiskStats};
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_core::{
    Channel, Device, DeviceInfo, Env, Error, Extent, Holder, Holders, Limits, Published, Result,
};
use std::sync::{Arc, Weak};

/// What contexts know of a volume.
#[derive(Clone)]
pub(crate) struct Live {
    /// `None` until the first resume with a table: every I/O fails.
    pub(crate) table: Option<Arc<Table>>,
    pub(crate) limits: Limits,
    pub(crate) size_bytes: u64,
    /// New bios are kept.
    pub(crate) suspended: bool,
    /// The volume is over; there is no table.
    pub(crate) closed: bool,
    pub(crate) iostats: bool,
    /// Bios may be polled: everything below can, and nobody has switched it off here.
    pub(crate) io_poll: bool,
    can_poll: bool,
    wants_poll: bool,
}

/// What the control side of a volume and one of its channels share.
pub(crate) struct PortState {
    /// Nothing of the channel is in flight since a suspension.
    pub(crate) quiesced: Quiesced,
}

/// A channel. Its doorbell makes it look at what is published.
pub(crate) type Port = drystone_core::Port<PortState>;

/// The open ones, by number.
type Ports = drystone_core::Ports<PortState>;

pub(crate) struct Shared {
    name: String,
    pub(crate) live: Published<Live>,
    pub(crate) stats: DeviceStats,
    control: Lock<Control>,
    ports: Lock<Ports>,
    holders: Holders,
    options: VolumeOptions,
    /// Count the locks of `live`, `control` and `ports`, each written only while it is held.
    live_locks: Arc<LockCounters>,
    control_locks: Arc<LockCounters>,
    ports_locks: Arc<LockCounters>,
}

impl Shared {
    pub(crate) fn open_port(&self, doorbell: Arc<Message>) -> Arc<Port> {
        self.ports.lock(&self.ports_locks).open(doorbell, PortState { quiesced: Quiesced::new() })
    }

    pub(crate) fn close_port(&self, port: &Arc<Port>) {
        port.quiesced.set_gone();
        self.ports.lock(&self.ports_locks).close(port);
    }

    fn ports(&self) -> Ports {
        self.ports.lock(&self.ports_locks).clone()
    }

    fn live(&self) -> Arc<Live> {
        self.live.get(&self.live_locks).1
    }

    fn publish(&self, change: impl FnOnce(&mut Live)) {
        let published = self.live.update(&self.live_locks, |live| {
            change(live);
            Ok(())
        });
        debug_assert!(published.is_ok());
    }

    fn kick_all(&self) {
        self.ports().iter().for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// Make `table` the live one, by its members as they are now.
    fn take_over(&self, live: &mut Live, table: Arc<Table>) {
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
        let control = self.control.lock(&self.control_locks);
        self.publish(|live| {
            if let Some(table) = live.table.take() {
                self.take_over(live, table);
            }
        });
        drop(control);
        self.holders.changed();
    }
}

/// What only control calls touch.
#[derive(Default)]
struct Control {
    inactive: Option<Arc<Table>>,
}

/// What a volume's maker may choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// `queue/iostats` switched off.
    pub no_iostats: bool,
}

/// A device made of others. Cheap to clone; all clones are the same volume.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

impl Volume {
    /// A volume without a table, suspended by nobody, of size 0. `locks` are its own: nobody else
    /// counts on them.
    pub fn new(name: &str, options: VolumeOptions, locks: Arc<LockCounters>) -> Self {
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
        let shared = Shared {
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
        };
        Volume { shared: Arc::new(shared) }
    }

    fn control(&self) -> Guard<'_, Control> {
        self.shared.control.lock(&self.shared.control_locks)
    }

    /// Put `table` into the inactive slot, in the place of one that is there. I/O is not touched.
    pub fn load(&self, table: Table) {
        self.control().inactive = Some(Arc::new(table));
    }

    /// Empty the inactive slot. False if it was empty.
    pub fn clear(&self) -> bool {
        self.control().inactive.take().is_some()
    }

    /// The live table.
    pub fn table(&self) -> Option<Arc<Table>> {
        self.shared.live().table.clone()
    }

    /// The inactive table.
    pub fn inactive_table(&self) -> Option<Arc<Table>> {
        self.control().inactive.clone()
    }

    /// True while new I/O is kept.
    pub fn is_suspended(&self) -> bool {
        self.shared.live().suspended
    }

    /// Keep new I/O from now on. What is in flight goes on, and what waits in a `delay` does so at
    /// once, as Linux does it; see [`Volume::is_quiet`].
    pub fn start_suspend(&self) {
        let control = self.control();
        if !self.shared.live().suspended {
            self.shared.publish(|live| live.suspended = true);
            drop(control);
            self.shared.kick_all();
        }
    }

    /// Have every context look at the suspension, and see whether all I/O that was let through
    /// before it has ended. False also if the volume is not suspended. Waits for nobody; ask again.
    pub fn is_quiet(&self) -> bool {
        let (epoch, live) = self.shared.live.get(&self.shared.live_locks);
        if !live.suspended {
            return false;
        }
        let ports = self.shared.ports();
        let late: Vec<_> = ports.iter().filter(|port| !port.quiesced.is_since(epoch)).collect();
        late.iter().for_each(|port| port.doorbell().clone().send_and_kick());
        late.iter().all(|port| port.quiesced.is_since(epoch))
    }

    /// Let kept I/O go on. An inactive table becomes the live one, for which the volume must be
    /// suspended and quiet.
    ///
    /// # Errors
    /// When there is no table at all, or when I/O in flight forbids the swap; nothing changed.
    pub fn resume(&self) -> Result<()> {
        let mut control = self.control();
        let live = self.shared.live();
        if live.closed {
            return Err(Error::invalid(format!("{}: it was removed", self.shared.name)));
        }
        let next = match &control.inactive {
            Some(_) if live.table.is_some() && !self.is_quiet() => {
                return Err(Error::invalid(format!(
                    "{}: I/O in flight: suspend it before its table is swapped",
                    self.shared.name
                )));
            }
            Some(table) => Some(table.clone()),
            None if live.table.is_none() => {
                let text = format!("{}: there is no table to resume with", self.shared.name);
                return Err(Error::invalid(text));
            }
            None => None,
        };
        // Whatever changes from here on is heard of, and taken over once this is done.
        next.iter().for_each(|table| self.hold(table));
        self.shared.publish(|live| {
            if let Some(table) = &next {
                self.shared.take_over(live, table.clone());
            }
            live.suspended = false;
        });
        if let (Some(before), Some(_)) = (&live.table, control.inactive.take()) {
            self.let_go(before, next.as_deref());
        }
        drop(control);
        self.shared.kick_all();
        self.shared.holders.changed();
        Ok(())
    }

    /// Give a suspension up: kept I/O goes on by the live table, and an inactive one stays where it
    /// is.
    pub fn cancel_suspend(&self) {
        let control = self.control();
        if self.shared.live().suspended {
            self.shared.publish(|live| live.suspended = false);
            drop(control);
            self.shared.kick_all();
        }
    }

    /// The volume is over: from now on it has no tables, and so no members. Kept I/O and all that
    /// comes fails; what was let through goes on to its members.
    pub fn close(&self) {
        let mut control = self.control();
        control.inactive = None;
        let before = self.shared.live().table.clone();
        self.shared.publish(|live| {
            live.table = None;
            (live.suspended, live.closed) = (false, true);
        });
        before.iter().for_each(|before| self.let_go(before, None));
        drop(control);
        self.shared.kick_all();
    }

    fn as_holder(&self) -> Weak<dyn Holder> {
        let holder: Arc<dyn Holder> = self.shared.clone();
        Arc::downgrade(&holder)
    }

    /// Hear of changes of the members of `table`.
    fn hold(&self, table: &Table) {
        let holders = table.members().iter().filter_map(|member| member.holders());
        holders.for_each(|holders| holders.add(self.as_holder()));
    }

    /// The members of `before` that are none of `now` are no longer of interest.
    fn let_go(&self, before: &Table, now: Option<&Table>) {
        let stays = |device: &Arc<dyn Device>| {
            let same = |d: &Arc<dyn Device>| Arc::as_ptr(d).addr() == Arc::as_ptr(device).addr();
            now.is_some_and(|now| now.members().iter().any(same))
        };
        let gone = before.members().iter().filter(|member| !stays(member));
        let holders = gone.filter_map(|member| member.holders());
        holders.for_each(|holders| holders.remove(&self.as_holder()));
    }
}

impl Volume {
    fn set_io_poll(&self, on: bool) -> Result<()> {
        let live = self.shared.live();
        if on && !live.can_poll {
            let text = format!("queue/io_poll: not every device below {} polls", self.shared.name);
            return Err(Error::invalid(text));
        }
        if !on {
            self.shared.holders.polling_ends();
        }
        let control = self.control();
        self.shared.publish(|live| {
            (live.wants_poll, live.io_poll) = (on, on && live.can_poll);
        });
        drop(control);
        self.shared.kick_all();
        self.shared.holders.changed();
        Ok(())
    }
}

/// A volume polls only if everything below can.
fn can_poll(table: &Table) -> bool {
    let polls =
        |device: &Arc<dyn Device>| device.attribute("queue/io_poll").as_deref() == Some("1");
    !table.members().is_empty() && table.members().iter().all(polls)
}

impl TypedDevice for Volume {
    type Channel = VolumeChannel;

    fn open_typed(&self, env: &mut Env, index: u32) -> Result<VolumeChannel> {
        Ok(VolumeChannel::new(self.shared.clone(), env, index))
    }
}

impl Device for Volume {
    fn info(&self) -> DeviceInfo {
        let live = self.shared.live();
        let kind = match live.table.as_deref().map(Table::lines) {
            Some([only]) => only.target.name(),
            _ => "table",
        };
        DeviceInfo {
            name: self.shared.name.clone(),
            kind,
            size_bytes: live.size_bytes,
            limits: live.limits,
        }
    }

    fn open_channel(&self, env: &mut Env, index: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, index)?))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        let mut list = ExtentList::new();
        let live = self.shared.live();
        // Whoever asks may know a size of yesterday.
        let inside = live.size_bytes.saturating_sub(offset).min(length);
        match &live.table {
            Some(table) if inside > 0 => {
                crate::extents::of_table(table, offset, inside, max, &mut list)?;
            }
            _ => list.push(Extent::data(offset, length)),
        }
        // What is put together of several members may be more.
        Ok(list.as_slice().iter().take(max).copied().collect())
    }

    fn stats(&self) -> DiskStats {
        self.shared.stats.sum()
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        self.shared.stats.latencies(group)
    }

    fn holders(&self) -> Option<&Holders> {
        Some(&self.shared.holders)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        let flag = |b: bool| Some(u8::from(b).to_string());
        let live = self.shared.live();
        match name {
            "queue/iostats" => flag(live.iostats),
            "queue/io_poll" => flag(live.io_poll),
            "dm/name" => Some(self.shared.name.clone()),
            "dm/suspended" => flag(live.suspended),
            "file_limit" => Some(live.table.as_deref()?.file_limit()?.to_string()),
            _ => attribute::of_device(name, &self.info(), || self.stats()),
        }
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        match name {
            "queue/iostats" => {
                let on = parse_in(name, value, 0, 1)? == 1;
                let _control = self.control();
                self.shared.publish(|live| live.iostats = on);
                Ok(())
            }
            "queue/io_poll" => self.set_io_poll(parse_in(name, value, 0, 1)? == 1),
            _ => {
                let known = self.attribute(name).is_some();
                let problem = if known { "cannot be changed" } else { "is not an attribute" };
                Err(Error::invalid(format!("{name} {problem} of {}", self.shared.name)))
            }
        }
    }
}
