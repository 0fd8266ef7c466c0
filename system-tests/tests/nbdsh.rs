//! Every NBD command and flag, driven through libnbd's Python module as `nbdsh` does it.

#![forbid(unsafe_code)]

use system_tests::{Server, python, requires, run, stack};

/// Runs a script against each kind of device behind an export `vol` of 16 MiB.
fn on_each_device(script: &str) {
    if requires("nbdsh") {
        on(&stack::ram("16MiB"), script);
        on(&stack::file("16MiB"), script);
    }
}

fn on(stack_text: &str, script: &str) {
    let mut server = Server::start(stack_text);
    let uri = server.uri("vol");
    python(server.dir(), &uri, script).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
}

fn read_only_stack() -> String {
    let device = "[device.d]\ntype = \"ram\"\nsize = \"16MiB\"\n";
    format!("{device}{}", stack::export("vol", "d", stack::READ_ONLY))
}

#[test]
fn nbdsh_itself() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&stack::ram("16MiB"));
    let uri = server.uri("vol");
    // Debian's Python comes first: nbdsh takes the first one in PATH.
    let nbdsh = ["env", "PATH=/usr/bin:/bin", "nbdsh", "-u", &uri, "-c", "print(h.get_size())"];
    let said = run(server.dir(), &nbdsh).ok();
    assert_eq!(said.trim(), "16777216");
}

/// One request of the largest size fills a connection's bound by itself. It must still go through,
/// also with other requests before and after it. libnbd takes none above 64 MiB.
#[test]
fn the_largest_requests() {
    if !requires("nbdsh") {
        return;
    }
    for text in [stack::ram("96MiB"), stack::file("96MiB")] {
        let script = "
        most = 32 * 1024 * 1024
        data = os.urandom(most)
        h.pwrite(data, most)
        assert h.pread(most, most) == data
        writes = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), n * most) for n in \
        range(3)]
        writes += [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b'q' * 4096)), 8192) for _ in \
        range(40)]
        buffers = [nbd.Buffer(most) for _ in range(3)]
        def finish(cookies):
            while cookies:
                h.poll(-1)
                cookies = [c for c in cookies if not h.aio_command_completed(c)]
        finish(writes)
        reads = [h.aio_pread(b, n * most) for n, b in enumerate(buffers)]
        finish(reads)
        assert bytes(buffers[2].to_bytearray()) == data
        assert bytes(buffers[0].to_bytearray())[16384:] == data[16384:]
        h.set_strict_mode(0)
        for most in [42 * 1024 * 1024, 64 * 1024 * 1024]:
            data = os.urandom(most)
            h.pwrite(data, 4096)
            assert h.pread(most, 4096) == data";
        on(&text, script);
    }
}

#[test]
fn write_and_read() {
    on_each_device(
        "
        data = os.urandom(1024 * 1024)
        h.pwrite(data, 0)
        assert h.pread(len(data), 0) == data
        h.pwrite(data[:512], 16 * 1024 * 1024 - 512)
        assert h.pread(512, 16 * 1024 * 1024 - 512) == data[:512]
        assert h.pread(4096, 8 * 1024 * 1024) == bytes(4096)",
    );
}

#[test]
fn fua_and_flush() {
    on_each_device(
        "
        assert h.can_fua() and h.can_flush()
        h.pwrite(b'f' * 4096, 4096, nbd.CMD_FLAG_FUA)
        h.zero(4096, 8192, nbd.CMD_FLAG_FUA)
        h.trim(4096, 12288, nbd.CMD_FLAG_FUA)
        h.flush()
        assert h.pread(4096, 4096) == b'f' * 4096",
    );
}

#[test]
fn trim_frees_and_zero_clears() {
    on_each_device(
        "
        assert h.can_trim() and h.can_zero()
        h.pwrite(b'x' * 1048576, 0)
        h.zero(65536, 65536)
        assert h.pread(65536 * 3, 0) == b'x' * 65536 + bytes(65536) + b'x' * 65536
        h.trim(65536, 0)
        assert h.pread(65536, 0) == bytes(65536), 'trimmed ranges of these devices read as zeroes'",
    );
}

