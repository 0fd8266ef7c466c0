//! fio with our engine: it reads back its writes, on every kind of stack; its options; refusals.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use system_tests::server::program;
use system_tests::{Outcome, new_folder, run};
use tempfile::TempDir;

use super::{engine, libraries, repository, run_embedded};

/// A folder with a stack file in it, and the engine.
pub(super) struct Rig {
    folder: Arc<TempDir>,
    engine: String,
}

impl Rig {
    pub(super) fn new(stack: &str) -> Option<Rig> {
        let engine = engine()?;
        let folder = new_folder();
        fs::write(folder.path().join("stack.toml"), stack).expect("a stack file");
        Some(Rig { folder, engine })
    }

    pub(super) fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The word that chooses the engine.
    pub(super) fn engine_option(&self) -> String {
        format!("--ioengine=external:{}", self.engine)
    }

    /// Runs fio with just these options beside the engine's.
    fn fio(&self, options: &[&str]) -> Outcome {
        let engine = self.engine_option();
        run_embedded(self.dir(), &[&["fio", "--name=job", &engine], options].concat())
    }

    /// Runs threads on `device`; returns fio's report on them all, as JSON.
    pub(super) fn job(&self, device: &str, options: &[&str]) -> Value {
        let device = format!("--filename={device}");
        let common = ["--stack=stack.toml", &device, "--thread", "--group_reporting"];
        let json = ["--output-format=json", "--output=result.json"];
        self.fio(&[&common, options, &json].concat()).ok();
        let text = fs::read_to_string(self.dir().join("result.json")).expect("a result");
        // Warnings of fio itself may stand before it.
        let start = text.find('{').expect("JSON");
        let result: Value = serde_json::from_str(&text[start..]).expect("JSON");
        let job = result["jobs"][0].clone();
        assert_eq!(job["error"], 0, "{job:#}");
        job
    }

    /// fio's complaint when it refuses.
    fn refused(&self, options: &[&str]) -> String {
        self.fio(options).refused()
    }
}

/// Two threads with a region each, of blocks of many sizes.
const VERIFY: [&str; 11] = [
    "--numjobs=2",
    "--size=4M",
    "--offset_increment=4M",
    "--iodepth=16",
    "--iodepth_batch_submit=8",
    "--iodepth_batch_complete_min=1",
    "--rw=randwrite",
    "--bsrange=4k-128k",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--randseed=1",
];

/// Writes and verifies. If the stack keeps its data, verifies again after the stack was closed and
/// reopened.
fn verified(stack: &str, device: &str, keeps: bool, options: &[&str]) -> Option<Rig> {
    let rig = Rig::new(stack)?;
    let job = rig.job(device, &[&VERIFY, options].concat());
    let bytes = |job: &Value, what: &str| job[what]["io_bytes"].as_u64().unwrap_or(0);
    assert!(bytes(&job, "write") >= 8 << 20, "{job:#}");
    assert!(bytes(&job, "read") >= 8 << 20, "it did verify: {job:#}");
    if keeps {
        let job = rig.job(device, &[&VERIFY, options, &["--verify_only"]].concat());
        assert!(bytes(&job, "read") >= 8 << 20, "{job:#}");
    }
    Some(rig)
}

/// RAM devices of these names.
pub(super) fn ram(names: &[&str], size: &str) -> String {
    let one = |name: &&str| format!("[device.{name}]\ntype = \"ram\"\nsize = \"{size}\"\n");
    names.iter().map(one).collect()
}

/// File devices of these names, in files that are named so.
pub(super) fn files(names: &[&str], size: &str) -> String {
    let one = |name: &&str| {
        format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\nsize = \"{size}\"\n")
    };
    names.iter().map(one).collect()
}

fn array(kind: &str, members: &[&str]) -> String {
    format!(
        "{}[device.array]\ntype = \"{kind}\"\nmembers = {members:?}\nchunk = \"16KiB\"\n",
        files(members, "8MiB")
    )
}

#[test]
fn ram_is_verified() {
    verified(&ram(&["d"], "16MiB"), "d", false, &[]);
}

#[test]
fn a_file_is_verified() {
    verified(&files(&["d"], "16MiB"), "d", true, &["--fsync=16"]);
}

