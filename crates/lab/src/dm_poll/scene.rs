//! The scenes that are measured: the mail's tables as stacks, each with its threads.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use drystone_stack::diagnostic::Source;
use drystone_stack::spec::StackSpec;

/// Devices below a volume, as in the mail.
pub(super) const MEMBERS: usize = 3;
/// Size of each.
pub(super) const MEMBER_BYTES: u64 = 64 << 20;
/// Chunk of the stripe, 512-byte sectors.
const CHUNK_SECTORS: u64 = 8;

/// The kind of the volume's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Members {
    /// Null devices that take this long, us.
    Null { latency_us: u32, poll_queues: u32, skip_busy: bool },
    /// Files.
    Files,
}

/// A volume and its load.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) members: Members,
    pub(super) striped: bool,
    pub(super) bytes: u64,
    pub(super) depth: usize,
    pub(super) threads: u32,
    /// The mail's relative gain of polling over interrupts.
    pub(super) mail: Option<f64>,
}

/// The name of the volume.
pub(super) const VOLUME: &str = "volume";

pub(super) const ONE: &str = "linear, one poller";
pub(super) const SEVERAL: &str = "linear, several pollers";
pub(super) const PINNED: &str = "linear, pinned pollers";
pub(super) const STRIPE: &str = "stripe, pinned pollers";
pub(super) const FILES: &str = "linear on files";

/// The depth of the mail's load, and the one at which each completion finds its submitter asleep.
pub(super) const MAIL_DEPTH: usize = 128;
pub(super) const DEPTH: usize = 1;

/// The mail's four tables at a latency: with `pollers` where the mail had three, and `pinned` ones
/// that have a queue each.
pub(super) fn tables(latency_us: u32, pollers: u32, pinned: u32) -> [Scene; 4] {
    let scene = |name, striped, threads, poll_queues, mail| Scene {
        name,
        members: Members::Null { latency_us, poll_queues, skip_busy: true },
        striped,
        bytes: if striped { 12 << 10 } else { 4 << 10 },
        depth: DEPTH,
        threads,
        mail: Some(mail),
    };
    [
        scene(ONE, false, 1, 1, 0.32),
        scene(SEVERAL, false, pollers, 1, 0.16),
        scene(PINNED, false, pinned, pinned, 0.32),
        scene(STRIPE, true, pinned, pinned, 0.34),
    ]
}

/// The mail's fifth table: several pollers of one queue, which wait while it is busy.
pub(super) fn waiting(latency_us: u32, pollers: u32) -> Scene {
    let members = Members::Null { latency_us, poll_queues: 1, skip_busy: false };
    let [_, mut scene, ..] = tables(latency_us, pollers, 1);
    (scene.members, scene.mail) = (members, Some(-0.20));
    scene
}

/// Files in the place of devices.
pub(super) fn files() -> Scene {
    let [mut scene, ..] = tables(0, 1, 1);
    (scene.name, scene.members, scene.mail) = (FILES, Members::Files, None);
    scene
}

impl Scene {
    /// The same at the mail's depth.
    pub(super) fn deep(&self) -> Scene {
        Scene { depth: MAIL_DEPTH, ..self.clone() }
    }

    pub(super) fn latency_us(&self) -> Option<u32> {
        match self.members {
            Members::Null { latency_us, .. } => Some(latency_us),
            Members::Files => None,
        }
    }

    pub(super) fn skip_busy(&self) -> Option<bool> {
        match self.members {
            Members::Null { skip_busy, .. } => Some(skip_busy),
            Members::Files => None,
        }
    }

    /// The name of member `number`.
    pub(super) fn member(number: usize) -> String {
        format!("d{number}")
    }

    /// The stack; members that are files stand on `files`.
    pub(super) fn stack(&self, files: &[PathBuf]) -> anyhow::Result<StackSpec> {
        let mut text = String::new();
        for number in 0..MEMBERS {
            text.push_str(&format!(
                "[device.{}]\n{}\n",
                Self::member(number),
                self.device(number, files)
            ));
        }
        text.push_str(&format!("[device.{VOLUME}]\ntable = [{}]\n", self.table()));
        let source = Source { name: "dm-poll".to_owned(), text };
        drystone_stack::check("dm-poll", source, Path::new("/"))
            .map_err(|report| anyhow!(report.render(false)))
    }

    fn device(&self, number: usize, files: &[PathBuf]) -> String {
        match self.members {
            Members::Null { latency_us, poll_queues, skip_busy } => format!(
                "type = \"null\"\nsize = {MEMBER_BYTES}\nirqmode = \"thread\"\n{}\n\
                 submit_queues = {}\npoll_queues = {poll_queues}\nskip_busy = {skip_busy}\n\
                 hw_queue_depth = 1024\nqueue = {{ io_poll = true, nr_requests = 1024 }}",
                latency(latency_us),
                self.threads
            ),
            Members::Files => {
                let path = files[number].display();
                format!("type = \"file\"\npath = \"{path}\"\nsize = {MEMBER_BYTES}")
            }
        }
    }

    fn table(&self) -> String {
        let sectors = MEMBER_BYTES / 512;
        if self.striped {
            let members: Vec<_> = (0..MEMBERS).map(|n| format!("{} 0", Self::member(n))).collect();
            let all = sectors * MEMBERS as u64;
            let members = members.join(" ");
            return format!("\"0 {all} striped {MEMBERS} {CHUNK_SECTORS} {members}\"");
        }
        let line =
            |n: usize| format!("\"{} {sectors} linear {} 0\"", n as u64 * sectors, Self::member(n));
        (0..MEMBERS).map(line).collect::<Vec<_>>().join(", ")
    }
}

/// A latency with a tail like a flash disk's: shares of the requests, and how much longer than the
/// first the last of each takes, in tenths.
pub(super) const TAIL: [(f64, u32); 5] =
    [(0.5, 10), (0.9, 12), (0.99, 30), (0.999, 60), (1.0, 100)];

fn latency(us: u32) -> String {
    let [p50, p90, p99, p999, max] =
        TAIL.map(|(_, tenths)| u64::from(us) * 100 * u64::from(tenths));
    format!(
        "latency = {{ p50 = \"{p50}ns\", p90 = \"{p90}ns\", p99 = \"{p99}ns\", \
         \"p99.9\" = \"{p999}ns\", max = \"{max}ns\" }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_is_a_stack() {
        let mut scenes: Vec<Scene> = tables(10, 3, 2).into_iter().collect();
        scenes.push(waiting(5, 3));
        for scene in scenes {
            let stack = scene.stack(&[]).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(stack.devices.len(), MEMBERS + 1, "{}", scene.name);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |n| folder.path().join(format!("{n}.img"));
        let paths: Vec<PathBuf> = (0..MEMBERS).map(path).collect();
        assert!(files().stack(&paths).is_ok());
    }
}