#[test]
fn zero_with_no_hole_stays_allocated() {
    on_each_device(
        "
        m = connect(meta=True)
        m.pwrite(b'x' * 1048576, 0)
        m.zero(524288, 0, nbd.CMD_FLAG_NO_HOLE)
        m.flush()
        assert m.pread(524288, 0) == bytes(524288)
        if os.path.exists('disk.img'):
            # A file system may report ranges that are reserved but not written as holes.
            allocated = os.stat('disk.img').st_blocks * 512
            assert allocated >= 1048576, allocated
        else:
            kinds = []
            m.block_status(524288, 0, lambda name, offset, entries, error: \
            kinds.extend(entries[1::2]))
            assert kinds and all(kind & nbd.STATE_HOLE == 0 for kind in kinds), kinds",
    );
}

#[test]
fn fast_zero_is_fast_or_changes_nothing() {
    on_each_device(
        "
        h.pwrite(b'x' * 65536, 0)
        assert h.can_fast_zero()
        try:
            h.zero(65536, 0, nbd.CMD_FLAG_FAST_ZERO)
            wanted = bytes(65536)
        except nbd.Error as error:
            assert error.errnum == errno.ENOTSUP, error
            wanted = b'x' * 65536
        assert h.pread(65536, 0) == wanted",
    );
}

#[test]
fn cache_touches_nothing() {
    on_each_device(
        "
        assert h.can_cache()
        h.pwrite(b'c' * 4096, 0)
        h.cache(65536, 0)
        assert h.pread(4096, 0) == b'c' * 4096",
    );
}

#[test]
fn block_status_tells_data_from_holes() {
    on_each_device(
        "
        m = connect(meta=True)
        m.pwrite(b'd' * 1048576, 4 * 1048576)
        found = []
        def note(name, offset, entries, error):
            assert name == 'base:allocation'
            for length, kind in zip(entries[::2], entries[1::2]):
                found.append((offset, length, kind))
                offset += length
        at = 0
        while at < m.get_size():
            found.clear()
            m.block_status(m.get_size() - at, at, note)
            assert found[0][0] == at and all(length > 0 for _, length, _ in found), found
            for offset, length, kind in found:
                data = offset < 5 * 1048576 and offset + length > 4 * 1048576
                assert kind == (0 if data else 3), found
            at = found[-1][0] + found[-1][1]
        assert at == m.get_size()
        found.clear()
        m.block_status(16 * 1048576, 0, note, nbd.CMD_FLAG_REQ_ONE)
        assert found == [(0, 4 * 1048576, 3)], found",
    );
}

#[test]
fn structured_reads_come_as_one_piece_of_data() {
    on_each_device(
        "
        h.pwrite(b'd' * 4096, 1048576)
        def chunks(flags):
            found = []
            data = h.pread_structured(2 * 1048576, 0,
                lambda part, offset, status, error: found.append((offset, len(part), status)), \
                flags)
            assert bytes(data) == bytes(1048576) + b'd' * 4096 + bytes(1048576 - 4096)
            assert sum(length for _, length, _ in found) == 2 * 1048576
            return found
        assert h.can_df()
        for flags in [0, nbd.CMD_FLAG_DF]:
            assert chunks(flags) == [(0, 2 * 1048576, nbd.READ_DATA)]",
    );
}

#[test]
fn simple_replies_when_structured_ones_are_not_wanted() {
    on_each_device(
        "
        s = connect(structured=False)
        assert not s.get_structured_replies_negotiated()
        s.pwrite(b's' * 4096, 0)
        assert s.pread(8192, 0) == b's' * 4096 + bytes(4096)",
    );
}

#[test]
fn requests_beyond_the_end_are_refused() {
    on_each_device(
        "
        w = connect(strict=False)
        end = w.get_size()
        for offset in (end, end - 512, 2**62, 2**63 - 4096):
            refused(errno.EINVAL, w.pread, 4096, offset)
            refused(errno.ENOSPC, w.pwrite, bytes(4096), offset)
            refused(errno.ENOSPC, w.zero, 4096, offset)
            refused(errno.EINVAL, w.trim, 4096, offset)
        h.pwrite(b'e' * 512, end - 512)
        assert w.pread(512, end - 512) == b'e' * 512, 'the connection goes on'",
    );
}

#[test]
fn unknown_flags_and_commands_are_refused() {
    on_each_device(
        "
        plain = negotiated()
        plain.sendall(request(READ, flags=0x4000))
        assert reply(plain) == (errno.EINVAL, 7)
        plain.sendall(request(99, cookie=8))
        assert reply(plain) == (errno.EINVAL, 8)
        plain.sendall(request(READ, length=512, cookie=9))
        assert reply(plain) == (0, 9)
        assert exactly(plain, 512) == bytes(512)",
    );
}