#[test]
fn a_direct_file_with_fixed_buffers_is_verified() {
    let stack = files(&["d"], "16MiB") + "direct = \"auto\"\n";
    verified(&stack, "d", true, &["--fixedbufs", "--direct=1", "--sync=1"]);
}

#[test]
fn mq_deadline_is_verified() {
    let stack = files(&["d"], "16MiB") + "queue = { scheduler = \"mq-deadline\" }\n";
    verified(&stack, "d", true, &["--prioclass=3", "--prio=7"]);
    let stack = ram(&["d"], "16MiB") + "queue = { scheduler = \"mq-deadline\" }\n";
    verified(&stack, "d", false, &["--prioclass=2", "--prio=1"]);
}

#[test]
fn linear_is_verified() {
    let stack = files(&["a", "b"], "8MiB")
        + "[device.v]\ntable = \"\"\"\n0 16384 linear a 0\n16384 16384 linear b 0\n\"\"\"\n";
    verified(&stack, "v", true, &[]);
}

#[test]
fn a_stripe_is_verified() {
    let stack =
        ram(&["a", "b", "c"], "8MiB") + "[device.v]\ntable = \"0 49152 striped 3 8 a 0 b 0 c 0\"\n";
    verified(&stack, "v", false, &[]);
}

/// The array is closed as a server closes it.
fn array_is_verified(kind: &str, members: &[&str]) {
    let Some(rig) = verified(&array(kind, members), "array", true, &["--fsync=16"]) else { return };
    let program = program().display().to_string();
    let said = run(rig.dir(), &[&program, "md", "examine", "m0.img"]).ok();
    assert!(said.contains("State : clean"), "{said}");
}

#[test]
fn raid5_is_verified() {
    array_is_verified("raid5", &["m0", "m1", "m2"]);
}

#[test]
fn raid6_is_verified() {
    array_is_verified("raid6", &["m0", "m1", "m2", "m3", "m4"]);
}

#[test]
fn raid4_is_verified() {
    array_is_verified("raid4", &["m0", "m1", "m2"]);
}

#[test]
fn an_array_with_a_partial_parity_log_is_verified() {
    let stack = array("raid5", &["m0", "m1", "m2"]) + "consistency_policy = \"ppl\"\n";
    verified(&stack, "array", true, &["--fsync=16"]);
}

#[test]
fn null_with_memory_is_verified() {
    let stack = "[device.d]\ntype = \"null\"\nmemory_backed = true\nsize = \"16MiB\"\n";
    verified(stack, "d", false, &[]);
}

#[test]
fn targets_for_tests_are_verified() {
    for line in ["delay d 0 1", "flakey d 0 600 0", "log-writes d l"] {
        let stack =
            ram(&["d", "l"], "64MiB") + &format!("[device.v]\ntable = \"0 32768 {line}\"\n");
        verified(&stack, "v", false, &[]);
    }
}

/// Verification must notice that writes go nowhere.
#[test]
fn what_keeps_nothing_fails_verification() {
    for line in ["zero", "flakey d 0 0 600 1 drop_writes"] {
        let stack = ram(&["d"], "16MiB") + &format!("[device.v]\ntable = \"0 32768 {line}\"\n");
        let Some(rig) = Rig::new(&stack) else { return };
        let options = ["--stack=stack.toml", "--filename=v", "--thread"];
        let said = rig.refused(&[&options[..], &VERIFY[..]].concat());
        assert!(said.contains("bad magic header"), "{line}: {said}");
    }
}

/// The contents of such a device would be destroyed.
#[test]
fn a_member_of_an_array_is_not_written_to() {
    let Some(rig) = Rig::new(&array("raid5", &["m0", "m1", "m2"])) else { return };
    let options = ["--stack=stack.toml", "--filename=m0", "--thread", "--rw=write", "--bs=64k"];
    let said = rig.refused(&options);
    assert!(said.contains("`m0` is part of `array`, so nobody else must write to it"), "{said}");
    rig.job("m0", &["--rw=read", "--bs=64k", "--size=1M"]);
    rig.job("array", &["--rw=write", "--bs=64k", "--size=1M"]);
}

