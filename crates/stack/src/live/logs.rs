//! Marks and ends of logs: the entries of `log-writes` that no client's I/O makes.
//!
//! Each call opens a context of its own to the log device, so that it needs no data thread. A wait
//! is a series of checks with pauses, as for volumes that drain.

use std::sync::Arc;

use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context, Sector};
use drystone_targets::{LogCarrier, LogStep, LogWrite, Table, WriteLog};

use super::{LiveStack, SleepFn};

/// The pause between two checks of the writes: about the time of a device's write.
const PAUSE_NS: Ns = 50_000;

/// Puts a mark into a log, and waits at most so many nanoseconds until it is written.
///
/// # Errors
/// The reason why the mark is not written, as half a sentence.
pub(super) fn mark(
    stack: &LiveStack,
    log: &WriteLog,
    text: &str,
    (within, pause): (Ns, &SleepFn),
) -> Result<(), String> {
    let cx = context(stack)?;
    let locks = cx.locks().clone();
    match log.mark(text, &locks) {
        None => Err("logging is disabled: the log is full, or failed".to_owned()),
        Some(carrier) => Writer::new(stack, log, cx, carrier, within)?.run(pause),
    }
}

/// Writes the remaining entries of each log of a table, and its end. The volume must be quiet.
///
/// # Errors
/// As [`mark`], of the first log that fails.
pub(super) fn end(
    stack: &LiveStack,
    table: &Table,
    (within, pause): (Ns, &SleepFn),
) -> Result<(), String> {
    let ends = table.logs().map(|log| {
        let cx = context(stack)?;
        let locks = cx.locks().clone();
        match log.end(&locks) {
            None => Ok(()),
            Some(carrier) => Writer::new(stack, log, cx, carrier, within)?.run(pause),
        }
    });
    ends.fold(Ok(()), Result::and)
}

fn context(stack: &LiveStack) -> Result<Context, String> {
    stack.contexts.open(stack.engine).map_err(|error| error.message)
}

/// Writes entries to their log.
struct Writer<'a> {
    stack: &'a LiveStack,
    log: &'a WriteLog,
    cx: Context,
    device: ChannelId,
    carrier: LogCarrier,
    locks: Arc<LockCounters>,
    deadline: Ns,
}

impl<'a> Writer<'a> {
    fn new(
        stack: &'a LiveStack,
        log: &'a WriteLog,
        mut cx: Context,
        carrier: LogCarrier,
        within: Ns,
    ) -> Result<Self, String> {
        let locks = cx.locks().clone();
        let device = cx.open(log.device()).map_err(|error| {
            give_up(log, &locks);
            error.message
        })?;
        let deadline = stack.clock.now().saturating_add(within);
        Ok(Writer { stack, log, cx, device, carrier, locks, deadline })
    }

    fn run(mut self, pause: &SleepFn) -> Result<(), String> {
        // Later entries would wait for ever for an unfinished entry.
        self.carry(pause).inspect_err(|_| give_up(self.log, &self.locks))
    }

    fn carry(&mut self, pause: &SleepFn) -> Result<(), String> {
        let mut failed = false;
        loop {
            let mut wakes = Vec::new();
            let step = self.log.step(&mut self.carrier, &self.locks, &mut wakes);
            wake(wakes);
            match step {
                LogStep::Done if failed => return Err("the log cannot be written".to_owned()),
                LogStep::Done => return Ok(()),
                LogStep::Wait => {
                    self.check_time()?;
                    pause(PAUSE_NS);
                }
                LogStep::Write(writes) => {
                    if !self.write(writes, pause)? {
                        self.carrier.fail();
                        failed = true;
                    }
                }
            }
        }
    }

    /// False if a write has failed.
    fn write(&mut self, writes: Vec<LogWrite>, pause: &SleepFn) -> Result<bool, String> {
        let mut bios = BioList::new();
        for LogWrite { sector, data } in writes {
            bios.push(Bio::write(Sector(sector), data));
        }
        self.cx.submit(self.device, &mut bios);
        let mut done = BioList::new();
        self.cx.reap(&mut done);
        while self.cx.outstanding() > 0 {
            self.check_time()?;
            pause(PAUSE_NS);
            self.cx.poll(&mut done);
        }
        Ok(done.iter().all(|bio| bio.status.is_ok()))
    }

    fn check_time(&self) -> Result<(), String> {
        match self.stack.clock.now() < self.deadline {
            true => Ok(()),
            false => Err("the log has not taken it in time".to_owned()),
        }
    }
}

/// Drops the remaining entries, so that nobody waits for them.
fn give_up(log: &WriteLog, locks: &LockCounters) {
    let mut wakes = Vec::new();
    log.give_up(locks, &mut wakes);
    wake(wakes);
}

/// Wakes the contexts that waited for the entries written here.
fn wake(words: Vec<Arc<Message>>) {
    for word in words {
        if let Some(handle) = word.receiver() {
            handle.send(word);
            handle.kick();
        }
    }
}