#[test]
fn oversize_requests_are_refused_and_harm_nobody() {
    on_each_device(
        "
        plain = negotiated()
        plain.sendall(request(READ, length=2**32 - 1, cookie=1))
        error, cookie = reply(plain)
        assert cookie == 1 and error in (errno.EINVAL, errno.EOVERFLOW), error
        # The payload of an oversize write cannot be skipped in reason: an error or the end of
        # the connection are both right, data in the device is not.
        plain.sendall(request(WRITE, length=2**32 - 1) + b'z' * 4096)
        plain.close()
        assert h.pread(4096, 0) == bytes(4096)",
    );
}

#[test]
fn any_bytes_are_read_and_written() {
    on_each_device(
        "
        w = connect(strict=False)
        assert w.get_block_size(nbd.SIZE_MINIMUM) == 1
        w.pwrite(b'u' * 4096, 0)
        w.pwrite(b'odd', 511)
        assert w.pread(5, 510) == b'uoddu'
        w.zero(5000, 1)
        assert w.pread(5002, 0) == b'u' + bytes(5001)
        w.pwrite(b'b', 5001, nbd.CMD_FLAG_FUA)
        assert w.pread(3, 5000) == bytes(1) + b'b' + bytes(1)",
    );
}

#[test]
fn zero_length_requests_do_nothing() {
    on_each_device(
        "
        plain = negotiated()
        for kind in (READ, WRITE, TRIM, WRITE_ZEROES):
            plain.sendall(request(kind, length=0, cookie=kind))
            error, cookie = reply(plain)
            assert cookie == kind and error in (0, errno.EINVAL), (kind, error)
        assert h.pread(512, 0) == bytes(512)",
    );
}

#[test]
fn many_requests_in_flight_keep_their_cookies_apart() {
    on_each_device(
        "
        buffers = [nbd.Buffer.from_bytearray(bytearray([n % 251]) * 4096) for n in range(512)]
        for n, buffer in enumerate(buffers):
            h.aio_pwrite(buffer, n * 4096)
        while h.aio_in_flight():
            h.poll(-1)
        reads = [nbd.Buffer(4096) for _ in range(512)]
        for n, buffer in enumerate(reads):
            h.aio_pread(buffer, n * 4096)
        while h.aio_in_flight():
            h.poll(-1)
        for n, buffer in enumerate(reads):
            assert buffer.to_bytearray() == bytearray([n % 251]) * 4096, n",
    );
}

#[test]
fn a_flush_on_one_connection_covers_the_others() {
    on_each_device(
        "
        assert h.can_multi_conn()
        a, b, c = connect(), connect(), connect()
        a.pwrite(b'm' * 4096, 0)
        b.flush()
        assert c.pread(4096, 0) == b'm' * 4096",
    );
}

#[test]
fn read_only_exports_refuse_every_change() {
    if !requires("nbdsh") {
        return;
    }
    on(
        &read_only_stack(),
        "
        w = connect(strict=False)
        assert w.is_read_only()
        refused(errno.EPERM, w.pwrite, bytes(512), 0)
        refused(errno.EPERM, w.zero, 512, 0)
        refused(errno.EPERM, w.trim, 512, 0)
        assert w.pread(4096, 0) == bytes(4096)",
    );
}

#[test]
fn several_exports_keep_their_data_apart() {
    if !requires("nbdsh") {
        return;
    }
    let devices = "[device.a]\ntype = \"ram\"\nsize = \"1MiB\"\n\
                   [device.b]\ntype = \"ram\"\nsize = \"2MiB\"\n";
    let exports = stack::export("vol", "a", "") + &stack::export("other", "b", "");
    on(
        &format!("{devices}{exports}"),
        "
        other = nbd.NBD()
        other.connect_uri(uri.replace('/vol?', '/other?'))
        h.pwrite(b'1' * 4096, 0)
        other.pwrite(b'2' * 4096, 0)
        assert h.pread(4096, 0) == b'1' * 4096 and other.pread(4096, 0) == b'2' * 4096
        assert (h.get_size(), other.get_size()) == (1048576, 2097152)",
    );
}

#[test]
fn tcp_works_like_a_unix_socket() {
    if !requires("nbdsh") {
        return;
    }
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let text = format!(
        "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
         [export.vol]\ndevice = \"d\"\nnbd = [\"tcp:127.0.0.1:{port}\"]\n"
    );
    on(
        &text,
        "
        h.pwrite(b't' * 65536, 0)
        assert h.pread(65536, 0) == b't' * 65536",
    );
}
