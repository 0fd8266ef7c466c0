//! The programs that the lab runs, and its children. Every wait for one checks regularly whether it
//! should go on.

#![expect(clippy::disallowed_types, reason = "a laboratory joins its threads, and serves nobody")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::served::Task;
use crate::measure::stat_times;
use crate::raid5_wait::array::Counts;

/// The pause between two checks of a program.
const STEP: Duration = Duration::from_millis(5);
/// The longest run of a program other than the load: it may write the data left in memory to slow
/// disks.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest time in which a child must answer.
const ANSWER: Duration = Duration::from_secs(60);

/// Runs a program until it ends or `look` fails; `look` gets the program's running time. On an
/// error the program is killed but not awaited, since it may hang. Returns its output.
///
/// # Errors
/// The error of `look`, or the program's message.
pub(super) fn run(
    command: &mut Command,
    mut look: impl FnMut(Duration) -> anyhow::Result<()>,
) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // The program gets a process group of its own, so that Ctrl-C reaches only the lab.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("`{name}` cannot be run"))?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if let Err(error) = look(start.elapsed()) {
            let _ = child.kill();
            return Err(error.context(name));
        }
        thread::sleep(STEP);
    }
    let output = child.wait_with_output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}: {}", output.status, why.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a short program with these words.
///
/// # Errors
/// As [`run`], and when it takes too long or `stop` is set.
pub(super) fn short(words: &[&str], stop: &AtomicBool) -> anyhow::Result<String> {
    run(Command::new(words[0]).args(&words[1..]), |time| {
        check(stop)?;
        ensure!(time < LIMIT, "not done after {} s", LIMIT.as_secs());
        Ok(())
    })
}

/// # Errors
/// When the lab was told to stop.
pub(super) fn check(stop: &AtomicBool) -> anyhow::Result<()> {
    ensure!(!stop.load(Relaxed), "stopped by a signal");
    Ok(())
}

/// A child that serves an array. It ends when this is dropped, at once.
pub(super) struct Daemon {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Daemon {
    /// Starts a child and waits until its file exists.
    ///
    /// # Errors
    /// When the child fails before that; it has reported the reason on standard error.
    pub(super) fn start(task: &Task, file: &Path) -> anyhow::Result<Daemon> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve-variant", &task.variant]);
        command.args([if task.disks { "disks" } else { "ram" }, &task.members.to_string()]);
        command.arg(task.member_bytes.to_string()).arg(file);
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the server cannot be started")?;
        let (questions, out) = (child.stdin.take(), child.stdout.take());
        let (news, answers) = channel();
        let listen = move || {
            let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
            // The line is not needed once the receiver is gone.
            lines.map_while(Result::ok).for_each(|line| drop(news.send(line)));
        };
        let daemon = Daemon { child, questions, answers };
        thread::Builder::new().name("answers".to_owned()).spawn(listen)?;
        let ready = daemon.answer()?;
        ensure!(ready == "ready", "the server says `{ready}`");
        Ok(daemon)
    }

    fn answer(&self) -> anyhow::Result<String> {
        match self.answers.recv_timeout(ANSWER) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Disconnected) => bail!("the server of the array has ended"),
            Err(RecvTimeoutError::Timeout) => bail!("the server of the array does not answer"),
        }
    }

    fn ask(&mut self, question: &str) -> anyhow::Result<Vec<u64>> {
        let asked = self.questions.as_mut().context("the server is about to end")?;
        writeln!(asked, "{question}").context("the server of the array has ended")?;
        let numbers = self.answer()?;
        let numbers = numbers.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
        numbers.context("the server's answer is no number")
    }

    /// The counts of its array.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn counts(&mut self) -> anyhow::Result<Counts> {
        match self.ask("counts")?[..] {
            [woken, freed, written] => Ok(Counts { woken, freed, written }),
            _ => bail!("the server's answer has not three numbers"),
        }
    }

    /// Makes the child wake forgotten waiters. Returns how many there were.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn rescue(&mut self) -> anyhow::Result<u64> {
        Ok(self.ask("rescue")?.iter().sum())
    }

    /// Its user and system time so far, all threads, s.
    ///
    /// # Errors
    /// When it has ended.
    pub(super) fn times(&self) -> anyhow::Result<(f64, f64)> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let (user, system) = stat_times(&text).with_context(|| format!("{path} has no times"))?;
        Ok((ticks(user), ticks(system)))
    }

    /// Asks it to end, and waits for that.
    ///
    /// # Errors
    /// When it does not end, or cannot keep its data.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.questions = None;
        let start = Instant::now();
        while start.elapsed() < ANSWER {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server of the array: {status}");
                return Ok(());
            }
            thread::sleep(STEP);
        }
        bail!("the server of the array does not end")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Clock ticks as seconds.
fn ticks(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Time that all processors have spent in the kernel, interrupts included, s: fields 3, 6 and 7 of
/// the first line of `/proc/stat`.
///
/// # Errors
/// When it cannot be read.
pub(super) fn machine_system_time() -> anyhow::Result<f64> {
    let path = "/proc/stat";
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    kernel_ticks(&text).map(ticks).with_context(|| format!("{path} has no times"))
}

fn kernel_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> =
        fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some(fields.get(2)? + fields.get(5)? + fields.get(6)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_time_is_found() {
        let text = "cpu  10 20 300 4000 5 60 7 8 9 0\ncpu0 1 1 1 1 1 1 1\n";
        assert_eq!(kernel_ticks(text), Some(367));
        assert_eq!((kernel_ticks("cpu 1 2 3"), kernel_ticks("")), (None, None));
        assert!(machine_system_time().unwrap() > 0.0);
    }

    #[test]
    fn programs_are_looked_at_and_killed() {
        let stop = AtomicBool::new(false);
        assert_eq!(short(&["echo", "a"], &stop).unwrap(), "a\n");
        let error = short(&["sh", "-c", "echo why >&2; exit 3"], &stop).unwrap_err().to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
        assert!(short(&["/nonexistent/program"], &stop).is_err());
        stop.store(true, Relaxed);
        let error = format!("{:#}", short(&["sleep", "1000"], &stop).unwrap_err());
        assert_eq!(error, "sleep: stopped by a signal");
    }
}
