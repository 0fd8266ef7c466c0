//! Tools of the host, run to their end.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a tool in a folder and returns its standard output. The error is one sentence, with the
/// tool's standard error.
pub fn output<S: AsRef<OsStr>>(folder: &Path, tool: &str, words: &[S]) -> Result<Vec<u8>, String> {
    let output = Command::new(tool)
        .args(words)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {tool}: {error}"))?;
    if !output.status.success() {
        let messages = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{tool} failed ({}): {}", output.status, messages.trim()));
    }
    Ok(output.stdout)
}

/// The same for tools that write text.
pub fn text<S: AsRef<OsStr>>(folder: &Path, tool: &str, words: &[S]) -> Result<String, String> {
    output(folder, tool, words).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
