//! Volumes whose tables change under real clients.

#![forbid(unsafe_code)]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use system_tests::server::PATIENCE;
use system_tests::{Server, program, python, requires, run, stack};

const SECTORS: u64 = 64 << 11; // 64 MiB

/// A volume `v` over `d` behind the export `vol`.
fn volume(device: &str) -> String {
    format!(
        "[device.d]\n{device}size = \"64MiB\"\n[device.v]\ntable = \"0 {SECTORS} linear d 0\"\n{}",
        stack::export("vol", "v", "")
    )
}

const RAM: &str = "type = \"ram\"\n";
const FILE: &str = "type = \"file\"\npath = \"DIR/disk.img\"\n";

/// Tables that map the same sectors in the same order.
fn tables() -> [String; 4] {
    let (third, half) = (SECTORS / 3 / 8 * 8, SECTORS / 2);
    [
        format!("0 {SECTORS} linear d 0"),
        format!("0 {half} linear d 0\n{half} {half} linear d {half}"),
        format!("0 {SECTORS} striped 1 128 d 0"),
        format!("0 {third} striped 1 8 d 0\n{third} {} linear d {third}", SECTORS - third),
    ]
}

/// The completed I/O of a device, by its `stat`.
fn completed(server: &Server, device: &str) -> u64 {
    let answer: Value =
        serde_json::from_str(&server.ask(&["show", device, "--json"]).ok()).unwrap();
    let stat = answer["attributes"]["stat"].as_str().expect("the counters").to_owned();
    let numbers: Vec<u64> = stat.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers[0] + numbers[4]
}

/// The steps of a storm: each ends with the volume resumed, most by another table.
const STEPS: [fn(&Server, &str); 6] = [
    |server, table| _ = server.ask(&["reload", "v", "--now", "--table", table]).ok(),
    |server, table| {
        server.ask(&["suspend", "v"]).ok();
        server.ask(&["reload", "v", "--table", table]).ok();
        server.ask(&["resume", "v"]).ok();
    },
    |server, table| {
        server.ask(&["reload", "v", "--table", table]).ok();
        server.ask(&["suspend", "v", "--noflush"]).ok();
        server.ask(&["resume", "v"]).ok();
    },
    // A suspension, and a resume by the same table.
    |server, _| {
        server.ask(&["suspend", "v", "--noflush"]).ok();
        server.ask(&["suspend", "v"]).ok();
        server.ask(&["resume", "v"]).ok();
    },
    // A table that would lose all data is loaded, and cleared again.
    |server, _| {
        server.ask(&["reload", "v", "--table", &format!("0 {SECTORS} error")]).ok();
        server.ask(&["suspend", "v"]).ok();
        server.ask(&["clear", "v"]).ok();
        server.ask(&["resume", "v"]).ok();
    },
    // The volume becomes longer, with data beyond the end that clients know, and then as long as
    // before.
    |server, table| {
        let longer = format!("{table}\n{SECTORS} 4096 linear more 0");
        server.ask(&["reload", "v", "--now", "--table", &longer]).ok();
        assert_eq!(size(server, "v"), (SECTORS + 4096) * 512);
        server.ask(&["reload", "v", "--now", "--table", table]).ok();
        assert_eq!(size(server, "v"), SECTORS * 512);
    },
];

fn size(server: &Server, device: &str) -> u64 {
    let answer: Value =
        serde_json::from_str(&server.ask(&["show", device, "--json"]).ok()).unwrap();
    answer["size"].as_u64().expect("a size")
}

/// Goes through [`STEPS`] until told to stop, and counts them; I/O continues after each one.
fn storm_until(server: &Server, stop: &AtomicBool, steps: &AtomicUsize) {
    while !stop.load(Relaxed) {
        let step = steps.fetch_add(1, Relaxed);
        // Their numbers have no common divisor but 2, so each step comes with several tables.
        STEPS[step % STEPS.len()](server, &tables()[step / 2 % 4]);
        let (before, deadline) = (completed(server, "v"), Instant::now() + PATIENCE);
        while completed(server, "v") == before && !stop.load(Relaxed) {
            assert!(Instant::now() < deadline, "no I/O ends after step {step}");
        }
    }
}

