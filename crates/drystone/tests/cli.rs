//! The program as its users see it: output, messages, exit status.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use drystone_testkit::program::{Program, stderr, stdout};
use tempfile::TempDir;

const DRYSTONE: Program = Program::new(env!("CARGO_BIN_EXE_drystone"));

const GOOD: &str = "[device.d]\ntype = \"ram\"\nsize = \"1GiB\"\n\
                    [export.e]\ndevice = \"d\"\nnbd = \"tcp:localhost:10809\"\n";

#[test]
fn check_draws_a_good_stack() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD).unwrap();
    let output = DRYSTONE.run(folder.path(), &["check", "s.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let tree = "stack s\nexport e  nbd tcp:localhost:10809\n└── d  ram  1GiB\n";
    assert_eq!(stdout(&output), tree);
    assert_eq!(stderr(&output), "");
}

#[test]
fn check_points_at_what_is_wrong() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD.replace("size", "siez")).unwrap();
    let words = ["unknown key `siez`", "s.toml:3:1", "did you mean `size`?"];
    DRYSTONE.refuses(folder.path(), &["check", "s.toml"], 1, &words);
    DRYSTONE.refuses(folder.path(), &["serve", "s.toml"], 1, &words);
    DRYSTONE.refuses(folder.path(), &["check", "none.toml"], 1, &["none.toml: No such file"]);
    DRYSTONE.refuses(folder.path(), &["check", "."], 1, &["directory"]);
}

#[test]
fn check_gives_json() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD).unwrap();
    let answer =
        |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
    let good = answer(&DRYSTONE.run(folder.path(), &["check", "--json", "s.toml"]));
    assert_eq!(good["ok"], true);
    assert_eq!(good["devices"][0]["size"], 1u64 << 30);
    fs::write(folder.path().join("s.toml"), GOOD.replace("size", "siez")).unwrap();
    let output = DRYSTONE.run(folder.path(), &["check", "--json", "s.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let found = &answer(&output)["diagnostics"];
    let first = found.as_array().unwrap().iter().find(|found| found["word"] == "siez").unwrap();
    assert_eq!((&first["line"], &first["column"]), (&3.into(), &1.into()));
}

#[test]
fn help_comes_from_the_schemas() {
    let folder = TempDir::new().unwrap();
    for (topic, words) in [
        ("stack", ["completion_nsec", "[export.NAME]"]),
        ("control", ["queue/nr_requests", "out-of-range"]),
        ("serve", ["--threads", "--control"]),
    ] {
        let output = DRYSTONE.run(folder.path(), &["help", topic]);
        assert_eq!(output.status.code(), Some(0));
        assert!(words.iter().all(|word| stdout(&output).contains(word)), "{topic}");
    }
    DRYSTONE.refuses(folder.path(), &["help", "nothing"], 2, &["no help on `nothing`"]);
    for words in [["help", "md", "create"], ["help", "log-writes", "list"]] {
        let help = stdout(&DRYSTONE.run(folder.path(), &words));
        assert!(help.contains("Usage: drystone ") && help.contains("--"), "{help}");
    }
    DRYSTONE.refuses(
        folder.path(),
        &["help", "md", "crate"],
        2,
        &["no help on `md crate`: `md` has create"],
    );
    let stack = stdout(&DRYSTONE.run(folder.path(), &["help", "stack"]));
    let longest = stack.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 100, "a line of {longest} columns");
    assert!(stack.contains("read_only = true"), "it has examples");
}

#[test]
fn wrong_usage_is_told_apart_from_refusal() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    DRYSTONE.refuses(at, &["sevre"], 2, &["serve"]);
    DRYSTONE.refuses(at, &["set", "d", "queue/nomerges"], 2, &["ATTR=VALUE", "queue/nomerges=2"]);
    DRYSTONE.refuses(at, &["iostat", "0"], 2, &["at least 1ms"]);
    DRYSTONE.refuses(at, &["iostat", "1", "0"], 2, &["COUNT"]);
    DRYSTONE.refuses(at, &["lockstat", "--hold", "yes"], 2, &["on or off"]);
    DRYSTONE.refuses(at, &["serve", "--threads", "5000"], 2, &["0..=1024"]);
    DRYSTONE.refuses(at, &["bench"], 2, &["--device"]);
    DRYSTONE.refuses(at, &["bench", "--stack", "s.toml"], 2, &["--name"]);
    DRYSTONE.refuses(at, &["bench", "--device", "null", "--bs", "100"], 2, &["multiple of 512"]);
    DRYSTONE.refuses(at, &["bench", "--device", "null", "--rw", "trim"], 2, &["randread"]);
    DRYSTONE.refuses(at, &["bench", "--device", "null,siez=1"], 1, &["--device:1:6", "`size`?"]);
    fs::write(at.join("s.toml"), GOOD).unwrap();
    DRYSTONE.refuses(at, &["bench", "--stack", "s.toml", "--name", "x"], 1, &["no device `x`"]);
}

