//! External faults and hostile clients: one error each, no panic, no leak, others unharmed.

#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use system_tests::client::{Mount, requires_mounts};
use system_tests::server::PATIENCE;
use system_tests::{Server, new_folder, python, requires, stack};

/// Messages of a server under attack stay below this: an attacker must not fill the log's disk.
const MESSAGES_BYTES_MAX: usize = 1 << 20;

/// Runs a script against a file device of 8 MiB while `h`, a correct client, stays connected. Then
/// checks that `h` and a new client are served and that nothing leaked.
fn under_attack(script: &str) {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&stack::file("8MiB"));
    let uri = server.uri("vol");
    let script = format!(
        "
def descriptors():
    return len(os.listdir('/proc/{pid}/fd'))
def resident_kib():
    status = open('/proc/{pid}/status').read()
    return int(status.split('VmRSS:')[1].split()[0])
h.pwrite(b'b' * 4096, 1048576)
before = descriptors()
resident_before = resident_kib()
{script}
assert h.pread(4096, 1048576) == b'b' * 4096, 'the bystander is served'
assert connect().pread(4096, 1048576) == b'b' * 4096, 'a newcomer is served'
eventually(lambda: descriptors() <= before + 1, f'descriptors leak: {{before}}, now \
{{descriptors()}}')
",
        pid = server.pid(),
    );
    python(server.dir(), &uri, &script).ok();
    assert!(server.messages().len() < MESSAGES_BYTES_MAX, "the log was flooded");
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn garbage_on_the_socket() {
    under_attack(
        "
for garbage in (b'', b'GET / HTTP/1.1\\r\\n\\r\\n', bytes(65536), b'\\xff' * 65536, \
os.urandom(65536),
                struct.pack('>I', 3) + b'IHAVEOPT' + b'\\xff' * 8,
                struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>II', 7, 2**32 - 1) + \
                bytes(4096)):
    plain = unix_socket()
    exactly(plain, 18)
    try:
        plain.sendall(garbage)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65536):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass
    plain.close()",
    );
}

#[test]
fn garbage_after_the_negotiation() {
    under_attack(
        "
for garbage in (bytes(28), b'\\xff' * 28, os.urandom(4096), request(READ)[:27]):
    plain = negotiated()
    try:
        plain.sendall(garbage)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65536):
            pass
    except (BrokenPipeError, ConnectionResetError):
        pass
    plain.close()",
    );
}

#[test]
fn clients_that_vanish_in_mid_request() {
    under_attack(
        "
for _ in range(50):
    plain = negotiated()
    plain.sendall(request(WRITE, length=65536) + bytes(1000))
    plain.close()
for _ in range(50):
    plain = negotiated()
    plain.sendall(b''.join(request(READ, length=65536, cookie=n) for n in range(64)))
    plain.close()
for _ in range(10):
    plain = negotiated()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    plain.sendall(request(WRITE, length=4096, offset=4096) + bytes(4096) + request(FLUSH, \
    length=0)[:9])
    plain.close()",
    );
}

#[test]
fn slow_readers_do_not_take_the_servers_memory() {
    under_attack(
        "
greedy = [negotiated() for _ in range(16)]
for plain in greedy:
    plain.setblocking(False)
    try:
        for n in range(10000):
            plain.send(request(READ, length=1048576, cookie=n))
    except BlockingIOError:
        pass
for n in range(256):
    assert h.pread(4096, 1048576) == b'b' * 4096
grown = resident_kib() - resident_before
# The window of reads of each has 64 MiB, and a little for what is beside.
assert grown < 16 * (64 + 4) * 1024, f'16 clients that do not read take {grown} KiB'
for plain in greedy:
    plain.close()",
    );
}

/// The server may refuse some of them, or leave them in the accept queue. It must not crash, grow
/// without bound, or neglect its clients.
#[test]
fn ten_thousand_half_open_handshakes() {
    under_attack(
        "
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert hard == resource.RLIM_INFINITY or hard > 10100, f'this test needs 10100 descriptors, not \
{hard}'
resource.setrlimit(resource.RLIMIT_NOFILE, (10100, hard))
path = uri.split('socket=')[1].split('&')[0]
half_open, full = [], 0
for n in range(10000):
    plain = socket.socket(socket.AF_UNIX)
    plain.setblocking(False)
    for attempt in range(20 if full < 10 else 1):
        try:
            plain.connect(path)
            half_open.append(plain)
            break
        except BlockingIOError:
            time.sleep(0.005 if full < 10 else 0)
    else:
        full += 1
    if n % 1000 == 0:
        assert h.pread(4096, 1048576) == b'b' * 4096
assert len(half_open) >= 128, f'only {len(half_open)} connections were taken'
assert h.pread(4096, 1048576) == b'b' * 4096
grown = resident_kib() - resident_before
assert grown < 256 * 1024, f'{len(half_open)} half-open connections take {grown} KiB'
print(len(half_open), 'half open,', full, 'found the queue full')
for plain in half_open:
    plain.close()
def newcomer():
    try:
        connect()
        return True
    except nbd.Error:
        return False
eventually(newcomer, 'nobody gets in after the attack')",
    );
}

