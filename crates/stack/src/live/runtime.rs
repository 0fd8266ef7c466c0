//! The live stack as the control socket sees it.

use std::sync::Arc;

use drystone_core::context::PollSwitch;
use drystone_core::error::ErrorKind;
use drystone_core::sync::LockRegistry;
use drystone_core::{Device, Limits};

use drystone_queue::queue::max_sectors_kb_range;
use drystone_targets::Table;

use super::md::Arrays;
use super::volumes::Changes;
use super::{LiveDevice, LiveExport, LiveStack, SleepFn, groups, reopen, uses};
use crate::attributes::{ATTRIBUTES, Attribute, MAX_HW_SECTORS_KB, SIZE, Setting};
use crate::iomax::{IoMax, MaxLine};
use crate::md::{ArrayChange, ArrayReport};
use crate::runtime::{
    Change, ChangeError, DeviceDetail, DeviceSummary, DiskStats, ExportSummary, GroupStat,
    GroupSummary, Refused, Runtime, SetError, TableReport, VolumeReport,
};
use crate::schema::queue::{IO_POLL, IO_TIMEOUT, MAX_SECTORS_KB};
use crate::size::format_size;

impl LiveStack {
    /// The view for the control socket. A thread that changes a volume waits by `pause`.
    pub fn runtime(&self, pause: SleepFn) -> LiveRuntime {
        LiveRuntime::new(self.clone(), pause)
    }
}

/// A view of a [`LiveStack`]. It keeps the devices open.
pub struct LiveRuntime {
    stack: LiveStack,
    pause: SleepFn,
}

/// The default of the largest request of a device, in KiB.
const DEFAULT_MAX_SECTORS_KB: u64 = Limits::DEFAULT_MAX_BYTES as u64 >> 10;

impl LiveRuntime {
    fn new(stack: LiveStack, pause: SleepFn) -> Self {
        LiveRuntime { stack, pause }
    }

    fn find(&self, name: &str) -> Option<Arc<LiveDevice>> {
        self.stack.devices.find(name)
    }

    fn exports_of<'a>(&'a self, device: &'a str) -> impl Iterator<Item = String> + 'a {
        let exports = self.stack.exports.iter().filter(move |export| export.device == device);
        exports.map(|export| export.name.clone())
    }
}

impl Runtime for LiveRuntime {
    fn devices(&self) -> Vec<DeviceSummary> {
        self.stack.devices.all().iter().map(|live| summary(live)).collect()
    }

    fn device(&self, name: &str) -> Option<DeviceDetail> {
        let live = self.find(name)?;
        let info = live.device.info();
        let values = ATTRIBUTES.iter().filter_map(|attribute| {
            Some((attribute.name.to_owned(), live.device.attribute(attribute.name)?))
        });
        Some(DeviceDetail {
            name: live.name.clone(),
            kind: info.kind.to_owned(),
            size: info.size_bytes,
            description: description(&live),
            members: live.members(),
            exports: self.exports_of(name).collect(),
            attributes: values.collect(),
        })
    }

    fn configured_size(&self, device: &str) -> Option<u64> {
        self.find(device)?.configured_size
    }

