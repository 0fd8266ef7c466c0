//! Start, stop and rest of a server: signals, stale sockets, second starts, an idle server's CPU.

#![forbid(unsafe_code)]

use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use drystone_testkit::nbd::Negotiation;
use system_tests::{Server, new_folder, program, python, requires, run, stack};

/// Writes through a client, stops the server by a signal, and checks the file it leaves.
fn stops_cleanly_on(signal: &str, prefix: &[&str]) {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start_in(&new_folder(), &stack::file("4MiB"), prefix);
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'k' * 4096, 8192)").ok();
    server.signal(signal);
    assert_eq!(server.wait().code(), Some(0), "{}", server.messages());
    assert!(!Path::new(&server.path("nbd.sock")).exists(), "the socket is removed");
    let image = std::fs::read(server.path("disk.img")).expect("the image");
    assert_eq!(image.len(), 4 << 20);
    assert!(image[8192..12288].iter().all(|byte| *byte == b'k'));
}

#[test]
fn sigterm_stops_cleanly() {
    stops_cleanly_on("TERM", &[]);
}

#[test]
fn sigint_stops_cleanly() {
    stops_cleanly_on("INT", &[]);
}

/// The terminal has gone.
#[test]
fn sighup_stops_cleanly() {
    stops_cleanly_on("HUP", &["env", "--default-signal=HUP"]);
}

/// As `nohup` starts it: it outlives its terminal.
#[test]
fn sighup_is_ignored_when_inherited_as_ignored() {
    let mut server =
        Server::start_in(&new_folder(), &stack::file("4MiB"), &["env", "--ignore-signal=HUP"]);
    server.uri("vol");
    server.signal("HUP");
    // It would have begun to stop by the second answer.
    server.ask(&["list"]).ok();
    thread::sleep(Duration::from_millis(200));
    server.ask(&["list"]).ok();
    assert!(server.is_running());
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn sigterm_works_when_inherited_as_ignored() {
    stops_cleanly_on("TERM", &["env", "--ignore-signal=INT,TERM"]);
}

#[test]
fn sigint_works_when_inherited_as_ignored() {
    stops_cleanly_on("INT", &["env", "--ignore-signal=INT,TERM"]);
}

#[test]
fn a_stop_does_not_wait_for_clients_that_stay_connected() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&stack::ram("4MiB"));
    let uri = server.uri("vol");
    let script = format!(
        "
        idle = [connect() for _ in range(4)]
        half = unix_socket()
        os.kill({}, 15)
        eventually(lambda: half.recv(4096) == b'', 'the connection is closed')",
        server.pid()
    );
    python(server.dir(), &uri, &script).ok();
    assert_eq!(server.wait().code(), Some(0), "{}", server.messages());
}

/// I/O in flight at a stop ends, however long its device takes.
#[test]
fn a_stop_waits_for_slow_io() {
    if !requires("nbdsh") {
        return;
    }
    let slow = "[device.d]\ntype = \"null\"\nsize = \"1MiB\"\nirqmode = \"timer\"\ncompletion_nsec \
        = \"7s\"\n";
    let mut server = Server::start(&format!("{slow}{}", stack::export("vol", "d", "")));
    let uri = server.uri("vol");
    let script = format!(
        "
        cookie = h.aio_pread(nbd.Buffer(512), 0)
        h.poll(100)
        os.kill({}, 15)
        while not h.aio_command_completed(cookie):
            h.poll(-1)
        print('read')",
        server.pid()
    );
    assert_eq!(python(server.dir(), &uri, &script).ok(), "read\n");
    assert_eq!(server.wait().code(), Some(0), "{}", server.messages());
}

#[test]
fn a_stale_socket_left_by_kill_is_replaced() {
    if !requires("nbdinfo") {
        return;
    }
    let mut first = Server::start(&stack::file("4MiB"));
    first.uri("vol");
    first.signal("KILL");
    first.wait();
    assert!(Path::new(&first.path("nbd.sock")).exists(), "kill -9 leaves the socket");
    let mut second = Server::start_in(&first.folder(), &stack::file("4MiB"), &[]);
    let uri = second.uri("vol");
    run(second.dir(), &["nbdinfo", &uri]).ok();
}

#[test]
fn a_live_socket_is_refused_and_its_server_unharmed() {
    if !requires("nbdinfo") {
        return;
    }
    let mut first = Server::start(&stack::ram("4MiB"));
    let uri = first.uri("vol");
    let mut second = Server::spawn_in(&first.folder(), &stack::ram("4MiB"), &[]);
    let message = second.refusal();
    assert!(message.contains("nbd.sock"), "{message}");
    run(first.dir(), &["nbdinfo", &uri]).ok();
}

