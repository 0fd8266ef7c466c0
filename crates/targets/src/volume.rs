//! A volume: a device with a live table and perhaps an inactive one (Linux `struct mapped_device`).
//! Its attributes are rows in `attributes.rs`.
//!
//! Invariants:
//! * `control` serialises all changes of a volume. Contexts never take it.
//! * Contexts read only published state ([`crate::shared::Live`]). Each keeps a copy, and reads the
//!   epoch once in each call. A live table is replaced only while the volume is suspended and
//!   quiesced.
//! * Quiesced: every channel has seen the suspension, and no bio that it remapped is in flight. A
//!   channel reports that in its port, together with the epoch that it has seen, while it is inside
//!   its context's gate. If the owner is outside, another thread visits the context, so nothing
//!   waits for its owner.
//!
//! Source: `dm-ioctl` and dmsetup(8): a load fills the inactive slot, a resume makes that table
//! live.

mod attributes;

use crate::channel::VolumeChannel;
use crate::shared::{Control, Shared, VolumeOptions};
use crate::table::Table;
use drystone_core::device::TypedDevice;
use drystone_core::extent::ExtentList;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::stats::DiskStats;
use drystone_core::sync::{Guard, LockCounters};
use drystone_core::{
    Channel, ChannelId, Device, DeviceInfo, Env, Error, Extent, Holder, Holders, Result,
};
use std::sync::{Arc, Weak};

/// A device made of other devices. Clones are cheap and all stand for the same volume.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

impl Volume {
    /// A volume of size 0 without a table, not suspended. `locks` are its own: nothing else is
    /// counted there.
    pub fn new(name: &str, options: VolumeOptions, locks: Arc<LockCounters>) -> Self {
        Volume { shared: Shared::new(name, options, locks) }
    }

    fn control(&self) -> Guard<'_, Control> {
        self.shared.control()
    }

    /// Put `table` into the inactive slot, and drop a table that is there. I/O is not affected.
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

    /// True while new I/O is held.
    pub fn is_suspended(&self) -> bool {
        self.shared.live().suspended
    }

    /// Hold new I/O from now on. I/O in flight goes on, and I/O that waits in a `delay` is sent on
    /// at once, as in Linux; see [`Volume::is_quiesced`].
    pub fn start_suspend(&self) {
        let control = self.control();
        if !self.shared.live().suspended {
            self.shared.suspend();
            drop(control);
            self.shared.kick_all();
        }
    }

    /// Have every context look at the suspension. True if all I/O from before it has ended; false
    /// also if the volume is not suspended. Does not wait: ask again.
    pub fn is_quiesced(&self) -> bool {
        let live = self.shared.live();
        if !live.suspended {
            return false;
        }
        let epoch = live.suspended_since;
        let ports = self.shared.ports();
        let late: Vec<_> = ports.iter().filter(|port| !port.quiesced.is_since(epoch)).collect();
        late.iter().for_each(|port| port.doorbell().clone().send_and_kick());
        late.iter().all(|port| port.quiesced.is_since(epoch))
    }

    /// Let held I/O go on. If there is an inactive table, it becomes the live one; the volume must
    /// be suspended and quiesced for that.
    ///
    /// # Errors
    /// There is no table at all, or I/O in flight forbids the change of tables. Nothing is changed.
    pub fn resume(&self) -> Result<()> {
        let mut control = self.control();
        let live = self.shared.live();
        if live.closed {
            return Err(Error::invalid(format!("{}: it was removed", self.shared.name)));
        }
        let next = match &control.inactive {
            Some(_) if live.table.is_some() && !self.is_quiesced() => {
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
        // Changes of the members are noticed from here on, and taken over at the end of this call.
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

    /// End a suspension without a change of tables: held I/O goes on by the live table, and an
    /// inactive table stays inactive.
    pub fn cancel_suspend(&self) {
        let control = self.control();
        if self.shared.live().suspended {
            self.shared.publish(|live| live.suspended = false);
            drop(control);
            self.shared.kick_all();
        }
    }

    /// Close the volume: from now on it has no tables and no members. Held and new I/O fails; I/O
    /// that passed goes on to its members.
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

    /// Subscribe to changes of the members of `table`.
    fn hold(&self, table: &Table) {
        let holders = table.members().iter().filter_map(|member| member.holders());
        holders.for_each(|holders| holders.add(self.as_holder()));
    }

    /// Unsubscribe from the members of `before` that are not members of `now`.
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

/// A volume can poll only if everything below can.
impl TypedDevice for Volume {
    type Channel = VolumeChannel;

    fn open_typed(&self, env: &mut Env, id: ChannelId) -> Result<VolumeChannel> {
        Ok(VolumeChannel::new(self.shared.clone(), env, id))
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

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, id)?))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        let mut list = ExtentList::new();
        let live = self.shared.live();
        // The caller may know an earlier size of the volume.
        let inside = live.size_bytes.saturating_sub(offset).min(length);
        match &live.table {
            Some(table) if inside > 0 => {
                crate::extents::of_table(table, offset, inside, max, &mut list)?;
            }
            _ => list.push(Extent::data(offset, length)),
        }
        // A list that was merged from several members may be longer.
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
        self.get(name)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.set(name, value)
    }
}
