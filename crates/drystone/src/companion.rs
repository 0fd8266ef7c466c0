//! Commands that are programs of their own: `drystone lab` and `drystone sim` hand over to
//! `drystone-lab` and `drystone-sim`, which stand beside this program where they were built. A
//! server links neither.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::failure::Failure;

/// The words after the command, for the program to judge.
#[derive(Debug, Clone, Args)]
pub struct CompanionArgs {
    /// Commands and options of that program; --help lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// A command that is a program of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    /// `drystone lab`.
    Lab,
    /// `drystone sim`.
    Sim,
}

impl Companion {
    /// The companion of that command.
    pub fn of_command(command: &str) -> Option<Self> {
        [Companion::Lab, Companion::Sim].into_iter().find(|one| one.command() == command)
    }

    fn command(self) -> &'static str {
        match self {
            Companion::Lab => "lab",
            Companion::Sim => "sim",
        }
    }

    /// Becomes the program. Comes back only with the reason why that failed.
    pub fn hand_over(self, arguments: &[OsString]) -> Failure {
        match std::env::current_exe() {
            Ok(own) => self.hand_over_from(&own, arguments),
            Err(error) => Failure::Refused(format!("the path of this program is unknown: {error}")),
        }
    }

    fn hand_over_from(self, own: &Path, arguments: &[OsString]) -> Failure {
        let command = self.command();
        let program = own.with_file_name(format!("drystone-{command}"));
        let error = Command::new(&program).args(arguments).exec();
        Failure::Refused(format!(
            "`drystone {command}` needs the program {}, which cannot be run: {error}; `make \
             {command}` builds it",
            program.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_their_companions() {
        assert_eq!(Companion::of_command("lab"), Some(Companion::Lab));
        assert_eq!(Companion::of_command("sim"), Some(Companion::Sim));
        assert_eq!(Companion::of_command("bench"), None);
    }

    #[test]
    fn a_program_that_is_not_built_is_named_with_its_make_target() {
        let folder = tempfile::tempdir().unwrap();
        let failure = Companion::Sim.hand_over_from(&folder.path().join("drystone"), &[]);
        let text = failure.to_string();
        assert!(text.contains("drystone-sim") && text.contains("`make sim` builds it"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