#[test]
fn a_throttled_group_is_verified() {
    let stack = ram(&["d"], "16MiB")
        + "[group.tenants]\n[group.\"tenants/a\"]\nio.max = [\"d wbps=64MiB riops=20000\"]\n";
    let group = "--throttle_group=tenants/a";
    let Some(rig) = verified(&stack, "d", false, &[group]) else { return };
    let options = ["--stack=stack.toml", "--filename=d", "--thread", "--throttle_group=tenants/b"];
    let said = rig.refused(&options);
    assert!(said.contains("tenants/b"), "{said}");
}

#[test]
fn polled_io_is_verified() {
    let stack = "[device.d]\ntype = \"null\"\nmemory_backed = true\nsize = \"16MiB\"\n\
        irqmode = \"timer\"\ncompletion_nsec = \"10us\"\npoll_queues = 1\n\
        queue = { io_poll = true }\n";
    verified(stack, "d", false, &["--hipri"]);
}

/// Trims of blocks that were written, and writes between them.
#[test]
fn trims_and_writes_take_turns() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let both = ["--rw=trimwrite", "--bs=64k", "--size=4M", "--io_size=8M", "--iodepth=8"];
    let job = rig.job("d", &both);
    assert!(job["trim"]["total_ios"].as_u64() > Some(0), "{job:#}");
    assert!(job["write"]["total_ios"].as_u64() > Some(0), "{job:#}");
}

/// With `--create_serialize=0` fio sets up the files of a job in its own thread, after its start.
#[test]
fn files_are_set_up_late() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let late = ["--rw=randread", "--numjobs=2", "--number_ios=10", "--create_serialize=0"];
    let job = rig.job("d", &late);
    assert_eq!(job["read"]["total_ios"], 20, "{job:#}");
    let forked = ["--stack=stack.toml", "--filename=d", "--rw=randread", "--create_serialize=0"];
    assert!(rig.refused(&forked).contains("add --thread"));
}

#[test]
fn status_is_told_meanwhile() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let long = ["--rw=randread", "--time_based", "--runtime=2500ms", "--status-interval=1"];
    let common = ["--stack=stack.toml", "--filename=d", "--thread"];
    let said = rig.fio(&[&common[..], &long].concat()).ok();
    assert!(said.matches("read: IOPS=").count() >= 2, "{said}");
}

#[test]
fn every_step_is_shown_to_its_debugger() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let options = ["--stack=stack.toml", "--filename=d", "--thread", "--debug=io"];
    let said = rig.fio(&[&options[..], &["--rw=randread", "--number_ios=10"]].concat()).ok();
    for step in
        ["prep: io_u", "queue: io_u", "calling ->commit()", "getevents: 1", "complete: io_u"]
    {
        assert!(said.contains(step), "no `{step}` in {said}");
    }
}

#[test]
fn errors_of_the_device_are_told() {
    let Some(rig) = Rig::new("[device.v]\ntable = \"0 32768 error\"\n") else { return };
    let options = ["--stack=stack.toml", "--filename=v", "--thread", "--rw=randread"];
    let said = rig.refused(&options);
    assert!(said.contains("Input/output error"), "{said}");
}

