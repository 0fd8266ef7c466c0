//! Help and documentation of stack files, generated from the tables.

use std::fmt::Write;

use super::{
    DEVICE_COMMON, DEVICE_KINDS, DEVICE_WHAT, EXPORT, GROUP, GROUP_IO, IO_PRIO, IfAbsent, Param,
    QUEUE, SERVER, TLS, Type,
};
use crate::availability;

/// A section of the documentation: header, one line, parameters.
type Section = (String, String, &'static [Param]);

fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = vec![(
        "[device.NAME]".to_owned(),
        "A device. Every kind has these keys beside its own.".to_owned(),
        DEVICE_WHAT,
    )];
    sections.push((String::new(), String::new(), DEVICE_COMMON));
    for kind in DEVICE_KINDS {
        let title = format!("[device.NAME] with type = \"{}\"", kind.name);
        sections.push((title, kind.doc.to_owned(), kind.params));
    }
    let others: [(&str, &str, &'static [Param]); 7] = [
        (
            "queue = { ... } of a device",
            "Attributes of the request queue, named as in sysfs.",
            QUEUE,
        ),
        ("[export.NAME]", "A device that clients can use; NAME is the NBD export's name.", EXPORT),
        ("io.prio of an export", "The priority of all of its I/O.", IO_PRIO),
        ("tls = { ... } of an export", "Encryption of its listeners.", TLS),
        (
            "[group.PATH]",
            "A throttle group: docs/throttle.md. PATH is a name, or names with `/` between them, \
             then in quotes, as in [group.\"tenants/a\"]; the group above is declared too.",
            GROUP,
        ),
        ("io of a group", "Its limits.", GROUP_IO),
        ("[server]", "The server itself.", SERVER),
    ];
    sections.extend(others.map(|(title, doc, params)| (title.to_owned(), doc.to_owned(), params)));
    sections
}

/// The value when the key is not given, in a few words.
fn default_text(param: &Param) -> String {
    match param.default {
        IfAbsent::Required => "required".to_owned(),
        IfAbsent::Unset(text) => text.to_owned(),
        IfAbsent::Value("") => "empty".to_owned(),
        IfAbsent::Value(text) => text.to_owned(),
    }
}

/// The values that the key takes.
fn type_text(param: &Param) -> String {
    match (param.key, param.ty) {
        ("type", _) => availability::available_kinds(),
        ("queue" | "tls" | "io", Type::Fields(_)) => "a table, see below".to_owned(),
        _ => param.ty.expected(),
    }
}

const INTRO: &str = "\
A stack file is TOML: devices by name, and exports that serve them. Relative paths start from the
file's folder. Names are 1 to 64 letters, digits, `-`, `_` or `.`.

Sizes are written as \"64KiB\" or \"10G\": K, M, G, T, P and KiB, MiB, GiB, TiB, PiB are powers of
1024; KB, MB, GB, TB, PB are powers of 1000; a plain number is in bytes. Times are written as
\"10us\", \"5ms\", \"30s\", with ns, us, ms, s, m or h.
";

const EXAMPLES: &str = r#"## Examples

A disk image that is created when it is missing, for local clients:

```toml
[device.disk]
type = "file"
path = "disk.img"
size = "10GiB"
queue = { nr_requests = 256, io_timeout = "30s" }

[export.disk]
device = "disk"
nbd = "unix:disk.sock,mode=0660"
default = true
```

Two exports that share a TCP port and are told apart by name, with TLS:

```toml
[server]
threads = 2

[device.scratch]
type = "ram"
size = "1GiB"

[device.golden]
type = "file"
path = "golden.img"
read_only = true

[export.scratch]
device = "scratch"
nbd = ["tcp:0.0.0.0:10809"]
tls = { mode = "required", cert = "server.pem", key = "server.key", client_ca = "ca.pem" }

[export.golden]
device = "golden"
nbd = ["tcp:0.0.0.0:10809"]
read_only = true
description = "the image that all others start from"
tls = { mode = "required", cert = "server.pem", key = "server.key", client_ca = "ca.pem" }
```

An authority and a server's certificate, to try TLS with. A client gets its own by the
second command, with its name as CN:

```sh
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=my-ca \
    -keyout ca.key -out ca.pem
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE \
    -CA ca.pem -CAkey ca.key -keyout server.key -out server.pem
```

A device that does no I/O but takes time, for experiments with `drystone bench`:

```toml
[device.slow]
type = "null"
size = "250GiB"
irqmode = "timer"
latency = { p50 = "10us", p99 = "80us", "p99.9" = "400us", max = "1ms" }
submit_queues = 2
badblocks = ["0-7", "4096-8191"]

[export.slow]
device = "slow"
nbd = "unix:slow.sock"
```
"#;

/// `drystone help stack`: every section with its keys.
pub fn help_text() -> String {
    let mut out = INTRO.replace('`', "");
    for (title, doc, params) in sections() {
        if !title.is_empty() {
            let _ = write!(out, "\n{title}\n{}", indented(&doc));
        }
        for param in params {
            let _ = write!(out, "\n  {}\n{}", param.key, indented(param.doc));
            out.push_str(&indented(&format!("Takes {}.", type_text(param))));
            out.push_str(&indented(&format!("Default: {}.", default_text(param))));
        }
    }
    let examples = EXAMPLES.lines().filter(|line| !line.starts_with("```"));
    out.push_str(&examples.map(|line| format!("\n{line}")).collect::<String>());
    out.push('\n');
    out
}

/// The text in lines of at most 80 columns, six of them empty.
pub(crate) fn indented(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        let breaks = column == 0 || column + 1 + length > 74;
        out.push_str(match (breaks, column) {
            (true, 0) => "      ",
            (true, _) => "\n      ",
            (false, _) => " ",
        });
        column = if breaks { length } else { column + 1 + length };
        out.push_str(word);
    }
    out.push('\n');
    out
}

/// `docs/stack-file.md`.
pub fn markdown() -> String {
    let mut out = String::from("# Stack files\n\n");
    out.push_str(
        "<!-- Generated from the schema by the tests of crates/stack: do not edit. -->\n\n",
    );
    let _ = write!(
        out,
        "{INTRO}\n`drystone check FILE` explains a stack or points at what is wrong, `drystone \
         help stack` prints this\npage.\n\n{EXAMPLES}\n## Keys\n"
    );
    for (title, doc, params) in sections() {
        if !title.is_empty() {
            let _ = write!(out, "\n### `{title}`\n\n{doc}\n\n");
            out.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
        }
        for param in params {
            let cells = [type_text(param), default_text(param), param.doc.to_owned()];
            let _ =
                writeln!(out, "| `{}` | {} |", param.key, cells.map(|c| escape(&c)).join(" | "));
        }
    }
    out
}

fn escape(cell: &str) -> String {
    cell.replace('|', "\\|")
}