#[test]
fn a_second_start_on_the_same_file_names_path_and_holder() {
    let mut first = Server::start(&stack::file("4MiB"));
    first.uri("vol");
    let text = stack::file("4MiB").replace("nbd.sock", "second.sock");
    let mut second = Server::spawn_in(&first.folder(), &text, &[]);
    let message = second.refusal();
    assert!(message.contains(&first.path("disk.img")), "{message}");
    assert!(message.contains(&first.pid().to_string()), "{message}");
    assert!(!Path::new(&first.path("second.sock")).exists(), "a refused start leaves no socket");
    assert!(first.is_running());
}

#[test]
fn two_exports_of_one_writable_file_are_refused() {
    let text = stack::file("4MiB")
        + "[device.e]\ntype = \"file\"\npath = \"DIR/disk.img\"\n"
        + &stack::export("again", "e", "");
    let mut server = Server::spawn_in(&new_folder(), &text, &[]);
    let message = server.refusal();
    assert!(message.contains("disk.img"), "{message}");
}

#[test]
fn an_unwritable_path_is_refused_by_name() {
    let text = stack::file("4MiB").replace("DIR/disk.img", "DIR/missing/disk.img");
    let mut server = Server::spawn_in(&new_folder(), &text, &[]);
    let message = server.refusal();
    assert!(message.contains("missing/disk.img"), "{message}");
}

#[test]
fn a_wrong_stack_file_is_refused_with_line_and_word() {
    let text = stack::ram("4MiB").replace("size", "sise");
    let mut server = Server::spawn_in(&new_folder(), &text, &[]);
    let message = server.refusal();
    assert!(message.contains("sise") && message.contains("size"), "{message}");
    assert!(message.contains(".toml:3"), "{message}");
}

#[test]
fn wrong_usage_has_its_own_exit_status() {
    for words in [&["serve", "--no-such-option"][..], &["no-such-command"]] {
        let output = Command::new(program()).args(words).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// Data threads sleep: not one wakes. The ticks of all threads, of 10 ms each, only show that no
/// other thread is busy: a loop would take 1000.
#[test]
fn an_idle_server_uses_no_cpu() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&stack::file("4MiB"));
    let uri = server.uri("vol");
    let script = format!(
        "
        import glob
        def ticks():
            fields = open('/proc/{0}/stat').read().rsplit(')', 1)[1].split()
            return int(fields[11]) + int(fields[12])
        def switches():
            names = glob.glob('/proc/{0}/task/*/status')
            threads = [dict(line.split(':', 1) for line in open(name)) for name in names]
            data = [thread for thread in threads if thread['Name'].strip().startswith('data')]
            assert data, 'no data threads'
            return sum(int(thread['voluntary_ctxt_switches']) for thread in data)
        clients = [connect() for _ in range(16)]
        for client in clients:
            client.pread(4096, 0)
        # Memory that idle clients have is given back some seconds later.
        for _ in range(3):
            before = (ticks(), switches())
            time.sleep(10)
            used = (ticks() - before[0], switches() - before[1])
            if used[1] == 0:
                break
        print(*used)",
        server.pid()
    );
    let said = python(server.dir(), &uri, &script).ok();
    let (ticks, switches) = said.trim().split_once(' ').expect("two numbers");
    assert_eq!(switches, "0", "wake-ups of data threads in 10 s with 16 connections");
    // The thread that looks for events twice a second takes 0.1 ms each time, in a debug build more
    // than half a millisecond, and the kernel charges it with a whole tick if that comes meanwhile.
    let ticks: u64 = ticks.parse().expect("a number");
    assert!(ticks <= 10, "{ticks} ticks of 10 ms in 10 s with 16 connections");
}

/// Polling threads take a core each, until polling is switched off.
#[test]
fn polling_can_be_switched_off() {
    if !requires("nbdsh") {
        return;
    }
    let keys = "[server]\nthreads = 1\npoll_mode = \"poll\"\n";
    let mut server = Server::start(&format!("{keys}{}", stack::file("4MiB")));
    let uri = server.uri("vol");
    let script = "for n in range(100): h.pwrite(b'p' * 4096, 4096 * n); h.pread(4096, 4096 * n)";
    // The threads poll all the time, so this ends however busy the machine is.
    let busy = server.cpu_ticks();
    while server.cpu_ticks() < busy + 50 {
        python(server.dir(), &uri, script).ok();
    }
    assert_eq!(server.ask(&["poll-mode"]).ok(), "poll\n");
    for mode in ["adaptive", "interrupt"] {
        assert_eq!(server.ask(&["poll-mode", mode]).ok(), format!("{mode}\n"));
        python(server.dir(), &uri, script).ok();
        let (said, before) = (python(server.dir(), &uri, "time.sleep(5)").ok(), server.cpu_ticks());
        python(server.dir(), &uri, "time.sleep(5)").ok();
        let ticks = server.cpu_ticks() - before;
        // A thread that polls takes 500. For the rest see `an_idle_server_uses_no_cpu`.
        assert!(ticks <= 10, "{mode}: {ticks} ticks of 10 ms in 5 s {said}");
    }
    let refused = server.ask(&["poll-mode", "sometimes"]).refused();
    assert!(refused.contains("adaptive"), "{refused}");
}