#[test]
fn jobs_of_several_stacks_and_devices() {
    let Some(rig) = Rig::new(&ram(&["d", "e"], "16MiB")) else { return };
    fs::write(rig.dir().join("other.toml"), files(&["f"], "8MiB")).expect("a stack file");
    let engine = format!("--ioengine=external:{}", rig.engine);
    let job = |name: &str, stack: &str, device: &str| {
        [
            format!("--name={name}"),
            engine.clone(),
            format!("--stack={stack}"),
            format!("--filename={device}"),
        ]
    };
    let common = ["--thread", "--rw=randrw", "--size=4M", "--iodepth=4", "--verify=crc32c"];
    let common = common.map(str::to_owned);
    let mut words = vec!["fio".to_owned()];
    for job in [job("a", "stack.toml", "d:e"), job("b", "other.toml", "f")] {
        words.extend(job);
        words.extend(common.clone());
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = run_embedded(rig.dir(), &words).ok();
    assert_eq!(said.matches("err= 0").count(), 2, "{said}");
}

/// A job of the idle class beside one of the best-effort class, on a disk that does one I/O at a
/// time: the scheduler distinguishes their I/Os.
#[test]
fn priorities_reach_the_scheduler() {
    let Some((best, idle)) = side_by_side(&["--prioclass=3", "--prio=0"]) else { return };
    // Nothing of the idle class goes before it is as old as `prio_aging_expire`, 10 s.
    assert!(best > 100 && idle * 10 < best, "best effort {best}, idle {idle}");
}

/// The same where the priority is set for each I/O, for none of them, or for those in the other
/// direction.
#[test]
fn a_share_of_the_io_has_a_priority_of_its_own() {
    let idle = "--cmdprio_class=3";
    let Some((best, other)) = side_by_side(&["--cmdprio_percentage=100", idle]) else { return };
    assert!(best > 100 && other * 10 < best, "best effort {best}, idle {other}");
    for none in ["--cmdprio_percentage=0", "--cmdprio_percentage=0,100"] {
        let Some((best, other)) = side_by_side(&[none, idle]) else { return };
        assert!(other * 10 > best, "{none}: {best} and {other}");
    }
}

/// Reads in 2 s of a best-effort job and of another beside it, with `options` of its own.
fn side_by_side(options: &[&str]) -> Option<(u64, u64)> {
    let device = "[device.d]\ntype = \"null\"\nsize = \"1GiB\"\nirqmode = \"timer\"\n\
                  completion_nsec = 500000\nhw_queue_depth = 1\n";
    let rig = Rig::new(&format!("{device}queue = {{ scheduler = \"mq-deadline\" }}\n"))?;
    let common = ["--stack=stack.toml", "--filename=d", "--thread", "--rw=randread", "--iodepth=4"];
    let time = ["--time_based", "--runtime=2", "--output-format=json", "--output=result.json"];
    let engine = rig.engine_option();
    let first = ["--name=best", "--prioclass=2", "--prio=0"];
    let words = [&["fio"][..], &[&engine], &common, &time, &first, &["--name=other", &engine]];
    let words = [&words.concat()[..], &common, options].concat();
    run_embedded(rig.dir(), &words).ok();
    let text = fs::read_to_string(rig.dir().join("result.json")).expect("a result");
    let result: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("JSON");
    let jobs = result["jobs"].as_array().expect("jobs");
    let ios = |name: &str| {
        let job = jobs.iter().find(|job| job["jobname"] == name).expect("the job");
        job["read"]["total_ios"].as_u64().expect("a number")
    };
    Some((ios("best"), ios("other")))
}

#[test]
fn what_has_no_meaning_is_said_once() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let options = [
        "--stack=stack.toml",
        "--filename=d",
        "--thread",
        "--rw=randread",
        "--numjobs=3",
        "--number_ios=10",
        "--registerfiles",
        "--nonvectored=1",
        "--sqthread_poll=1",
    ];
    let outcome = rig.fio(&options);
    let said = outcome.stderr.clone();
    outcome.ok();
    for option in ["registerfiles", "nonvectored", "sqthread_poll"] {
        let note = format!("note: {option} has no meaning here and is ignored");
        assert_eq!(said.matches(&note).count(), 1, "{said}");
    }
    assert!(!said.contains("force_async"), "{said}");
}

/// Any job may ask for it: here the second, with two threads.
#[test]
fn a_device_that_is_not_polled_is_noted_once() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let job =
        ["--stack=stack.toml", "--filename=d", "--thread", "--rw=randread", "--number_ios=10"];
    let engine = rig.engine_option();
    let second = ["--name=second", &engine, "--hipri", "--numjobs=2"];
    let outcome = rig.fio(&[&job[..], &second, &job].concat());
    let said = outcome.stderr.clone();
    outcome.ok();
    assert_eq!(said.matches("note: `d` is not polled (queue/io_poll)").count(), 1, "{said}");
}

