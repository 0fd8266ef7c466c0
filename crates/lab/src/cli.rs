//! The command line of `drystone-lab`, to which `drystone lab` hands over.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use drystone::draft::{Draft, is_standard_output};
use drystone::ending::Ending;
use drystone::failure::Failure;
use drystone::server::Server;
use drystone::server_handle::{ServerHandle as _, StopMode};
use drystone::signals::stop_on_signals;
use drystone::{io_flusher, output};
use drystone_core::clock::SystemClock;
use drystone_stack::duration::{Unit, parse_duration};
use serde_json::json;

use crate::raid5_fsmark::{self, Asked, Task};
use crate::raid5_wait::array::Counts;
use crate::{
    EXPERIMENTS, Experiment, MODELS, ModelOptions, Options, Outcome, RUNTIME_NS, Stop,
    is_of_a_mail, parse_cores,
};

/// Compares a design with those that it replaces, on this machine.
///
/// Exit status: 0 done, 1 refused, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "drystone-lab", bin_name = "drystone lab", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: LabCommand,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    drystone::cli::run_program(|cli: Cli| run(&cli.command))
}

/// A command of the laboratory.
#[derive(Debug, Subcommand)]
enum LabCommand {
    /// List the experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment; its variants take turns
    Run(RunArgs),
    /// Model an experiment on more cores than there are, fed and checked by short measurements
    Model(ModelArgs),
    /// Serve an array for raid5-fsmark, which starts this by itself
    #[command(hide = true)]
    ServeVariant(ServeVariantArgs),
}

/// Arguments of `drystone lab serve-variant`.
#[derive(Debug, Clone, Args)]
struct ServeVariantArgs {
    /// before, mailed or ours
    variant: String,
    /// What the members are
    #[arg(value_parser = ["ram", "disks"])]
    kind: String,
    /// Their number
    #[arg(value_parser = clap::value_parser!(u32).range(3..=64))]
    members: u32,
    /// Bytes of each
    member_bytes: u64,
    /// Where the file is to be
    file: PathBuf,
}

