//! A device's counts of fio's jobs, beside fio's own: rates, syncs, trims, batches, polls.

use std::fs;

use serde_json::Value;
use system_tests::server::program;
use system_tests::{run, shell};

use super::engine;
use super::fio::{Rig, files, ram};

/// Positions of the counts in `stat` (Linux: `Documentation/block/stat.rst`).
const READS: usize = 0;
const READS_MERGED: usize = 1;
const WRITES: usize = 4;
const DISCARDS: usize = 11;
const FLUSHES: usize = 15;

/// Runs a job; returns fio's report and the device's attributes afterwards.
fn counted(rig: &Rig, device: &str, options: &[&str]) -> (Value, Value) {
    let path = rig.dir().join("shown");
    let _ = fs::remove_file(&path);
    let job = rig.job(device, &[options, &["--show=shown"]].concat());
    (job, shown(rig))
}

/// The attributes that the last job has left in the file `shown`.
fn shown(rig: &Rig) -> Value {
    let text = fs::read_to_string(rig.dir().join("shown")).expect("the device is shown");
    let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    last["result"]["attributes"].clone()
}

fn stat(attributes: &Value, field: usize) -> u64 {
    let text = attributes["stat"].as_str().expect("its statistics");
    text.split_whitespace().nth(field).expect("the field").parse().expect("a number")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// In fio's measured time the device got no more I/O than the rate permits: 1000 I/Os a second, and
/// those of the 100 ms that may pass between fio's start of the rate and that of its run. A slow
/// machine takes longer.
#[test]
fn rates_bound_what_the_device_is_given() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    for (rw, rate, side, field) in [
        ("--rw=randread", "--rate_iops=1000", "read", READS),
        ("--rw=randwrite", "--rate_iops=100,1000", "write", WRITES),
        // 4000 KiB a second are 1000 blocks.
        ("--rw=randwrite", "--rate=4000k", "write", WRITES),
    ] {
        let options = [rw, rate, "--bs=4k", "--number_ios=500"];
        let (job, attributes) = counted(&rig, "d", &options);
        let (ios, milliseconds) = (stat(&attributes, field), number(&job[side]["runtime"]));
        assert_eq!((ios, number(&job[side]["total_ios"])), (500, 500), "{rate}");
        assert!(ios <= milliseconds + 100, "{rate}: {ios} I/Os in {milliseconds} ms");
    }
}

#[test]
fn every_sync_is_a_flush_of_the_device() {
    let Some(rig) = Rig::new(&files(&["d"], "16MiB")) else { return };
    for sync in ["--fsync=8", "--fdatasync=8", "--sync_file_range=wait_before:8"] {
        let options = ["--rw=write", "--bs=4k", "--size=1M", sync];
        let (job, attributes) = counted(&rig, "d", &options);
        let flushes = stat(&attributes, FLUSHES);
        assert_eq!(stat(&attributes, WRITES), 256, "{sync}");
        // fio flushes after every eighth of 256 writes, and decides itself whether to flush after
        // the last.
        assert!((31..=32).contains(&flushes), "{sync}: {flushes}");
        if sync.starts_with("--fsync") {
            // fio counts no others.
            assert_eq!(number(&job["sync"]["total_ios"]), flushes, "{sync}");
        }
    }
    let (_, attributes) = counted(&rig, "d", &["--rw=write", "--bs=4k", "--size=1M"]);
    assert_eq!(stat(&attributes, FLUSHES), 0, "nobody asked for one");
}

/// The entries of the log: the I/O below `log-writes` in its order, with sector, sectors and kind.
fn logged(options: &[&str]) -> Option<Vec<String>> {
    let volume = "[device.v]\ntable = \"0 32768 log-writes d log\"\n";
    let rig = Rig::new(&(files(&["d", "log"], "16MiB") + volume))?;
    rig.job("v", options);
    let program = program().display().to_string();
    let text = run(rig.dir(), &[&program, "log-writes", "log.img", "list"]).ok();
    // Two header lines come first. A line has the entry's number, then its fields.
    let entry = |line: &str| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
    Some(text.lines().skip(2).map(entry).collect())
}

#[test]
fn syncs_come_between_the_writes_that_they_are_for() {
    let Some(entries) = logged(&["--rw=write", "--bs=4k", "--size=32k", "--fsync=4"]) else {
        return;
    };
    let write = |block: u64| format!("{} 8 NONE", block * 8);
    let four = |first| (first..first + 4).map(write);
    let expected: Vec<String> = four(0).chain(["0 0 FLUSH".to_owned()]).chain(four(4)).collect();
    assert_eq!(entries[..9], expected);
}

#[test]
fn synchronous_writes_and_trims_are_logged_as_such() {
    let Some(entries) = logged(&["--rw=write", "--bs=4k", "--size=16k", "--sync=1"]) else {
        return;
    };
    assert_eq!(entries[..4], ["0 8 FUA", "8 8 FUA", "16 8 FUA", "24 8 FUA"]);
    let Some(entries) = logged(&["--rw=trim", "--bs=4k", "--size=8k"]) else { return };
    assert_eq!(entries[..2], ["0 8 DISCARD", "8 8 DISCARD"]);
}

