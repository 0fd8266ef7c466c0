//! The end of an open stack, the same for every program: nothing is lost that was acknowledged, and
//! arrays are on record as clean.
//!
//! Invariant: nothing is flushed before all I/O of those who used the stack has ended, so the flush
//! covers all that they wrote.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, Context};

use super::{LiveDevice, LiveStack, SleepFn};

/// The pause between two looks whether what dropped contexts have in flight has ended.
const ORPHANS_PAUSE_NS: Ns = 200_000;
/// How long that may take: as long as a request may before it counts as lost.
const ORPHANS_PATIENCE_NS: Ns = 30_000_000_000;

impl LiveStack {
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

    /// What dropped contexts have in flight may be writes, which the flush is to cover.
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

    /// Makes durable what was written. What volumes were given is in the devices below them.
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
