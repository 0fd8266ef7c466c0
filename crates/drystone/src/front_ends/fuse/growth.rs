//! Loop devices follow the size of what is behind them.
//!
//! A loop device has the size that its file had when it was made. Devices change their size in
//! several ways (an attribute, a volume's table, an array that ends its reshape), so a thread looks
//! at it now and then: at the device, not at the file, so that an idle server has no requests for
//! itself.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use drystone_core::threads;
use drystone_exports::fuse::server::Mount;

use super::loop_device::LoopDevice;
use crate::output;

/// Between two looks: as long as the kernel relies on a file's size.
const PAUSE: Duration = Duration::from_secs(1);

/// A loop device with its file and the volume that is served as that.
pub struct Grown {
    mount: Arc<Mount>,
    /// Its number there.
    index: usize,
    file: PathBuf,
    attached: LoopDevice,
    /// The size of the volume that the loop device follows, in bytes.
    size: u64,
    /// The kernel may take the file for shorter than it is.
    is_cut: bool,
}

impl Grown {
    /// `attached` is a loop device of `file`, which volume `index` of `mount` is served as.
    pub fn new(mount: Arc<Mount>, index: usize, file: PathBuf, attached: LoopDevice) -> Self {
        let size = mount.volume(index).geometry().size;
        Grown { mount, index, file, attached, size, is_cut: false }
    }

    /// Have the kernel know the size of the file, and the loop device take it.
    fn follow(&mut self) {
        let size = self.mount.volume(self.index).geometry().size;
        self.is_cut |= self.mount.take_truncation(self.index);
        if size == self.size && !self.is_cut || !self.attached.is_attached() {
            return;
        }
        match fs::metadata(&self.file) {
            // The kernel still relies on what it was told before.
            Ok(found) if found.len() != size => return,
            Ok(_) => {}
            Err(error) => return self.complain(&error.to_string()),
        }
        self.is_cut = false;
        if std::mem::replace(&mut self.size, size) == size {
            return;
        }
        if let Err(error) = self.attached.follow_size() {
            self.complain(&format!("{error:#}"));
        }
    }

    fn complain(&self, why: &str) {
        let name = self.attached.path().display();
        output::warning(&format!("{name} keeps its size: {why}"));
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
        threads::start("sizes", look)?;
        Ok(Watch { _end: end })
    }
}