/// Four jobs of fio verify their writes while the table changes. They run again where one run is
/// too short for all steps.
fn verified_in_a_storm(device: &str, seconds: u64) {
    if !requires("fio") {
        return;
    }
    let more = "[device.more]\ntype = \"ram\"\nsize = \"2MiB\"\n";
    let mut server = Server::start(&(volume(device) + more));
    let (uri, runtime) = (format!("--uri={}", server.uri("vol")), format!("--runtime={seconds}"));
    let words = [
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        &runtime,
        "--time_based",
        "--numjobs=4",
        "--size=16M",
        "--offset_increment=16M",
        "--iodepth=16",
        "--rw=randwrite",
        "--bsrange=4k-256k",
        "--verify=crc32c",
        "--verify_backlog=32",
        "--verify_fatal=1",
        "--do_verify=1",
        "--randseed=1",
        "--group_reporting",
        "--output-format=json",
    ];
    let (stop, steps, dir) = (AtomicBool::new(false), AtomicUsize::new(0), server.dir());
    let has_all_steps = || steps.load(Relaxed) >= 2 * STEPS.len();
    let runs = thread::scope(|scope| {
        let fio = scope.spawn(|| {
            let mut runs = vec![run(dir, &words)];
            while !has_all_steps() && runs.len() < 8 {
                runs.push(run(dir, &words));
            }
            stop.store(true, Relaxed);
            runs
        });
        storm_until(&server, &stop, &steps);
        fio.join().expect("no panic")
    });
    for outcome in runs {
        assert_verified(&outcome.ok(), seconds);
    }
    assert!(has_all_steps(), "only {} steps", steps.load(Relaxed));
}

/// Asserts that all jobs of fio ran for their time and verified what they wrote.
fn assert_verified(text: &str, seconds: u64) {
    let result: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("JSON");
    let job = &result["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    assert!(job["read"]["io_bytes"].as_u64() > Some(1 << 20), "it did verify: {job:#}");
    assert!(job["job_runtime"].as_u64() >= Some(4 * 1000 * seconds), "four jobs: {job:#}");
}

#[test]
fn fio_verifies_a_file_in_a_storm() {
    verified_in_a_storm(FILE, if env::var_os("DRYSTONE_LONG").is_some() { 30 } else { 8 });
}

#[test]
fn fio_verifies_ram_in_a_storm() {
    verified_in_a_storm(RAM, 5);
}

/// Connections of the export, as the server counts them.
fn connections(server: &Server) -> u64 {
    let answer: Value = serde_json::from_str(&server.ask(&["list", "--json"]).ok()).unwrap();
    answer["exports"][0]["connections"].as_u64().expect("a number")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "it did not come about that {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_client_that_is_killed_during_a_suspension_leaves_nothing() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&volume(FILE));
    let uri = server.uri("vol");
    server.ask(&["suspend", "v"]).ok();
    let script = "
        sent, said = os.pipe()
        client = os.fork()
        if client == 0:
            plain = negotiated()
            for n in range(16):
                plain.sendall(request(WRITE, n * 65536, 65536) + b'x' * 65536)
            plain.sendall(request(READ, 0, 4096))
            os.write(said, b'!')
            time.sleep(60)
        os.read(sent, 1)
        os.kill(client, 9)
        os.waitpid(client, 0)";
    python(server.dir(), &uri, script).ok();
    // The client has gone, but the volume holds its I/O like that of others.
    assert!(connections(&server) > 0);
    server.ask(&["reload", "v", "--now", "--table", &tables()[1]]).ok();
    until("the dead client's connection is closed", || connections(&server) == 0);
    let script = "
        h.pwrite(b'y' * 4096, 0)
        assert h.pread(4096, 0) == b'y' * 4096";
    python(server.dir(), &uri, script).ok();
    server.ask(&["suspend", "v"]).ok();
    server.ask(&["resume", "v"]).ok();
}

/// Held I/O fails at the end; data promised before is there.
#[test]
fn a_stop_during_a_suspension_ends_cleanly() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&volume(FILE));
    let uri = server.uri("vol");
    let script = format!(
        "
        h.pwrite(b'a' * 4096, 0)
        import subprocess
        subprocess.run([{:?}, 'suspend', 'v', '--control', {:?}], check=True)
        kept = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b'b' * 4096)), 4096 * n)
                for n in range(1, 9)]
        kept.append(h.aio_flush())
        h.poll(100)
        assert not any(map(h.aio_command_completed, kept))
        os.kill({}, 2)
        failed = []
        def ended(cookie):
            try:
                return h.aio_command_completed(cookie)
            except nbd.Error as error:
                failed.append(error.errnum)
                return True
        while kept := [cookie for cookie in kept if not ended(cookie)]:
            h.poll(-1)
        assert failed == [errno.EIO] * 9, failed",
        program().to_str().unwrap(),
        server.control(),
        server.pid()
    );
    python(server.dir(), &uri, &script).ok();
    assert_eq!(server.wait().code(), Some(0), "{}", server.messages());
    let image = std::fs::read(server.path("disk.img")).expect("the image");
    assert!(image[..4096].iter().all(|byte| *byte == b'a'), "what was promised");
    assert!(image[4096..65536].iter().all(|byte| *byte == 0), "what was kept");
}