/// A client that asks for megabytes and takes none of them must not keep the server from ending.
#[test]
fn a_client_that_does_not_read_cannot_hold_up_the_end() {
    use std::io::{Read, Write};
    let mut server = Server::start(&stack::ram("16MiB"));
    server.uri("vol");
    let mut socket = UnixStream::connect(server.path("nbd.sock")).expect("a connection");
    socket.read_exact(&mut [0; 18]).expect("a greeting");
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    socket.write_all(&hello).expect("the export's name goes out");
    socket.read_exact(&mut [0; 10]).expect("size and flags");
    for cookie in 0..64u64 {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 0]);
        request.extend(cookie.to_be_bytes());
        request.extend(0u64.to_be_bytes());
        request.extend((1u32 << 20).to_be_bytes());
        socket.write_all(&request).expect("a request goes out");
    }
    assert!(server.sigterm().success(), "{}", server.messages());
    drop(socket);
}

/// With one request in flight at a time, a write's own header must not keep its data out.
#[test]
fn one_request_at_a_time_is_enough() {
    if !requires("nbdsh") {
        return;
    }
    let export = stack::export("vol", "d", "max_in_flight = 1\n");
    let device = "[device.d]\ntype = \"ram\"\nsize = \"16MiB\"\n";
    let mut server = Server::start(&format!("{device}{export}"));
    let uri = server.uri("vol");
    let script = "
        data = os.urandom(4096)
        writes = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), n * 4096) for n in \
        range(32)]
        while writes:
            h.poll(-1)
            writes = [c for c in writes if not h.aio_command_completed(c)]
        assert h.pread(4096, 31 * 4096) == data";
    python(server.dir(), &uri, script).ok();
}

/// A thread for the first client of the control socket is there from the start.
#[test]
fn an_operator_is_answered_where_no_thread_can_be_started() {
    if !requires("prlimit") {
        return;
    }
    let mut server = Server::start(&stack::ram("4MiB"));
    server.uri("vol");
    // A thread's stack is larger.
    let limit = format!("--as={}", (server.address_space_kib() + 512) << 10);
    run(server.dir(), &["prlimit", "--pid", &server.pid().to_string(), &limit]).ok();
    for _ in 0..3 {
        server.ask(&["list"]).ok();
    }
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// The kernel's state of the server's connections of a port in /proc/net/tcp, when the server is
/// idle: the timer that runs, and the hundredths of a second until it ends.
fn timer_of_connection(port: u16) -> Option<(u32, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
    let ours = format!(":{port:04X}");
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let established = |line: &Vec<&str>| line[1].ends_with(&ours) && line[3] == "01";
    let connection = fields.skip(1).find(established)?;
    let (timer, when) = connection[5].split_once(':').expect("a timer");
    let number = |text| u64::from_str_radix(text, 16).expect("a number");
    Some((number(timer) as u32, number(when)))
}

/// The kernel probes a silent client after half its time.
#[test]
fn idle_tcp_clients_are_probed() {
    const HUNDREDTHS: u64 = 100;
    // The kernel's own time is 2 h.
    for (key, probed_after) in
        [("", 150), ("peer_timeout = \"20h\"", 32_767), ("peer_timeout = \"2s\"", 1)]
    {
        let port = free_port();
        let text = format!(
            "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n\
             [export.vol]\ndevice = \"d\"\nnbd = [\"tcp:127.0.0.1:{port}\"]\n{key}\n"
        );
        let mut server = Server::start(&text);
        server.uri("vol");
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let mut client = Negotiation::new(socket).unwrap().go("vol", &[]).unwrap();
        client.read(0, 512, Default::default()).unwrap();
        // The last data sent may need an acknowledgement first.
        let keepalive = (0..6000).find_map(|_| {
            thread::sleep(Duration::from_millis(10));
            timer_of_connection(port).filter(|(timer, _)| *timer == 2)
        });
        let (_, left) = keepalive.expect("a timer that probes the client");
        let all = probed_after * HUNDREDTHS;
        assert!(left <= all && left + 60 * HUNDREDTHS >= all, "{key}: {left} of {all} are left");
        if probed_after == 1 {
            // The client's kernel answers: the server keeps a client that is silent for longer than
            // its time.
            thread::sleep(Duration::from_millis(2500));
            client.read(0, 512, Default::default()).expect("the server is still there");
        }
    }
}
