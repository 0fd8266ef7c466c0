//! `drystone md`: arrays of Linux md, with mdadm's words. Made on files and block devices, and
//! shown as they are there, without a server; watched and changed on a running one.

mod asked;
pub mod assemble;
mod create;
mod detail;
mod examine;
mod examine_json;
pub mod images;
mod manage;
mod member;
mod start;
mod status;
#[cfg(test)]
mod tests;

use clap::Subcommand;

use self::create::CreateArgs;
use self::detail::DetailArgs;
use self::examine::ExamineArgs;
use self::manage::{AddArgs, ArrayArgs, DevicesArgs};
use self::start::AssembleArgs;
use self::status::{StatusArgs, WaitArgs};
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub enum MdCommand {
    /// Make a new array of these devices, as `mdadm --create` does, without starting it; needs no
    /// server
    ///
    /// A size without a unit is in KiB.
    Create(Box<CreateArgs>),
    /// Show the superblocks of these devices, as `mdadm --examine` does; needs no server
    Examine(ExamineArgs),
    /// Start an array on a running server, as `mdadm --assemble` does, or print a stack file for
    /// one
    ///
    /// On a running server it is there until that stops, and no export serves it. To keep or export
    /// it, put what --print prints into the stack file, and restart.
    Assemble(AssembleArgs),
    /// Show an array of a running server, as `mdadm --detail` does
    Detail(DetailArgs),
    /// Show the arrays of a running server, as /proc/mdstat does
    Status(StatusArgs),
    /// Wait until the resync, rebuild or check of an array has ended, as `mdadm --wait` does
    Wait(WaitArgs),
    /// Add a device to an array, as `mdadm --add` does: a member that returns, or a spare
    ///
    /// A path that is no device of the stack is opened, and closed again when it is removed.
    Add(AddArgs),
    /// Mark a member as failed, as `mdadm --fail` does
    ///
    /// `detached` stands for all members whose files are gone.
    Fail(DevicesArgs),
    /// Remove a failed device or a spare from an array, as `mdadm --remove` does
    ///
    /// `failed` stands for all failed devices, `detached` for all whose files are gone.
    Remove(DevicesArgs),
    /// Replace a member by a spare while the member stays in use, as `mdadm --replace` does
    Replace(DevicesArgs),
    /// Compare all parity of an array with its data; md/mismatch_cnt counts the sectors that differ
    Check(ArrayArgs),
    /// The same, and recompute parity where it differs
    Repair(ArrayArgs),
    /// Stop an array that nothing uses, as `mdadm --stop` does
    Stop(ArrayArgs),
}

/// `drystone md`.
pub fn run(command: &MdCommand) -> Result<(), Failure> {
    match command {
        MdCommand::Create(args) => create::run(args),
        MdCommand::Examine(args) => examine::run(args),
        MdCommand::Assemble(args) => start::run(args),
        MdCommand::Detail(args) => detail::run(args),
        MdCommand::Status(args) => status::run(args),
        MdCommand::Wait(args) => status::wait(args),
        MdCommand::Add(args) => manage::add(args),
        MdCommand::Fail(args) => manage::fail(args),
        MdCommand::Remove(args) => manage::remove(args),
        MdCommand::Replace(args) => manage::replace(args),
        MdCommand::Check(args) => manage::sync(args, "md-check"),
        MdCommand::Repair(args) => manage::sync(args, "md-repair"),
        MdCommand::Stop(args) => manage::stop(args),
    }
}
