//! `drystone group`: the throttle groups of a running server, in cgroup v2's words.

use clap::Subcommand;
use drystone_stack::iomax::MaxLine;
use drystone_stack::runtime::{GroupStat, GroupSummary};
use serde::Deserialize;
use serde_json::Value;

use crate::args::ClientArgs;
use crate::client::{Client, read};
use crate::failure::Failure;
use crate::output;

/// The commands on groups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Make a group without limits
    Create {
        /// Its path, as in tenants/a; the group above it must exist
        path: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Remove a group that no export, client or group below it uses
    Remove {
        /// Its path
        path: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Change the limits of a group on a device, as a line written to io.max
    Set {
        /// The group
        path: String,
        /// The device and its limits, as in "disk rbps=200MiB wiops=max"; keys that are not named
        /// keep their values
        #[arg(required = true)]
        line: Vec<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// List all groups with the clients in each and its limits
    List(ClientArgs),
    /// Show the I/O of a group and those below it, as io.stat
    ///
    /// The root has what its devices count: all I/O since the start.
    Stat {
        /// The group, / for the root [default: all, each by itself]
        path: Option<String>,
        /// Then reset the counts to zero, except those of the root
        #[arg(long)]
        reset: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// Runs one of the commands.
pub fn run(command: &GroupCommand) -> Result<(), Failure> {
    use GroupCommand as C;
    let silent = |_: Value| Ok(String::new());
    match command {
        C::Create { path, client } => ask(client, "group-create", &[("path", path)], silent),
        C::Remove { path, client } => ask(client, "group-remove", &[("path", path)], silent),
        C::Set { path, line, client } => {
            let arguments = [("path", path.as_str()), ("line", &line.join(" "))];
            ask(client, "group-set", &arguments, |mut answer| {
                Ok(format!("{}\n", read::<MaxLine>(answer["io_max"].take())?))
            })
        }
        C::List(client) => ask(client, "group-list", &[], list),
        C::Stat { path, reset, client } => {
            let mut arguments: Vec<_> = path.iter().map(|path| ("path", path.as_str())).collect();
            arguments.extend(reset.then_some(("reset", "true")));
            ask(client, "group-stat", &arguments, |answer| stat(answer, path.is_none()))
        }
    }
}

/// Asks, and prints the answer as JSON or as the text that `show` makes of it.
fn ask(
    client: &ClientArgs,
    command: &str,
    arguments: &[(&str, &str)],
    show: impl FnOnce(Value) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let answer = Client::connect(client.control.as_deref())?.ask(command, arguments)?;
    match client.json {
        true => output::print_json(&answer)?,
        false => output::print(&show(answer)?)?,
    };
    Ok(())
}

#[derive(Deserialize)]
struct Groups<T> {
    groups: Vec<T>,
}

/// A row for each group, and more of its rows for further devices.
fn list(answer: Value) -> Result<String, Failure> {
    let Groups { groups } = read::<Groups<GroupSummary>>(answer)?;
    let mut rows = vec![["GROUP", "MEMBERS", "IO.MAX"].map(str::to_owned).to_vec()];
    for group in groups {
        let mut lines = group.io_max.iter().map(MaxLine::to_string);
        let first = lines.next().unwrap_or_default();
        rows.push(vec![group.path, group.members.to_string(), first]);
        rows.extend(lines.map(|line| vec![String::new(), String::new(), line]));
    }
    Ok(output::columns(&rows))
}

/// The lines of io.stat, with their groups if they are `all`.
fn stat(answer: Value, all: bool) -> Result<String, Failure> {
    let Groups { groups } = read::<Groups<GroupStat>>(answer)?;
    let mut text = String::new();
    for group in groups {
        let head = if all { format!("{}: ", group.path) } else { String::new() };
        group.io_stat.iter().for_each(|line| text.push_str(&format!("{head}{line}\n")));
    }
    Ok(text)
}
