//! `drystone md`: makes arrays of Linux md on files and block devices, and shows what is on them, with
//! mdadm's words. Needs no server: devices are locked as a server locks them.

pub mod assemble;
mod create;
mod examine;
pub mod images;
mod member;

use clap::Subcommand;

use self::assemble::AssembleArgs;
use self::create::CreateArgs;
use self::examine::ExamineArgs;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub enum MdCommand {
    /// Make a new array of these devices, as `mdadm --create` does, without starting it
    ///
    /// A size without a unit is in KiB.
    Create(Box<CreateArgs>),
    /// Say which array these images make, as a stack file that serves it
    ///
    /// Nothing is written but what is printed. The images need not be complete.
    Assemble(AssembleArgs),
    /// Show the superblocks of these devices, as `mdadm --examine` does
    Examine(ExamineArgs),
}

/// `drystone md`.
pub fn run(command: &MdCommand) -> Result<(), Failure> {
    match command {
        MdCommand::Create(args) => create::run(args),
        MdCommand::Assemble(args) => assemble::run(args),
        MdCommand::Examine(args) => examine::run(args),
    }
}
