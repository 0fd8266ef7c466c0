//! The commands of the control socket: the one table behind help, docs and validation.

use std::fmt::Write;

use crate::attributes::ATTRIBUTES;
use crate::schema::Type;

use super::{MAX_LINE_BYTES, PROTOCOL};

/// A command.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Its name.
    pub name: &'static str,
    /// One line on what it does.
    pub doc: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument],
    /// What it gives.
    pub result: Shape,
}

/// An argument of a command.
#[derive(Debug, Clone, Copy)]
pub struct Argument {
    /// Its key.
    pub name: &'static str,
    /// What it takes.
    pub ty: Type,
    /// Whether it must be given.
    pub required: bool,
    /// One line on what it is.
    pub doc: &'static str,
}

const fn required(name: &'static str, ty: Type, doc: &'static str) -> Argument {
    Argument { name, ty, required: true, doc }
}

const fn optional(name: &'static str, ty: Type, doc: &'static str) -> Argument {
    Argument { name, ty, required: false, doc }
}

impl Argument {
    /// `NAME`, or `[NAME]` if it may be left out.
    fn usage(&self) -> String {
        let name = self.name.to_uppercase();
        if self.required { name } else { format!("[{name}]") }
    }
}

/// The object that a command gives: its keys, each with what stands there.
pub type Shape = &'static [(&'static str, &'static str)];

const NAME: Type = Type::Text { max: 64 };

/// All commands.
pub static COMMANDS: &[Command] = &[
    Command {
        name: "list",
        doc: "Lists devices and exports.",
        arguments: &[],
        result: &[
            ("devices", "a list of { name, kind, size (bytes), read_only, in_flight }"),
            ("exports", "a list of { name, device, uris, read_only, connections }"),
        ],
    },
    Command {
        name: "show",
        doc: "Shows one device with all its attributes.",
        arguments: &[required("device", NAME, "The device's name.")],
        result: &[
            ("name", "the device's name"),
            ("kind", "file, ram or null"),
            ("size", "bytes"),
            ("description", "what it is made of, for people"),
            ("members", "names of the devices it stands on"),
            ("exports", "names of the exports that serve it"),
            ("attributes", "an object of attribute names with their values as texts"),
        ],
    },
    Command {
        name: "set",
        doc: "Sets an attribute of a device; a refused value changes nothing.",
        arguments: &[
            required("device", NAME, "The device's name."),
            required("attribute", NAME, "The attribute's name."),
            required(
                "value",
                Type::Text { max: 256 },
                "Its new value: a text, a number or a switch.",
            ),
        ],
        result: &[
            ("device", "the device's name"),
            ("attribute", "the attribute's name"),
            ("value", "its value now, as a text"),
        ],
    },
    Command {
        name: "iostat",
        doc: "Gives the counters of all devices, as /proc/diskstats has them.",
        arguments: &[],
        result: &[
            ("uptime_ns", "nanoseconds since the stack started"),
            (
                "devices",
                "a list of { device, reads, reads_merged, sectors_read, read_ms, writes, \
                 writes_merged, sectors_written, write_ms, in_flight, busy_ms, weighted_ms, \
                 discards, discards_merged, sectors_discarded, discard_ms, flushes, flush_ms }",
            ),
        ],
    },
    Command {
        name: "lockstat",
        doc: "Gives the figures of all lock classes that were used, as /proc/lock_stat has them; then does what \
              its arguments ask.",
        arguments: &[
            optional("reset", Type::Bool, "Afterwards count anew from zero."),
            optional("hold", Type::Bool, "From now on measure hold times, or do so no longer."),
        ],
        result: &[
            ("hold", "true if hold times are measured now"),
            (
                "classes",
                "a list of { class, contentions, waits, waittime_min_ns, waittime_max_ns, \
                 waittime_total_ns, waittime_avg_ns, acquisitions, holds, holdtime_min_ns, \
                 holdtime_max_ns, holdtime_total_ns, holdtime_avg_ns }; null is not known",
            ),
        ],
    },
    Command {
        name: "version",
        doc: "Tells which server this is.",
        arguments: &[],
        result: &[
            ("version", "the program's version"),
            ("protocol", "the number of this protocol"),
            ("pid", "the server's process"),
            ("stack", "the stack's name"),
        ],
    },
];

/// Error codes with what they mean.
pub const CODES: [(&str, &str); 7] = [
    ("bad-request", "the line is no request: not JSON, too long, keys missing or unknown"),
    ("unknown-command", "there is no such command"),
    ("not-found", "there is no such device or attribute"),
    ("out-of-range", "the value is not permitted; the message names what is"),
    ("unsupported", "the attribute is read-only, or this device cannot change it"),
    ("failed", "the change was tried and failed"),
    ("busy", "too many clients are connected; the server closes the connection"),
];

