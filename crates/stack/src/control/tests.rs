//! Requests: their answers, and their effects.

use super::devices::in_unit_that_it_takes;
use super::fake::Fake;
use super::{COMMANDS, Control, ServerInfo, help, request, response};
use crate::runtime::LockReport;
use drystone_core::context::PollMode;
use drystone_core::sync::{Lock, LockClass};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;

fn server() -> ServerInfo {
    ServerInfo { version: "0".to_owned(), pid: 1, stack: "s".to_owned() }
}

fn ask(line: &str) -> Value {
    answer_of(&Fake::new(), line)
}

fn answer_of(fake: &Fake, line: &str) -> Value {
    let answer = Control::new(fake, &server()).handle(line);
    assert!(!answer.contains('\n'), "{answer}");
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn the_poll_mode_is_told_and_changed() {
    let (runtime, server) = (Fake::new(), server());
    let control = Control::new(&runtime, &server);
    let ask = |arguments: &[(&str, &str)]| {
        response(&control.handle(&request("poll-mode", arguments))).expect("a result")
    };
    assert_eq!(ask(&[]), json!({ "mode": "interrupt" }));
    for mode in PollMode::ALL {
        let answer = json!({ "mode": mode.name() });
        assert_eq!(ask(&[("mode", mode.name())]), answer);
        assert_eq!((runtime.poll.mode(), ask(&[])), (mode, answer));
    }
}

/// The fake reports that I/O has not ended if its file was replaced.
#[test]
fn io_that_has_not_ended_is_told() {
    let ask = |arguments: &[(&str, &str)]| ask(&request("reopen", arguments));
    let answer = ask(&[("device", "disk")]);
    assert_eq!(answer, json!({ "result": { "device": "disk", "warning": null } }));
    let answer = ask(&[("device", "disk"), ("replaced", "true")]);
    let warning = answer["result"]["warning"].as_str().unwrap_or_default();
    assert!(warning.contains("has not ended"), "{answer}");
}

#[test]
fn results_have_the_keys_of_the_schema() {
    for command in COMMANDS {
        let arguments: Map<String, Value> = command
            .arguments
            .iter()
            .map(|argument| {
                let value = match argument.name {
                    "device" => "disk",
                    "attribute" => "queue/nomerges",
                    "reset" | "hold" | "now" | "noflush" | "force" | "run" | "replaced" => "true",
                    "inactive" | "read_only" => "false",
                    "line" => "disk rbps=1",
                    "mode" => "poll",
                    _ => "1",
                };
                (argument.name.to_owned(), json!(value))
            })
            .collect();
        let line = json!({ "command": command.name, "arguments": arguments }).to_string();
        let answer = ask(&line);
        let result = answer["result"].as_object().unwrap_or_else(|| panic!("{answer}"));
        let mut keys: Vec<&str> = command.result.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        assert_eq!(result.keys().collect::<Vec<_>>(), keys, "{}", command.name);
    }
}

#[test]
fn changes_arrive_as_they_were_asked_for() {
    let fake = Fake::new();
    let cases = [
        ("create", json!({}), "Create { table: None, read_only: false, force: false }"),
        (
            "create",
            json!({ "table": "t", "read_only": true, "force": "true" }),
            "Create { table: Some(\"t\"), read_only: true, force: true }",
        ),
        (
            "reload",
            json!({ "table": "t", "timeout": 3 }),
            "Reload { table: \"t\", force: false, resume_within: None }",
        ),
        (
            "reload",
            json!({ "table": "t", "now": true, "timeout": "5ms" }),
            "Reload { table: \"t\", force: false, resume_within: Some(5000000) }",
        ),
        ("clear", json!({}), "Clear"),
        ("suspend", json!({}), "Suspend { within: Some(30000000000) }"),
        ("suspend", json!({ "noflush": true, "timeout": 1 }), "Suspend { within: None }"),
        ("resume", json!({ "timeout": 2 }), "Resume { within: 2000000000 }"),
        ("message", json!({ "sector": 7, "text": "a b" }), "Message { sector: 7, text: \"a b\" }"),
        ("remove", json!({}), "Remove"),
    ];
    for (command, mut arguments, expected) in cases {
        arguments["device"] = json!("disk");
        let line = json!({ "command": command, "arguments": arguments }).to_string();
        let answer = answer_of(&fake, &line);
        assert_eq!(answer["result"]["name"], "disk", "{answer}");
        let last = fake.changes.lock(&fake.locks.counters()).pop();
        assert_eq!(last.as_deref(), Some(expected), "{line}");
    }
    let info = answer_of(&fake, &request("info", &[]))["result"]["volumes"][0].take();
    let expected = json!({
        "name": "disk", "state": "SUSPENDED", "read_only": false, "tables_present": "LIVE",
        "open_count": 0, "targets": 2,
    });
    assert_eq!(info, expected);
    let inactive = request("table", &[("device", "disk"), ("inactive", "true")]);
    let answer = answer_of(&fake, &inactive);
    assert_eq!(answer["result"]["volumes"], json!([{ "name": "disk", "table": null }]));
}

#[test]
fn changes_of_arrays_arrive_as_they_were_asked_for() {
    let fake = Fake::new();
    let cases = [
        (
            "md-add",
            json!({ "member": "m0", "path": "/x/m0", "force": true }),
            "Add { member: Named { word: \"m0\", path: Some(\"/x/m0\") }, force: true }",
        ),
        (
            "md-fail",
            json!({ "member": "/x/m0" }),
            "Fail(Named { word: \"/x/m0\", path: Some(\"/x/m0\") })",
        ),
        (
            "md-remove",
            json!({ "member": "failed" }),
            "Remove(Named { word: \"failed\", path: None })",
        ),
        ("md-replace", json!({ "member": "m" }), "Replace(Named { word: \"m\", path: None })"),
        ("md-check", json!({}), "Sync(\"check\")"),
        ("md-repair", json!({}), "Sync(\"repair\")"),
        ("md-stop", json!({}), "Stop"),
        (
            "md-assemble",
            json!({ "members": "/a\n/b", "run": true }),
            "Assemble(Assemble \
             { members: \"/a\\n/b\", uuid: None, run: true, force: false, read_only: false })",
        ),
    ];
    for (command, mut arguments, expected) in cases {
        arguments["device"] = json!("array");
        let line = json!({ "command": command, "arguments": arguments }).to_string();
        let answer = answer_of(&fake, &line);
        assert_eq!(
            answer["result"],
            json!({ "device": "array", "members": ["m0"], "warning": null })
        );
        let last = fake.changes.lock(&fake.locks.counters()).pop();
        assert_eq!(last.as_deref(), Some(expected), "{line}");
    }
    let told = answer_of(&fake, &request("md-detail", &[("device", "array")]));
    assert_eq!(told["result"]["arrays"][0]["name"], "array");
    let line = request("md-fail", &[("device", "none"), ("member", "m0")]);
    let error = json!({ "code": "busy", "message": "it cannot be failed" });
    assert_eq!(answer_of(&fake, &line)["error"], error);
}

#[test]
fn groups_are_asked_for_by_path() {
    let fake = Fake::new();
    let last = || fake.changes.lock(&fake.locks.counters()).pop();
    let result = |command: &str, arguments: &[(&str, &str)]| {
        answer_of(&fake, &request(command, arguments))["result"].take()
    };
    assert_eq!(result("group-create", &[("path", "a/b")]), json!({ "path": "a/b" }));
    assert_eq!(last().as_deref(), Some("create a/b"));
    assert_eq!(result("group-remove", &[("path", "a/b")]), json!({ "path": "a/b" }));
    assert_eq!(last().as_deref(), Some("remove a/b"));
    let set = result("group-set", &[("path", "a"), ("line", "disk wiops=max rbps=2M")]);
    let max =
        json!({ "device": "disk", "rbps": 2 << 20, "wbps": null, "riops": null, "wiops": null });
    assert_eq!(set, json!({ "path": "a", "io_max": max }));
    assert_eq!(result("group-list", &[])["groups"][0]["path"], "/");
    let stat = |arguments: &[(&str, &str)]| result("group-stat", arguments)["groups"][0].take();
    assert_eq!(stat(&[])["path"], "all");
    assert_eq!(
        (stat(&[("path", "/")])["path"].take(), stat(&[("path", "a")])["path"].take()),
        (json!("/"), json!("a"))
    );
    let line = json!({
        "device": "disk", "rbytes": 1, "wbytes": 0, "rios": 1, "wios": 0, "dbytes": 0, "dios": 0,
    });
    assert_eq!(stat(&[("reset", "true")])["io_stat"], json!([line]));
}

#[test]
fn the_examples_of_the_docs_hold() {
    let fake = Fake::new();
    for pair in help::example().chunks(2) {
        let answer = Control::new(&fake, &server()).handle(pair[0]);
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(parsed(&answer), parsed(pair[1]));
    }
    assert_eq!(fake.nomerges.load(Relaxed), 2, "the refused value has changed nothing");
}

#[test]
fn a_size_is_shown_in_the_unit_that_set_takes() {
    let shown = ask(&request("show", &[("device", "disk")]));
    assert_eq!(shown["result"]["attributes"]["size"], (1u64 << 30).to_string());
    assert_eq!(shown["result"]["size"], 1u64 << 30);
    // The size of a RAM device cannot be set.
    let modes = json!({ "queue/nomerges": "rw", "size": "ro" });
    assert_eq!(shown["result"]["modes"], modes);
    assert_eq!(in_unit_that_it_takes("size", "2048\n".to_owned()), "1048576");
    assert_eq!(in_unit_that_it_takes("queue/nr_requests", "2048".to_owned()), "2048");
}

#[test]
fn bad_requests_get_a_code_and_one_sentence() {
    let set = |attribute: &str, value: &str| {
        request("set", &[("device", "disk"), ("attribute", attribute), ("value", value)])
    };
    let cases = [
        ("x".to_owned(), "bad-request", "not JSON"),
        ("[]".to_owned(), "bad-request", "JSON object"),
        ("{}".to_owned(), "bad-request", "`command` is missing"),
        (r#"{"command":"lsit"}"#.to_owned(), "unknown-command", "did you mean `list`?"),
        (r#"{"command":"list","args":{}}"#.to_owned(), "bad-request", "known: command"),
        (r#"{"command":"list","arguments":3}"#.to_owned(), "bad-request", "no JSON object"),
        (request("list", &[("device", "x")]), "bad-request", "it takes none"),
        (request("show", &[]), "bad-request", "`device` is missing"),
        (request("show", &[("device", "dikc")]), "not-found", "no device"),
        (request("show", &[("device", "dsik")]), "not-found", "did you mean `disk`?"),
        (
            request("poll-mode", &[("mode", "poling")]),
            "bad-request",
            "is `poling`, not \"interrupt\", \"poll\" or \"adaptive\"",
        ),
        (request("lockstat", &[("hold", "on")]), "bad-request", "`hold` is neither true nor"),
        (request("lockstat", &[("rest", "true")]), "bad-request", "did you mean `reset`?"),
        (
            r#"{"command":"lockstat","arguments":{"reset":1}}"#.to_owned(),
            "bad-request",
            "`reset` is neither true nor false",
        ),
        (set("queue/nomerge", "1"), "not-found", "did you mean `queue/nomerges`?"),
        (set("queue/nomerges", "3"), "out-of-range", "permitted: a whole number from 0 to 2"),
        (set("queue/nr_requests", "100"), "out-of-range", "permitted: 4 to 64"),
        (set("queue/fua", "1"), "unsupported", "read-only"),
        (set("queue/iostats", "1"), "unsupported", "cannot be set: a test"),
        (request("table", &[("device", "dsik")]), "not-found", "did you mean `disk`?"),
        (request("suspend", &[("device", "none")]), "timed-out", "a test"),
        (request("reload", &[("device", "disk")]), "bad-request", "`table` is missing"),
        (request("group-create", &[("path", "/")]), "bad-request", "the root is always there"),
        (request("group-remove", &[("path", "a//b")]), "bad-request", "`a//b` is not a path"),
        (
            request("group-set", &[("path", "/"), ("line", "disk rbps=1")]),
            "bad-request",
            "takes no limits: name a group below it",
        ),
        (
            request("group-set", &[("path", "a"), ("line", "disk rbps=0")]),
            "bad-request",
            "`rbps`: `0` would let nothing pass: write max, or bytes a second from 1 up, as in \
             200MiB",
        ),
        (
            request("group-set", &[("path", "a"), ("line", "dikc rbps=1")]),
            "not-found",
            "no device `dikc`",
        ),
        (
            request("resume", &[("device", "disk"), ("timeout", "x")]),
            "bad-request",
            "argument `timeout` `x` is not a time",
        ),
        (
            request("resume", &[("device", "disk"), ("timeout", "2h")]),
            "bad-request",
            "`2h` is out of range: write a time from 0s to 1h",
        ),
        (
            request("message", &[("device", "disk"), ("sector", "-1"), ("text", "")]),
            "bad-request",
            "argument `sector` `-1` is not a whole number",
        ),
    ];
    for (line, code, sentence) in cases {
        let answer = ask(&line);
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(sentence), "{answer}");
    }
}

#[test]
fn lock_statistics_are_given_then_reset() {
    let fake = Fake::new();
    let (lock, user) = (Lock::new(LockClass::RamShard, ()), fake.locks.counters());
    let report = |arguments: Value| {
        drop(lock.lock(&user));
        let line = json!({ "command": "lockstat", "arguments": arguments }).to_string();
        let report: LockReport =
            serde_json::from_value(answer_of(&fake, &line)["result"].take()).unwrap();
        let line = report.classes.iter().find(|line| line.class == "ram_shard").unwrap();
        assert_eq!(line.stats().acquisitions, line.acquisitions);
        (report.hold, line.acquisitions, line.holdtime_total_ns)
    };
    assert_eq!(report(json!({})), (false, 1, None));
    assert_eq!(report(json!({ "reset": false })), (false, 2, None));
    assert_eq!(report(json!({ "reset": true, "hold": true })), (true, 3, None));
    assert_eq!(report(json!({})), (true, 1, Some(0)));
    assert_eq!(report(json!({ "hold": "false" })), (false, 2, Some(0)));
    assert_eq!(report(json!({ "reset": true })), (false, 3, Some(0)));
    assert_eq!(report(json!({})), (false, 1, None));
}

#[test]
fn the_id_comes_back() {
    assert_eq!(ask(r#"{"command":"version","id":[1,"a"]}"#)["id"], json!([1, "a"]));
    assert_eq!(ask(r#"{"id":7}"#)["id"], 7);
    for id in [
        "123456789012345678901234567890",
        "-0.10",
        "1E400",
        r#""\u00e9""#,
        r#"{"a" : 1.50, "a":[ ]}"#,
        "null",
    ] {
        let (fake, line) = (Fake::new(), format!(r#"{{ "id" : {id} , "command":"list"}}"#));
        let answer = Control::new(&fake, &server()).handle(&line);
        assert!(answer.starts_with(&format!(r#"{{"id":{id},"result":"#)), "{answer}");
    }
}

#[test]
fn numbers_keep_their_digits() {
    let line = concat!(
        r#"{"command":"set","arguments":{"device":"disk","attribute":"queue/nomerges","#,
        r#""value":123456789012345678901234567890}}"#
    );
    let message = ask(line)["error"]["message"].take();
    assert!(message.as_str().unwrap().contains("123456789012345678901234567890"), "{message}");
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    let fake = Fake::new();
    for (line, key) in [
        (r#"{"command":"list","command":"version","id":1}"#, "command"),
        (r#"{"command":"list","\u0063ommand":"list","id":1}"#, "command"),
        (r#"{"command":"lockstat","arguments":{"reset":true,"reset":false},"id":1}"#, "reset"),
        (r#"{"command":"list","arguments":{},"arguments":{},"id":1}"#, "arguments"),
        (r#"{"command":"list","x":1,"x":2,"id":1}"#, "x"),
    ] {
        let answer = answer_of(&fake, line);
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!("bad-request")));
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(message, format!("key `{key}` is given twice: give it once"));
    }
    let answer = answer_of(&fake, r#"{"command":"list","id":1,"id":2}"#);
    assert_eq!(answer.get("id"), None, "either may be meant: {answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("`id` is given twice"));
}

#[test]
fn responses_are_read_back() {
    assert_eq!(response(r#"{"result":{"a":1}}"#), Ok(json!({ "a": 1 })));
    let error = response(r#"{"error":{"code":"failed","message":"m"}}"#).unwrap_err();
    assert_eq!((error.code.as_str(), error.message.as_str()), ("failed", "m"));
    assert_eq!(response("garbage").unwrap_err().code, "failed");
    assert_eq!(response("{}").unwrap_err().code, "failed");
}

proptest! {
    #[test]
    fn any_line_gets_one_line(line: String) {
        ask(&line);
    }
}