    fn set(
        &self,
        device: &str,
        attribute: &'static Attribute,
        value: &Setting,
    ) -> Result<(), SetError> {
        if self.find(device).is_some_and(|live| live.array.is_some()) {
            // Only the array's manager knows whether the change is possible.
            let arrays = Arrays { stack: &self.stack, pause: &self.pause };
            match arrays.set(device, attribute.name, &value.text()) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(SetError::Failed { reason: error.message }),
            }
        }
        let state = self.stack.devices.lock();
        let live = state.find(device).ok_or(SetError::NoSuchDevice)?;
        set(live, attribute.name, value)
    }

    fn reopen(&self, device: &str, replaced: bool) -> Result<bool, ChangeError> {
        reopen::reopen(&self.stack, &self.pause, (device, replaced))
    }

    fn volume(&self, name: &str) -> Option<VolumeReport> {
        let state = self.stack.devices.lock();
        let live = state.find(name)?;
        report(live, uses::users(&state, &self.stack.exports, live).len() as u64)
    }

    fn volumes(&self) -> Vec<VolumeReport> {
        let state = self.stack.devices.lock();
        let counts = uses::open_counts(&state, &self.stack.exports);
        let count = |live: &LiveDevice| counts.get(&live.name).copied().unwrap_or(0);
        state.list.iter().filter_map(|live| report(live, count(live))).collect()
    }

    fn change(&self, name: &str, change: &Change<'_>) -> Result<(), ChangeError> {
        Changes { stack: &self.stack, pause: &self.pause }.make(name, change)
    }

    fn arrays(&self, name: Option<&str>) -> Result<Vec<ArrayReport>, ChangeError> {
        Arrays { stack: &self.stack, pause: &self.pause }.reports(name)
    }

    fn manage(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>, ChangeError> {
        Arrays { stack: &self.stack, pause: &self.pause }.make(name, change)
    }

    fn groups(&self) -> Vec<GroupSummary> {
        groups::list(&self.stack.groups)
    }

    fn create_group(&self, path: &str) -> Result<(), ChangeError> {
        groups::create(&self.stack.groups, path)
    }

    fn remove_group(&self, path: &str) -> Result<(), ChangeError> {
        groups::remove(&self.stack.groups, &self.stack.exports, path)
    }

    fn set_group(&self, path: &str, line: &IoMax) -> Result<MaxLine, ChangeError> {
        groups::set(&self.stack.groups, path, line)
    }

    fn group_stats(&self, path: Option<&str>, reset: bool) -> Result<Vec<GroupStat>, ChangeError> {
        if path == Some("") && reset {
            let message = "the root counts what its devices do, which is never reset".to_owned();
            return Err(ChangeError { refused: Refused::Unsupported, message });
        }
        let root = path.is_none_or(str::is_empty).then(|| groups::root_stat(&self.diskstats()));
        let below = match path {
            Some("") => Vec::new(),
            path => groups::stat(&self.stack.groups, path, reset)?,
        };
        Ok(root.into_iter().chain(below).collect())
    }

    fn diskstats(&self) -> Vec<DiskStats> {
        self.stack.devices.all().iter().map(|live| diskstats(live)).collect()
    }

    fn exports(&self) -> Vec<ExportSummary> {
        let summary = |live: &LiveExport| ExportSummary {
            name: live.spec.name.clone(),
            device: live.spec.device.clone(),
            uris: crate::front_ends::ways_in(&live.spec),
            read_only: live.volume.geometry().read_only,
            connections: live.volume.clients.count().into(),
        };
        self.stack.live.iter().map(summary).collect()
    }

    fn uptime_ns(&self) -> u64 {
        self.stack.clock.now().saturating_sub(self.stack.started)
    }

    fn locks(&self) -> &LockRegistry {
        self.stack.locks()
    }

    fn poll_switch(&self) -> &PollSwitch {
        self.stack.poll_switch()
    }
}

/// The origin of a device: a file, or a volume's segments if they are few.
fn description(live: &LiveDevice) -> String {
    if let Some(array) = &live.array {
        return super::raid::description(array);
    }
    let Some(table) = live.volume.as_ref().and_then(|volume| volume.table()) else {
        return live.description.clone();
    };
    match table.lines().len() {
        1 => table.text().trim_end().to_owned(),
        lines => format!("{lines} segments"),
    }
}

fn report(live: &LiveDevice, open_count: u64) -> Option<VolumeReport> {
    let volume = live.volume.as_ref()?;
    let table = |table: Arc<Table>| TableReport { text: table.text(), status: table.status() };
    Some(VolumeReport {
        name: live.name.clone(),
        suspended: volume.is_suspended(),
        read_only: live.device.info().limits.read_only,
        open_count,
        live: volume.table().map(table),
        inactive: volume.inactive_table().map(table),
    })
}

