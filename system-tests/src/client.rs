//! Clients that others wrote, run with their output caught.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::server::PATIENCE;

/// The result of a client.
#[derive(Debug)]
pub struct Outcome {
    /// True if it reported success.
    pub succeeded: bool,
    /// Its exit status, if no signal has ended it.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// Its standard output, after checking that it succeeded.
    pub fn ok(self) -> String {
        assert!(self.succeeded, "the client failed\n{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Its standard error, after checking that it failed by itself and was not killed.
    pub fn refused(self) -> String {
        assert!(!self.succeeded, "the client should have failed\n{}", self.stdout);
        self.stderr
    }

    fn of(output: Output, command: &str) -> Outcome {
        let outcome = Outcome {
            succeeded: output.status.success(),
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        // 124 is `timeout` saying that the time is over; no code means a signal.
        let hung = output.status.code().is_none_or(|code| code == 124);
        assert!(!hung, "{command} hung or was killed: {outcome:#?}");
        outcome
    }
}

/// Tells whether the test can go on with a tool. A missing tool fails the test. With
/// `DRYSTONE_SKIP_MISSING=1` it prints a line that begins with SKIPPED, and the result is false.
#[must_use]
pub fn requires(tool: &str) -> bool {
    demand(exists(tool), &format!("the tool {tool} is not installed"))
}

/// The same for the right to mount. Gives a command prefix that runs the rest in mounts of its own,
/// which end with it: in a user namespace, or, where that is refused (in a chroot), as root.
#[must_use]
pub fn requires_mounts() -> Option<&'static [&'static str]> {
    const PREFIXES: [&[&str]; 2] =
        [&["unshare", "-Urm"], &["unshare", "-m", "--propagation", "unchanged"]];
    let found = PREFIXES.into_iter().find(|prefix| may_mount(prefix));
    let _ = demand(found.is_some(), "there is no right to mount a tmpfs");
    found
}

fn may_mount(prefix: &[&str]) -> bool {
    // Mounted and taken away again, so that nothing is left where the mounts are shared.
    const PROBE: &str = "mount -t tmpfs tmpfs /mnt && umount /mnt";
    let mut probe = Command::new(prefix[0]);
    let status = probe.args(&prefix[1..]).args(["sh", "-c", PROBE]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Takes a mount away if it reached the test's own mounts (they are shared with those of a prefix
/// of [`requires_mounts`] in a chroot on some machines), so that the folder can be removed.
#[derive(Debug)]
pub struct Mount(pub PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Tells whether the test can go on. An unmet condition fails the test with the sentence. With
/// `DRYSTONE_SKIP_MISSING=1` it prints a line that begins with SKIPPED, and the result is false.
#[must_use]
pub fn demand(met: bool, what: &str) -> bool {
    if !met {
        let skip = std::env::var_os("DRYSTONE_SKIP_MISSING").is_some_and(|value| value == "1");
        assert!(skip, "{what}: install it, or set DRYSTONE_SKIP_MISSING=1 to skip such tests");
        eprintln!("SKIPPED: {what}");
    }
    met
}

fn exists(tool: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    Path::new(tool).is_absolute() && Path::new(tool).exists()
        || folders.into_iter().any(|folder| Path::new(folder).join(tool).is_file())
}

/// Runs a client in a folder and catches its output.
pub fn run(folder: &Path, words: &[&str]) -> Outcome {
    let output = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .args(words)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{words:?}: {error}"));
    Outcome::of(output, words[0])
}

/// Runs a line of shell in a folder. `$1` and so on are the arguments.
pub fn shell(folder: &Path, line: &str, arguments: &[&str]) -> Outcome {
    let mut words = vec!["bash", "-euo", "pipefail", "-c", line, "bash"];
    words.extend(arguments);
    run(folder, &words)
}

/// Runs a Python script that drives an NBD server through libnbd. A prelude (`PRELUDE`) gives it
/// `h`, a handle that is connected to `uri`, bare sockets, and helpers that check refusals.
pub fn python(folder: &Path, uri: &str, script: &str) -> Outcome {
    // Debian's own Python: others on PATH do not see Debian's modules.
    let mut child = Command::new("timeout")
        .args([&PATIENCE.as_secs().to_string(), "/usr/bin/python3", "-", uri])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python3 runs");
    let text = format!("{PRELUDE}\n{}\n", unindented(script));
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("python3 reads");
    Outcome::of(child.wait_with_output().expect("python3 ends"), "python3")
}

/// Takes away the indentation that a script has from standing in Rust source: that of its first
/// line that is not blank.
fn unindented(script: &str) -> String {
    let first = script.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let indentation = &first[..first.len() - first.trim_start().len()];
    let lines = script.lines().map(|line| line.strip_prefix(indentation).unwrap_or(line.trim()));
    lines.collect::<Vec<_>>().join("\n")
}

/// The beginning of every Python script.
const PRELUDE: &str = r#"
import errno, os, socket, struct, sys, time
import nbd

uri = sys.argv[1]

def connect(strict=True, meta=False, structured=True):
    """A connected handle; without strict, libnbd lets wrong requests through to the server."""
    handle = nbd.NBD()
    handle.set_uri_allow_local_file(True)
    handle.set_request_structured_replies(structured)
    if meta:
        handle.add_meta_context("base:allocation")
    if not strict:
        handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle

def refused(number, function, *arguments, **named):
    """Checks that a request is refused with this error number."""
    try:
        function(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == number, f"wanted {errno.errorcode[number]}, got {error}"
    else:
        raise AssertionError(f"wanted {errno.errorcode[number]}, got success")

def unix_socket():
    """A bare connection to the server's socket."""
    path = uri.split("socket=")[1].split("&")[0]
    plain = socket.socket(socket.AF_UNIX)
    plain.settimeout(30)
    plain.connect(path)
    return plain

def exactly(plain, count):
    """Reads count bytes from a bare connection."""
    data = b""
    while len(data) < count:
        part = plain.recv(count - len(data))
        assert part, f"the server hung up after {len(data)} of {count} bytes"
        data += part
    return data

def negotiated(name=b"vol"):
    """A bare connection that has been negotiated without structured replies."""
    plain = unix_socket()
    assert exactly(plain, 16) == b"NBDMAGICIHAVEOPT"
    exactly(plain, 2)
    go = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    plain.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 7, len(go)) + go)
    while True:
        magic, option, kind, length = struct.unpack(">QIII", exactly(plain, 20))
        assert magic == 0x3E889045565A9 and option == 7, (magic, option)
        exactly(plain, length)
        if kind == 1:
            return plain
        assert kind == 3, f"the server refused with {kind:#x}"

READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)

def request(kind, offset=0, length=512, flags=0, cookie=7):
    return struct.pack(">IHHQQI", 0x25609513, flags, kind, cookie, offset, length)

def reply(plain):
    """Reads one simple reply; returns its error number and its cookie."""
    magic, error, cookie = struct.unpack(">IIQ", exactly(plain, 16))
    assert magic == 0x67446698, hex(magic)
    return error, cookie

def eventually(condition, what):
    """Waits for something that must come to pass."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)

h = connect()
"#;

/// Makes an authority and a server's certificate for localhost in `folder/pki`, under the names
/// that libnbd and qemu expect.
pub fn make_certificates(folder: &Path) {
    let pki = folder.join("pki");
    fs::create_dir(&pki).expect("a new folder");
    let template = |name: &str, text: &str| {
        fs::write(pki.join(name), text).expect("a template is written");
    };
    template(
        "ca.info",
        "cn = drystone test authority\nca\ncert_signing_key\nexpiration_days = 2\n",
    );
    template(
        "server.info",
        "cn = localhost\ndns_name = localhost\nip_address = 127.0.0.1\ntls_www_server\n\
         encryption_key\nsigning_key\nexpiration_days = 2\n",
    );
    let script = "
        certtool --generate-privkey --outfile ca-key.pem
        certtool --generate-self-signed --load-privkey ca-key.pem --template ca.info \
            --outfile ca-cert.pem
        certtool --generate-privkey --outfile server-key.pem
        certtool --generate-certificate --load-ca-certificate ca-cert.pem \
            --load-ca-privkey ca-key.pem --load-privkey server-key.pem --template server.info \
            --outfile server-cert.pem";
    shell(&pki, script, &[]).ok();
}

/// Makes a certificate of the same authority for a client, in `folder/NAME` with the names that
/// libnbd expects. `lines` are those of a certtool template, as `cn = alice`.
pub fn make_client_certificate(folder: &Path, name: &str, lines: &str) {
    let own = folder.join(name);
    fs::create_dir(&own).expect("a new folder");
    let template = format!("{lines}\ntls_www_client\nsigning_key\nexpiration_days = 2\n");
    fs::write(own.join("client.info"), template).expect("a template is written");
    let script = "
        cp ../pki/ca-cert.pem .
        certtool --generate-privkey --outfile client-key.pem
        certtool --generate-certificate --load-ca-certificate ca-cert.pem \
            --load-ca-privkey ../pki/ca-key.pem --load-privkey client-key.pem \
            --template client.info --outfile client-cert.pem";
    shell(&own, script, &[]).ok();
}