#[test]
fn clients_see_a_volume_grow_when_they_come_again() {
    if !requires("nbdsh") || !requires("nbdinfo") {
        return;
    }
    let mut server = Server::start(&volume(FILE));
    let uri = server.uri("vol");
    server.ask(&["set", "d", "size=128MiB"]).ok();
    let script = format!(
        "
        import subprocess
        def control(*words):
            subprocess.run([{:?}, *words, '--control', {:?}], check=True)
        h.pwrite(b'a' * 4096, (64 << 20) - 4096)
        control('reload', 'v', '--now', '--table', '0 262144 linear d 0')
        assert h.get_size() == 64 << 20
        assert h.pread(4096, (64 << 20) - 4096) == b'a' * 4096
        again = connect(meta=True)
        assert again.get_size() == 128 << 20
        again.pwrite(b'b' * 4096, (128 << 20) - 4096)
        h.pwrite(b'c' * 4096, 0)
        control('reload', 'v', '--now', '--table', '0 131072 linear d 131072')
        assert h.pread(4096, (64 << 20) - 4096) == b'b' * 4096
        refused(errno.EIO, again.pread, 4096, 64 << 20)
        found = []
        note = lambda context, offset, entries, error: found.extend(entries)
        again.block_status(65536, 64 << 20, note)
        assert found == [65536, 0], found",
        program().to_str().unwrap(),
        server.control(),
    );
    python(server.dir(), &uri, &script).ok();
    let size = run(server.dir(), &["nbdinfo", "--size", &uri]).ok();
    assert_eq!(size.trim(), "67108864");
}

/// Asks over one connection to the control socket.
struct Control(BufReader<UnixStream>);

impl Control {
    fn connect(server: &Server) -> Self {
        Control(BufReader::new(UnixStream::connect(server.control()).expect("a connection")))
    }

    fn ask(&mut self, command: &str, mut arguments: Value, device: &str) {
        arguments["device"] = json!(device);
        let line = json!({ "command": command, "arguments": arguments }).to_string() + "\n";
        self.0.get_mut().write_all(line.as_bytes()).expect("the server listens");
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("an answer");
        assert!(answer.contains("result"), "{line}{answer}");
    }
}

/// Volumes that come and go leave next to nothing, used or not.
#[test]
fn ten_thousand_volumes_come_and_go() {
    const UNUSED: u64 = 10_000;
    const USED: u64 = 500;
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start_with(&volume(RAM), &["--threads", "2"]);
    let uri = server.uri("vol");
    let mut control = Control::connect(&server);
    let mut cycle = |n: u64| {
        let name = format!("w{n}");
        control.ask("create", json!({ "table": "0 8 linear d 0", "force": true }), &name);
        control.ask("remove", json!({}), &name);
    };
    (0..100).for_each(&mut cycle);
    let before = server.resident_kib();
    (0..UNUSED).for_each(&mut cycle);
    let unused = server.resident_kib().saturating_sub(before);
    println!("{UNUSED} volumes that nobody used left {unused} KiB");
    assert!(unused < UNUSED / 10, "{unused} KiB stay of {UNUSED} volumes");

    // The volumes are below a volume with clients, whose contexts open a channel for each.
    let before = server.resident_kib();
    let script = format!(
        "
        import json
        control = socket.socket(socket.AF_UNIX)
        control.connect({:?})
        answers = control.makefile()
        def ask(command, device, **arguments):
            line = json.dumps(dict(command=command, arguments=dict(arguments, device=device)))
            control.sendall(line.encode() + b'\\n')
            answer = answers.readline()
            assert 'result' in answer, answer
        for n in range({USED}):
            ask('create', f'u{{n}}', table='0 {SECTORS} linear d 0', force=True)
            ask('reload', 'v', table=f'0 {SECTORS} linear u{{n}} 0', now=True, force=True)
            h.pwrite(bytes([n % 256]) * 512, 0)
            assert h.pread(512, 0)[0] == n % 256
            if n:
                ask('remove', f'u{{n - 1}}')",
        server.control()
    );
    python(server.dir(), &uri, &script).ok();
    let used = server.resident_kib().saturating_sub(before);
    println!("{USED} volumes that were used left {used} KiB");
    assert!(used < USED * 64, "{used} KiB stay of {USED} volumes");
}
