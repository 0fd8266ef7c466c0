//! Errors of guests.

use std::fmt;

/// The kinds of [`GuestError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestErrorKind {
    /// No guest started: image, programs or QEMU are missing or do not start.
    NotStarted,
    /// QEMU has ended: the guest panicked or powered off, or QEMU gave up.
    Ended,
    /// The guest did not answer in time. It has been killed.
    TimedOut,
}

/// The error of a guest that cannot be used any more, with the end of its console.
#[derive(Debug, Clone)]
pub struct GuestError {
    /// The kind of the error.
    pub kind: GuestErrorKind,
    /// One sentence that says it.
    pub message: String,
    /// The last lines of the console and of QEMU's own messages; empty if there was no guest.
    pub console: String,
}

impl GuestError {
    /// An error before there was a guest.
    pub(crate) fn not_started(message: String) -> GuestError {
        GuestError { kind: GuestErrorKind::NotStarted, message, console: String::new() }
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)?;
        if self.console.is_empty() {
            return Ok(());
        }
        write!(formatter, "\nthe end of the guest's console:\n{}", self.console)
    }
}

impl std::error::Error for GuestError {}
