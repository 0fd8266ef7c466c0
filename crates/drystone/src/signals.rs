//! SIGINT and SIGTERM: the first asks for an orderly stop, the second ends the process at once.
//!
//! Installing a handler replaces an inherited "ignore", so a server started in the background of
//! a script stops like any other.

use std::io;
use std::process;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output;
use crate::unix_socket::Place;

/// Tells when to stop.
pub struct StopSignal {
    first: Receiver<i32>,
    places: std::sync::mpsc::Sender<Place>,
}

impl StopSignal {
    /// Installs the handlers. Signals from here on are held until [`StopSignal::wait`].
    pub fn install() -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let (ask, first) = sync_channel(1);
        let (places, to_remove) = std::sync::mpsc::channel::<Place>();
        let work = move || {
            let mut asked = false;
            for signal in signals.forever() {
                if !asked {
                    asked = true;
                    let _ = ask.send(signal);
                    continue;
                }
                to_remove.try_iter().for_each(|place| place.remove());
                output::complain("drystone: stopped at once; what was not flushed may be lost");
                process::exit(128 + signal);
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(work)?;
        Ok(Self { first, places })
    }

    /// Also removes this path when a second signal ends the process.
    pub fn remove_on_exit(&self, place: Place) {
        // Fails only if the thread is gone, and then the process is ending.
        let _ = self.places.send(place);
    }

    /// Waits for the first signal.
    pub fn wait(&self) {
        // The thread holds its end as long as the process lives.
        let _ = self.first.recv();
    }
}