#[test]
fn without_a_server_clients_say_where_they_looked() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let run = at.join("run");
    for command in [&["list"][..], &["show", "d"], &["set", "d", "a=1"], &["iostat"], &["lockstat"]]
    {
        DRYSTONE.refuses(at, command, 1, &["no server is running", run.to_str().unwrap()]);
    }
    DRYSTONE.refuses(at, &["list", "--control", "x.sock"], 1, &["no server answers at x.sock"]);
    fs::create_dir(&run).unwrap();
    drop(std::os::unix::net::UnixListener::bind(run.join("stale.sock")).unwrap());
    DRYSTONE.refuses(at, &["list"], 1, &["no server is running"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = TempDir::new().unwrap();
    let mut child = DRYSTONE
        .command(folder.path())
        .args(["help", "stack"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD).unwrap();
    // Long enough for one I/O on any machine.
    let bench = ["bench", "--device", "null", "--runtime", "1s", "--warmup", "1ms"];
    for arguments in [
        &["check", "s.toml"][..],
        &["check", "--json", "s.toml"],
        &["help", "stack"],
        &["--help"],
        &["--version"],
        &bench,
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = DRYSTONE.command(folder.path());
        let output = command.args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let message = stderr(&output);
        let sentence = "error: cannot write to the standard output: No space left on device";
        assert!(message.starts_with(sentence) && message.lines().count() == 1, "{message}");
    }
}

fn bench(folder: &Path, arguments: &[&str]) -> (serde_json::Value, String) {
    // Long enough for an I/O to end on a disk that others use.
    let words = ["bench", "--runtime", "500ms", "--warmup", "10ms", "--json", "b.json"];
    let output = DRYSTONE.run(folder, &[&words, arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    let text = fs::read_to_string(folder.join("b.json")).unwrap();
    (serde_json::from_str(&text).unwrap(), stdout(&output))
}

#[test]
fn a_benchmark_counts_what_it_promises() {
    let folder = TempDir::new().unwrap();
    let (json, text) = bench(folder.path(), &["--device", "null"]);
    let number = |key: &str| json[key].as_f64().unwrap_or_else(|| panic!("{key}: {json}"));
    assert!(text.contains("IOPS=") && text.contains("IOS/call=32/32"), "{text}");
    assert!(number("iops") > 0.0 && number("cpu_ns_per_io") > 0.0, "{json}");
    // The numbers went through decimal text, so they agree to many digits, not to all.
    let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(close(number("bytes_per_second"), number("iops") * 512.0), "{json}");
    assert!(close(number("wall_ns_per_io"), 1e9 / number("iops")), "{json}");
    assert_eq!(number("allocations_per_io"), 0.0);
    assert_eq!(number("lock_acquisitions_per_io"), 0.0);
    assert_eq!(number("lock_wait_ns_per_io"), 0.0);
    // One reading for 32 I/Os; a reading that became old while the thread was off the processor
    // is taken again, which on a busy machine is a few in a thousand.
    let reads = number("clock_reads_per_io") * 32.0;
    assert!((1.0..1.05).contains(&reads), "{reads} clock reads for 32 I/Os");
    let names = ["min", "p50", "p90", "p99", "p99.9", "p99.99", "max"];
    let latency: Vec<u64> =
        names.iter().map(|name| json["latency_ns"][name].as_u64().unwrap()).collect();
    assert!(latency.is_sorted() && latency[0] > 0, "{latency:?}");
    let configuration = &json["configuration"];
    for key in ["device", "threads", "depth", "batch", "bs", "rw", "runtime_ns", "warmup_ns"] {
        assert!(!configuration[key].is_null(), "{key}: {configuration}");
    }
    for key in ["kind", "size_bytes", "attributes", "engine", "machine", "version", "date"] {
        assert!(!configuration[key].is_null(), "{key}: {configuration}");
    }
}

#[test]
fn benchmarks_run_on_every_kind_of_device() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.toml"), GOOD).unwrap();
    for arguments in [
        &["--device", "ram,size=1MiB", "--rw", "write", "--threads", "2", "--bs", "4k"][..],
        &["--device", "null,irqmode=timer,completion_nsec=1us", "--depth", "4", "--batch", "2"],
        &["--device", "null,irqmode=thread", "--rw", "randwrite"],
        &["--device", "null", "--poll", "--depth", "8"],
        &["--device", "null,irqmode=thread,completion_nsec=10us", "--poll-mode", "adaptive"],
        &["--device", "null", "--rate", "1000", "--poll-mode", "interrupt"],
        &["--device", "file,path=f.img,size=1MiB", "--rw", "read", "--bs", "4k"],
        &["--device", "file,path=f.img,engine=plain", "--rw", "randwrite", "--bs", "4k"],
        &["--stack", "s.toml", "--name", "d", "--cpus", "0"],
    ] {
        let (json, _) = bench(folder.path(), arguments);
        assert!(json["ios"].as_u64().unwrap() > 0, "{arguments:?}: {json}");
        let of = |option| Some(arguments[arguments.iter().position(|a| *a == option)? + 1]);
        let by_itself = if arguments.contains(&"--poll") { "poll" } else { "adaptive" };
        let mode = of("--poll-mode").unwrap_or(by_itself);
        assert_eq!(json["configuration"]["mode"], mode, "{arguments:?}");
        if let Some(rate) = of("--rate") {
            // As many as were due at the least a moment ago, and none before its time.
            let most =
                rate.parse::<u64>().unwrap() * json["wall_ns"].as_u64().unwrap() / 1_000_000_000;
            assert!(json["ios"].as_u64().unwrap() <= most + 40, "{json}");
        }
    }
}

#[test]
fn a_filled_device_has_no_hole() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    // Not a whole number of writes, and more than are in flight together.
    let bytes = (9 << 20) + 4096;
    let file = format!("file,path=f.img,size={bytes}");
    let (json, _) = bench(at, &["--device", &file, "--bs", "4k", "--fill"]);
    assert_eq!(json["configuration"]["fill"], true);
    assert_eq!(json["configuration"]["rw"], "randread");
    assert!(fs::read(at.join("f.img")).unwrap() == vec![0xA5; bytes]);
    for device in ["ram,size=5MiB", "null,size=1MiB,memory_backed=true,irqmode=timer"] {
        let (json, _) = bench(at, &["--device", device, "--fill"]);
        assert!(json["ios"].as_u64().unwrap() > 0, "{device}");
    }
}

/// As `md create` refuses.
#[test]
fn benchmarks_do_not_write_over_a_file_system() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    // The magic number of ext4, in the superblock at 1 KiB.
    let mut image = vec![0; 4 << 20];
    image[1024..1024 + 4].copy_from_slice(&64u32.to_le_bytes());
    image[1024 + 4..1024 + 8].copy_from_slice(&4096u32.to_le_bytes());
    image[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xEF]);
    fs::write(at.join("f.img"), &image).unwrap();
    let device = ["--device", "file,path=f.img", "--bs", "4k"];
    let stack = "[device.f]\ntype = \"file\"\npath = \"f.img\"\n\
                 [device.v]\ntype = \"linear\"\nmembers = [\"f\"]\n";
    fs::write(at.join("s.toml"), stack).unwrap();
    let volume = ["--stack", "s.toml", "--name", "v", "--bs", "4k"];
    let words = ["appears to contain an ext", "--force overwrites it"];
    for device in [&device[..], &volume] {
        for writes in [&["--fill"][..], &["--rw", "randwrite"], &["--rw", "write"]] {
            DRYSTONE.refuses(at, &[&["bench"], device, writes].concat(), 1, &words);
        }
    }
    assert!(fs::read(at.join("f.img")).unwrap() == image, "it was written to");
    DRYSTONE.refuses(
        at,
        &[&["bench"], &device[..], &["--force"]].concat(),
        2,
        &["--force is for --fill"],
    );
    bench(at, &[&device[..], &["--fill", "--force"]].concat());
    assert!(fs::read(at.join("f.img")).unwrap() != image);
}

