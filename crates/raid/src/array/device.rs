//! An array as a device. Its attributes are rows in `attributes.rs`.

use super::control::{Command, Request};
use super::doubtful::DoubtfulRanges;
use super::status::ArrayStatus;
use crate::engine::{ArrayChannel, Conf, Origin, ShardCounts, Shared, Wanted};
use drystone_core::device::TypedDevice;
use drystone_core::extent::ExtentList;
use drystone_core::histogram::Snapshot;
use drystone_core::op::OpGroup;
use drystone_core::stats::DiskStats;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{
    Channel, ChannelId, Device, DeviceInfo, Env, Error, Extent, Holders, Limits, Result,
    SECTOR_SIZE,
};
use std::sync::Arc;

/// Requests that the manager has not taken yet.
#[derive(Default)]
struct Requests {
    list: Vec<Arc<Request>>,
    /// The manager has ended.
    is_over: bool,
}

/// The manager's queue of requests, and the status that the manager reports.
pub(crate) struct ManagerQueue {
    pub(crate) shared: Arc<Shared>,
    requests: Lock<Requests>,
    status: Lock<Arc<ArrayStatus>>,
    /// Each of these counts one lock; the lock's holder writes them.
    requests_locks: Arc<LockCounters>,
    status_locks: Arc<LockCounters>,
    findings: Findings,
}

/// Findings from the start of an array.
pub(crate) struct Findings {
    pub(crate) suspects: Option<DoubtfulRanges>,
    pub(crate) left_out: Vec<String>,
    pub(crate) notices: Vec<String>,
}

impl ManagerQueue {
    pub(crate) fn new(
        shared: Arc<Shared>,
        status: ArrayStatus,
        findings: Findings,
        locks: &LockCounters,
    ) -> Arc<Self> {
        Arc::new(ManagerQueue {
            findings,
            shared,
            requests: Lock::new(LockClass::Control, Requests::default()),
            status: Lock::new(LockClass::Control, Arc::new(status)),
            requests_locks: locks.sibling(),
            status_locks: locks.sibling(),
        })
    }

    fn request(&self, command: Command) -> Arc<Request> {
        let request = Request::new(command);
        let mut requests = self.requests.lock(&self.requests_locks);
        match requests.is_over {
            true => request.end_late(&self.shared.name, &self.requests_locks),
            false => requests.list.push(request.clone()),
        }
        drop(requests);
        self.shared.ask(Wanted::CONTROL);
        request
    }

    pub(crate) fn take_requests(&self) -> Vec<Arc<Request>> {
        std::mem::take(&mut self.requests.lock(&self.requests_locks).list)
    }

    /// End the requests that the manager will not execute, because it has ended.
    pub(crate) fn close(&self) {
        let mut requests = self.requests.lock(&self.requests_locks);
        requests.is_over = true;
        for request in std::mem::take(&mut requests.list) {
            request.end_late(&self.shared.name, &self.requests_locks);
        }
    }

    /// Change the status. If a reader still has it, the change is made in a copy.
    pub(crate) fn change_status(&self, change: impl FnOnce(&mut ArrayStatus)) {
        change(Arc::make_mut(&mut self.status.lock(&self.status_locks)));
    }
}

/// A RAID-4, RAID-5 or RAID-6 array. Clones are cheap and all stand for the same array. If nobody
/// stops the array, it stops itself some time after its last clone was dropped. Writes begin only
/// while its manager runs.
#[derive(Clone)]
pub struct Array {
    queue: Arc<ManagerQueue>,
    _last: Arc<StopsIt>,
}

/// Asks the manager to stop when the last clone of the array is dropped.
struct StopsIt(Arc<ManagerQueue>);

impl Drop for StopsIt {
    fn drop(&mut self) {
        self.0.request(Command::Stop);
    }
}

/// The same array by member sectors: a bio to this device synchronises its sectors.
pub(crate) struct SyncDevice(pub(crate) Arc<Shared>);

impl Array {
    pub(crate) fn new(queue: Arc<ManagerQueue>) -> Self {
        Array { _last: Arc::new(StopsIt(queue.clone())), queue }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.queue.shared
    }

    /// Send a command to the manager. Does not wait; [`Request::outcome`] gives the outcome. Any
    /// thread.
    pub fn request(&self, command: Command) -> Arc<Request> {
        self.queue.request(command)
    }

    /// The status of the array. Any thread.
    pub fn status(&self) -> Arc<ArrayStatus> {
        self.queue.status.lock(&self.queue.status_locks).clone()
    }

    /// The ranges that may have been wrong at the start; `None` unless the start was forced. Any
    /// thread.
    pub fn doubtful_ranges(&self) -> Option<&DoubtfulRanges> {
        self.queue.findings.suspects.as_ref()
    }

