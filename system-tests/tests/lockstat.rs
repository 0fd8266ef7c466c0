//! `drystone lockstat` against a server under load.

#![forbid(unsafe_code)]

use serde_json::Value;
use system_tests::{Server, python, requires, stack};

/// The class of the lock between the plain engine's rings and its helper threads.
const RING: &str = "plain_ring";

/// Requests of one [`load`].
const REQUESTS: u64 = 200;

/// A file on the plain engine: its requests pass the lock [`RING`].
fn plain_file() -> String {
    stack::file("4MiB").replace("size =", "engine = \"plain\"\nsize =")
}

/// Requests of one client, one after the other.
fn load(server: &mut Server) {
    let uri = server.uri("vol");
    let script = format!(
        "
        for number in range({REQUESTS} // 2):
            h.pwrite(b'x' * 4096, 4096 * number)
            h.pread(4096, 4096 * number)
        h.shutdown()"
    );
    python(server.dir(), &uri, &script).ok();
}

fn lockstat(server: &Server, options: &[&str]) -> Value {
    let text = server.ask(&[&["lockstat", "--json"], options].concat()).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The line of a class; null if it was not used.
fn class(report: &Value, name: &str) -> Value {
    let classes = report["classes"].as_array().expect("a list");
    classes.iter().find(|line| line["class"] == name).cloned().unwrap_or_default()
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} of {line}"))
}

#[test]
fn figures_are_those_of_the_load() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&plain_file());
    load(&mut server);
    let report = lockstat(&server, &[]);
    assert_eq!(report["hold"], false);
    for (name, least) in [(RING, REQUESTS), ("buffers", 1), ("control", 1), ("context_set", 1)] {
        let line = class(&report, name);
        assert!(number(&line, "acquisitions") >= least, "{line}");
        assert!(number(&line, "waits") <= number(&line, "contentions"), "{line}");
        assert!(line["holdtime_total_ns"].is_null() && number(&line, "holds") == 0, "{line}");
    }
    // The helpers sleep while they have no work, and no other thread waits for that.
    let idle = class(&report, "plain_idle");
    assert!(number(&idle, "waittime_total_ns") > 0, "{idle}");

    let text = server.ask(&["lockstat"]).ok();
    let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    let header = "class name contentions waittime-min waittime-max waittime-total waittime-avg \
                  acquisitions holdtime-min holdtime-max holdtime-total holdtime-avg";
    assert_eq!(lines[0].join(" "), header);
    let ring = lines.iter().find(|line| line[0] == RING).expect("a line of the class");
    assert_eq!((ring.len(), &ring[7..]), (11, &["-"; 4][..]), "{text}");
    let acquisitions: u64 = ring[6].parse().expect("a number");
    assert!(acquisitions >= number(&class(&report, RING), "acquisitions"), "{text}");
}

#[test]
fn a_reset_prints_and_starts_again() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&plain_file());
    load(&mut server);
    let until = lockstat(&server, &["--reset"]);
    assert!(number(&class(&until, RING), "acquisitions") >= REQUESTS, "{until}");
    // At most the path of a helper thread back to sleep remains.
    let since = lockstat(&server, &[]);
    let left = class(&since, RING)["acquisitions"].as_u64().unwrap_or(0);
    assert!(left < REQUESTS, "{since}");
    load(&mut server);
    let loaded = lockstat(&server, &[]);
    assert!(number(&class(&loaded, RING), "acquisitions") >= REQUESTS, "{loaded}");
}

#[test]
fn hold_times_are_measured_while_they_are_asked_for() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&plain_file());
    assert_eq!(lockstat(&server, &["--hold", "on"])["hold"], true);
    load(&mut server);
    let report = lockstat(&server, &["--hold", "off"]);
    assert_eq!(report["hold"], false);
    let line = class(&report, RING);
    let figures = ["min", "avg", "max", "total"]
        .map(|figure| number(&line, &format!("holdtime_{figure}_ns")));
    assert!(figures.is_sorted() && number(&line, "holds") >= REQUESTS, "{line}");
    let idle = class(&report, "plain_idle");
    assert!(idle["holdtime_total_ns"].is_null(), "{idle}");
    lockstat(&server, &["--reset"]);
    load(&mut server);
    let line = class(&lockstat(&server, &[]), RING);
    assert!(number(&line, "acquisitions") >= REQUESTS && number(&line, "holds") == 0, "{line}");
}

#[test]
fn a_server_can_start_with_hold_times() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start_with(&plain_file(), &["--lockstat"]);
    load(&mut server);
    let report = lockstat(&server, &[]);
    assert_eq!(report["hold"], true);
    let opened = class(&report, "context_set");
    assert!(number(&opened, "holds") == number(&opened, "acquisitions"), "{opened}");
    assert!(number(&class(&report, RING), "holds") >= REQUESTS, "{report}");
    let text = server.ask(&["lockstat"]).ok();
    let ring = text.lines().find(|line| line.contains(RING)).expect("a line of the class");
    assert!(!ring.contains('-'), "{text}");
}

#[test]
fn wrong_words_are_refused() {
    let server = Server::start(&stack::ram("4MiB"));
    for (words, sentence) in [
        (&["--hold", "maybe"][..], "write on or off"),
        (&["--hold"], "--hold <on|off>"),
        (&["--rest"], "'--reset'"),
        (&["buffers"], "unexpected argument 'buffers'"),
    ] {
        let message = server.ask(&[&["lockstat"], words].concat()).refused();
        assert!(message.contains(sentence), "{words:?}: {message}");
    }
    assert_eq!(lockstat(&server, &[])["hold"], false, "nothing was switched");
}
