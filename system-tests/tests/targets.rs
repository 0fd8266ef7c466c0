//! `error`, `flakey` and `delay` below real clients: each follows its table, and does no more.

#![forbid(unsafe_code)]

use system_tests::{Server, new_folder, program, python, requires, run, stack};

const SECTORS: u64 = 16 << 11; // 16 MiB

/// A server of a volume `v` by `table` over a file `d`.
fn server(table: &str) -> Server {
    Server::start(&format!(
        "[device.d]\ntype = \"file\"\npath = \"DIR/d.img\"\nsize = \"16MiB\"\n\
         [device.v]\ntable = \"\"\"\n{table}\n\"\"\"\n{}",
        stack::export("vol", "v", "")
    ))
}

#[test]
fn error_fails_where_it_is_and_nowhere_else() {
    if !requires("nbdsh") {
        return;
    }
    let half = SECTORS / 2;
    let mut server = server(&format!("0 {half} linear d 0\n{half} {half} error"));
    let uri = server.uri("vol");
    let script = "
        half = h.get_size() // 2
        h.pwrite(b'a' * 4096, half - 4096)
        for offset, size in [(half, 4096), (half - 4096, 8192), (2 * half - 512, 512)]:
            refused(errno.EIO, h.pread, size, offset)
            refused(errno.EIO, h.pwrite, b'x' * size, offset)
        refused(errno.EIO, h.trim, 4096, half)
        h.flush()
        assert h.pread(4096, 0) == bytes(4096)";
    python(server.dir(), &uri, script).ok();
    server.ask(&["reload", "v", "--now", "--table", &format!("0 {SECTORS} linear d 0")]).ok();
    let script = "
        h.pwrite(b'b' * 4096, h.get_size() - 4096)
        assert h.pread(4096, h.get_size() - 4096) == b'b' * 4096";
    python(server.dir(), &uri, script).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn flakey_fails_drops_or_changes_what_it_is_told_to() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = server(&format!("0 {SECTORS} flakey d 0 1 0"));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'a' * 4096, 0); h.flush()").ok();
    let expected = [
        // Down all the time, in one way or another.
        (
            "0 1",
            "refused(errno.EIO, h.pread, 512, 0)
             refused(errno.EIO, h.pwrite, b'x' * 512, 0)
             refused(errno.EIO, h.flush)",
        ),
        (
            "0 1 1 error_writes",
            "assert h.pread(4096, 0) == b'a' * 4096
             refused(errno.EIO, h.pwrite, b'x' * 512, 0)
             refused(errno.EIO, h.trim, 4096, 0)",
        ),
        (
            "0 1 1 error_reads",
            "refused(errno.EIO, h.pread, 512, 0)
             h.pwrite(b'c' * 4096, 4096)",
        ),
        (
            "0 1 1 drop_writes",
            "h.pwrite(b'd' * 4096, 0)
             h.flush()
             assert h.pread(4096, 0) == b'a' * 4096",
        ),
        ("0 1 5 corrupt_bio_byte 3 r 122 0", "assert h.pread(4096, 0) == b'aaz' + b'a' * 4093"),
        // And up again: nothing of that stays.
        (
            "1 0",
            "assert h.pread(4096, 0) == b'a' * 4096
             assert h.pread(4096, 4096) == b'c' * 4096
             h.pwrite(b'e' * 4096, 0)
             assert h.pread(4096, 0) == b'e' * 4096",
        ),
    ];
    for (arguments, script) in expected {
        let table = format!("0 {SECTORS} flakey d 0 {arguments}");
        server.ask(&["reload", "v", "--now", "--table", &table]).ok();
        let lines: Vec<&str> = script.lines().map(str::trim).collect();
        python(server.dir(), &uri, &lines.join("\n")).ok();
    }
    // The device fails by turns, while a client polls.
    let table = format!("0 {SECTORS} flakey d 0 1 1");
    server.ask(&["reload", "v", "--now", "--table", &table]).ok();
    let script = "
        def works():
            try:
                h.pread(512, 0)
                return True
            except nbd.Error as error:
                assert error.errnum == errno.EIO, error
                return False
        for turn in range(2):
            eventually(works, 'it is up')
            eventually(lambda: not works(), 'it is down')";
    python(server.dir(), &uri, script).ok();
}

#[test]
fn delay_keeps_writes_until_they_are_due_or_it_is_suspended() {
    if !requires("nbdsh") {
        return;
    }
    // Reads are immediate, writes take an hour, flushes take the shortest delay.
    let mut server = server(&format!("0 {SECTORS} delay d 0 0 d 0 3600000 d 0 1"));
    let (uri, program) = (server.uri("vol"), program().display().to_string());
    let script = format!(
        "
        import subprocess
        def ask(*words):
            return subprocess.run(['{program}', *words, '--control', '{}'], check=True,
                                  capture_output=True, text=True).stdout
        def waiting():
            return ask('status', 'v').split()[3:]
        cookie = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b'a' * 4096)), 0)
        while h.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            h.poll(-1)
        other = connect()
        eventually(lambda: waiting() == ['0', '1', '0'], 'the write waits')
        assert other.pread(4096, 0) == bytes(4096)
        other.flush()
        assert not h.aio_command_completed(cookie)
        ask('reload', 'v', '--now', '--table', '0 {SECTORS} delay d 0 0 d 0 20')
        while not h.aio_command_completed(cookie):
            h.poll(-1)
        assert other.pread(4096, 0) == b'a' * 4096
        for n in range(8):
            other.pwrite(bytes([n]) * 4096, n * 4096)
        assert all(other.pread(4096, n * 4096) == bytes([n]) * 4096 for n in range(8))
        assert waiting() == ['0', '0', '0']",
        server.control()
    );
    python(server.dir(), &uri, &script).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// Targets of tables are no types; the refusal says what to write.
#[test]
fn targets_are_no_types() {
    let folder = new_folder();
    let program = program().to_str().expect("a path");
    for (kind, hint) in [
        ("delay", "write table = \"0 SECTORS delay DEVICE OFFSET ...\" instead"),
        ("flakey", "write table = \"0 SECTORS flakey DEVICE OFFSET ...\" instead"),
        ("log-writes", "write table = \"0 SECTORS log-writes DEVICE LOG\" instead"),
    ] {
        let text = format!("[device.d]\ntype = \"{kind}\"\n{}", stack::export("e", "d", ""));
        let path = folder.path().join("s.toml");
        std::fs::write(&path, text.replace("DIR", ".")).expect("it is written");
        let said = run(folder.path(), &[program, "check", "s.toml"]).refused();
        assert!(said.contains("is a target of tables, not a type of its own"), "{said}");
        assert!(said.contains(hint), "{said}");
    }
}
