//! The commands that change an array of a running server, as mdadm's *manage* mode.

use clap::Args;

use super::asked::{change, names, path};
use crate::args::ClientArgs;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// An array.
#[derive(Debug, Args)]
pub struct ArrayArgs {
    /// The array
    array: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// An array and devices of it.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// The array
    array: String,
    /// Devices of the stack, or the files or block devices that they stand on
    #[arg(required = true, value_name = "DEV")]
    devices: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `drystone md add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    #[command(flatten)]
    on: DevicesArgs,
    /// Overwrite a file system, a partition table or another array on the device
    #[arg(short, long)]
    force: bool,
}

/// `drystone md add`.
pub fn add(args: &AddArgs) -> Result<(), Failure> {
    let force: &[_] = if args.force { &[("force", "true")] } else { &[] };
    each(&args.on, "md-add", force, |member, _| format!("added {member}\n"))
}

/// `drystone md fail`.
pub fn fail(args: &DevicesArgs) -> Result<(), Failure> {
    each(args, "md-fail", &[], |member, array| format!("set {member} faulty in {array}\n"))
}

/// `drystone md remove`.
pub fn remove(args: &DevicesArgs) -> Result<(), Failure> {
    each(args, "md-remove", &[], |member, array| format!("hot removed {member} from {array}\n"))
}

/// `drystone md replace`.
pub fn replace(args: &DevicesArgs) -> Result<(), Failure> {
    each(args, "md-replace", &[], |member, array| {
        format!("marked {member} in {array} for replacement\n")
    })
}

/// `drystone md check` and `repair`, which say nothing when they have begun.
pub fn sync(args: &ArrayArgs, command: &str) -> Result<(), Failure> {
    one(args, command, "")
}

/// `drystone md stop`.
pub fn stop(args: &ArrayArgs) -> Result<(), Failure> {
    one(args, "md-stop", &format!("stopped {}\n", args.array))
}

fn one(args: &ArrayArgs, command: &str, done: &str) -> Result<(), Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    let answer = change(&mut client, command, &[("device", &args.array)])?;
    match args.client.json {
        true => output::print_json(&answer)?,
        false => output::print(done)?,
    };
    Ok(())
}

/// Asks for one device after the other, until one is refused. `done` is what is said of a device.
fn each(
    args: &DevicesArgs,
    command: &str,
    switches: &[(&str, &str)],
    done: impl Fn(&str, &str) -> String,
) -> Result<(), Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    for word in &args.devices {
        let path = path(word)?;
        let member = if word.contains('/') { &path } else { word };
        let mut arguments = vec![("device", &*args.array), ("member", member), ("path", &path)];
        arguments.extend(switches);
        let answer = change(&mut client, command, &arguments)?;
        match args.client.json {
            true => output::print_json(&answer)?,
            false => {
                let lines = names(&answer).into_iter().map(|member| done(member, &args.array));
                output::print(&lines.collect::<String>())?
            }
        };
    }
    Ok(())
}
