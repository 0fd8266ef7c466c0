//! Arguments that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use drystone_stack::duration::{Unit, parse_duration};

/// Options of commands that ask a running server.
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// The server, by its stack's name or its control socket [default: $DRYSTONE_CONTROL, or the
    /// only server running]
    #[arg(long, value_name = "NAME|PATH")]
    pub control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A time with seconds as its unit.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = parse_duration(text, Unit::Seconds).map_err(|error| error.to_string())?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// A pause between two reports.
pub fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time.as_millis() == 0 => Err("at least 1ms".to_owned()),
        time => Ok(time),
    }
}