/// Jobs run one after the other in one process, whose memory they share.
fn one_after_the_other(rig: &Rig, jobs: &[&[&str]]) -> system_tests::Outcome {
    let common = ["--stack=stack.toml", "--filename=d", "--thread", "--stonewall", "--bs=64k"];
    let engine = rig.engine_option();
    let mut words = vec!["fio"];
    for job in jobs {
        words.extend(["--name=job", &engine]);
        words.extend(common);
        words.extend(*job);
    }
    super::run_embedded(rig.dir(), &words)
}

/// Trimmed sectors read as zeroes, and no others do.
#[test]
fn what_is_trimmed_is_gone_from_the_device() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let pattern = "--verify_pattern=0xa5";
    let fill = ["--rw=write", "--size=4M", "--verify=pattern", pattern, "--do_verify=0"];
    let trim = ["--rw=trim", "--offset=1M", "--size=2M", "--iodepth=8", "--show=shown"];
    let same = |offset: &'static str| {
        ["--rw=read", "--verify=pattern", pattern, offset, "--size=1M", "--verify_fatal=1"]
    };
    let zeroes = ["--rw=read", "--verify=pattern", "--verify_pattern=0x00", "--offset=1M"];
    let zeroes = [&zeroes[..], &["--size=2M", "--verify_fatal=1"]].concat();
    let (before, behind) = (same("--offset=0"), same("--offset=3M"));
    one_after_the_other(&rig, &[&fill, &trim, &zeroes, &before, &behind]).ok();
    let attributes = shown(&rig);
    assert_eq!(stat(&attributes, DISCARDS), 32, "{attributes:#}");
    // This comparison must fail: without the trim the pattern is still there.
    let said = one_after_the_other(&rig, &[&fill, &zeroes]).refused();
    assert!(said.contains("verify"), "{said}");
}

/// Neighbours of one submit call merge, and those of two do not.
#[test]
fn a_batch_is_one_submit_call() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let common = ["--rw=read", "--bs=4k", "--size=1M", "--iodepth=8"];
    for (batch, requests) in [(1, 256), (4, 64), (8, 32)] {
        let submit = format!("--iodepth_batch_submit={batch}");
        let complete = format!("--iodepth_batch_complete_min={batch}");
        let options = [&common[..], &[&submit, &complete]].concat();
        let (job, attributes) = counted(&rig, "d", &options);
        assert_eq!(number(&job["read"]["total_ios"]), 256);
        let found = (stat(&attributes, READS), stat(&attributes, READS_MERGED));
        assert_eq!(found, (requests, 256 - requests), "batches of {batch}");
    }
}

/// The polls of the device's poll queue, and those that found a completion.
fn polls(attributes: &Value) -> (u64, u64) {
    let text = attributes["queue/poll_stat"].as_str().expect("a device with a poll queue");
    let count = |name: &str| {
        let word = text.split_whitespace().find_map(|word| word.strip_prefix(name));
        word.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
    };
    (count("invoked="), count("success="))
}

#[test]
fn hipri_polls_the_device_and_nothing_else_does() {
    let stack = "[device.d]\ntype = \"null\"\nsize = \"16MiB\"\nirqmode = \"timer\"\n\
        completion_nsec = \"10us\"\npoll_queues = 1\nqueue = { io_poll = true }\n";
    let Some(rig) = Rig::new(stack) else { return };
    let options = ["--rw=randread", "--bs=4k", "--number_ios=500", "--iodepth=4"];
    let (job, attributes) = counted(&rig, "d", &[&options[..], &["--hipri"]].concat());
    let (invoked, success) = polls(&attributes);
    assert_eq!(number(&job["read"]["total_ios"]), 500);
    assert!(success > 0 && success <= invoked, "{invoked} looks, {success} with success");
    // One poll finds at most four completions.
    assert!(success >= 125, "{success} looks found all of 500");
    let (job, attributes) = counted(&rig, "d", &options);
    assert_eq!(number(&job["read"]["total_ios"]), 500);
    assert_eq!(polls(&attributes), (0, 0), "without hipri");
}

/// `fixedbufs` with at most 8 MiB of locked memory, rings included: the job runs, and the message
/// comes once, whichever job causes it.
#[test]
fn memory_that_cannot_be_registered_is_noted_once() {
    let (Some(engine), Some(rig)) = (engine(), Rig::new(&files(&["d"], "16MiB"))) else { return };
    let script = "if [ \"$(id -u)\" = 0 ]; then
            set -- setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \"$@\"
        fi
        ulimit -l 8192
        exec \"$@\"";
    let engine = format!("--ioengine=external:{engine}");
    let job =
        ["--stack=stack.toml", "--filename=d", "--thread", "--rw=randread", "--number_ios=10"];
    let fixed = ["--fixedbufs", "--numjobs=2", "--bs=4M", "--iodepth=4"];
    let words = [&["fio", "--name=a", &engine][..], &job, &["--name=b", &engine], &job, &fixed];
    let outcome = shell(rig.dir(), script, &words.concat());
    let said = outcome.stderr.clone();
    outcome.ok();
    assert_eq!(said.matches("note: fixedbufs: ").count(), 1, "{said}");
}
