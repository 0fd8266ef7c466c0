//! A limit of open files (`ulimit -n`, RLIMIT_NOFILE) bounds clients, never the control socket.

#![forbid(unsafe_code)]

use std::fs;

use system_tests::{Server, new_folder, program, python, requires, stack};

/// One data thread: each may have 64 clients in the handshake.
fn server(ulimit: &str) -> Server {
    let line = format!("{ulimit}; exec \"$@\"");
    let text = format!("[server]\nthreads = 1\n{}", stack::ram("1MiB"));
    Server::start_in(&new_folder(), &text, &["/bin/bash", "-ec", &line, "limited"])
}

/// The soft and the hard limit of open files that a process has.
fn limits(pid: u32) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("the limit");
    let mut words = line.split_whitespace().skip(3).map(str::to_owned);
    (words.next().expect("the soft limit"), words.next().expect("the hard limit"))
}

/// Most systems begin with a soft limit of 1024, and let programs raise it.
#[test]
fn the_soft_limit_is_raised_as_far_as_it_goes() {
    let mut server = server("ulimit -Sn 256; ulimit -Hn 4096");
    assert_eq!(limits(server.pid()), ("4096".to_owned(), "4096".to_owned()));
    assert!(!server.messages().contains("descriptors"), "{}", server.messages());
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn where_it_is_too_low_that_is_said_and_clients_leave_some_for_commands() {
    if !requires("/usr/bin/python3") {
        return;
    }
    let mut server = server("ulimit -n 200");
    let said = server.messages();
    let warning = said.lines().find(|line| line.starts_with("warning:")).expect("a warning");
    assert!(warning.contains("need 1292 file descriptors together"), "{said}");
    assert!(warning.contains("may have only 200: clients beyond that are disconnected"), "{said}");
    let uri = server.uri("vol");
    // Half of so few are not for clients; the server itself has some open.
    let script = format!(
        "
        import subprocess
        def is_let_in():
            try:
                held.append(negotiated())
            except (AssertionError, OSError):
                return False
            return True
        held = []
        while len(held) < 150 and is_let_in():
            pass
        assert 40 < len(held) < 100, len(held)
        subprocess.run([{:?}, 'list', '--control', {:?}], check=True, timeout=30)
        held.clear()
        eventually(is_let_in, 'nobody is let in again')",
        program(),
        server.control()
    );
    python(server.dir(), &uri, &script).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
}
