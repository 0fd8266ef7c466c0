//! The division of cores between submitters and the device.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    /// The cores of the threads that submit.
    pub(super) submit: Vec<u32>,
    /// The core of the device and of the watcher; also a submitter's if there is only one core.
    pub(super) device: u32,
}

impl Cores {
    /// Of the cores that this process may use, the last is the device's.
    pub(super) fn here() -> anyhow::Result<Self> {
        let set = sched_getaffinity(None)?;
        let all = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).map(|cpu| cpu as u32);
        Ok(Self::of(all.collect()))
    }

    fn of(mut all: Vec<u32>) -> Self {
        let device = all.last().copied().unwrap_or(0);
        if all.len() > 1 {
            all.pop();
        }
        Cores { submit: all, device }
    }

    /// With two cores: both for submitters, because polled I/O needs no core for the device.
    pub(super) fn with_the_device(&self) -> Option<Self> {
        let alone = self.submit.len() == 1 && self.submit[0] != self.device;
        alone.then(|| Cores { submit: vec![self.submit[0], self.device], device: self.device })
    }
}

/// Keep the calling thread, and those that it starts, on `cpus`.
pub(super) fn pin(cpus: &[u32]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu as usize));
    sched_setaffinity(None, &set)
        .map_err(|error| format!("a thread cannot run on cores {cpus:?}: {error}"))
}

/// Keeps the calling thread where it was put until this is dropped.
pub(super) struct Pinned(CpuSet);

impl Pinned {
    pub(super) fn to(cpu: u32) -> anyhow::Result<Self> {
        let before = sched_getaffinity(None)?;
        pin(&[cpu]).map_err(anyhow::Error::msg)?;
        Ok(Pinned(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure only affects the speed of later work.
        let _ = sched_setaffinity(None, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_has_a_core_of_its_own_where_there_are_two() {
        let of = |all: &[u32]| Cores::of(all.to_vec());
        assert_eq!(of(&[0, 1]), Cores { submit: vec![0], device: 1 });
        assert_eq!(of(&[2, 3, 5]), Cores { submit: vec![2, 3], device: 5 });
        assert_eq!(of(&[4]), Cores { submit: vec![4], device: 4 });
        let both = Cores { submit: vec![0, 1], device: 1 };
        assert_eq!(of(&[0, 1]).with_the_device(), Some(both));
        assert!(of(&[4]).with_the_device().is_none() && of(&[2, 3, 5]).with_the_device().is_none());
    }
}