/// Arguments of `drystone lab run`.
#[derive(Debug, Clone, Args)]
struct RunArgs {
    /// The experiment, as `drystone lab list` names it; `all` makes one page of those of the five
    /// mails
    name: String,
    /// Runs of each variant [default: 5; raid5-fsmark: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Time measured in each run: seconds, or a number with ms, s or min [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = runtime)]
    runtime: Option<u64>,
    /// Most threads that submit [default: 32; raid5-fsmark: 64]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Option<u32>,
    /// Also run the kernel's own, on a loop device (mq-deadline); needs root and fio
    #[arg(long)]
    kernel: bool,
    /// Bytes of files that a run writes (raid5-fsmark) [default: 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    /// Run only cases whose name contains this (raid5-fsmark); if repeated, all of these
    #[arg(long, value_name = "WORD")]
    only: Vec<String>,
    /// Also write the figures as one JSON object; - is the standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write one HTML page with charts; measures some more numbers of threads for them
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write tables and remarks as the section of a page in Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// With `all`: the folder of index.html, index.md and a JSON file for each experiment [default:
    /// docs/lab]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Arguments of `drystone lab model`.
#[derive(Debug, Clone, Args)]
struct ModelArgs {
    /// The experiment: mq-deadline or dm-poll
    name: String,
    /// Numbers of cores: a range, of which the powers of two and both ends are taken, or a list
    #[arg(long, default_value = "1..128", value_name = "CORES", value_parser = cores)]
    cores: Cores,
    /// Runs of each measured point
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Time measured in each run: seconds, or a number with ms, s or min
    #[arg(long, default_value = "0.3s", value_name = "TIME", value_parser = runtime)]
    runtime: u64,
    /// Most threads of the measured points
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Also write the figures as one JSON object; - is the standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Numbers of cores; a type of its own, so that one argument is a whole list.
#[derive(Debug, Clone)]
struct Cores(Vec<u32>);

fn cores(text: &str) -> Result<Cores, String> {
    parse_cores(text).map(Cores)
}

fn run(command: &LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::List { json } => list(*json),
        LabCommand::Run(args) if args.name == "all" => Ok(all(args)?),
        LabCommand::Run(args) => Ok(experiment(args)?),
        LabCommand::Model(args) => Ok(model(args)?),
        LabCommand::ServeVariant(args) => Ok(serve_variant(args)?),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        let all = EXPERIMENTS.map(|found| json!({ "name": found.name, "about": found.about }));
        output::print_json(&json!({ "experiments": all }))?;
        return Ok(());
    }
    let rows = EXPERIMENTS.map(|found| vec![found.name.to_owned(), found.about.to_owned()]);
    output::print(&output::columns(&rows))?;
    Ok(())
}

/// The experiments of the five mails, as one page.
fn all(args: &RunArgs) -> anyhow::Result<()> {
    let single = [("--json", &args.json), ("--html", &args.html), ("--markdown", &args.markdown)];
    if let Some((option, _)) = single.iter().find(|(_, file)| file.is_some()) {
        let text = format!("{option} is for one experiment: `all` writes its files to --folder");
        return Err(Failure::Usage(text).into());
    }
    let mails = || EXPERIMENTS.iter().filter(|found| is_of_a_mail(found));
    refuse_ignored(args, |option| mails().all(|found| found.ignores.contains(&option)))?;
    let folder = args.folder.as_deref().unwrap_or(Path::new("docs/lab"));
    let wrong = || format!("cannot make {}", folder.display());
    std::fs::create_dir_all(folder).with_context(wrong)?;
    // The files are opened first, because the measurements take long.
    let pages = ["index.html", "index.md"].map(|name| folder.join(name));
    let [html, markdown] = [Draft::new(&pages[0])?, Draft::new(&pages[1])?];
    let stop = stop_on_signals()?;
    let say = &mut |line: &str| output::note(line);
    let keep = &mut |outcome: &Outcome| {
        let path = folder.join(format!("{}.json", outcome.experiment));
        Draft::new(&path)?.write(&format!("{}\n", outcome.json()))
    };
    let options = |found: &Experiment| options(args, false, &stop, found);
    let measured = crate::run_all(&options, keep, say)?;
    html.write(&measured.html())?;
    markdown.write(&measured.markdown())?;
    output::print(&format!("wrote {} and {}\n", pages[0].display(), pages[1].display()))?;
    Ok(())
}

/// Refuses given arguments that `has_no_effect` names.
fn refuse_ignored(args: &RunArgs, has_no_effect: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let given = [
        ("kernel", args.kernel),
        ("runtime", args.runtime.is_some()),
        ("threads", args.threads.is_some()),
        ("bytes", args.bytes.is_some()),
        ("only", !args.only.is_empty()),
    ];
    match given.iter().find(|(option, is_given)| *is_given && has_no_effect(option)) {
        Some((option, _)) => Err(Failure::Usage(format!(
            "--{option} has no effect on `{}`: leave it out",
            args.name
        ))),
        None => Ok(()),
    }
}

fn options(args: &RunArgs, chart: bool, stop: &Stop, experiment: &Experiment) -> Options {
    Options {
        runs: args.runs.unwrap_or(experiment.runs),
        runtime_ns: args.runtime.unwrap_or(RUNTIME_NS),
        threads: args.threads.unwrap_or(experiment.threads),
        chart,
        kernel: args.kernel,
        bytes: args.bytes,
        only: args.only.clone(),
        stop: stop.clone(),
    }
}

fn experiment(args: &RunArgs) -> anyhow::Result<()> {
    let Some(found) = EXPERIMENTS.iter().find(|found| found.name == args.name) else {
        let names = EXPERIMENTS.map(|found| found.name).join(", ");
        return Err(Failure::Usage(format!(
            "no experiment `{}`: there is all, {names}",
            args.name
        ))
        .into());
    };
    if args.folder.is_some() {
        let text = "--folder is for `all`: one experiment writes to --json, --html and --markdown";
        return Err(Failure::Usage(text.to_owned()).into());
    }
    refuse_ignored(args, |option| found.ignores.contains(&option))?;
    // The file is opened first, because the measurement takes long.
    let json = draft(&args.json)?;
    let html = draft(&args.html)?;
    let markdown = draft(&args.markdown)?;
    let options = options(args, html.is_some(), &stop_on_signals()?, found);
    let say = &mut |line: &str| output::note(line);
    let outcome = crate::run(&args.name, &options, say)?;
    write(json, || format!("{}\n", outcome.json()))?;
    write(html, || outcome.html())?;
    write(markdown, || outcome.markdown())?;
    print(&outcome.text(), &[&args.json, &args.html, &args.markdown])
}

/// Prints text for people: on the standard error if one of `files` is the standard output.
fn print(text: &str, files: &[&Option<PathBuf>]) -> anyhow::Result<()> {
    match files.iter().any(|file| file.as_deref().is_some_and(is_standard_output)) {
        true => output::draw(text),
        false => _ = output::print(text)?,
    }
    Ok(())
}

fn model(args: &ModelArgs) -> anyhow::Result<()> {
    if !MODELS.contains(&args.name.as_str()) {
        let names = MODELS.join(", ");
        return Err(Failure::Usage(format!("no model `{}`: there is {names}", args.name)).into());
    }
    let json = draft(&args.json)?;
    let html = draft(&args.html)?;
    let options = ModelOptions {
        cores: args.cores.0.clone(),
        runs: args.runs,
        runtime_ns: args.runtime,
        threads: args.threads,
    };
    let say = &mut |line: &str| output::note(line);
    let outcome = crate::model(&args.name, &options, say)?;
    write(json, || format!("{}\n", outcome.json()))?;
    write(html, || outcome.html())?;
    print(&outcome.text(), &[&args.json, &args.html])
}

/// Runs a child of `raid5-fsmark`; the kernel's writeback may go through this process.
fn serve_variant(args: &ServeVariantArgs) -> anyhow::Result<()> {
    // The measurement also works without this.
    let _ = io_flusher::become_one();
    let task = Task {
        variant: args.variant.clone(),
        disks: args.kind == "disks",
        members: args.members,
        member_bytes: args.member_bytes,
    };
    if task.variant != "ours" {
        return raid5_fsmark::serve(&task, &args.file, |array| raid5_fsmark::execute(&array));
    }
    let stack = task.product(&args.file)?;
    let server = Box::new(Server::start(&stack, &Ending::default(), SystemClock::new())?);
    let executed = raid5_fsmark::execute(&*server);
    let stopped = server.stop(StopMode::Drain);
    executed.and(stopped)
}

/// Answers for the one array of the stack, which has no forgotten waiters.
impl Asked for Server {
    fn counts(&self) -> Counts {
        let counts = self.array_counts();
        Counts { woken: counts.woken, freed: counts.freed, written: 0 }
    }

    fn rescue(&self) -> usize {
        0
    }
}

fn size(text: &str) -> Result<u64, String> {
    drystone_stack::size::parse_size(text).map_err(|error| error.to_string())
}

fn draft(path: &Option<PathBuf>) -> anyhow::Result<Option<Draft>> {
    path.as_deref().map(Draft::new).transpose()
}

fn write(draft: Option<Draft>, text: impl FnOnce() -> String) -> anyhow::Result<()> {
    draft.map_or(Ok(()), |draft| draft.write(&text()))
}

fn runtime(text: &str) -> Result<u64, String> {
    match parse_duration(text, Unit::Seconds).map_err(|error| error.to_string())? {
        nanoseconds if nanoseconds < 1_000_000 => Err("at least 1ms".to_owned()),
        nanoseconds if nanoseconds > 3600 * 1_000_000_000 => Err("at most 3600s".to_owned()),
        nanoseconds => Ok(nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_help_has_a_line_of_more_than_100_columns() {
        let mut root = Cli::command();
        root.build();
        for command in root.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Usage: drystone lab "), "{help}");
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
