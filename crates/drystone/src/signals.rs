//! SIGINT, SIGTERM and SIGHUP (the terminal has gone): the first asks for an orderly stop, the
//! second ends the process at once.
//!
//! A signal that follows the first within `TOGETHER` is the same wish: GNU `timeout` signals its
//! child and then their whole group, a terminal and a script may do so too.
//!
//! Installing a handler replaces an inherited "ignore", so a server started in the background of a
//! script stops like any other. But a user who ignores SIGHUP wants a server that outlives its
//! terminal (`nohup`).

use std::io;
use std::process;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use drystone_bench::Stop;
use drystone_core::threads;

use crate::ending::Ending;
use crate::output;

/// Signals this close to the first count as one with it.
const TOGETHER: Duration = Duration::from_millis(300);

/// The meaning of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// Stop in order.
    Ask,
    /// It came together with the first.
    Ignore,
    /// Stop at once.
    Exit,
}

/// The meaning of a signal that comes `since_first` after the first one; `None`: it is the first.
fn reaction(since_first: Option<Duration>) -> Reaction {
    match since_first {
        None => Reaction::Ask,
        Some(time) if time < TOGETHER => Reaction::Ignore,
        Some(_) => Reaction::Exit,
    }
}

/// True if this process ignores `signal`, as Linux tells it (proc(5)); not, if it does not tell.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A wish to end a measurement early, which the first Ctrl-C makes; the second ends the process at
/// once.
///
/// # Errors
/// When a handler cannot be installed.
pub fn stop_on_signals() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, stop.flag())?;
        signal_hook::flag::register(signal, stop.flag())?;
    }
    Ok(stop)
}

/// Tells when to stop.
pub struct StopSignal {
    first: Receiver<i32>,
    ending: Ending,
}

impl StopSignal {
    /// Installs the handlers. From here on the first signal is told by [`StopSignal::ending`] and
    /// held until [`StopSignal::wait`].
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn install() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        if !is_ignored(SIGHUP) {
            signals.add_signal(SIGHUP)?;
        }
        let (ask, first) = sync_channel(1);
        let ending = Ending::default();
        let own = ending.clone();
        let work = move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                match reaction(first.map(|first| first.elapsed())) {
                    Reaction::Ask => {
                        first = Some(Instant::now());
                        own.ask();
                        let _ = ask.send(signal);
                        continue;
                    }
                    Reaction::Ignore => continue,
                    Reaction::Exit => {}
                }
                let _held = own.leave();
                output::warning("stopped at once; what was not flushed may be lost");
                process::exit(128 + signal);
            }
        };
        threads::start("signals", work)?;
        Ok(Self { first, ending })
    }

    /// The end of the process: what is in there is done when a second signal ends it.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Waits for the first signal.
    pub fn wait(&self) {
        // The thread holds its end as long as the process lives.
        let _ = self.first.recv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_second_signal_stops_at_once() {
        let after = |ms| reaction(Some(Duration::from_millis(ms)));
        assert_eq!(reaction(None), Reaction::Ask);
        assert_eq!((after(0), after(299)), (Reaction::Ignore, Reaction::Ignore));
        assert_eq!((after(300), after(60_000)), (Reaction::Exit, Reaction::Exit));
    }
}
