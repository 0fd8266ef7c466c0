//! The end of an open stack, the same for every program: nothing is lost that was acknowledged, and
//! arrays are on record as clean.
//!
//! Invariant: nothing is flushed before all I/O of the stack's users has ended, so the flush covers
//! all that they wrote.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, Context};
use drystone_raid::array::Command;
use drystone_targets::Table;

use super::{LiveDevice, LiveStack, SleepFn, groups, logs};

/// The time that the end of a log may take at the end of a server: as long as a request may take
/// before it counts as lost.
const LOG_PATIENCE_NS: Ns = 30_000_000_000;

/// The time that arrays are waited for that must begin: some writes of superblocks, of which each
/// may take a second on a slow disk.
const BEGIN_PATIENCE_NS: Ns = 10_000_000_000;

/// The pause between two looks whether an array has begun, or stopped.
const ARRAY_PAUSE_NS: Ns = 200_000;

/// The pause between two looks whether what dropped contexts have in flight has ended.
const ORPHANS_PAUSE_NS: Ns = 200_000;
/// The time that that may take: as long as a request may before it counts as lost.
const ORPHANS_PATIENCE_NS: Ns = 30_000_000_000;

impl LiveStack {
    /// The server must stop: no device comes, goes or changes from now on, and what a suspended
    /// volume keeps ends. It fails, because a suspension promises that nothing reaches the devices
    /// below it; but where a suspension was only on its way to another table, or not yet complete,
    /// it is given up and the I/O goes on. I/O that limits keep back goes on at once: it would make
    /// the end wait for as long as they say. Once more only lifts the limits that came since.
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

    /// Once no client is there any more: writes the ends of the logs of all volumes, waiting by
    /// `pause`. After [`LiveStack::stop`].
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

    /// Once no client is there any more, and all is flushed: stops all arrays, so that they are on
    /// record as clean; those that others stand on last. Waits by `pause`.
    ///
    /// # Errors
    /// One sentence on each array that did not stop.
    pub fn stop_arrays(&self, pause: &SleepFn) -> Result<(), String> {
        let devices = self.devices();
        let locks = self.locks.counters();
        let mut failed = Vec::new();
        // A device comes after those that it stands on.
        for (live, array) in devices.iter().rev().filter_map(|d| Some((d, d.array.as_ref()?))) {
            let request = array.request(Command::Stop);
            let outcome = loop {
                match request.outcome(&locks) {
                    Some(outcome) => break outcome,
                    None => {
                        // The array may wait for I/O that dropped contexts have in flight.
                        self.contexts.free_idle_orphans();
                        pause(ARRAY_PAUSE_NS);
                    }
                }
            };
            failed.extend(outcome.err().map(|error| format!("array `{}`: {error}", live.name)));
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Waits by `pause` until all arrays have begun what begins by itself, a synchronisation above
    /// all; for one that waits for its members no longer than `BEGIN_PATIENCE_NS`.
    pub fn await_arrays(&self, pause: &SleepFn) {
        let deadline = self.clock.now().saturating_add(BEGIN_PATIENCE_NS);
        let locks = self.locks.counters();
        // A command that changes nothing: its end is told when what follows from the start has
        // begun.
        let nothing = || Command::Speed { min: None, max: None };
        let devices = self.devices();
        let arrays = devices.iter().filter_map(|live| live.array.as_ref());
        for request in arrays.map(|array| array.request(nothing())).collect::<Vec<_>>() {
            while request.outcome(&locks).is_none() && self.clock.now() < deadline {
                pause(ARRAY_PAUSE_NS);
            }
        }
    }

    /// Once no context is used any more: lets what dropped contexts have in flight end, writes the
    /// ends of logs, flushes all devices, and stops all arrays. After [`LiveStack::stop`]. Waits by
    /// `pause`, for as long as the devices take.
    ///
    /// # Errors
    /// One sentence on everything that could not be done; what could be is done all the same.
    pub fn finish(&self, pause: &SleepFn) -> Result<(), String> {
        let steps =
            [self.end_orphans(pause), self.end_logs(pause), self.flush(), self.stop_arrays(pause)];
        let failed: Vec<String> = steps.into_iter().filter_map(Result::err).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// I/O of dropped contexts may be writes, which the flush must cover.
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

    /// Makes durable what was written. Data that volumes were given is in the devices below them.
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

/// Starts a flush of each device, whose number it has; what is wrong of devices that have none.
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
