//! The command line.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use drystone_core::signals::ignore_file_size_signal;
use drystone_raid::metadata::Uuid;

use crate::args::{ClientArgs, interval};
use crate::bench::BenchArgs;
use crate::commands;
use crate::companion::{Companion, CompanionArgs};
use crate::failure::Failure;
use crate::front_ends::fuse::FileOptions;
use crate::groups::{self, GroupCommand};
use crate::log_writes::{self, LogWritesArgs};
use crate::md::assemble::uuid;
use crate::md::images::Wanted;
use crate::md::{self, MdCommand};
use crate::output;
use crate::serve::{Rescue, ServeOptions, serve};
use crate::volumes::{self, VolumeCommand};

/// A multi-queue block layer in user space: serves, controls and measures stacks of devices.
///
/// Exit status: 0 done, 1 refused, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "drystone", version, disable_help_subcommand = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a stack in the foreground until Ctrl-C
    ///
    /// With --readonly no device of the stack file is written to. With --readonly --md the server
    /// finds an array on images of its members, some of which may be missing, and serves it without
    /// writing to them.
    Serve(ServeArgs),
    /// Explain a stack file as a tree, or point at what is wrong with it
    Check {
        /// The stack file
        stack: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the devices and exports of a running stack
    List(ClientArgs),
    /// Show one device with its attributes
    Show {
        /// The device
        #[arg(value_name = "DEV")]
        device: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Set an attribute of a device, as in queue/nomerges=2
    Set {
        /// The device
        #[arg(value_name = "DEV")]
        device: String,
        /// The attribute and its new value
        #[arg(value_name = "ATTR=VALUE", value_parser = assignment)]
        assignment: (String, String),
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Open the file of a device again, after a failed flush or when it was cut short
    Reopen {
        /// The device
        #[arg(value_name = "DEV")]
        device: String,
        /// Open the path although it leads to another file now
        #[arg(long)]
        replaced: bool,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show the load of all devices, in the columns of iostat -x
    Iostat {
        /// Seconds between reports [default: one report since the start]
        #[arg(value_parser = interval)]
        interval: Option<std::time::Duration>,
        /// Number of reports [default: until interrupted]
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show how often locks were taken and waited for, in the columns of /proc/lock_stat
    ///
    /// Each class of lock that was used has one line, summed over the whole server. Times are in
    /// microseconds, with --json in nanoseconds. A contention is an attempt to take a lock that
    /// was not free. The thread then waited or gave up; giving up has no wait time. Waits are
    /// always counted. Hold times are `-` unless they are measured (--hold on), which costs two
    /// clock readings for each lock taken. Four classes are not locks and are never held:
    /// context_gate (contended entries only), scheduler_grant (moments of waiting for another
    /// thread's work), plain_idle (the sleep of idle helper threads) and stripe_idle (the sleep of
    /// threads that wait for a stripe). `control` counts the lock of these statistics too.
    Lockstat {
        /// Print the figures, then count from zero
        #[arg(long)]
        reset: bool,
        /// Begin or stop to measure hold times
        #[arg(long, value_name = "on|off", value_parser = switch)]
        hold: Option<bool>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Show or change how a server's data threads wait: interrupt, poll or adaptive
    PollMode {
        /// interrupt: sleep; poll: poll all the time, one core for each thread; adaptive: the
        /// faster of both
        mode: Option<String>,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Make, limit and watch throttle groups, as cgroups with io.max and io.stat
    #[command(subcommand)]
    Group(GroupCommand),
    #[command(flatten)]
    Volume(VolumeCommand),
    /// Show or replay the log of a log-writes target
    LogWrites(LogWritesArgs),
    /// Make, watch, repair and change md arrays, with mdadm's words
    #[command(subcommand)]
    Md(MdCommand),
    /// Measure peak IOPS of one device
    Bench(BenchArgs),
    /// Compare a design with those that it replaces, on this machine
    ///
    /// The program drystone-lab does this; `make lab` builds it.
    #[command(disable_help_flag = true)]
    Lab(CompanionArgs),
    /// Run whole stacks on simulated disks that fail, in an order that a seed decides
    ///
    /// The program drystone-sim does this; `make sim` builds it.
    #[command(disable_help_flag = true)]
    Sim(CompanionArgs),
    /// Print help on a command, on stack files or on the control socket
    Help {
        /// `stack`, `control`, or a command with its words, as in md create
        topic: Vec<String>,
    },
}

/// Arguments of `drystone serve`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("named").args(["stack", "md"]).multiple(true))]
struct ServeArgs {
    /// The stack file [default: an embedded stack: RAID-5 over four sparse files in
    /// ./drystone-data]
    stack: Option<PathBuf>,
    /// Print the embedded stack and serve nothing; serve a changed copy from a file in this folder
    #[arg(long, exclusive = true)]
    print_default: bool,
    /// The control socket: a path, or a name in the usual folder [default:
    /// $XDG_RUNTIME_DIR/drystone/NAME.sock, root: /run/drystone]
    #[arg(long, value_name = "NAME|PATH")]
    control: Option<PathBuf>,
    /// Data threads; 0 is as many as cores [default: the stack file's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    threads: Option<u32>,
    /// Measure for how long locks are held, as `drystone lockstat --hold on` does
    #[arg(long)]
    lockstat: bool,
    /// Print the addresses as one line of JSON when clients can connect, instead of text
    #[arg(long)]
    json: bool,
    /// Leave out notes and commands to try; print only errors, warnings and events
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    files: FileOptions,
    /// Serve the array on these files or block devices, named in any order
    #[arg(long, value_name = "IMG", num_args = 1.., conflicts_with = "stack")]
    md: Vec<PathBuf>,
    /// Write to no device of the stack file or of --md
    #[arg(long, alias = "read-only", requires = "named")]
    readonly: bool,
    // clap forgets what an option requires where that conflicts with something given: hence both.
    /// With --md: the UUID of the array, if the images belong to several
    #[arg(long, requires = "md", conflicts_with = "stack", value_parser = uuid)]
    uuid: Option<Uuid>,
    /// With --md: serve the array although part of its data may be wrong, and print which part
    #[arg(long, requires = "md", conflicts_with = "stack")]
    force: bool,
    /// With --md: the address of the array, as unix:PATH or tcp:HOST:PORT [default: NAME.nbd
    /// beside the control socket]
    #[arg(long, value_name = "ADDR", requires = "md", conflicts_with = "stack")]
    nbd: Option<String>,
}

impl ServeArgs {
    fn options(self) -> Result<ServeOptions, Failure> {
        if !self.md.is_empty() && !self.readonly {
            return Err(Failure::Usage(
                "--md serves an array only with --readonly; to write it, make a stack file of it \
                 with `drystone md assemble --print IMG...` and serve that"
                    .to_owned(),
            ));
        }
        let wanted = Wanted { paths: self.md, uuid: self.uuid, force: self.force };
        let is_rescue = !wanted.paths.is_empty();
        Ok(ServeOptions {
            stack: self.stack,
            read_only: self.readonly,
            control: self.control,
            threads: self.threads,
            lockstat: self.lockstat,
            json: self.json,
            quiet: self.quiet,
            files: self.files,
            rescue: is_rescue.then_some(Rescue { wanted, nbd: self.nbd }),
        })
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    run_program(|cli: Cli| run(cli.command))
}

/// Parses the command line of this process, runs it, and tells a failure on standard error.
pub fn run_program<C: Parser>(run: impl FnOnce(C) -> Result<(), Failure>) -> ExitCode {
    ignore_file_size_signal();
    let done = match C::try_parse() {
        Ok(cli) => run(cli),
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => output::written(help.print().and_then(|()| io::stdout().flush())).map(drop),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::fail(&failure);
            failure.status()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) if args.print_default => {
            output::print(drystone_stack::DEFAULT_STACK)?;
            Ok(())
        }
        Command::Serve(args) => serve(&args.options()?, crate::server::start),
        Command::Check { stack, json } => commands::check(&stack, json),
        Command::List(client) => commands::list(&client),
        Command::Show { device, client } => commands::show(&device, &client),
        Command::Set { device, assignment: (attribute, value), client } => {
            commands::set(&device, &attribute, &value, &client)
        }
        Command::Reopen { device, replaced, client } => {
            commands::reopen(&device, replaced, &client)
        }
        Command::Iostat { interval, count, client } => commands::iostat(interval, count, &client),
        Command::Lockstat { reset, hold, client } => commands::lockstat(reset, hold, &client),
        Command::PollMode { mode, client } => commands::poll_mode(mode.as_deref(), &client),
        Command::Group(command) => groups::run(&command),
        Command::Volume(command) => volumes::run(&command),
        Command::LogWrites(args) => log_writes::run(&args),
        Command::Md(command) => md::run(&command),
        Command::Bench(args) => commands::bench(&args),
        Command::Lab(args) => Err(Companion::Lab.hand_over(&args.arguments)),
        Command::Sim(args) => Err(Companion::Sim.hand_over(&args.arguments)),
        Command::Help { topic } => help(&topic),
    }
}

fn help(topic: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = topic.iter().map(String::as_str).collect();
    if let [command, below @ ..] = &*words
        && let Some(companion) = Companion::of_command(command)
    {
        let words = below.iter().chain(&["--help"]).map(OsString::from);
        return Err(companion.hand_over(&words.collect::<Vec<_>>()));
    }
    output::print(&help_on(&words)?)?;
    Ok(())
}

fn help_on(words: &[&str]) -> Result<String, Failure> {
    let mut root = Cli::command();
    root.build();
    Ok(match *words {
        [] => root.render_long_help().to_string(),
        ["stack"] => drystone_stack::schema::help_text(),
        ["control"] => drystone_stack::control::help_text(),
        _ => command_of(&mut root, words)?.render_long_help().to_string(),
    })
}

/// The command that the words name.
fn command_of<'c>(
    root: &'c mut clap::Command,
    words: &[&str],
) -> Result<&'c mut clap::Command, Failure> {
    let mut command = root;
    for (at, word) in words.iter().enumerate() {
        let names: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        if command.find_subcommand(word).is_none() {
            let topics = if at == 0 { "stack, control, " } else { "" };
            let rest = match (at, names.is_empty()) {
                (0, _) => format!("there is {topics}{}", names.join(", ")),
                (_, false) => format!("`{}` has {}", words[..at].join(" "), names.join(", ")),
                (_, true) => format!("`{}` has no commands", words[..at].join(" ")),
            };
            let text = format!("no help on `{}`: {rest}", words[..=at].join(" "));
            return Err(Failure::Usage(text));
        }
        command = command.find_subcommand_mut(word).unwrap_or_else(|| unreachable!("it was found"));
    }
    Ok(command)
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write ATTR=VALUE, as in queue/nomerges=2".to_owned()),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// The words of each command, those of commands of commands after their own.
    fn all_commands(command: &clap::Command, words: &[String]) -> Vec<Vec<String>> {
        let below = command.get_subcommands().flat_map(|below| {
            let own = [words, &[below.get_name().to_owned()]].concat();
            all_commands(below, &own)
        });
        [words.to_vec()].into_iter().chain(below).collect()
    }

    #[test]
    fn no_help_has_a_line_of_more_than_100_columns() {
        let mut topics = all_commands(&Cli::command(), &[]);
        topics.extend([vec!["stack".to_owned()], vec!["control".to_owned()]]);
        assert!(topics.len() > 40, "{topics:?}");
        for topic in topics {
            let words: Vec<&str> = topic.iter().map(String::as_str).collect();
            for line in help_on(&words).unwrap().lines() {
                assert!(line.chars().count() <= 100, "help {}: {line}", words.join(" "));
            }
        }
    }

    /// The stack that `drystone serve` with these words would serve, in a folder that has the
    /// default stack's; or why it refuses.
    fn planned(words: &[&str], folder: &Path) -> Result<String, Failure> {
        let cli = Cli::try_parse_from([&["drystone", "serve"], words].concat());
        let cli = cli.map_err(|error| Failure::Usage(error.to_string()))?;
        let Command::Serve(args) = cli.command else { panic!("serve was written") };
        let options = args.options()?;
        let stack = crate::serve::planned_in(&|| Ok(folder.to_owned()), &options)?;
        // `tests/serve.rs` holds the effects of the last two.
        let told = (options.json, options.quiet);
        let served = (stack.name, stack.server, stack.devices, stack.exports);
        Ok(format!("{served:?} {told:?}"))
    }

    /// Three images of an array's members, and a stack file of them.
    fn array() -> (tempfile::TempDir, Vec<String>, String) {
        let folder = tempfile::TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let images: Vec<String> = ["a.img", "b.img", "c.img"].map(at).to_vec();
        for image in &images {
            std::fs::File::create(image).unwrap().set_len(4 << 20).unwrap();
        }
        let create = "drystone md create -q -l5 -n3 --uuid 0a0b0c0d:11223344:55667788:99aabbcc";
        let create = create.replace("-q ", "");
        let words = create.split(' ').chain(images.iter().map(String::as_str));
        run(Cli::try_parse_from(words).unwrap().command).unwrap();
        let text = images
            .iter()
            .enumerate()
            .map(|(n, path)| format!("[device.d{n}]\ntype = \"file\"\npath = {path:?}\n"));
        let array = "[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\n\
                     [export.e]\ndevice = \"a\"\nnbd = \"unix:e.sock\"\nfuse = \"e.img\"\n";
        let stack = at("s.toml");
        std::fs::write(&stack, text.collect::<String>() + array).unwrap();
        (folder, images, stack)
    }

    /// As `tests/options.rs` has it for all other commands.
    #[test]
    fn serve_ignores_no_option() {
        let (folder, images, stack) = array();
        let control = folder.path().join("c.sock").display().to_string();
        let file = folder.path().join("v.img").display().to_string();
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let rescue = [&["--readonly", "--md"][..], &images].concat();
        // One member is missing and was not known to be: that takes force.
        let forms: [&[&str]; 3] = [&[], &[stack.as_str()], &rescue];
        std::fs::create_dir(folder.path().join(drystone_stack::DEFAULT_STACK_FOLDER)).unwrap();
        let planned = |words: &[&str]| planned(words, folder.path());
        let root = Cli::command();
        let serve = root.find_subcommand("serve").unwrap();
        let options = serve.get_arguments().filter_map(|arg| arg.get_long());
        for option in options {
            let values: &[&str] = match option {
                "control" => &[&control],
                "threads" => &["7"],
                "lockstat" | "mount" | "readonly" | "force" | "print-default" | "json"
                | "quiet" => &[],
                "fuse" => &[&file],
                "md" => &images,
                "uuid" => &["0a0b0c0d:11223344:55667788:99aabbcc"],
                "nbd" => &["tcp:localhost:1"],
                new => panic!("--{new} has no case here"),
            };
            for form in forms {
                let long = format!("--{option}");
                let words = [&[long.as_str()], values, form].concat();
                // `run` does what the second says before there is a plan.
                let is_printed = form.is_empty() && option == "print-default";
                let is_rescue = form.is_empty() && option == "md";
                if form.contains(&long.as_str()) || is_printed || is_rescue {
                    continue;
                }
                match (planned(&words), planned(form)) {
                    (Err(Failure::Usage(text)), _) if text.contains("--") => {}
                    // Needs root, or something to be wrong with the array.
                    (Err(Failure::Refused(text)), _) if option == "mount" => {
                        assert!(text.contains("--mount"), "{text}");
                    }
                    (Ok(with), Ok(without)) if ["uuid", "force"].contains(&option) => {
                        assert_eq!((with, form[0]), (without, "--readonly"), "{words:?}");
                    }
                    (Ok(with), Ok(without)) => assert_ne!(with, without, "{words:?} is ignored"),
                    (with, without) => panic!("{words:?}: {with:?}, without it {without:?}"),
                }
            }
        }
    }

    #[test]
    fn a_read_only_stack_has_nothing_to_write_to() {
        let (folder, _, stack) = array();
        let planned = planned(&["--readonly", &stack], folder.path()).unwrap();
        // Four devices with their queues, three of them files, and the export.
        assert_eq!(planned.matches("read_only: true").count(), 12, "{planned}");
        assert!(!planned.contains("read_only: false"), "{planned}");
    }
}