fn summary(live: &LiveDevice) -> DeviceSummary {
    let info = live.device.info();
    let (reads, writes) = live.device.stats().in_flight();
    DeviceSummary {
        name: live.name.clone(),
        kind: info.kind.to_owned(),
        size: info.size_bytes,
        read_only: info.limits.read_only,
        in_flight: reads + writes,
    }
}

fn diskstats(live: &LiveDevice) -> DiskStats {
    let [
        reads,
        reads_merged,
        sectors_read,
        read_ms,
        writes,
        writes_merged,
        sectors_written,
        write_ms,
        in_flight,
        busy_ms,
        weighted_ms,
        discards,
        discards_merged,
        sectors_discarded,
        discard_ms,
        flushes,
        flush_ms,
    ] = live.device.stats().fields();
    DiskStats {
        device: live.name.clone(),
        reads,
        reads_merged,
        sectors_read,
        read_ms,
        writes,
        writes_merged,
        sectors_written,
        write_ms,
        in_flight,
        busy_ms,
        weighted_ms,
        discards,
        discards_merged,
        sectors_discarded,
        discard_ms,
        flushes,
        flush_ms,
    }
}

/// Sets an attribute of a device; the value is in the attribute's unit, the device's may differ.
fn set(live: &LiveDevice, name: &str, value: &Setting) -> Result<(), SetError> {
    let device = &*live.device;
    let text = match (name, value) {
        (SIZE, Setting::Number(bytes)) => return grow(live, *bytes),
        (name, Setting::Number(ns)) if name == IO_TIMEOUT.attribute => (ns / 1_000_000).to_string(),
        (name, Setting::Number(kib)) if name == MAX_SECTORS_KB.attribute => {
            max_sectors(device, *kib)?
        }
        (_, value) => value.text(),
    };
    device.set_attribute(name, &text).map_err(|error| refusal(name, error))
}

fn refusal(name: &str, error: drystone_core::Error) -> SetError {
    match error.kind {
        ErrorKind::Invalid if name == IO_POLL.attribute => {
            SetError::Unsupported { reason: "the device has no queues to poll".to_owned() }
        }
        ErrorKind::Invalid | ErrorKind::NotSupported => {
            SetError::Unsupported { reason: error.message }
        }
        _ => SetError::Failed { reason: error.message },
    }
}

/// A value of `queue/max_sectors_kb` that the device takes; 0 is its default.
fn max_sectors(device: &dyn Device, kib: u64) -> Result<String, SetError> {
    let hardware = device.attribute(MAX_HW_SECTORS_KB);
    let most = hardware.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    let block = device.info().limits.logical_block_size;
    let (least, most) = max_sectors_kb_range(most, block);
    match kib {
        0 => Ok(DEFAULT_MAX_SECTORS_KB.min(most).to_string()),
        kib if (least..=most).contains(&kib) => Ok(kib.to_string()),
        _ => Err(SetError::OutOfRange { permitted: format!("{least} to {most}, or 0") }),
    }
}

/// Makes the device larger while it is in use.
fn grow(live: &LiveDevice, bytes: u64) -> Result<(), SetError> {
    let device = &*live.device;
    let info = device.info();
    let block = info.limits.logical_block_size;
    let unsupported = |reason: String| Err(SetError::Unsupported { reason });
    if live.volume.is_some() {
        return unsupported("a volume has the size of its table: reload it".to_owned());
    }
    if live.array.is_some() {
        return unsupported("an array keeps its size".to_owned());
    }
    if info.kind != "file" {
        return unsupported(format!("a {} device keeps its size, only a file grows", info.kind));
    }
    if info.limits.read_only {
        return unsupported("the device is read-only".to_owned());
    }
    if bytes < info.size_bytes || !bytes.is_multiple_of(block.into()) {
        let now = format_size(info.size_bytes);
        let permitted = format!("{now} or more, in blocks of {block}: a device only grows");
        return Err(SetError::OutOfRange { permitted });
    }
    device
        .set_attribute("size_bytes", &bytes.to_string())
        .map_err(|error| SetError::Failed { reason: error.message })
}