#[test]
fn what_an_interrupted_bench_has_measured_is_kept() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::write(at.join("b.json"), "the figures of yesterday").unwrap();
    let mut bench = DRYSTONE.command(at);
    let words = "bench --device null --runtime 3600s --warmup 1ms --json b.json";
    let bench = bench.args(words.split(' ')).stdout(Stdio::piped());
    let mut bench = bench.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(bench.stdout.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let text = std::io::read_to_string(&mut said).unwrap();
    assert!(text.contains("average: IOPS="), "{text}");
    let told = std::io::read_to_string(bench.stderr.take().unwrap()).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(0), "{told}");
    assert!(told.contains("note: stopped early"), "{told}");
    let json: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(at.join("b.json")).unwrap()).unwrap();
    assert!(json["configuration"]["stopped_early"] == true && json["ios"].as_u64() > Some(0));
}

#[test]
fn json_has_the_standard_output_to_itself() {
    let folder = TempDir::new().unwrap();
    let run = "bench --device null --runtime 1500ms --warmup 1ms --json -";
    let output = DRYSTONE.run(folder.path(), &run.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: Result<serde_json::Value, _> = serde_json::from_str(&stdout(&output));
    assert!(json.is_ok(), "{}", stdout(&output));
    assert!(!stderr(&output).is_empty(), "the lines are there too");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_bench_says_that_it_reads_holes() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let writes = ["bench", "--runtime", "2s", "--device", "file,path=w.img,size=256MiB"];
    let output = DRYSTONE.run(at, &[&writes[..], &["--rw", "randwrite"]].concat());
    let told = stderr(&output);
    assert!(told.contains("w.img is sparse: a write to one of its holes"), "{told}");
    let device = ["bench", "--runtime", "1s", "--device", "file,path=f.img,size=4MiB"];
    let output = DRYSTONE.run(at, &device);
    assert!(stderr(&output).contains("f.img is sparse"), "{}", stderr(&output));
    let output = DRYSTONE.run(at, &[&device[..], &["--fill"]].concat());
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert!(stdout(&output).contains("average: IOPS="), "{}", stdout(&output));
}

#[test]
fn benchmarks_do_not_write_past_what_stands_on_a_device() {
    let (folder, part) =
        (TempDir::new().unwrap(), ["--stack", "v.toml", "--name", "d", "--runtime", "1ms"]);
    let at = folder.path();
    let stack =
        "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n[device.v]\ntable = \"0 8 linear d 0\"\n";
    fs::write(at.join("v.toml"), stack).unwrap();
    for writes in [["--rw", "write"], ["--bs", "4k"]] {
        let more = if writes[0] == "--bs" { vec!["--fill"] } else { vec![] };
        let words = ["--name: `d` is part of `v`", "measure `v`, or only read"];
        DRYSTONE.refuses(at, &[&["bench"], &part[..], &writes[..], &more].concat(), 1, &words);
    }
    bench(at, &part[..4]);
}

#[test]
fn benchmarks_that_cannot_run_say_why() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let bench = |device: &str, more: &[&str], words: &[&str]| {
        let arguments = [&["bench", "--runtime", "1m", "--device", device], more].concat();
        DRYSTONE.refuses(at, &arguments, 1, words);
    };
    bench("ram,size=1MiB", &["--bs", "2MiB"], &["--bs", "too few"]);
    bench("null,blocksize=4096", &["--bs", "512"], &["--bs", "block of 4096"]);
    bench("ram,size=1KiB", &["--threads", "3", "--rw", "read"], &["3 blocks of 512"]);
    bench("ram,size=1MiB,read_only=true", &["--rw", "write"], &["--rw", "read-only"]);
    bench("null,badblocks=0-524287999", &[], &["read of 512 bytes at sector", "failed"]);
    bench("ram,size=1MiB,read_only=true", &["--fill"], &["--fill", "read-only"]);
    bench("null", &["--fill"], &["--fill", "memory_backed=true"]);
    bench(
        "null,memory_backed=true,badblocks=4000-4000",
        &["--fill"],
        &["--fill: a write", "failed"],
    );
    bench("null", &["--cpus", "8000"], &["--cpus", "8000"]);
    bench("ram,size=1MiB,queue.nr_requests=300", &[], &["at most 256"]);
    bench("file,path=none.img", &[], &["none.img does not exist"]);
}