const EXAMPLE: &str = "\
{\"command\":\"set\",\"arguments\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\"value\":2},\"id\":1}
{\"id\":1,\"result\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\"value\":\"2\"}}
{\"command\":\"set\",\"arguments\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\"value\":3}}
{\"error\":{\"code\":\"out-of-range\",\"message\":\"`queue/nomerges`: `3` is out of range; permitted: a whole number from 0 to 2\"}}
{\"command\":\"lockstat\",\"arguments\":{\"hold\":true}}
{\"result\":{\"hold\":true,\"classes\":[{\"class\":\"control\",\"contentions\":0,\"waits\":0,\"waittime_min_ns\":0,\"waittime_max_ns\":0,\"waittime_total_ns\":0,\"waittime_avg_ns\":0,\"acquisitions\":1,\"holds\":0,\"holdtime_min_ns\":null,\"holdtime_max_ns\":null,\"holdtime_total_ns\":null,\"holdtime_avg_ns\":null}]}}
";

fn intro() -> String {
    format!(
        "A running server listens on a Unix socket of mode 0600: $XDG_RUNTIME_DIR/drystone/NAME.sock (for\n\
         root /run/drystone/NAME.sock), NAME being the stack file's stem, or what --control says. Each line\n\
         is one request in JSON of at most {} bytes, and each gets one line in answer, in order:\n\
         {{\"command\": NAME, \"arguments\": {{...}}, \"id\": ANY}}. `arguments` may be left out when there are\n\
         none; `id` comes back as it was. The answer has either `result` or `error` with `code` and\n\
         `message`. A client that is silent for 30 s is disconnected. This is protocol {PROTOCOL}.\n",
        MAX_LINE_BYTES
    )
}

/// `drystone help control`.
pub fn help_text() -> String {
    let mut out = intro().replace('`', "");
    out.push_str("\nCommands\n");
    for command in COMMANDS {
        let names: Vec<String> = command.arguments.iter().map(Argument::usage).collect();
        let _ = writeln!(out, "\n  {} {}", command.name, names.join(" "));
        let _ = writeln!(out, "      {}", command.doc);
        for argument in command.arguments {
            let _ = writeln!(out, "      {}: {}", argument.name, argument.doc);
        }
    }
    out.push_str("\nAttributes\n");
    for attribute in ATTRIBUTES {
        let _ = writeln!(out, "\n  {} ({})", attribute.name, attribute.mode.name());
        let _ = writeln!(out, "      {}", attribute.doc);
        if attribute.ty.is_some() {
            let _ = writeln!(out, "      Permitted: {}.", attribute.permitted());
        }
    }
    out.push_str("\nErrors\n\n");
    for (code, meaning) in CODES {
        let _ = writeln!(out, "  {code}: {meaning}");
    }
    out
}

/// `docs/control.md`.
pub fn markdown() -> String {
    let mut out = String::from("# The control socket\n\n");
    out.push_str(
        "<!-- Generated from the schema by the tests of crates/stack: do not edit. -->\n\n",
    );
    let _ = write!(out, "{}\n```json\n{EXAMPLE}```\n\n## Commands\n", intro());
    for command in COMMANDS {
        let _ = write!(out, "\n### `{}`\n\n{}\n", command.name, command.doc);
        if !command.arguments.is_empty() {
            out.push_str("\n| argument | takes | meaning |\n|---|---|---|\n");
        }
        for argument in command.arguments {
            let optional = if argument.required { "" } else { "; may be left out" };
            let takes = argument.ty.expected() + optional;
            let _ = writeln!(out, "| `{}` | {takes} | {} |", argument.name, argument.doc);
        }
        out.push_str("\n| result | what |\n|---|---|\n");
        for (key, what) in command.result {
            let _ = writeln!(out, "| `{key}` | {what} |");
        }
    }
    out.push_str("\n## Attributes\n\n| name | mode | permitted | meaning |\n|---|---|---|---|\n");
    for attribute in ATTRIBUTES {
        let (name, mode) = (attribute.name, attribute.mode.name());
        let _ =
            writeln!(out, "| `{name}` | {mode} | {} | {} |", attribute.permitted(), attribute.doc);
    }
    out.push_str("\n## Errors\n\n| code | meaning |\n|---|---|\n");
    for (code, meaning) in CODES {
        let _ = writeln!(out, "| `{code}` | {meaning} |");
    }
    out
}

/// The example requests of the docs, for their test.
#[cfg(test)]
pub(super) fn example() -> Vec<&'static str> {
    EXAMPLE.lines().collect()
}
