//! The commands that check a stack file or ask a running server.

use std::path::Path;
use std::time::Duration;

use drystone_bench::machine;
use drystone_core::sync::lock_table;
use drystone_stack::attributes::ATTRIBUTES;
use drystone_stack::events::Lasting;
use drystone_stack::group;
use drystone_stack::iomax::{MaxLine, limits_of};
use drystone_stack::runtime::{DeviceDetail, DeviceSummary, ExportSummary, LockReport, Snapshot};
use drystone_stack::size::format_size;
use drystone_stack::spec::DeviceSpec;
use drystone_stack::{LoadError, explain, iostat as columns, load, one_line};
use serde_json::{Map, Value, json};

use crate::args::ClientArgs;
use crate::bench::{BenchArgs, Subject};
use crate::calendar;
use crate::client::{Client, read};
use crate::failure::Failure;
use crate::output;
use crate::terminal::colour;

/// `drystone check`.
pub fn check(path: &Path, as_json: bool) -> Result<(), Failure> {
    let mut loaded = load(path);
    loaded.iter_mut().for_each(calendar::judge_certificates);
    if as_json {
        output::print_json(&check_json(&loaded))?;
    }
    let stack = loaded.map_err(output::load_failure)?;
    if !as_json {
        output::warn(&stack);
        output::print(&explain(&stack))?;
    }
    Ok(())
}

fn check_json(loaded: &Result<drystone_stack::StackSpec, LoadError>) -> Value {
    let list = |found: &[_]| found.iter().map(output::diagnostic_json).collect::<Vec<Value>>();
    match loaded {
        Err(LoadError::Invalid(report)) => json!({
            "ok": false,
            "diagnostics": list(&report.diagnostics),
            "omitted": report.omitted,
        }),
        Err(error) => json!({ "ok": false, "error": error.to_string() }),
        Ok(stack) => json!({
            "ok": true,
            "stack": stack.name,
            "diagnostics": list(&stack.warnings),
            "devices": stack.devices.iter().map(|device| json!({
                "name": device.name,
                "kind": device.kind.name(),
                "size": stack.sizes.get(&device.name),
            })).collect::<Vec<Value>>(),
            "exports": stack.exports.iter().map(|export| json!({
                "name": export.name,
                "device": export.device,
                "nbd": export.nbd.iter().map(ToString::to_string).collect::<Vec<String>>(),
                "group": group::shown(&export.group),
                "clients": export.clients.iter().map(|client| {
                    (client.client.to_string(), json!(group::shown(&client.group)))
                }).collect::<Map<String, Value>>(),
            })).collect::<Vec<Value>>(),
            "groups": stack.groups.iter().map(|group| json!({
                "path": group.path,
                "io_max": group.io_max.iter().map(|line| {
                    MaxLine::new(&line.device, &limits_of(&line.change))
                }).collect::<Vec<MaxLine>>(),
            })).collect::<Vec<Value>>(),
        }),
    }
}

/// `drystone list`.
pub fn list(args: &ClientArgs) -> Result<(), Failure> {
    let mut answer = Client::connect(args.control.as_deref())?.ask("list", &[])?;
    if args.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let devices: Vec<DeviceSummary> = read(answer["devices"].take())?;
    let exports: Vec<ExportSummary> = read(answer["exports"].take())?;
    let access = |read_only: bool| if read_only { "ro" } else { "rw" }.to_owned();
    let mut rows =
        vec![["DEVICE", "KIND", "SIZE", "ACCESS", "IN FLIGHT"].map(str::to_owned).to_vec()];
    rows.extend(devices.into_iter().map(|device| {
        let in_flight = device.in_flight.to_string();
        vec![
            device.name,
            device.kind,
            format_size(device.size),
            access(device.read_only),
            in_flight,
        ]
    }));
    let mut text = output::columns(&rows);
    let mut rows =
        vec![["EXPORT", "DEVICE", "ACCESS", "CONNECTIONS", "URI"].map(str::to_owned).to_vec()];
    rows.extend(exports.into_iter().map(|export| {
        let connections = export.connections.to_string();
        let uris = export.uris.join(" ");
        vec![export.name, export.device, access(export.read_only), connections, uris]
    }));
    text.push('\n');
    text.push_str(&output::columns(&rows));
    output::print(&text)?;
    Ok(())
}

/// `drystone show`.
pub fn show(device: &str, args: &ClientArgs) -> Result<(), Failure> {
    let answer = Client::connect(args.control.as_deref())?.ask("show", &[("device", device)])?;
    if args.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    output::print(&detail(&read(answer)?))?;
    Ok(())
}

fn detail(device: &DeviceDetail) -> String {
    let first =
        [device.name.as_str(), &device.kind, &format_size(device.size), &device.description];
    let mut text = one_line(first.join("  ").trim_end()).into_owned() + "\n";
    for (word, names) in [("members", &device.members), ("exports", &device.exports)] {
        if !names.is_empty() {
            text.push_str(&format!("{word}: {}\n", names.join(" ")));
        }
    }
    if let Some(lasting) = Lasting::of(|name| device.attributes.get(name).cloned()) {
        text.push_str(&format!("fault: {lasting}\n"));
    }
    if device.attributes.get("path_replaced").is_some_and(|value| value.trim() == "1") {
        text.push_str(
            "note: its path names another file now, or none; it goes on with the one it opened\n",
        );
    }
    let modes = device.modes();
    let rows = ATTRIBUTES.iter().filter_map(|attribute| {
        let name = attribute.name;
        let value = device.attributes.get(name)?.trim();
        Some(vec![name.to_owned(), modes.get(name)?.to_string(), shown(name, value)])
    });
    text + &output::columns(&rows.collect::<Vec<_>>())
}

