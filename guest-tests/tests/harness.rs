//! The harness itself: input and output of a guest, and an end of every wait for one.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guest_tests::{Disk, Guest, GuestErrorKind, PATIENCE, available};

#[test]
fn commands_have_statuses_inputs_and_outputs() {
    if !available() {
        return;
    }
    let mut guest = Guest::builder().start();
    assert_eq!(guest.run("true").status, 0);
    assert_eq!(guest.run("exit 37").status, 37);
    assert_eq!(guest.run("kill -9 $$").status, 128 + 9);
    assert_eq!(guest.run("no-such-command").status, 127);

    let output = guest.run("echo out; echo err >&2; false");
    assert_eq!(
        (output.status, output.stdout, output.stderr),
        (1, b"out\n".to_vec(), b"err\n".to_vec())
    );

    // Heads of answers, marks of an end and no newline at the end mean nothing.
    let text = "0 0 0\n\n1 2 3\nEOF\n'\"$HOME`x`\\";
    assert_eq!(guest.run_with_input("cat", text.as_bytes()).text(), text);
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_003).collect();
    assert_eq!(guest.run_with_input("cat; cat /run/input >&2", &bytes).stdout, bytes);
    let output = guest.run_with_input("cat >/tmp/kept; cat /tmp/kept >&2", &bytes);
    assert_eq!((output.stdout.len(), output.stderr), (0, bytes));
    // Lines of a script, which keeps the files of those before it.
    assert_eq!(guest.run("cd /tmp\nfor name in *\ndo echo $name; done").ok(), "kept\n");
    assert_eq!(guest.run("sleep 1000 & echo $PWD").ok(), "/\n");
}

#[test]
fn a_command_without_end_is_a_time_out_with_the_console() {
    if !available() {
        return;
    }
    let mut guest = Guest::builder().start();
    guest.run("echo now it hangs >/dev/console").ok();
    let error = guest.try_run("sleep 1000000", &[], Duration::from_secs(1)).expect_err("it hangs");
    assert_eq!(error.kind, GuestErrorKind::TimedOut);
    assert!(error.console.contains("now it hangs"), "{error}");
    assert!(error.to_string().contains("sleep 1000000"), "{error}");
    assert!(!runs(guest.pid()), "it has been killed");
    let error = guest.try_run("true", &[], PATIENCE).expect_err("there is no guest");
    assert_eq!(error.kind, GuestErrorKind::Ended);
}

#[test]
fn a_panic_is_an_error_with_the_console() {
    if !available() {
        return;
    }
    let mut guest = Guest::builder().start();
    let error = guest.try_run("echo c >/proc/sysrq-trigger", &[], PATIENCE).expect_err("a panic");
    assert_eq!(error.kind, GuestErrorKind::Ended);
    assert!(error.console.contains("Kernel panic - not syncing"), "{error}");
}

#[test]
fn what_qemu_refuses_is_an_error_with_its_message() {
    if !available() {
        return;
    }
    let disk = Disk::virtio("/no/such/disk");
    let error = Guest::builder().disk("d", disk).try_start().expect_err("no disk");
    assert_eq!(error.kind, GuestErrorKind::Ended);
    assert!(error.console.contains("/no/such/disk"), "{error}");
    let error = Guest::builder().program("no-such-program").try_start().expect_err("no program");
    assert_eq!(error.kind, GuestErrorKind::NotStarted);
}

#[test]
fn disks_files_programs_and_modules_are_there() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, file] = ["a", "b,c", "file"].map(|name| folder.path().join(name));
    fs::write(&first, [1; 16384]).expect("an image");
    fs::write(&second, [2; 8192]).expect("an image");
    fs::write(&file, "from the host").expect("a file");
    let mut guest = Guest::builder()
        .memory_mib(384)
        .cpus(1)
        .kernel_args("nvme.poll_queues=1")
        .disk("first", Disk::nvme(&first).block_size(4096))
        .disk("second", Disk::virtio(&second))
        .file(&file, "/srv/deep/file")
        .program("/bin/ls")
        .start();
    assert_eq!(guest.run("nproc; cat /sys/module/nvme/parameters/poll_queues").ok(), "1\n1\n");
    let size = |name| format!("blockdev --getsize64 {name}; blockdev --getss {name}");
    assert_eq!(guest.run(&size("/dev/disk/first")).ok(), "16384\n4096\n");
    assert_eq!(guest.run(&size("/dev/disk/second")).ok(), "8192\n512\n");
    assert_eq!(guest.run("cat /srv/deep/file").ok(), "from the host");
    // Debian's, not busybox's: it is linked with libraries.
    assert!(guest.run("/bin/ls --version").ok().contains("GNU coreutils"));
    for module in ["dm-mod", "nbd", "ublk_drv", "raid456", "ext4", "nvme"] {
        guest.run(&format!("modprobe {module}")).ok();
    }
    guest.run("modprobe no-such-module").refused();

    // The file holds the guest's writes once the guest has gone.
    guest.run("head -c 4096 /dev/disk/second | tr '\\002' x | dd of=/dev/disk/second bs=4k").ok();
    guest.power_off().expect("it powers off");
    let content = fs::read(&second).expect("the image");
    assert_eq!(content, [vec![b'x'; 4096], vec![2; 4096]].concat());
}

/// The name of the function below, which is run in a process of its own.
const HOLDER: &str = "holds_a_guest";

#[test]
fn a_killed_test_leaves_no_guest_behind() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for what the killed test leaves");
    let mut holder = Command::new(std::env::current_exe().expect("a path"))
        .args([HOLDER, "--exact", "--ignored", "--nocapture"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program runs");
    let lines = BufReader::new(holder.stdout.take().expect("a pipe")).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("pid ")?.parse().ok());
    let pid = pid.expect("the guest's process id");
    assert!(runs(pid));
    // Stopped, it cannot see its test hang up and end by itself.
    signal("STOP", pid);
    holder.kill().expect("our child");
    holder.wait().expect("our child");
    let deadline = Instant::now() + Duration::from_secs(60);
    while runs(pid) && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    if runs(pid) {
        signal("KILL", pid);
        panic!("QEMU goes on without its test");
    }
}

/// Not a test itself: [`a_killed_test_leaves_no_guest_behind`] kills this function's process.
#[test]
#[ignore = "run by a_killed_test_leaves_no_guest_behind"]
fn holds_a_guest() {
    let mut guest = Guest::builder().start();
    println!("\npid {}", guest.pid());
    guest.run("sleep 1000000");
}

fn signal(name: &str, pid: u32) {
    let words = [format!("-{name}"), pid.to_string()];
    assert!(Command::new("kill").args(words).status().expect("kill runs").success());
}

/// True if a process is QEMU and has not ended.
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let is = |line: &str| status.lines().any(|found| found.starts_with(line));
    Path::new(&format!("/proc/{pid}")).exists() && is("Name:\tqemu") && !is("State:\tZ")
}
