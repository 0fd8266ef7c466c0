//! An end of a stop: I/O that does not end (a disk that does not answer) is given up after a while.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use drystone_core::threads;

/// How long I/O in flight, the last flush and the last superblocks of arrays may take together: four times as long as a
/// request may before it counts as lost (30 s), since one of each may come after the other.
pub const STOP_LIMIT: Duration = Duration::from_secs(120);

/// The limit of what is done while it lives.
pub struct StopLimit {
    /// Dropped to end the thread.
    _end: Sender<()>,
}

impl StopLimit {
    /// Calls `give_up` from a thread of its own, if this still lives after `limit`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(limit: Duration, give_up: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (end, ended) = channel();
        let wait = move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                give_up();
            }
        };
        threads::start("stop-limit", wait)?;
        Ok(StopLimit { _end: end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_given_up_and_nothing_else() {
        let (tell, told) = channel();
        let give_up = |word: &'static str| {
            let tell = tell.clone();
            move || tell.send(word).unwrap()
        };
        drop(StopLimit::start(Duration::from_secs(600), give_up("in time")).unwrap());
        let _late = StopLimit::start(Duration::from_millis(1), give_up("late")).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok("late"));
        drop(tell);
        assert!(told.try_recv().is_err(), "it was given up once");
    }
}
