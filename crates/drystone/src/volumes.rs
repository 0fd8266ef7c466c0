//! The commands that concern volumes of a running server, with dmsetup's words and output.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use drystone_stack::control::{DEFAULT_TIMEOUT_NS, MAX_LINE_BYTES};
use serde_json::Value;

use crate::args::{ClientArgs, duration};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Commands as dmsetup has them.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume: a device made of others by a table
    ///
    /// The volume exists until the server stops. No export serves it by itself. To keep or export
    /// it, write its table into the stack file and restart.
    Create {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        table: TableArgs,
        /// Make it without a table; every I/O fails until one is loaded and resumed
        #[arg(long, conflicts_with_all = ["table", "table_file"])]
        notable: bool,
        /// Refuse writes
        #[arg(long, visible_alias = "readonly")]
        read_only: bool,
        #[command(flatten)]
        force: Force,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the tables of volumes
    Table {
        /// The volume [default: all]
        name: Option<String>,
        /// Show the tables that wait for a resume, instead of the live ones
        #[arg(long)]
        inactive: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the state of the targets of volumes
    Status {
        /// The volume [default: all]
        name: Option<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the state, the tables and the users of volumes
    Info {
        /// The volume [default: all]
        name: Option<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Put a table into the inactive slot of a volume; resume makes it the live one
    #[command(visible_alias = "load")]
    Reload {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        table: TableArgs,
        /// Then resume with this table
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        force: Force,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Empty the inactive slot of a volume
    Clear {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Hold back new I/O of a volume, and wait until all earlier I/O has ended
    Suspend {
        #[command(flatten)]
        name: Name,
        /// Do not wait for what is in flight
        #[arg(long)]
        noflush: bool,
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Let I/O of a volume go on, with its inactive table if there is one
    Resume {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        within: Within,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Send words to a target of a volume
    Message {
        #[command(flatten)]
        name: Name,
        /// A sector of the target
        sector: u64,
        /// The words
        #[arg(required = true)]
        text: Vec<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Remove a volume that nothing uses
    Remove {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// The volume that a command is about.
#[derive(Debug, Args)]
pub struct Name {
    /// The volume
    name: String,
}

/// Where a table comes from.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// A line of the table, as in "0 2048 linear disk 0"; once for each line, or all in one text
    #[arg(long, value_name = "LINE", conflicts_with = "table_file")]
    table: Vec<String>,
    /// A file with the table; - is the standard input
    #[arg(long, value_name = "FILE")]
    table_file: Option<PathBuf>,
}

/// Whether others may use the same sectors.
#[derive(Debug, Args)]
pub struct Force {
    /// Take the table although an export or another table uses the same sectors; one may then
    /// overwrite the other's data
    #[arg(long, short)]
    force: bool,
}

/// The time to wait until a volume is quiesced.
#[derive(Debug, Args)]
pub struct Within {
    /// How long to wait until earlier I/O has ended; after that all is as before [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
}

/// Runs one of the commands.
pub fn run(command: &VolumeCommand) -> Result<(), Failure> {
    use VolumeCommand as C;
    match command {
        C::Create { name, table, notable, read_only, force, client } => {
            let table = if *notable { None } else { Some(table.text("; or --notable")?) };
            let mut request = Request::new("create", name);
            request.option("table", table);
            request.switch("read_only", *read_only).switch("force", force.force).change(client)
        }
        C::Table { name, inactive, client } => {
            let mut request = Request::about("table", name.as_deref());
            lines(request.switch("inactive", *inactive), name.is_none(), "table", client)
        }
        C::Status { name, client } => {
            let mut request = Request::about("status", name.as_deref());
            lines(&mut request, name.is_none(), "status", client)
        }
        C::Info { name, client } => info(&mut Request::about("info", name.as_deref()), client),
        C::Reload { name, table, now, within, force, client } => {
            if within.timeout.is_some() && !now {
                let text = "--timeout limits how long --now waits: add --now, or leave --timeout \
                            out";
                return Err(Failure::Usage(text.to_owned()));
            }
            let mut request = Request::new("reload", name);
            request.option("table", Some(table.text("")?)).within(within);
            request.switch("now", *now).switch("force", force.force).change(client)
        }
        C::Clear { name, client } => Request::new("clear", name).change(client),
        C::Suspend { name, noflush, within, client } => {
            if *noflush && within.timeout.is_some() {
                let text = "--noflush does not wait, so --timeout has no effect: leave one out";
                return Err(Failure::Usage(text.to_owned()));
            }
            let mut request = Request::new("suspend", name);
            request.switch("noflush", *noflush).within(within).change(client)
        }
        C::Resume { name, within, client } => {
            Request::new("resume", name).within(within).change(client)
        }
        C::Message { name, sector, text, client } => {
            let mut request = Request::new("message", name);
            request.option("sector", Some(sector.to_string()));
            request.option("text", Some(text.join(" "))).change(client)
        }
        C::Remove { name, client } => Request::new("remove", name).change(client),
    }
}

/// A request with its arguments.
struct Request {
    command: &'static str,
    arguments: Vec<(&'static str, String)>,
    /// The time that the server may work at it.
    time: Duration,
}

impl Request {
    fn new(command: &'static str, name: &Name) -> Self {
        Self::about(command, Some(&name.name))
    }

    fn about(command: &'static str, name: Option<&str>) -> Self {
        let arguments = name.map(|name| ("device", name.to_owned()));
        Request { command, arguments: arguments.into_iter().collect(), time: Duration::ZERO }
    }

    fn option(&mut self, key: &'static str, value: Option<String>) -> &mut Self {
        self.arguments.extend(value.map(|value| (key, value)));
        self
    }

    fn switch(&mut self, key: &'static str, on: bool) -> &mut Self {
        self.option(key, on.then(|| "true".to_owned()))
    }

    fn within(&mut self, within: &Within) -> &mut Self {
        self.time = within.timeout.unwrap_or(Duration::from_nanos(DEFAULT_TIMEOUT_NS));
        self.option("timeout", within.timeout.map(|time| format!("{}ns", time.as_nanos())))
    }

    fn ask(&self, client: &ClientArgs) -> Result<Value, Failure> {
        let arguments: Vec<_> = self.arguments.iter().map(|(key, text)| (*key, &**text)).collect();
        let mut server = Client::connect(client.control.as_deref())?;
        server.ask_for(self.command, &arguments, self.time)
    }

    /// Asks for a change, which says nothing when it is done.
    fn change(&self, client: &ClientArgs) -> Result<(), Failure> {
        let answer = self.ask(client)?;
        if client.json {
            output::print_json(&answer)?;
        }
        Ok(())
    }
}

impl TableArgs {
    /// The table; `or` is what else could be said.
    fn text(&self, or: &str) -> Result<String, Failure> {
        match &self.table_file {
            Some(path) => read(path),
            None if self.table.is_empty() => Err(Failure::Usage(format!(
                "no table is given: add --table LINE, or --table-file FILE (- is the standard \
                 input){or}"
            ))),
            None => Ok(self.table.join("\n")),
        }
    }
}

/// The text of a table file, or of the standard input.
fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let limit = MAX_LINE_BYTES as u64 + 1; // more does not fit into a request
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(limit).read_to_string(&mut text),
        false => fs::File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text)),
    };
    let name =
        if path.as_os_str() == "-" { "the standard input" } else { &*path.to_string_lossy() };
    match read {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::Refused(format!("cannot read the table from {name}: {error}"))),
    }
}

/// Prints the lines of volumes, with their names if they are `all`.
fn lines(request: &mut Request, all: bool, key: &str, client: &ClientArgs) -> Result<(), Failure> {
    let answer = request.ask(client)?;
    if client.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let mut text = String::new();
    for volume in volumes(&answer) {
        let head = if all { format!("{}: ", word(volume, "name")) } else { String::new() };
        match volume[key].as_str() {
            Some(lines) => lines.lines().for_each(|line| text.push_str(&format!("{head}{line}\n"))),
            None => text.push_str(&format!("{head}\n")),
        }
    }
    print(text)
}

/// Prints what dmsetup info tells, as far as there is such a thing here.
fn info(request: &mut Request, client: &ClientArgs) -> Result<(), Failure> {
    let answer = request.ask(client)?;
    if client.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let texts: Vec<String> = volumes(&answer).iter().map(description).collect();
    print(texts.join("\n"))
}

fn description(volume: &Value) -> String {
    let read_only = if volume["read_only"] == true { " (READ-ONLY)" } else { "" };
    let rows = [
        ("Name:", word(volume, "name").to_owned()),
        ("State:", format!("{}{read_only}", word(volume, "state"))),
        ("Tables present:", word(volume, "tables_present").to_owned()),
        ("Open count:", volume["open_count"].to_string()),
        ("Number of targets:", volume["targets"].to_string()),
    ];
    rows.map(|(key, value)| format!("{key:<19}{value}\n")).concat()
}

fn print(text: String) -> Result<(), Failure> {
    let text = if text.is_empty() {
        "No volumes; `drystone list` shows all devices.\n".to_owned()
    } else {
        text
    };
    output::print(&text).map(drop)
}

fn volumes(answer: &Value) -> &[Value] {
    answer["volumes"].as_array().map_or(&[], Vec::as_slice)
}

fn word<'v>(volume: &'v Value, key: &str) -> &'v str {
    volume[key].as_str().unwrap_or_default()
}
