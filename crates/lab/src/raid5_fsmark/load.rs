//! One run of the load, and the readings at its begin and end.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::case::Case;
use super::fs_mark;
use super::rig::Rig;
use super::tool::{self, Daemon};
use crate::raid5_wait::array::Counts;

/// The pause between two checks for progress.
const LOOK: Duration = Duration::from_millis(500);

/// The figures of a run; only `rescued` for a run that hung.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) files_per_second: f64,
    /// User time of the array's server, s.
    pub(super) user_seconds: f64,
    /// System time of the machine, s: the server's is part of it.
    pub(super) system_seconds: f64,
    /// System time of the array's server, s.
    pub(super) server_system_seconds: f64,
    pub(super) seconds: f64,
    pub(super) files: f64,
    pub(super) wakeups_per_stripe: f64,
    /// Threads that the watcher woke, because they slept although they could have gone on.
    pub(super) rescued: f64,
    pub(super) is_stuck: bool,
}

/// The error that a run made no progress, although the watcher had woken the forgotten waiters.
#[derive(Debug)]
pub(super) struct Stuck;

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing moves any more")
    }
}

impl std::error::Error for Stuck {}

/// Counts and times at one moment.
struct Reading {
    at: Instant,
    counts: Counts,
    user: f64,
    server_system: f64,
    system: f64,
}

/// Runs the load on the rig. After `patience` without progress it wakes forgotten waiters; after as
/// long again the run counts as stuck.
///
/// # Errors
/// The reason why it cannot run, except [`Stuck`].
pub(super) fn measure(
    rig: &mut Rig<'_>,
    case: &Case,
    patience: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Sample> {
    let begin = read(rig)?;
    let mut command = fs_mark::command(case, &rig.mount_point());
    let mut watch = Watch { last: Vec::new(), moved: Duration::ZERO, next: LOOK, rescued: None };
    let mut rescued = 0;
    let run = tool::run(&mut command, |time| {
        tool::check(stop)?;
        watch.look(rig, time, patience, &mut rescued)
    });
    let said = match run {
        Err(error) if error.is::<Stuck>() => return Ok(Sample::stuck(rescued)),
        said => said?,
    };
    let end = read(rig)?;
    let (files, rate) = fs_mark::parse(&said)?;
    ensure!(files == case.files(), "fs_mark wrote {files} files, not {}", case.files());
    Ok(Sample::between(&begin, &end, (files as f64, rate), rescued))
}

fn read(rig: &mut Rig<'_>) -> anyhow::Result<Reading> {
    let (mut counts, mut user, mut server_system) = (Counts::default(), 0.0, 0.0);
    if let Some(daemon) = &mut rig.daemon {
        counts = daemon.counts()?;
        (user, server_system) = daemon.times()?;
    }
    let system = tool::machine_system_time()?;
    Ok(Reading { at: Instant::now(), counts, user, server_system, system })
}

/// Watches the progress of the loop device.
struct Watch {
    last: Vec<u64>,
    /// The time of the last progress.
    moved: Duration,
    next: Duration,
    /// The time when the forgotten waiters were woken, if there was no progress since.
    rescued: Option<Duration>,
}

impl Watch {
    fn look(
        &mut self,
        rig: &mut Rig<'_>,
        time: Duration,
        patience: Duration,
        count: &mut u64,
    ) -> anyhow::Result<()> {
        if time < self.next {
            return Ok(());
        }
        self.next = time + LOOK;
        let done = rig.done()?;
        if done != self.last {
            (self.last, self.moved, self.rescued) = (done, time, None);
        }
        match self.verdict(time, patience) {
            Verdict::Wait => {}
            Verdict::Rescue => {
                self.rescued = Some(time);
                // A server that does not answer wakes nobody.
                let rescue = |daemon: &mut Daemon| daemon.rescue().unwrap_or_default();
                *count += rig.daemon.as_mut().map_or(0, rescue);
            }
            Verdict::Stuck => return Err(Stuck.into()),
        }
        Ok(())
    }

    fn verdict(&self, time: Duration, patience: Duration) -> Verdict {
        match self.rescued {
            None if time - self.moved >= patience => Verdict::Rescue,
            Some(rescued) if time - rescued >= patience => Verdict::Stuck,
            _ => Verdict::Wait,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    Rescue,
    Stuck,
}

impl Sample {
    fn between(begin: &Reading, end: &Reading, (files, rate): (f64, f64), rescued: u64) -> Self {
        let freed = (end.counts.freed - begin.counts.freed) as f64;
        Sample {
            files_per_second: rate,
            user_seconds: end.user - begin.user,
            system_seconds: end.system - begin.system,
            server_system_seconds: end.server_system - begin.server_system,
            seconds: (end.at - begin.at).as_secs_f64(),
            files,
            wakeups_per_stripe: (end.counts.woken - begin.counts.woken) as f64 / freed.max(1.0),
            rescued: rescued as f64,
            is_stuck: false,
        }
    }

    fn stuck(rescued: u64) -> Self {
        Sample {
            files_per_second: f64::NAN,
            user_seconds: f64::NAN,
            system_seconds: f64::NAN,
            server_system_seconds: f64::NAN,
            seconds: f64::NAN,
            files: f64::NAN,
            wakeups_per_stripe: f64::NAN,
            rescued: rescued as f64,
            is_stuck: true,
        }
    }

    /// The processor time of a file, s: the time that would be system time if the array were in the
    /// kernel.
    pub(super) fn cpu_seconds_per_file(&self) -> f64 {
        (self.user_seconds + self.system_seconds) / self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stands_still_is_helped_once_and_then_given_up() {
        let seconds = Duration::from_secs;
        let mut watch =
            Watch { last: vec![1], moved: seconds(10), next: seconds(0), rescued: None };
        let at = |watch: &Watch, time| watch.verdict(seconds(time), seconds(60));
        assert_eq!((at(&watch, 69), at(&watch, 70)), (Verdict::Wait, Verdict::Rescue));
        watch.rescued = Some(seconds(70));
        assert_eq!((at(&watch, 129), at(&watch, 130)), (Verdict::Wait, Verdict::Stuck));
    }
}
