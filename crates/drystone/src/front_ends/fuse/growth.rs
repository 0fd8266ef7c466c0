//! Loop devices follow the size of what is behind them.
//!
//! A loop device has the size that its file had when it was made. Devices change their size in several
//! ways (an attribute, a volume's table, an array that ends its reshape), so a thread looks at it now and
//! then: at the device, not at the file, so that an idle server has no requests for itself.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use drystone_exports::server::Volume;

use super::loop_device::LoopDevice;
use crate::output;

/// Between two looks: as long as the kernel relies on a file's size.
const PAUSE: Duration = Duration::from_secs(1);

/// A loop device with its file and the volume that is served as that.
pub struct Grown {
    volume: Volume,
    file: PathBuf,
    attached: LoopDevice,
    /// The size of the volume that the loop device follows, in bytes.
    size: u64,
}

impl Grown {
    /// `attached` is a loop device of `file`, which `volume` is served as.
    pub fn new(volume: Volume, file: PathBuf, attached: LoopDevice) -> Self {
        let size = volume.geometry().size;
        Grown { volume, file, attached, size }
    }

    /// Have the loop device take the size of its file, once the kernel knows that.
    fn follow(&mut self) {
        let size = self.volume.geometry().size;
        if size == self.size || !self.attached.is_attached() {
            return;
        }
        match fs::metadata(&self.file) {
            // The kernel still relies on what it was told before.
            Ok(found) if found.len() != size => return,
            Ok(_) => {}
            Err(error) => return self.complain(&error.to_string()),
        }
        self.size = size;
        if let Err(error) = self.attached.follow_size() {
            self.complain(&format!("{error:#}"));
        }
    }

    fn complain(&self, why: &str) {
        let name = self.attached.path().display();
        output::complain(&format!("drystone: {name} keeps its size: {why}"));
    }
}

/// Looks at sizes until it is dropped.
pub struct Watch {
    _end: Sender<()>,
}

impl Watch {
    /// A thread that looks after these.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(mut all: Vec<Grown>) -> std::io::Result<Watch> {
        let (end, ended) = channel();
        let look = move || {
            while ended.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                all.iter_mut().for_each(Grown::follow);
            }
        };
        thread::Builder::new().name("sizes".to_owned()).spawn(look)?;
        Ok(Watch { _end: end })
    }
}
