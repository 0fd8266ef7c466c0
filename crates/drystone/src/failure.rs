//! The way a command ends when it does not succeed.

use std::process::ExitCode;

use drystone_stack::{Report, one_line};

use crate::terminal::colour;

/// Why a command failed; `Display` is one sentence in a line, or a drawn report.
#[derive(Debug)]
pub enum Failure {
    /// The thing asked for was refused: exit status 1.
    Refused(String),
    /// The command line was wrong: exit status 2.
    Usage(String),
    /// Like [`Failure::Refused`], already drawn in full.
    Report(String),
    /// The exit status answers the question; the text, which may be empty, says why.
    Status(u8, String),
}

impl Failure {
    /// Its text, without the word that it begins with.
    pub fn sentence(&self) -> String {
        let text = self.to_string();
        text.strip_prefix("error: ").unwrap_or(&text).to_owned()
    }

    /// The exit status.
    pub fn status(&self) -> ExitCode {
        match self {
            Failure::Refused(_) | Failure::Report(_) => ExitCode::from(1),
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Status(status, _) => ExitCode::from(*status),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(text) | Failure::Usage(text) => {
                write!(f, "error: {}", one_line(text))
            }
            Failure::Report(text) | Failure::Status(_, text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let error = match error.downcast::<Failure>() {
            Ok(failure) => return failure,
            Err(error) => error,
        };
        match error.downcast::<Report>() {
            Ok(report) => Failure::Report(report.render(colour())),
            Err(error) => Failure::Refused(format!("{error:#}")),
        }
    }
}
