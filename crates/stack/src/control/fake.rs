//! A fake server without devices, for tests and fuzzing: it notes and answers all calls.

use crate::attributes::{Attribute, Setting};
use crate::iomax::{IoMax, MaxLine, StatLine, limits_of};
use crate::md::{ArrayChange, ArrayReport};
use crate::runtime::{
    Change, ChangeError, DeviceDetail, DeviceSummary, DiskStats, ExportSummary, GroupStat,
    GroupSummary, Refused, Runtime, SetError, TableReport, VolumeReport,
};
use drystone_core::clock::ManualClock;
use drystone_core::context::PollSwitch;
use drystone_core::sync::{Lock, LockClass, LockRegistry};
use drystone_throttle::IoStat;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One device `disk` of which `queue/nomerges` can be set, and which is a volume too; it
/// notes changes.
pub(super) struct Fake {
    pub(super) nomerges: AtomicU64,
    pub(super) changes: Lock<Vec<String>>,
    pub(super) locks: Arc<LockRegistry>,
    pub(super) poll: PollSwitch,
}

impl Fake {
    pub(super) fn new() -> Self {
        let changes = Lock::new(LockClass::Other, Vec::new());
        let locks = LockRegistry::new(ManualClock::new(1));
        Fake { nomerges: AtomicU64::new(0), changes, locks, poll: PollSwitch::default() }
    }
}

impl Runtime for Fake {
    fn devices(&self) -> Vec<DeviceSummary> {
        vec![DeviceSummary {
            name: "disk".to_owned(),
            kind: "ram".to_owned(),
            size: 1 << 30,
            read_only: false,
            in_flight: 0,
        }]
    }

    fn device(&self, name: &str) -> Option<DeviceDetail> {
        (name == "disk").then(|| DeviceDetail {
            name: name.to_owned(),
            kind: "ram".to_owned(),
            size: 1 << 30,
            description: String::new(),
            members: Vec::new(),
            exports: vec!["e".to_owned()],
            // In sectors, as in the device.
            attributes: [
                ("queue/nomerges".to_owned(), self.nomerges.load(Relaxed).to_string()),
                ("size".to_owned(), "2097152\n".to_owned()),
            ]
            .into(),
        })
    }

    fn configured_size(&self, _device: &str) -> Option<u64> {
        None
    }

    fn set(
        &self,
        _device: &str,
        attribute: &'static Attribute,
        value: &Setting,
    ) -> Result<(), SetError> {
        match (attribute.name, value) {
            ("queue/nomerges", Setting::Number(number)) => self.nomerges.store(*number, Relaxed),
            ("queue/nr_requests", _) => {
                return Err(SetError::OutOfRange { permitted: "4 to 64".to_owned() });
            }
            _ => return Err(SetError::Unsupported { reason: "a test".to_owned() }),
        }
        Ok(())
    }

    fn reopen(&self, _device: &str, replaced: bool) -> Result<bool, ChangeError> {
        Ok(!replaced)
    }

    fn volume(&self, name: &str) -> Option<VolumeReport> {
        (name == "disk").then(|| self.volumes().remove(0))
    }

    fn volumes(&self) -> Vec<VolumeReport> {
        let live = TableReport { text: "0 8 zero\n8 8 error\n".to_owned(), ..Default::default() };
        let (name, suspended, live) = ("disk".to_owned(), true, Some(live));
        vec![VolumeReport { name, suspended, live, ..VolumeReport::default() }]
    }

    fn change(&self, name: &str, change: &Change<'_>) -> Result<(), ChangeError> {
        if name == "none" {
            let (refused, message) = (Refused::TimedOut, "a test".to_owned());
            return Err(ChangeError { refused, message });
        }
        self.changes.lock(&self.locks.counters()).push(format!("{change:?}"));
        Ok(())
    }

    fn arrays(&self, name: Option<&str>) -> Result<Vec<ArrayReport>, ChangeError> {
        let name = name.unwrap_or("all").to_owned();
        Ok(vec![ArrayReport { name, ..ArrayReport::default() }])
    }

    fn manage(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>, ChangeError> {
        if name == "none" {
            let (refused, message) = (Refused::Busy, "it cannot be failed".to_owned());
            return Err(ChangeError { refused, message });
        }
        self.changes.lock(&self.locks.counters()).push(format!("{change:?}"));
        Ok(vec!["m0".to_owned()])
    }

    fn groups(&self) -> Vec<GroupSummary> {
        let group =
            |path: &str| GroupSummary { path: path.to_owned(), members: 0, io_max: Vec::new() };
        vec![group(""), group("1")]
    }

    fn create_group(&self, path: &str) -> Result<(), ChangeError> {
        self.changes.lock(&self.locks.counters()).push(format!("create {path}"));
        Ok(())
    }

    fn remove_group(&self, path: &str) -> Result<(), ChangeError> {
        self.changes.lock(&self.locks.counters()).push(format!("remove {path}"));
        Ok(())
    }

    fn set_group(&self, _path: &str, line: &IoMax) -> Result<MaxLine, ChangeError> {
        Ok(MaxLine::new(&line.device, &limits_of(&line.change)))
    }

    fn group_stats(&self, path: Option<&str>, reset: bool) -> Result<Vec<GroupStat>, ChangeError> {
        let stat = IoStat { rios: u64::from(reset), rbytes: 1, ..IoStat::default() };
        let path = path.unwrap_or("all").to_owned();
        Ok(vec![GroupStat { path, io_stat: StatLine::new("disk", &stat).into_iter().collect() }])
    }

    fn diskstats(&self) -> Vec<DiskStats> {
        vec![DiskStats { device: "disk".to_owned(), reads: 5, ..DiskStats::default() }]
    }

    fn exports(&self) -> Vec<ExportSummary> {
        Vec::new()
    }

    fn uptime_ns(&self) -> u64 {
        7
    }

    fn locks(&self) -> &LockRegistry {
        &self.locks
    }

    fn poll_switch(&self) -> &PollSwitch {
        &self.poll
    }
}