/// `drystone set`.
pub fn set(device: &str, attribute: &str, value: &str, args: &ClientArgs) -> Result<(), Failure> {
    let arguments = [("device", device), ("attribute", attribute), ("value", value)];
    let answer = Client::connect(args.control.as_deref())?.ask("set", &arguments)?;
    if args.json {
        output::print_json(&answer)?;
    } else {
        let now = answer["value"].as_str().unwrap_or(value);
        output::print(&format!("{device} {attribute}={}\n", shown(attribute, now)))?;
    }
    Ok(())
}

/// The time that the server may take to open a file and to wait for its I/O, on a file system that
/// is slow.
const REOPEN_PATIENCE: Duration = Duration::from_secs(60);

/// `drystone reopen`.
pub fn reopen(device: &str, replaced: bool, args: &ClientArgs) -> Result<(), Failure> {
    let mut arguments = vec![("device", device)];
    if replaced {
        arguments.push(("replaced", "true"));
    }
    let answer =
        Client::connect(args.control.as_deref())?.ask_for("reopen", &arguments, REOPEN_PATIENCE)?;
    if args.json {
        output::print_json(&answer)?;
    }
    Ok(())
}

/// A value for people: a size with its unit.
fn shown(attribute: &str, now: &str) -> String {
    match (attribute, now.trim().parse::<u64>()) {
        ("size", Ok(bytes)) => format_size(bytes),
        _ => now.to_owned(),
    }
}

/// `drystone iostat`: the first report is since the start of the stack, each further one over
/// the interval.
pub fn iostat(
    interval: Option<Duration>,
    count: Option<u64>,
    args: &ClientArgs,
) -> Result<(), Failure> {
    let mut client = Client::connect(args.control.as_deref())?;
    let mut before: Option<Snapshot> = None;
    let reports = if interval.is_none() { Some(1) } else { count };
    let mut done = 0;
    loop {
        let now: Snapshot = read(client.ask("iostat", &[])?)?;
        // A restarted server counts from its own start.
        before = before.filter(|before| before.uptime_ns <= now.uptime_ns);
        let rows = columns::rows(before.as_ref(), &now);
        let text = match args.json {
            true => {
                let mut rows = columns::json(&rows);
                let time = machine::now();
                for row in rows.as_array_mut().into_iter().flatten() {
                    row["time"] = json!(time);
                }
                format!("{rows}\n")
            }
            false => format!("{}\n", columns::table(&rows)),
        };
        done += 1;
        // The reader of the reports may have gone.
        if !output::print(&text)? || reports == Some(done) {
            return Ok(());
        }
        before = Some(now);
        std::thread::sleep(interval.unwrap_or_default());
        client.reconnect()?;
    }
}

/// `drystone lockstat`: the figures until now; the server then resets and switches as asked.
pub fn lockstat(reset: bool, hold: Option<bool>, args: &ClientArgs) -> Result<(), Failure> {
    let mut arguments = Vec::new();
    if reset {
        arguments.push(("reset", "true"));
    }
    if let Some(on) = hold {
        arguments.push(("hold", if on { "true" } else { "false" }));
    }
    let answer = Client::connect(args.control.as_deref())?.ask("lockstat", &arguments)?;
    if args.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let report: LockReport = read(answer)?;
    let lines: Vec<_> =
        report.classes.iter().map(|line| (line.class.as_str(), line.stats())).collect();
    output::print(&lock_table(lines.iter().map(|(class, stats)| (*class, stats))))?;
    Ok(())
}

/// `drystone poll-mode`: changes it if asked, and prints it.
pub fn poll_mode(mode: Option<&str>, args: &ClientArgs) -> Result<(), Failure> {
    let arguments: Vec<_> = mode.map(|mode| ("mode", mode)).into_iter().collect();
    let answer = Client::connect(args.control.as_deref())?.ask("poll-mode", &arguments)?;
    if args.json {
        output::print_json(&answer)?;
        return Ok(());
    }
    let mode = answer["mode"].as_str().unwrap_or("unknown");
    output::print(&format!("{mode}\n"))?;
    Ok(())
}

/// `drystone bench`: finds the device to measure, then measures.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    Ok(crate::bench::run(args, &bench_subject(args)?)?)
}

fn bench_subject(args: &BenchArgs) -> Result<Subject, Failure> {
    if let Some(text) = &args.device {
        let base = std::env::current_dir().map_err(|error| {
            Failure::Refused(format!("the current folder cannot be found: {error}"))
        })?;
        return DeviceSpec::parse(text, &base)
            .map(|spec| Subject::Device(Box::new(spec)))
            .map_err(|report| Failure::Report(report.render(colour())));
    }
    let (Some(path), Some(name)) = (&args.stack, &args.name) else {
        return Err(Failure::Usage("name a device: --device SPEC".to_owned()));
    };
    let stack = load(path).map_err(output::load_failure)?;
    match stack.device(name) {
        Some(_) => Ok(Subject::InStack(Box::new(stack), name.clone())),
        None => Err(Failure::Refused(format!("{} has no device `{name}`", path.display()))),
    }
}
