//! `drystone md assemble`: starts an array on a running server, or prints a stack file for one.

use std::path::PathBuf;

use clap::Args;
use drystone_raid::metadata::Uuid;
use drystone_stack::md::ArrayReport;

use super::asked::{change, names, path, reports};
use super::assemble::{print, uuid};
use super::images::Wanted;
use crate::args::ClientArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Arguments of `drystone md assemble`.
#[derive(Debug, Args)]
#[command(override_usage = "drystone md assemble [OPTIONS] <NAME> <DEV>...\n       \
                            drystone md assemble --print [--name <NAME>] [OPTIONS] <IMG>...")]
pub struct AssembleArgs {
    /// The array's name in the stack; with --print the first image
    first: String,
    /// Files or block devices, in any order, or devices of the stack
    #[arg(value_name = "DEV")]
    devices: Vec<String>,
    /// Print a stack file that serves the array instead; change nothing, and ask no server
    #[arg(long, conflicts_with_all = ["run", "readonly", "control", "json"])]
    print: bool,
    /// With --print: the array's name in the stack file [default: its own name]
    #[arg(long, requires = "print", conflicts_with_all = ["run", "readonly", "control", "json"])]
    name: Option<String>,
    /// The array's UUID; devices of other arrays are left out
    #[arg(short, long, value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Start degraded, without members that are missing
    #[arg(short = 'R', long)]
    run: bool,
    /// Start it although data may be lost; with --print also take stale members
    #[arg(short, long)]
    force: bool,
    /// Write nothing, not even to the members
    #[arg(short = 'o', long)]
    readonly: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// `drystone md assemble`.
pub fn run(args: &AssembleArgs) -> Result<(), Failure> {
    if args.print {
        let words = [&args.first].into_iter().chain(&args.devices);
        let paths = words.map(PathBuf::from).collect();
        let wanted = Wanted { paths, uuid: args.uuid, force: args.force };
        return print(&wanted, args.name.as_deref());
    }
    if args.devices.is_empty() {
        let name = &args.first;
        let message =
            format!("name the devices of `{name}` too: drystone md assemble {name} DEV...");
        return Err(Failure::Usage(message));
    }
    start(args)
}

fn start(args: &AssembleArgs) -> Result<(), Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    let devices = devices(&mut client, &args.devices)?;
    let uuid = args.uuid.map(|uuid| uuid.to_string());
    let mut arguments = vec![("device", &*args.first), ("members", &devices)];
    arguments.extend(uuid.as_deref().map(|uuid| ("uuid", uuid)));
    let switches = [("run", args.run), ("force", args.force), ("read_only", args.readonly)];
    arguments.extend(switches.iter().filter(|(_, on)| *on).map(|(key, _)| (*key, "true")));
    let answer = change(&mut client, "md-assemble", &arguments)?;
    if args.client.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let left_out = args.devices.len().saturating_sub(names(&answer).len());
    for array in reports(&mut client, std::slice::from_ref(&args.first))? {
        output::print(&told(&array, left_out))?;
    }
    Ok(())
}

/// The devices, one a line: what the stack has no device of is a path.
fn devices(client: &mut Client, words: &[String]) -> Result<String, Failure> {
    let list = client.ask("list", &[])?;
    let known = |word: &str| {
        let devices = list["devices"].as_array().map_or(&[][..], Vec::as_slice);
        devices.iter().any(|device| device["name"] == word)
    };
    let mut lines = Vec::new();
    for word in words {
        let line = if known(word) { word.clone() } else { path(word)? };
        if line.contains('\n') {
            return Err(Failure::Refused(format!(
                "{word:?} has a line break in its name: rename it, or name a link to it"
            )));
        }
        lines.push(line);
    }
    Ok(lines.join("\n"))
}

/// mdadm's sentence on an array that was started.
fn told(array: &ArrayReport, left_out: usize) -> String {
    let (active, all) = (array.active_devices, array.raid_devices);
    let s = |n: u32| if n == 1 { "" } else { "s" };
    let rebuilt = array.devices.iter().filter(|device| device.state == "spare rebuilding").count();
    let spares = array.spare_devices.saturating_sub(rebuilt as u32);
    let mut text = format!("{} has been started with {active} drive{}", array.name, s(active));
    if active < all {
        text += &format!(" (out of {all})");
    }
    if rebuilt > 0 {
        text += &format!(" and {rebuilt} rebuilding");
    }
    if spares > 0 {
        text += &format!(" and {spares} spare{}", s(spares));
    }
    text += ".\n";
    if let Some(suspects) = &array.suspects {
        text += &format!("{}: {suspects}\n", array.name);
    }
    for notice in &array.notices {
        text += &format!("{}: {notice}\n", array.name);
    }
    for why in &array.left_out {
        text += &format!("{}: left out: {why}\n", array.name);
    }
    if left_out > 0 {
        text += &format!("{left_out} of the named devices take no part in it.\n");
    }
    text
}
