//! Operations of Linux and mdadm on an array, in the guest.

use guest_tests::Guest;
use std::io::Write as _;
use std::process::{Command, Stdio};

use crate::arrays::{Array, DATA_BYTES};
use crate::writes::Write;

const MD: &str = "/sys/block/md0/md";

/// Waits until the array is idle. A requested action may take a moment to begin.
fn idle() -> String {
    format!("sleep 0.2; until grep -q idle {MD}/sync_action; do sleep 0.05; done\n")
}

fn devices(array: &Array) -> String {
    let paths: Vec<String> = array.members().map(|name| format!("/dev/mapper/{name}")).collect();
    paths.join(" ")
}

fn write(writes: &[Write]) -> String {
    let line = |write: &Write| {
        format!(
            "dd if=/blob of=/dev/md0 bs=512 skip={} seek={} count={} conv=notrunc 2>/dev/null\n",
            write.from, write.to, write.sectors
        )
    };
    let lines: String = writes.iter().map(line).collect();
    format!("{lines}sync /dev/md0 || sync\n")
}

/// Prints the checksum of the array's contents, read from its members.
fn sum() -> String {
    let blocks = DATA_BYTES / 65536;
    format!("dd if=/dev/md0 bs=64k count={blocks} iflag=direct 2>/dev/null | md5sum | cut -c1-32\n")
}

fn check() -> String {
    format!("echo check >{MD}/sync_action\n{}cat {MD}/mismatch_cnt {MD}/degraded\n", idle())
}

fn start(array: &Array) -> String {
    format!(
        "mdadm --assemble --run /dev/md0 {} 2>&1 >/dev/null | grep -v started >&2\n",
        devices(array)
    )
}

const STOP: &str = "mdadm --stop /dev/md0 2>/dev/null\n";

/// Runs a script in the guest, of which every line must succeed but where it says otherwise.
fn run(guest: &mut Guest, array: &Array, script: &str) -> String {
    let whole = format!("export MDADM_NO_UDEV=1\n{script}");
    let output = guest.run(&whole);
    assert_eq!(output.status, 0, "{}: {}\n{whole}", array.name, output.errors());
    output.ok()
}

/// mdadm makes the array, and Linux fills it.
pub fn make(guest: &mut Guest, array: &Array, writes: &[Write]) {
    let create = format!(
        "{}mdadm --create /dev/md0 --run --metadata=1.2 {} {} >/dev/null 2>/tmp/e || \
         {{ cat /tmp/e >&2; exit 1; }}\n",
        array.map(),
        array.shape.options().join(" "),
        devices(array)
    );
    let script = create + &idle() + &write(writes) + &sum() + STOP;
    assert_eq!(
        run(guest, array, &script).trim(),
        md5(&array.data),
        "{}: made by mdadm",
        array.name
    );
}

/// Linux finds the expected contents, and parity that fits.
pub fn find(guest: &mut Guest, array: &Array) {
    let script = array.map() + &start(array) + &idle() + &sum() + &check() + STOP;
    let expected = format!("{}\n0\n0\n", md5(&array.data));
    assert_eq!(run(guest, array, &script), expected, "{}: found by Linux", array.name);
}

/// Linux loses member `lost` of the array, writes to the rest, and rebuilds the member.
pub fn rebuild(guest: &mut Guest, array: &Array, lost: usize, degraded: &[Write], then: &[Write]) {
    let device = format!("/dev/mapper/{}", array.member(lost));
    let forget = match array.shape.policy {
        "bitmap" => String::new(),
        _ => format!("mdadm --zero-superblock {device}\n"),
    };
    let lose = format!(
        "mdadm /dev/md0 --fail {device} 2>/dev/null\nsleep 0.2\n\
         until mdadm /dev/md0 --remove {device} 2>/dev/null; do sleep 0.05; done\n\
         cat {MD}/degraded\n"
    );
    let add = format!("{forget}mdadm /dev/md0 --add {device} 2>/dev/null\n");
    let steps =
        [start(array), idle(), lose, write(degraded), add, idle(), write(then), sum(), check()];
    let expected = format!("1\n{}\n0\n0\n", md5(&array.data));
    let script = steps.concat() + STOP;
    assert_eq!(run(guest, array, &script), expected, "{}: rebuilt by Linux", array.name);
}

/// As the guest's `md5sum` has it.
fn md5(bytes: &[u8]) -> String {
    let mut sum = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("md5sum runs");
    sum.stdin.take().expect("a pipe").write_all(bytes).expect("it reads");
    let output = sum.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout[..32]).into_owned()
}
