//! FUSE: devices as files, and loop devices of them.

mod files;
mod growth;
mod hint;
mod loop_device;
mod mount_target;
mod options;

use anyhow::Result;
use drystone_exports::fuse::kernel::MountError;
use drystone_stack::StackSpec;
use drystone_stack::live::LiveMount;

use super::front_end::{At, FrontEnd};
use crate::io_flusher;
use crate::output;
use files::Files;

pub use hint::hint;
pub use options::FileOptions;

/// The files of a server.
#[derive(Default)]
pub struct Fuse {
    mounts: Vec<Files>,
}

impl FrontEnd for Fuse {
    /// Pages of a file system on such a file are written back through this process.
    fn prepare(&mut self, spec: &StackSpec) {
        let mut files = spec.exports.iter().filter_map(|export| export.fuse.as_ref()).peekable();
        if files.peek().is_some()
            && let Err(error) = io_flusher::become_one()
            && files.any(|file| file.loop_device)
        {
            warn_of_memory(&error);
        }
    }

    fn begin(&mut self, at: &At<'_>) -> Result<()> {
        let mounts = at.stack.mounts();
        if mounts.iter().any(has_loops) {
            loop_device::tell_of_lost();
        }
        for live in mounts.into_iter().take_while(|_| !at.ending.is_asked()) {
            match self.mount(live, at) {
                // Of the machine, not of this stack: others can still be served.
                Err(error) if lacks_fuse(&error) && !at.stack.listeners().is_empty() => {
                    output::warning(&format!(
                        "no export appears as a file: {error}; NBD exports are served"
                    ));
                    break;
                }
                mounted => mounted?,
            }
        }
        Ok(())
    }

    fn announce(&self) -> Vec<String> {
        let files = self.mounts.iter().flat_map(Files::announce);
        let paths = files.flat_map(|(file, device)| std::iter::once(file).chain(device));
        paths.map(|path| path.display().to_string()).collect()
    }

    /// All of them before any is unmounted, so that none waits for another's client. A mount that
    /// refuses is reported then.
    fn close(&mut self) {
        self.mounts.iter_mut().for_each(|files| _ = files.detach_loops());
    }

    /// Takes files away once nobody uses them; those that cannot be unmounted at once.
    fn end(&mut self) -> Result<()> {
        let mut failed = Ok(());
        for mut files in self.mounts.drain(..) {
            if let Err(error) = files.unmount() {
                files.leaver()();
                failed = failed.and(Err(error));
            }
        }
        failed
    }

    fn leave(&mut self) {
        self.mounts.drain(..).for_each(|files| files.leaver()());
    }
}

impl Fuse {
    fn mount(&mut self, live: LiveMount, at: &At<'_>) -> Result<()> {
        let has_loops = has_loops(&live);
        let files = at.ending.making(|| {
            let files = Files::mount(live, at.inboxes, at.locks)?;
            at.ending.add(Box::new(files.leaver()));
            anyhow::Ok(files)
        })?;
        self.mounts.push(files);
        let Some(files) = self.mounts.last_mut() else { return Ok(()) };
        files.wait_until_served()?;
        match has_loops {
            true => files.make_loop_devices(at.ending),
            false => Ok(()),
        }
    }
}

/// The machine has no FUSE, or not for us.
fn lacks_fuse(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(MountError::NoDevice | MountError::NoAccess))
}

fn has_loops(live: &LiveMount) -> bool {
    let mut files = live.exports.iter().filter_map(|export| export.spec.fuse.as_ref());
    files.any(|file| file.loop_device)
}

/// Says that file systems on its loop devices are written back by a process that may wait for that.
fn warn_of_memory(error: &std::io::Error) {
    output::warning(&format!(
        "PR_SET_IO_FLUSHER was refused (needs CAP_SYS_RESOURCE): {error}. Under memory pressure a \
         file system mounted on this device may deadlock."
    ));
}