/// The image is on a tmpfs of 16 MiB, in a mount namespace of the server that ends with it.
#[test]
fn a_full_disk_reaches_the_client_and_the_server_lives_on() {
    if !requires("nbdsh") || !requires("unshare") {
        return;
    }
    let Some(unshare) = requires_mounts() else { return };
    let folder = new_folder();
    std::fs::create_dir(folder.path().join("small")).expect("a mount point");
    let _mount = Mount(folder.path().join("small"));
    let mount = "mount -t tmpfs -o size=16M tmpfs DIR/small && exec \"$@\"";
    let prefix = [unshare, &["sh", "-c", mount, "sh"]].concat();
    let text = stack::file("64MiB").replace("disk.img", "small/disk.img")
        + "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n"
        + &stack::export("other", "r", "");
    let mut server = Server::start_in(&folder, &text, &prefix);
    let uri = server.uri("vol");
    let script = "
        mib = 1048576
        written = 0
        try:
            while written < 64:
                h.pwrite(b'%c' % (65 + written) * mib, written * mib)
                written += 1
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, error
        assert 8 <= written <= 16, written
        for n in range(written):
            assert h.pread(mib, n * mib) == b'%c' % (65 + n) * mib, n
        other = nbd.NBD()
        other.connect_uri(uri.replace('/vol?', '/other?'))
        other.pwrite(b'o' * 4096, 0)
        assert other.pread(4096, 0) == b'o' * 4096
        h.trim(4 * mib, 0)
        h.pwrite(b'z' * mib, 40 * mib)
        assert h.pread(mib, 40 * mib) == b'z' * mib, 'freed space can be written again'";
    python(server.dir(), &uri, script).ok();
    assert!(server.is_running());
}

/// The members are on a tmpfs of 16 MiB: writes wait until there is room, and no member fails.
#[test]
fn an_array_on_a_full_disk_waits_for_room() {
    if !requires("nbdsh") || !requires("unshare") {
        return;
    }
    let Some(unshare) = requires_mounts() else { return };
    let folder = new_folder();
    std::fs::create_dir(folder.path().join("small")).expect("a mount point");
    let _mount = Mount(folder.path().join("small"));
    let mount = "mount -t tmpfs -o size=16M tmpfs DIR/small && \
                 dd if=/dev/zero of=DIR/small/filler bs=1M count=6 status=none && exec \"$@\"";
    let prefix = [unshare, &["sh", "-c", mount, "sh"]].concat();
    let text = stack::array("raid5", 3, "32MiB", "").replace("DIR/m", "DIR/small/m");
    let mut server = Server::start_in(&folder, &text, &prefix);
    let uri = server.uri("vol");
    // /proc/PID/root shows the server's mounts.
    let filler = format!("/proc/{}/root{}", server.pid(), server.path("small/filler"));
    let script = format!(
        "
import threading
mib, done = 1048576, []
def write():
    for n in range(8):
        h.pwrite(b'%c' % (65 + n) * mib, n * mib)
        done.append(n)
    h.flush()
    done.append('flushed')
writer = threading.Thread(target=write)
writer.start()
seen = -1
while seen != len(done):
    seen = len(done)
    time.sleep(2)
assert 0 < seen < 8, done
other = nbd.NBD()
other.connect_uri(uri)
assert other.pread(mib, 0) == b'A' * mib, 'reads go on'
os.remove('{filler}')
writer.join()
assert done[-1] == 'flushed', done
for n in range(8):
    assert h.pread(mib, n * mib) == b'%c' % (65 + n) * mib, n"
    );
    python(server.dir(), &uri, &script).ok();
    let status = server.ask(&["md", "status"]).ok();
    assert!(status.contains("[3/3] [UUU]") && !status.contains("(F)"), "{status}");
    assert!(server.messages().contains(" has no room: writes wait until it has"));
    stops_when_there_is_room(&mut server, &filler);
}

/// A server whose writes wait for room says so when it is told to stop, and stops when there is
/// room.
fn stops_when_there_is_room(server: &mut Server, filler: &str) {
    let uri = server.uri("vol");
    let script = format!(
        "
import threading
with open('{filler}', 'wb', 0) as filler:
    try:
        while True:
            filler.write(bytes(65536))
    except OSError:
        pass
threading.Thread(target=lambda: h.pwrite(b'Z' * 1048576, 12582912), daemon=True).start()
time.sleep(1)
os._exit(0)"
    );
    python(server.dir(), &uri, &script).ok();
    await_that(|| server.ask(&["md", "detail", "array"]).ok().contains("no room"));
    server.signal("TERM");
    await_that(|| server.messages().contains("array `array`: writes wait for room on m"));
    assert!(server.messages().contains("stop the server once more to give these writes up"));
    assert!(server.is_running(), "nothing is given up");
    std::fs::remove_file(filler).expect("the filler");
    assert!(server.wait().success(), "{}", server.messages());
}

fn await_that(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_file_truncated_below_gives_errors_and_harms_no_other_device() {
    if !requires("nbdsh") {
        return;
    }
    let text = stack::file("8MiB")
        + "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n"
        + &stack::export("other", "r", "");
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'a' * 8388608, 0); h.flush()").ok();
    let image = OpenOptions::new().write(true).open(server.path("disk.img")).expect("the image");
    image.set_len(4 << 20).expect("it shrinks");
    let script = "
        refused(errno.EIO, h.pread, 4096, 6 * 1048576)
        refused(errno.EIO, h.pread, 8192, 4 * 1048576 - 4096)
        refused(errno.EIO, h.pread, 4096, 0)  # all of it, until it is opened again
        other = nbd.NBD()
        other.connect_uri(uri.replace('/vol?', '/other?'))
        other.pwrite(b'o' * 4096, 0)
        assert other.pread(4096, 0) == b'o' * 4096";
    python(server.dir(), &uri, script).ok();
    assert!(server.is_running());
}
