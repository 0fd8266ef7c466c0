//! The end of an open stack, the same for every program: no acknowledged write is lost, and arrays
//! are recorded as clean.
//!
//! Invariant: the flush follows the end of all I/O of the stack's users, so it covers all their
//! writes.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, Context};
use drystone_raid::array::Command;
use drystone_targets::Table;

use super::{LiveDevice, LiveStack, SleepFn, groups, logs};

/// The time that the end of a log may take at the end of a server: as long as a request may take
/// before it counts as lost.
const LOG_PATIENCE_NS: Ns = 30_000_000_000;

/// The longest wait for arrays to begin their work: some writes of superblocks, each of which may
/// take a second on a slow disk.
const BEGIN_PATIENCE_NS: Ns = 10_000_000_000;

/// The pause between two checks whether an array has begun or stopped.
const ARRAY_PAUSE_NS: Ns = 200_000;

/// The pause between two checks whether the I/O of dropped contexts has ended.
const ORPHANS_PAUSE_NS: Ns = 200_000;
/// The longest wait for that I/O: as long as a request may take before it counts as lost.
const ORPHANS_PATIENCE_NS: Ns = 30_000_000_000;

impl LiveStack {
    /// Stops the stack: from now on no device is added, removed or changed. I/O that a suspended
    /// volume holds fails, because a suspension promises that no I/O reaches the devices below it.
    /// A suspension that only leads to another table, or is not complete yet, is cancelled, and its
    /// I/O goes on. I/O that limits hold back goes on at once, because it would delay the end. A
    /// second call only lifts limits that were set since.
    pub fn stop(&self) {
        groups::lift(&self.groups);
        let (mut state, mut ended) = (self.devices.lock(), Vec::new());
        if std::mem::replace(&mut state.stopped, true) {
            return;
        }
        for (live, volume) in state.volumes().filter(|(_, volume)| volume.is_suspended()) {
            if live.is_claimed() {
                volume.cancel_suspend();
            } else {
                ended.extend(volume.table());
                volume.close();
            }
        }
        state.ended = ended;
    }

    /// Writes the ends of the logs of all volumes, waiting by `pause`. Called once no client is
    /// left, after [`LiveStack::stop`].
    ///
    /// # Errors
    /// One sentence on each volume whose log is not whole.
    pub fn end_logs(&self, pause: &SleepFn) -> Result<(), String> {
        let state = self.devices.lock();
        let live = state.volumes().filter_map(|(_, volume)| volume.table());
        let tables: Vec<_> = state.ended.iter().cloned().chain(live).collect();
        drop(state);
        let end = |table: &Arc<Table>| {
            let ended = logs::end(self, table, (LOG_PATIENCE_NS, pause));
            let logs = table.logs().map(|log| log.device().info().name);
            ended.err().map(|why| format!("log `{}`: {why}", logs.collect::<Vec<_>>().join("`, `")))
        };
        let failed: Vec<String> = tables.iter().filter_map(end).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Stops all arrays, so that they are recorded as clean; an array below another one stops after
    /// it. Waits by `pause`. Called once no client is left and all data is flushed.
    ///
    /// # Errors
    /// One sentence on each array that did not stop.
    pub fn stop_arrays(&self, pause: &SleepFn) -> Result<(), String> {
        let devices = self.devices();
        let locks = self.locks.counters();
        let mut failed = Vec::new();
        // In the list a device comes after its members.
        for (live, array) in devices.iter().rev().filter_map(|d| Some((d, d.array.as_ref()?))) {
            let request = array.request(Command::Stop);
            let outcome = loop {
                match request.outcome(&locks) {
                    Some(outcome) => break outcome,
                    None => {
                        // The array may wait for I/O of dropped contexts.
                        self.contexts.free_idle_orphans();
                        pause(ARRAY_PAUSE_NS);
                    }
                }
            };
            failed.extend(outcome.err().map(|error| format!("array `{}`: {error}", live.name)));
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Waits by `pause` until all arrays have begun their automatic work, such as a
    /// synchronisation; at most `BEGIN_PATIENCE_NS` for an array that waits for its members.
    pub fn await_arrays(&self, pause: &SleepFn) {
        let deadline = self.clock.now().saturating_add(BEGIN_PATIENCE_NS);
        let locks = self.locks.counters();
        // The command changes nothing. The manager answers it after it has begun the work that
        // follows from the start.
        let nothing = || Command::Speed { min: None, max: None };
        let devices = self.devices();
        let arrays = devices.iter().filter_map(|live| live.array.as_ref());
        for request in arrays.map(|array| array.request(nothing())).collect::<Vec<_>>() {
            while request.outcome(&locks).is_none() && self.clock.now() < deadline {
                pause(ARRAY_PAUSE_NS);
            }
        }
    }

    /// Ends the stack, once no context is in use: lets the I/O of dropped contexts end, writes the
    /// ends of logs, flushes all devices, and stops all arrays. Called after [`LiveStack::stop`].
    /// Waits by `pause`, for as long as the devices take.
    ///
    /// # Errors
    /// One sentence on each failed step; the other steps are done all the same.
    pub fn finish(&self, pause: &SleepFn) -> Result<(), String> {
        let steps =
            [self.end_orphans(pause), self.end_logs(pause), self.flush(), self.stop_arrays(pause)];
        let failed: Vec<String> = steps.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Waits for I/O of dropped contexts: it may be writes, which the flush must cover.
    fn end_orphans(&self, pause: &SleepFn) -> Result<(), String> {
        let until = self.clock.now() + ORPHANS_PATIENCE_NS;
        while self.contexts.free_idle_orphans() > 0 {
            if self.clock.now() >= until {
                return Err("I/O of closed contexts has not ended in 30 s".to_owned());
            }
            pause(ORPHANS_PAUSE_NS);
        }
        Ok(())
    }

    /// Flushes all devices. Volumes keep no data themselves: it is in the devices below them.
    fn flush(&self) -> Result<(), String> {
        let mut cx = self.contexts.open(self.engine).map_err(|error| error.message)?;
        let devices = self.devices();
        let leaves = devices.iter().filter(|live| live.volume.is_none());
        let written: Vec<_> = leaves.filter(|l| !l.device.info().limits.read_only).collect();
        let mut failed = submit_flushes(&mut cx, &written);
        for bio in all_ended(&mut cx).iter().filter(|bio| !bio.status.is_ok()) {
            let name = &written[bio.user_data as usize].name;
            failed.push(format!("device `{name}`: flush failed: {}", bio.status));
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("{}; what was written may be lost", failed.join("; "))),
        }
    }
}

/// Starts a flush of each device; its `user_data` is the device's number. Returns a sentence for
/// each device whose flush could not start.
fn submit_flushes(cx: &mut Context, devices: &[&Arc<LiveDevice>]) -> Vec<String> {
    let mut failed = Vec::new();
    for (number, live) in devices.iter().enumerate() {
        let mut flush = Bio::flush();
        flush.user_data = number as u64;
        let mut bios = BioList::new();
        bios.push(flush);
        match cx.open(&live.device) {
            Ok(device) => cx.submit(device, &mut bios),
            Err(error) => failed.push(format!("device `{}`: {error}", live.name)),
        }
    }
    failed
}

fn all_ended(cx: &mut Context) -> BioList {
    let mut done = BioList::new();
    while cx.outstanding() > 0 {
        cx.reap(&mut done);
        if cx.outstanding() > 0 {
            cx.wait(None);
        }
    }
    done
}
