//! Clients that request much and read no replies: their cost, and the memory after they have gone.

#![forbid(unsafe_code)]

use system_tests::client::make_certificates;
use system_tests::{Server, new_folder, python, requires, stack};

/// Clients that take none of their replies.
const CLIENTS: u32 = 40;
const BUDGET_MIB: u32 = 64;

/// Lets [`CLIENTS`] clients ask for `requests` reads of `bytes` each and take no replies, while
/// others are served. The server's memory stays below the budget and `each_kib` for each of them,
/// and shrinks again.
fn takes_nothing(keys: &str, (requests, bytes): (u32, u32), each_kib: u32) {
    if !requires("nbdsh") || !requires("certtool") {
        return;
    }
    let folder = new_folder();
    make_certificates(folder.path());
    let device = "[device.d]\ntype = \"ram\"\nsize = \"64MiB\"\n";
    let text = format!(
        "[server]\nthreads = 2\nmemory = \"{BUDGET_MIB}MiB\"\n{device}{}",
        stack::export("vol", "d", keys)
    );
    let mut server = Server::start_in(&folder, &text, &[]);
    let mut uri = server.uri("vol");
    if !keys.is_empty() {
        uri = format!("{uri}&tls-certificates={}", server.path("pki"));
    }
    let script = format!(
        "
        def status(key):
            text = open('/proc/{pid}/status').read()
            return int(text.split(key + ':')[1].split()[0])
        h.pwrite(b'b' * 4096, 1048576)
        before = status('VmRSS')
        clients = [connect() for _ in range({CLIENTS})]
        for client in clients:
            for _ in range({requests}):
                client.aio_pread(nbd.Buffer({bytes}), 0)
        few = min({CLIENTS} * {requests} * {bytes} // 1024, {BUDGET_MIB} * 1024) // 4
        eventually(lambda: status('VmRSS') > before + few, 'they have got memory')
        for number in range(300):
            assert h.pread(4096, 1048576) == b'b' * 4096, 'others are served'
            h.pwrite(b'b' * 65536, 1048576)
        assert connect().pread(4096, 1048576) == b'b' * 4096, 'newcomers are, too'
        most = status('VmHWM') - before
        bound = {BUDGET_MIB} * 1024 + {CLIENTS} * {each_kib} + 8192
        assert most <= bound, f'{{most}} KiB, where {{bound}} are allowed'
        clients.clear()
        left = lambda: status('VmRSS') - before
        # The data threads keep 8 MiB each that their rings know.
        eventually(lambda: left() < 24576, f'memory goes back: of {{left()}} KiB it does not')
        print(f'{{most}} KiB of {{bound}}, {{left()}} KiB left')",
        pid = server.pid()
    );
    print!("{}", python(server.dir(), &uri, &script).ok());
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn long_reads_that_nobody_takes_are_bounded() {
    takes_nothing("", (3, 32 << 20), 640);
}

#[test]
fn the_memory_of_short_reads_goes_back() {
    // A run without io_uring took 103 MiB, which is 6 MiB more than with 640. The cause is unknown.
    takes_nothing("", (250, 4 << 10), 1024);
}

#[test]
fn reads_over_tls_that_nobody_takes_are_bounded() {
    takes_nothing(stack::TLS_REQUIRED, (3, 32 << 20), 1536);
}

/// Clients of a group with a low limit ask for far more writes than there is memory. Others of its
/// device, in another group and in none, progress with long requests meanwhile.
#[test]
fn a_limited_group_leaves_memory_to_others() {
    if !requires("nbdsh") {
        return;
    }
    let folder = new_folder();
    let export = |name: &str, group: &str| {
        let export = stack::export(name, "d", &format!("group = \"{group}\""));
        export.replace("nbd.sock", &format!("{name}.sock"))
    };
    let exports = [export("vol", "slow"), export("other", "other"), export("free", "/")].concat();
    let text = format!(
        "[server]\nthreads = 2\nmemory = \"16MiB\"\n[device.d]\ntype = \"ram\"\nsize = \"64MiB\"\n\
         {exports}[group.slow]\nio.max = \"d wbps=4KiB\"\n[group.other]\n"
    );
    let mut server = Server::start_in(&folder, &text, &[]);
    let uri = server.uri("vol");
    let script = format!(
        "
        def resident():
            text = open('/proc/{pid}/status').read()
            return int(text.split('VmRSS:')[1].split()[0])
        def to(name):
            handle = nbd.NBD()
            handle.set_uri_allow_local_file(True)
            handle.connect_uri(uri.replace('vol', name))
            return handle
        before = resident()
        flood = [connect() for _ in range(4)]
        data = nbd.Buffer.from_bytearray(bytearray(b'f' * 1048576))
        writes = [(c, c.aio_pwrite(data, n * 1048576)) for c in flood for n in range(32)]
        def written():
            global writes
            for client in flood:
                client.poll(0)
            writes = [(c, cookie) for c, cookie in writes if not c.aio_command_completed(cookie)]
            return 128 - len(writes)
        eventually(lambda: written() < 128 and resident() > before + 8192, 'the flood is there')
        begin = written()
        others = [to('other'), to('free')]
        done, left = [0, 0], [[], []]
        while sum(done) < 64 and written() < begin + 2:
            for number, client in enumerate(others):
                while done[number] + len(left[number]) < 32 and len(left[number]) < 2:
                    left[number].append(client.aio_pread(nbd.Buffer(2097152), 0))
                client.poll(5)
                rest = [c for c in left[number] if not client.aio_command_completed(c)]
                done[number] += len(left[number]) - len(rest)
                left[number] = rest
        assert sum(done) == 64, f'{{done}} reads beside {{written() - begin}} writes'
        print(f'64 reads beside {{written() - begin}} writes of the flood')
        assert written() < 128, 'the flood still waits'",
        pid = server.pid()
    );
    print!("{}", python(server.dir(), &uri, &script).ok());
    assert!(server.sigterm().success(), "{}", server.messages());
}
