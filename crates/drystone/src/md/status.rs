//! `drystone md status` and `wait`: the arrays of a running server, in the lines of Linux's
//! `/proc/mdstat`.

use std::io::{self, IsTerminal};
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use drystone_stack::md::{ArrayReport, BitmapReport, MemberReport, SyncReport};

use super::asked::{TestArgs, reports};
use crate::args::{ClientArgs, interval};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Width of a progress bar.
const BAR: u64 = 20;
/// The pause between two checks whether a synchronisation is over.
const WAIT_PAUSE: Duration = Duration::from_millis(200);

/// Arguments of `drystone md status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The arrays [default: all]
    #[arg(value_name = "ARRAY")]
    arrays: Vec<String>,
    /// Repeat until no synchronisation runs, on a terminal in the same place
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = interval
    )]
    watch: Option<Duration>,
    #[command(flatten)]
    test: TestArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Arguments of `drystone md wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// The arrays
    #[arg(required = true, value_name = "ARRAY")]
    arrays: Vec<String>,
    #[command(flatten)]
    test: TestArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// `drystone md status`.
pub fn run(args: &StatusArgs) -> Result<(), Failure> {
    args.test.judged(show(args))
}

fn show(args: &StatusArgs) -> Result<Vec<ArrayReport>, Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    let mut screen = Screen::default();
    loop {
        let arrays = reports(&mut client, &args.arrays)?;
        let is_read = match args.client.json {
            true => output::print_json(&serde_json::json!({ "arrays": arrays }))?,
            false => output::print(&screen.draw(text(&arrays, args.arrays.is_empty())))?,
        };
        match args.watch {
            Some(pause) if is_read && arrays.iter().any(|array| array.sync.is_some()) => {
                sleep(pause)
            }
            _ => return Ok(arrays),
        }
        client.reconnect()?;
    }
}

/// `drystone md wait`.
pub fn wait(args: &WaitArgs) -> Result<(), Failure> {
    args.test.judged(waited(args))
}

fn waited(args: &WaitArgs) -> Result<Vec<ArrayReport>, Failure> {
    let mut client = Client::connect(args.client.control.as_deref())?;
    let mut arrays = reports(&mut client, &args.arrays)?;
    while arrays.iter().any(|array| array.sync.is_some()) {
        sleep(WAIT_PAUSE);
        arrays = reports(&mut client, &args.arrays)?;
    }
    if args.client.json {
        output::print_json(&serde_json::json!({ "arrays": arrays }))?;
    }
    Ok(arrays)
}

/// Texts that take each other's place on a terminal, and follow one another elsewhere.
#[derive(Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    fn draw(&mut self, text: String) -> String {
        let before = std::mem::replace(&mut self.lines, text.lines().count());
        match (io::stdout().is_terminal(), before) {
            (false, 0) => text,
            (false, _) => format!("\n{text}"),
            // Lines that are too long are cut off, so that each takes one line.
            (true, 0) => format!("\x1b[?7l{text}\x1b[?7h"),
            (true, lines) => format!("\x1b[{lines}A\x1b[J\x1b[?7l{text}\x1b[?7h"),
        }
    }
}

/// The lines of arrays; with those that stand around them if it is `all` that there are.
pub fn text(arrays: &[ArrayReport], all: bool) -> String {
    let lines: String = arrays.iter().map(lines).collect();
    match all {
        true => {
            format!("Personalities : [raid6] [raid5] [raid4] \n{lines}unused devices: <none>\n")
        }
        false => lines,
    }
}

fn lines(array: &ArrayReport) -> String {
    let read_only = if array.read_only { " (read-only)" } else { "" };
    let in_sync: String = (0..array.raid_devices).map(|role| in_sync(array, role)).collect();
    let sync = match &array.sync {
        Some(sync) => format!("{}\n      ", progress(sync)),
        None if array.resync_pending => "\tresync=PENDING\n      ".to_owned(),
        None => String::new(),
    };
    format!(
        "{} : active{read_only} {}{}\n      {} blocks super {} level {}, {}k chunk, algorithm {} \
         [{}/{}] [{in_sync}]\n      {sync}{}\n",
        array.name,
        array.level,
        members(&array.devices),
        array.array_size / 1024,
        array.version,
        array.level.trim_start_matches("raid"),
        array.chunk_size / 1024,
        array.algorithm,
        array.raid_devices,
        array.active_devices,
        array.bitmap.as_ref().map(bitmap).unwrap_or_default(),
    )
}

fn in_sync(array: &ArrayReport, role: u32) -> char {
    let has = |device: &MemberReport| {
        device.raid_device == Some(role) && device.state.starts_with("active sync")
    };
    if array.devices.iter().any(has) { 'U' } else { '_' }
}

/// The newest first.
fn members(devices: &[MemberReport]) -> String {
    let mut there: Vec<_> =
        devices.iter().filter_map(|d| Some((d.number?, d.device.as_ref()?, d))).collect();
    there.sort_by_key(|(number, ..)| std::cmp::Reverse(*number));
    let word = |(number, name, device): (u32, &String, &MemberReport)| {
        let flag = match device.state.as_str() {
            "faulty" => "(F)",
            "spare" => "(S)",
            _ if device.replacement => "(R)",
            _ => "",
        };
        format!(" {name}[{number}]{flag}")
    };
    there.into_iter().map(word).collect()
}

/// ```text
/// [==>..................]  recovery = 12.6% (37043392/292945152) finish=127.5min speed=33440K/sec
/// ```
fn progress(sync: &SyncReport) -> String {
    let per_mille = sync.per_mille();
    let done = (per_mille / (1000 / BAR)).min(BAR);
    let (bar, rest) = ("=".repeat(done as usize), ".".repeat((BAR - done) as usize));
    let word = match sync.action.as_str() {
        "recover" => "recovery",
        "check" => "check",
        _ => "resync",
    };
    let kib = |bytes: u64| bytes / 1024;
    let seconds = sync.total.saturating_sub(sync.done) / sync.speed.max(1024);
    format!(
        "[{bar}>{rest}]  {word} ={:3}.{}% ({}/{}) finish={}.{}min speed={}K/sec",
        per_mille / 10,
        per_mille % 10,
        kib(sync.done),
        kib(sync.total),
        seconds / 60,
        seconds % 60 / 6,
        kib(sync.speed),
    )
}

fn bitmap(bitmap: &BitmapReport) -> String {
    let BitmapReport { pages_used, pages, chunk } = bitmap;
    let chunk = match chunk / 1024 {
        0 => format!("{chunk}B"),
        kib => format!("{kib}KB"),
    };
    format!("bitmap: {pages_used}/{pages} pages [{}KB], {chunk} chunk\n", pages_used * 4)
}
