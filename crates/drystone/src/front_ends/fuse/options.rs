//! Options of `drystone serve`: files beside those of the stack file.

use std::path::PathBuf;

use clap::Args;
use drystone_stack::StackSpec;
use drystone_stack::spec::FuseSpec;

use crate::failure::Failure;

/// Files of the command line.
#[derive(Debug, Clone, Default, Args)]
pub struct FileOptions {
    /// Also let the default export appear as a file: a free path, an empty file, or a folder
    #[arg(long, value_name = "PATH")]
    pub fuse: Option<PathBuf>,
    /// Make loop devices of all such files, ready for mkfs (needs root)
    #[arg(long)]
    pub mount: bool,
}

impl FileOptions {
    /// Adds what was asked for to a stack.
    ///
    /// # Errors
    /// There is no export that it is for, or no right to do it.
    pub fn add_to(&self, stack: &mut StackSpec) -> Result<(), Failure> {
        self.add_file(stack)?;
        if self.mount && files(stack).next().is_none() {
            return Err(Failure::Usage(
                "--mount makes loop devices of files, and there is none: add --fuse PATH"
                    .to_owned(),
            ));
        }
        for export in &mut stack.exports {
            export.fuse.iter_mut().for_each(|fuse| fuse.loop_device |= self.mount);
        }
        let has_loop = files(stack).any(|fuse| fuse.loop_device);
        if has_loop && !rustix::process::geteuid().is_root() {
            return Err(Failure::Refused(
                "a loop device (--mount, fuse_loop) needs root: run as root, or leave it out and \
                 use the file itself"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn add_file(&self, stack: &mut StackSpec) -> Result<(), Failure> {
        let Some(path) = &self.fuse else { return Ok(()) };
        let path = std::path::absolute(path)
            .map_err(|error| Failure::Refused(format!("--fuse {}: {error}", path.display())))?;
        let is_one = stack.exports.len() == 1;
        let mut defaults = stack.exports.iter_mut().filter(|export| is_one || export.default);
        let Some(export) = defaults.next() else {
            return Err(Failure::Usage(
                "--fuse is for the default export, and the stack has none: add default = true to \
                 one, or write fuse = \"PATH\" into the exports of the stack file"
                    .to_owned(),
            ));
        };
        match &mut export.fuse {
            Some(fuse) => fuse.path = path,
            none => *none = Some(FuseSpec::at(path)),
        }
        Ok(())
    }
}

fn files(stack: &StackSpec) -> impl Iterator<Item = &FuseSpec> {
    stack.exports.iter().filter_map(|export| export.fuse.as_ref())
}