/// Each refusal is one sentence of the engine's, and no other beside it.
#[test]
fn what_is_refused_is_said_once() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let job =
        ["--stack=stack.toml", "--filename=d", "--thread", "--rw=randread", "--number_ios=10"];
    for (options, why) in [
        (&["--bs=513"][..], "are not a whole number of sectors of 512 bytes"),
        (&["--bs=513", "--hipri"], "are not a whole number of sectors of 512 bytes"),
        (&["--bs=513", "--iodepth=16", "--iodepth_batch_submit=4"], "are not a whole number"),
        (&["--mem=mmap"], "the engine has memory of its own: leave --mem and --iomem out"),
        (&["--mem=malloc"], "leave --mem and --iomem out"),
    ] {
        let said = rig.refused(&[&job[..], options].concat());
        let sentences = said.lines().filter(|line| line.starts_with("fio: drystone: "));
        let sentences: Vec<&str> = sentences.filter(|line| !line.contains("note: ")).collect();
        assert!(matches!(sentences[..], [one] if one.contains(why)), "{options:?}: {said}");
        for untrue in ["Cannot allocate memory", "conflicts with"] {
            assert!(!said.contains(untrue), "{options:?}: {said}");
        }
    }
    let said = rig.refused(&[&job[..], &["--cmdprio_bssplit=4k/10"]].concat());
    assert!(said.contains("no priorities by block size: use cmdprio_percentage"), "{said}");
}

/// The engine's help on its own options.
#[test]
fn fio_explains_the_engines_options() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let help = format!("--enghelp={}", rig.engine);
    let said = run_embedded(rig.dir(), &["fio", &help]).ok();
    for option in ["stack", "throttle_group", "show", "cmdprio_percentage", "hipri"] {
        assert!(said.contains(option), "{option}: {said}");
    }
    let said = run_embedded(rig.dir(), &["fio", &format!("{help},stack")]).ok();
    assert!(said.contains("Stack file whose devices"), "{said}");
}

#[test]
fn wrong_jobs_are_refused_with_what_would_be_right() {
    let Some(rig) = Rig::new(&ram(&["disk"], "16MiB")) else { return };
    let stack = "--stack=stack.toml";
    for (options, parts) in [
        (&[stack, "--filename=disk"][..], &["forked", "add --thread"][..]),
        (&[stack, "--filename=dusk", "--thread"], &["there is no device `dusk`", "`disk`?"]),
        (&[stack, "--thread"], &["--filename is missing"]),
        (&["--filename=disk", "--thread"], &["--stack is missing"]),
        (&["--stack=none.toml", "--filename=d", "--thread"], &["none.toml: No such file"]),
        (&[stack, "--filename=disk", "--thread", "--size=1G"], &["`disk` has 16777216 bytes"]),
    ] {
        let said = rig.refused(&[options, &["--rw=randread"]].concat());
        assert!(parts.iter().all(|part| said.contains(part)), "{options:?}: {said}");
    }
    let wrong = "[device.d]\ntype = \"ram\"\nsise = \"16MiB\"\n";
    fs::write(rig.dir().join("wrong.toml"), wrong).expect("a stack file");
    let said = rig.refused(&["--stack=wrong.toml", "--filename=d", "--thread", "--rw=read"]);
    assert!(said.contains("wrong.toml:3:1") && said.contains("sise"), "{said}");
}

/// A fio of another version has other structures.
#[test]
fn another_fio_is_refused() {
    let Some(rig) = Rig::new(&ram(&["d"], "16MiB")) else { return };
    let headers = libraries().join("../capi/fio-3.33");
    let script = "gcc -std=gnu11 -fPIC -shared -D_GNU_SOURCE -DDRYSTONE_FIO_NEEDED='\"fio-9.9\"' \
        -include \"$1/config-host.h\" -isystem \"$1\" -I \"$2\" \"$3/engine.c\" \"$3/stacks.c\" \
        -L \"$4\" -Wl,-rpath,\"$4\" -Wl,-z,nodelete -ldrystone -o other.so";
    let paths =
        [headers, repository("crates/capi/include"), repository("fio"), libraries().to_owned()]
            .map(|path| path.display().to_string());
    let arguments: Vec<&str> = paths.iter().map(String::as_str).collect();
    system_tests::shell(rig.dir(), script, &arguments).ok();
    let words = ["fio", "--name=job", "--ioengine=external:./other.so", "--rw=randread"];
    let said = run_embedded(rig.dir(), &words).refused();
    assert!(said.contains("this engine is for fio-9.9 (engine interface 31)"), "{said}");
    assert!(said.contains("and this is fio-"), "{said}");
}
