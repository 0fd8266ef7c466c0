//! The scenes that are measured: devices, loads, and the groups that their bios belong to.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use drystone_core::Device;
use drystone_stack::live::{OpenEnv, open_device};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::{Change, Setting};

/// Bytes of an I/O, as in the mail.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes that the mail's dd reads.
pub(super) const DD_BYTES: u64 = 1 << 30;
/// I/Os in flight of each thread of the scaled load.
pub(super) const DEPTH: usize = 32;
/// The number of groups with rules; [`ACTIVE`] of them have I/O. [`ACTIVE`] is also the depth of a
/// thread, so that each of these groups has one I/O in flight.
pub(super) const MANY: usize = 10_000;
pub(super) const ACTIVE: usize = 100;

/// Limits that nothing here reaches: 16 TiB/s, and the most I/Os that Linux takes.
const BPS: u64 = 1 << 44;
const IOPS: u64 = u32::MAX as u64 - 1;

const NULL_TAGS: u32 = 1024;

/// The groups that the bios belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// The root: there are no groups.
    Root,
    /// A group without rules.
    Free,
    /// One group whose rule is too high to bind.
    One,
    /// A group with such a rule for each thread.
    Each,
    /// [`ACTIVE`] of [`MANY`] groups with such rules.
    Many,
}

impl Rules {
    /// The text in `rules` of a row.
    pub(super) fn text(self) -> String {
        match self {
            Rules::Root => "none".to_owned(),
            Rules::Free => "none in its group".to_owned(),
            Rules::One => "too high to bind".to_owned(),
            Rules::Each => "too high to bind, a group for each thread".to_owned(),
            Rules::Many => format!("too high to bind, {ACTIVE} of {MANY} groups"),
        }
    }

    /// True if a rule applies to the bios.
    pub(super) fn apply(self) -> bool {
        !matches!(self, Rules::Root | Rules::Free)
    }

    fn groups(self, threads: u32) -> usize {
        match self {
            Rules::Root => 0,
            Rules::Free | Rules::One => 1,
            Rules::Each => threads as usize,
            Rules::Many => MANY,
        }
    }
}

/// A device with its load and groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// True for the mail's load, one stream of depth 1 that reads the whole device; otherwise
    /// threads read at random.
    pub(super) is_dd: bool,
    pub(super) on_file: bool,
    pub(super) rules: Rules,
    pub(super) depth: usize,
    pub(super) threads: u32,
}

/// A scene with its device open.
pub(super) struct Opened {
    pub(super) at: OpenEnv,
    pub(super) device: Arc<dyn Device>,
    /// Numbers of the groups.
    pub(super) groups: Vec<u32>,
}

/// The mail's load, on the mail's kind of device and on one that shows the cost.
pub(super) fn dd() -> Vec<Scene> {
    let scene =
        |name, on_file, rules| Scene { name, is_dd: true, on_file, rules, depth: 1, threads: 1 };
    vec![
        scene("dd, file", true, Rules::Root),
        scene("dd, null", false, Rules::Root),
        scene("dd, null, a group without rules", false, Rules::Free),
        scene("dd, null, a group with a high rule", false, Rules::One),
    ]
}

/// The scaled loads with so many threads.
pub(super) fn scaled(threads: u32) -> Vec<Scene> {
    let scene =
        |name, rules, depth| Scene { name, is_dd: false, on_file: false, rules, depth, threads };
    vec![
        scene("null", Rules::Root, DEPTH),
        scene("null, a group without rules", Rules::Free, DEPTH),
        scene("null, a group with a high rule", Rules::One, DEPTH),
        scene("null, such a group a thread", Rules::Each, DEPTH),
        scene("null, depth 100, such a group", Rules::One, ACTIVE),
        scene("null, depth 100, 100 of 10000 such groups", Rules::Many, ACTIVE),
    ]
}

impl Scene {
    /// The device of `bytes` bytes; `file` is the file for a device that needs one.
    pub(super) fn spec(&self, file: &Path, bytes: u64) -> anyhow::Result<DeviceSpec> {
        let text = match self.on_file {
            true => {
                let path = file.display().to_string().replace(',', ",,");
                format!("file,path={path},queue.scheduler=none")
            }
            false => format!(
                "null,size={bytes},submit_queues=1,hw_queue_depth={NULL_TAGS},irqmode=none,\
                 queue.scheduler=none"
            ),
        };
        DeviceSpec::parse(&text, Path::new("/")).map_err(|report| anyhow!(report.render(false)))
    }

    /// Open the device for `at`, with the groups and their rules.
    ///
    /// # Errors
    /// When the device cannot be opened.
    pub(super) fn open(&self, spec: &DeviceSpec, at: OpenEnv) -> anyhow::Result<Opened> {
        let count = self.rules.groups(self.threads);
        let paths: Vec<String> = (0..count).map(|number| format!("g{number}")).collect();
        let groups = paths.iter().map(|path| Ok(at.groups.create(path)?.id().as_u32()));
        let groups = groups.collect::<anyhow::Result<Vec<u32>>>()?;
        let device = open_device(spec, &at)?;
        if self.rules.apply() {
            let (bps, iops) = (Some(Some(BPS)), Some(Some(IOPS)));
            let change = Change { rbps: bps, wbps: bps, riops: iops, wiops: iops };
            let setting = |path| Setting { path, device: spec.name.clone(), change };
            at.groups.set_all(&paths.into_iter().map(setting).collect::<Vec<_>>())?;
        }
        Ok(Opened { at, device, groups })
    }

    /// The groups of the bios of thread `number`.
    pub(super) fn groups_of(&self, number: u32, groups: &[u32]) -> Vec<u32> {
        match self.rules {
            Rules::Each => vec![groups[number as usize]],
            // These groups are far apart.
            Rules::Many => groups.iter().copied().step_by(MANY / ACTIVE).collect(),
            _ => groups.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::SystemClock;

    #[test]
    fn bios_have_the_groups_that_the_scene_says() {
        let counts = [0, 1, 1, 3, 1, MANY];
        for (scene, count) in scaled(3).into_iter().zip(counts) {
            let spec = scene.spec(Path::new("/"), 1 << 20).unwrap_or_else(|e| panic!("{e}"));
            let at = OpenEnv::new(3, SystemClock::new());
            let opened = scene.open(&spec, at).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(opened.groups.len(), count, "{}", scene.name);
            let of = |number| scene.groups_of(number, &opened.groups).len();
            let each = if count == MANY { ACTIVE } else { count.min(1) };
            assert_eq!((of(0), of(2)), (each, each), "{}", scene.name);
            let limited = opened.at.groups.io_max("g0").is_ok_and(|max| !max.is_empty());
            assert_eq!(limited, scene.rules.apply(), "{}", scene.name);
        }
    }
}
