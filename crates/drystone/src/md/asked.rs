//! Code that the commands share that ask a running server.

use std::path::absolute;
use std::time::Duration;

use clap::Args;
use drystone_stack::control::MANAGER_PATIENCE_NS;
use drystone_stack::md::ArrayReport;
use serde_json::Value;

use crate::client::{Client, read};
use crate::failure::Failure;

/// The server's report of the arrays named, or of all.
pub fn reports(client: &mut Client, names: &[String]) -> Result<Vec<ArrayReport>, Failure> {
    let mut ask = |arguments: &[(&str, &str)]| -> Result<Vec<ArrayReport>, Failure> {
        read(client.ask("md-detail", arguments)?["arrays"].take())
    };
    if names.is_empty() {
        return ask(&[]);
    }
    let mut all = Vec::new();
    for name in names {
        check_name(name)?;
        all.extend(ask(&[("device", name)])?);
    }
    Ok(all)
}

/// Whether the exit status tells how arrays are, as that of `mdadm --detail --test` does.
#[derive(Debug, Clone, Copy, Args)]
pub struct TestArgs {
    /// Exit with 0 if all is well, 1 if an array is degraded, 2 if one has failed, 4 if that is
    /// unknown
    #[arg(short, long)]
    test: bool,
}

impl TestArgs {
    /// The way a command ends that was `told` of arrays.
    pub fn judged(self, told: Result<Vec<ArrayReport>, Failure>) -> Result<(), Failure> {
        match told {
            told if !self.test => told.map(drop),
            Ok(arrays) => match arrays.iter().map(lack).max() {
                None | Some(0) => Ok(()),
                Some(status) => Err(Failure::Status(status, String::new())),
            },
            Err(Failure::Usage(text)) => Err(Failure::Usage(text)),
            Err(failure) => Err(Failure::Status(4, failure.to_string())),
        }
    }
}

/// 0 if an array has all members in sync, 1 if it can do without those that it lacks, 2 if it
/// cannot.
fn lack(array: &ArrayReport) -> u8 {
    let lost = array.raid_devices.saturating_sub(array.active_devices);
    let parity = if array.level == "raid6" { 2 } else { 1 };
    match lost {
        0 => 0,
        lost if lost <= parity && array.array_state != "broken" => 1,
        _ => 2,
    }
}

/// Asks for a change, which an array's manager may work at for a while.
pub fn change(
    client: &mut Client,
    command: &str,
    arguments: &[(&str, &str)],
) -> Result<Value, Failure> {
    for (_, name) in arguments.iter().filter(|(key, _)| *key == "device") {
        check_name(name)?;
    }
    client.ask_for(command, arguments, Duration::from_nanos(MANAGER_PATIENCE_NS))
}

/// Refuses what mdadm calls an array.
fn check_name(name: &str) -> Result<(), Failure> {
    match name.starts_with("/dev/") {
        false => Ok(()),
        true => Err(Failure::Usage(format!(
            "`{name}` is a path of Linux, not an array of this server: name the array as `drystone \
             md status` shows it"
        ))),
    }
}

/// The names in a change's answer.
pub fn names(answer: &Value) -> Vec<&str> {
    let members = answer["members"].as_array().map_or(&[][..], Vec::as_slice);
    members.iter().filter_map(Value::as_str).collect()
}

/// A word as a path from the root, since the server may run in another folder.
pub fn path(word: &str) -> Result<String, Failure> {
    if word.is_empty() {
        let text = "a device is given as an empty word: write its name or its path";
        return Err(Failure::Refused(text.to_owned()));
    }
    let path = absolute(word).map_err(|error| Failure::Refused(format!("{word}: {error}")))?;
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(level: &str, active_devices: u32) -> ArrayReport {
        let level = level.to_owned();
        ArrayReport { level, raid_devices: 4, active_devices, ..ArrayReport::default() }
    }

    fn status(told: Result<Vec<ArrayReport>, Failure>) -> u8 {
        match (TestArgs { test: true }).judged(told) {
            Ok(()) => 0,
            Err(Failure::Status(status, _)) => status,
            Err(failure) => panic!("{failure:?}"),
        }
    }

    #[test]
    fn exit_statuses_are_those_of_mdadm_detail_test() {
        for (level, active, expected) in [
            ("raid5", 4, 0),
            ("raid5", 3, 1),
            ("raid5", 2, 2),
            ("raid4", 2, 2),
            ("raid6", 2, 1),
            ("raid6", 1, 2),
        ] {
            assert_eq!(status(Ok(vec![array(level, active)])), expected, "{level} {active}");
        }
        assert_eq!(status(Ok(Vec::new())), 0);
        assert_eq!(status(Ok(vec![array("raid6", 1), array("raid5", 4), array("raid5", 3)])), 2);
        let broken = ArrayReport { array_state: "broken".to_owned(), ..array("raid5", 3) };
        assert_eq!(status(Ok(vec![broken])), 2);
        assert_eq!(status(Err(Failure::Refused("no server".to_owned()))), 4);
        let untold = (TestArgs { test: false }).judged(Ok(vec![array("raid5", 2)]));
        assert!(untold.is_ok());
    }
}
