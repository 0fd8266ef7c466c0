//! The mail's load: threads that write files of 4 MiB and sync each, as fs_mark does
//! (`fs_mark -s 4194304 -t 64`, fsync before close), without a file system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use drystone_core::Sector;
use drystone_core::sync::{LockRegistry, LockStats};

use super::array::{Array, Counts, Writer};
use crate::measure::{process_times, warmup_ns};

/// Bytes of a file.
pub const FILE_BYTES: usize = 4 << 20;
/// Bytes of a bio: 256 pages, the most that Linux's had in the mail's time.
pub const BIO_BYTES: usize = 1 << 20;
/// Places for files, dealt out among the threads.
pub const FILES: u64 = 64;

/// The pause between two checks for progress.
const LOOK: Duration = Duration::from_millis(100);
/// The longest time without progress, with or without rescues.
const PATIENCE: Duration = Duration::from_secs(60);

/// Figures of a run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Files' worth of data written, a second.
    pub files_per_second: f64,
    /// User time of the process, s.
    pub user_seconds: f64,
    /// System time of the process, s.
    pub system_seconds: f64,
    /// System time of the process for each file, s.
    pub system_seconds_per_file: f64,
    /// Time measured, s.
    pub seconds: f64,
    /// Wake-ups of threads that waited for a stripe, for each stripe that became free.
    pub wakeups_per_stripe: f64,
    /// Threads that the watcher woke, because they could have gone on and there was no progress.
    pub rescued: f64,
    /// The locks.
    pub locks: LockStats,
}

/// The contents of file `number`, `bytes` long; no other file has the same bytes at the same place.
pub fn content(number: u64, bytes: usize) -> Arc<[u8]> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(word).collect()
}

/// Write the file `data` to place `place` for files of its size, and sync it.
///
/// # Errors
/// When I/O failed.
pub fn write_file(writer: &mut dyn Writer, place: u64, data: &Arc<[u8]>) -> Result<(), String> {
    for from in (0..data.len()).step_by(BIO_BYTES) {
        let to = data.len().min(from + BIO_BYTES);
        let sector = Sector::from_bytes(place * data.len() as u64 + from as u64);
        writer.write(sector.0, data, from..to);
    }
    writer.sync()
}

/// State that threads and their watcher share.
#[derive(Default)]
struct Progress {
    running: AtomicU32,
    stop: AtomicBool,
}

/// Let `threads` threads write for `runtime_ns` after a warm-up.
///
/// # Errors
/// When I/O failed, or nothing ended for a minute.
pub fn measure(
    array: &dyn Array,
    threads: u32,
    runtime_ns: u64,
    locks: &LockRegistry,
) -> anyhow::Result<Sample> {
    let progress = Progress { running: AtomicU32::new(threads), ..Progress::default() };
    let (news, inbox) = channel();
    let sample = thread::scope(|scope| {
        for number in 0..u64::from(threads) {
            let (news, progress) = (news.clone(), &progress);
            scope.spawn(move || {
                let written = write_files(array, number, u64::from(threads), progress);
                progress.running.fetch_sub(1, Relaxed);
                // The error is not needed once the receiver is gone.
                let _ = written.map_err(|error| news.send(error));
            });
        }
        let last = Counts::default();
        let mut watch = Watch { array, progress: &progress, last, rescued: 0 };
        let sample = watch.measure(runtime_ns, locks);
        progress.stop.store(true, Relaxed);
        while progress.running.load(Relaxed) > 0 {
            watch.pause(LOOK);
        }
        sample
    });
    match inbox.try_recv() {
        Ok(error) => bail!(error),
        Err(_) => sample,
    }
}

/// Thread `number` of `threads` writes its files until it is told to stop.
fn write_files(
    array: &dyn Array,
    number: u64,
    threads: u64,
    progress: &Progress,
) -> Result<(), String> {
    let (mut writer, data) = (array.writer(), content(number, FILE_BYTES));
    let places = (number..FILES.max(threads)).step_by(threads as usize).cycle();
    for place in places {
        if progress.stop.load(Relaxed) {
            break;
        }
        write_file(&mut *writer, place, &data)?;
    }
    Ok(())
}

/// Watches the progress, and wakes forgotten waiters.
struct Watch<'a> {
    array: &'a dyn Array,
    progress: &'a Progress,
    /// The counts at the last check.
    last: Counts,
    rescued: u64,
}

/// Counters that are read at both ends of the measured time.
struct Reading {
    at: Instant,
    counts: Counts,
    user_ns: f64,
    system_ns: f64,
    rescued: u64,
}

impl Watch<'_> {
    fn measure(&mut self, runtime_ns: u64, locks: &LockRegistry) -> anyhow::Result<Sample> {
        self.run(warmup_ns(runtime_ns))?;
        locks.reset();
        let begin = self.read()?;
        self.run(runtime_ns)?;
        let end = self.read()?;
        Ok(Sample::between(&begin, &end, locks.reset()))
    }

    /// Wait for `ns`, and repeat that until bytes were written.
    fn run(&mut self, ns: u64) -> anyhow::Result<()> {
        let (start, written) = (Instant::now(), self.array.counts().written);
        let step = Duration::from_nanos(ns).min(LOOK);
        while start.elapsed() < Duration::from_nanos(ns) || self.array.counts().written == written {
            ensure!(self.progress.running.load(Relaxed) > 0, "all threads have ended");
            ensure!(
                start.elapsed() < PATIENCE.max(Duration::from_nanos(ns)),
                "nothing was written"
            );
            self.pause(step);
        }
        Ok(())
    }

    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
        let now = self.array.counts();
        if now == self.last && time == LOOK {
            self.rescued += self.array.rescue() as u64;
        }
        self.last = now;
    }

    fn read(&self) -> anyhow::Result<Reading> {
        let (user_ns, system_ns) = process_times()?;
        Ok(Reading {
            at: Instant::now(),
            counts: self.array.counts(),
            user_ns,
            system_ns,
            rescued: self.rescued,
        })
    }
}

impl Sample {
    fn between(begin: &Reading, end: &Reading, locks: LockStats) -> Self {
        let seconds = (end.at - begin.at).as_secs_f64();
        let freed = (end.counts.freed - begin.counts.freed) as f64;
        let files = (end.counts.written - begin.counts.written) as f64 / FILE_BYTES as f64;
        let system_seconds = (end.system_ns - begin.system_ns) / 1e9;
        Sample {
            files_per_second: files / seconds,
            user_seconds: (end.user_ns - begin.user_ns) / 1e9,
            system_seconds,
            system_seconds_per_file: system_seconds / files,
            seconds,
            wakeups_per_stripe: (end.counts.woken - begin.counts.woken) as f64 / freed.max(1.0),
            rescued: (end.rescued - begin.rescued) as f64,
            locks,
        }
    }
}