    /// Why named devices were left out of the array at its start: one sentence for each device. Any
    /// thread.
    pub fn left_out(&self) -> &[String] {
        &self.queue.findings.left_out
    }

    /// Damage that the start found on members that take part all the same: one sentence each. Any
    /// thread.
    pub fn notices(&self) -> &[String] {
        &self.queue.findings.notices
    }

    /// The counts of the shards of the stripe cache. Waits for each shard's turn; any thread.
    pub fn counts(&self) -> ShardCounts {
        self.shared().counts().0
    }

    /// Hold new I/O until [`Array::resume`]; I/O in flight goes on.
    pub fn start_suspend(&self) {
        self.shared().suspend();
    }

    /// True if all I/O from before the suspension has ended. Does not wait: ask again.
    pub fn is_quiesced(&self) -> bool {
        self.shared().is_quiesced()
    }

    /// Let held I/O go on.
    pub fn resume(&self) {
        self.shared().publish(|conf| conf.is_suspended = false);
    }

    pub(super) fn set_conf(&self, change: impl FnOnce(&mut Conf)) {
        self.shared().publish(change);
    }
}

impl TypedDevice for Array {
    type Channel = ArrayChannel;

    fn open_typed(&self, env: &mut Env, id: ChannelId) -> Result<ArrayChannel> {
        Ok(ArrayChannel::new(self.shared().clone(), env, id, Origin::Io))
    }
}

impl Device for Array {
    fn info(&self) -> DeviceInfo {
        let conf = self.shared().conf();
        DeviceInfo {
            name: self.shared().name.clone(),
            kind: kind(&conf),
            size_bytes: conf.size_bytes,
            limits: conf.limits,
        }
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(self.open_typed(env, id)?))
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        let conf = self.shared().conf();
        let inside = conf.size_bytes.saturating_sub(offset).min(length);
        let mut list = ExtentList::new();
        if inside > 0 {
            extents(&conf, offset, inside, max, &mut list)?;
        }
        Ok(list.as_slice().iter().take(max).copied().collect())
    }

    fn stats(&self) -> DiskStats {
        self.shared().stats.sum()
    }

    fn latencies(&self, group: OpGroup) -> Snapshot {
        self.shared().stats.latencies(group)
    }

    fn holders(&self) -> Option<&Holders> {
        Some(&self.shared().holders)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.get(name)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.set(name, value)
    }
}

fn kind(conf: &Conf) -> &'static str {
    use crate::layout::Level;
    match conf.layout.level() {
        Level::Raid4 => "raid4",
        Level::Raid5 => "raid5",
        Level::Raid6 => "raid6",
    }
}

/// The most chunks that an allocation query visits.
const CHUNKS_MAX: usize = 1024;

/// The extents that the members report. The chunks of a member that is missing or partly unreadable
/// count as data.
fn extents(conf: &Conf, offset: u64, length: u64, max: usize, list: &mut ExtentList) -> Result<()> {
    let (mut at, end) = (offset, offset + length);
    for _ in 0..CHUNKS_MAX {
        if at == end || list.as_slice().len() > max {
            break;
        }
        let sector = at / SECTOR_SIZE;
        let chunk = conf.layout.chunk_sectors();
        let address = conf.layout.map_sector(sector);
        let left = end.min((sector - sector % chunk + chunk) * SECTOR_SIZE) - at;
        let Some(member) = conf.plain_member(address.role) else {
            list.push(Extent::data(at, left));
            at += left;
            continue;
        };
        let below = (member.data_offset + address.sector) * SECTOR_SIZE + at % SECTOR_SIZE;
        let before = at;
        for extent in member.device.extents(below, left, max)? {
            let length = extent.length.min(before + left - at);
            list.push(Extent { offset: at, length, ..extent });
            at += length;
        }
        // A member may report less than the range; the loop asks for the rest. If it reports
        // nothing, the rest counts as data.
        if at == before {
            list.push(Extent::data(at, left));
            at += left;
        }
    }
    Ok(())
}

impl Device for SyncDevice {
    fn info(&self) -> DeviceInfo {
        let conf = self.0.conf();
        let (name, limits) = (self.0.name.clone(), Limits::default());
        DeviceInfo { name, kind: kind(&conf), size_bytes: conf.size_bytes, limits }
    }

    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(ArrayChannel::new(self.0.clone(), env, id, Origin::Sync)))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }

    fn stats(&self) -> DiskStats {
        DiskStats::default()
    }

    fn latencies(&self, _group: OpGroup) -> Snapshot {
        Snapshot::default()
    }

    fn attribute(&self, _name: &str) -> Option<String> {
        None
    }

    fn set_attribute(&self, name: &str, _value: &str) -> Result<()> {
        Err(Error::invalid(format!("{name} is not an attribute")))
    }
}
