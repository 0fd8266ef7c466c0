//! `drystone md detail`: an array of a running server, in the lines of `mdadm --detail` (mdadm
//! 4.2). Times are in UTC.

use std::fmt::{Display, Write as _};

use clap::Args;
use drystone_raid::metadata::examine::{size_words, time_words};
use drystone_stack::md::{ArrayReport, MemberReport, SyncReport};

use super::asked::{TestArgs, reports};
use crate::args::ClientArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Arguments of `drystone md detail`.
#[derive(Debug, Args)]
pub struct DetailArgs {
    /// The arrays
    #[arg(required = true, value_name = "ARRAY")]
    arrays: Vec<String>,
    #[command(flatten)]
    test: TestArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// `drystone md detail`.
pub fn run(args: &DetailArgs) -> Result<(), Failure> {
    args.test.judged(show(args))
}

fn show(args: &DetailArgs) -> Result<Vec<ArrayReport>, Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    let reports = reports(&mut client, &args.arrays)?;
    match args.client.json {
        true => output::print_json(&serde_json::json!({ "arrays": reports }))?,
        false => output::print(&reports.iter().map(text).collect::<String>())?,
    };
    Ok(reports)
}

/// The lines of one array.
pub fn text(array: &ArrayReport) -> String {
    let mut out = Lines(format!("{}:\n", array.name));
    out.sizes(array);
    out.numbers(array);
    out.shape(array);
    if let Some(sync) = &array.sync {
        out.progress(sync);
    }
    // A superblock may hold any bytes: none of them reaches a terminal as a control character.
    out.line("Name", array.set_name.escape_debug());
    out.line("UUID", &array.uuid);
    out.line("Events", array.events);
    out.blank();
    out.devices(&array.devices);
    out.0
}

struct Lines(String);

impl Lines {
    fn line(&mut self, word: &str, value: impl Display) {
        let _ = writeln!(self.0, "{word:>18} : {value}");
    }

    fn blank(&mut self) {
        self.0.push('\n');
    }

    fn sizes(&mut self, array: &ArrayReport) {
        let size = |bytes: u64| format!("{}{}", bytes / 1024, size_words(bytes / 512));
        self.line("Version", &array.version);
        self.line("Creation Time", time_words(array.creation_time));
        self.line("Raid Level", &array.level);
        self.line("Array Size", size(array.array_size));
        self.line("Used Dev Size", size(array.used_dev_size));
        self.line("Raid Devices", array.raid_devices);
        self.line("Total Devices", array.total_devices);
        self.line("Persistence", "Superblock is persistent");
        self.blank();
        if array.consistency_policy == "bitmap" {
            self.line("Intent Bitmap", "Internal");
            self.blank();
        }
    }

    fn numbers(&mut self, array: &ArrayReport) {
        self.line("Update Time", time_words(array.update_time));
        self.line("State", format!("{} ", array.state));
        self.line("Active Devices", array.active_devices);
        self.line("Working Devices", array.working_devices);
        self.line("Failed Devices", array.failed_devices);
        self.line("Spare Devices", array.spare_devices);
        self.blank();
    }

    fn shape(&mut self, array: &ArrayReport) {
        if let Some(layout) = &array.layout {
            self.line("Layout", layout);
        }
        self.line("Chunk Size", format!("{}K", array.chunk_size / 1024));
        self.blank();
        self.line("Consistency Policy", &array.consistency_policy);
        self.blank();
    }

    fn progress(&mut self, sync: &SyncReport) {
        let word = match sync.action.as_str() {
            "recover" => "Rebuild",
            "check" => "Check",
            _ => "Resync",
        };
        self.line(&format!("{word} Status"), format!("{}% complete", sync.percent));
        self.blank();
    }

    fn devices(&mut self, devices: &[MemberReport]) {
        self.0.push_str("    Number   Major   Minor   RaidDevice State\n");
        let mut had_roles = true;
        for device in devices {
            let has_role = device.raid_device.is_some();
            if had_roles && !has_role {
                self.blank();
            }
            had_roles = has_role;
            self.device(device);
        }
    }

    fn device(&mut self, device: &MemberReport) {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |n| n.to_string());
        let name = device.device.as_ref().map(|name| format!("   {name}")).unwrap_or_default();
        let _ = writeln!(
            self.0,
            "   {:>5}   {:>5}    {:>5}    {:>5}      {}{name}",
            number(device.number),
            device.major,
            device.minor,
            number(device.raid_device),
            device.state
        );
    }
}
