//! Help and documentation of the control socket, generated from the tables.

use std::fmt::Write;

use super::command::Argument;
use super::commands::COMMANDS;
use super::error::CODES;
use super::wire::{MAX_LINE_BYTES, PROTOCOL};
use crate::attributes::ATTRIBUTES;
use crate::schema::indented;

const EXAMPLE: &str = "\
{\"command\":\"set\",\"arguments\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\
    \"value\":2},\"id\":1}
{\"id\":1,\"result\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\"value\":\"2\",\
    \"warning\":null}}
{\"command\":\"set\",\"arguments\":{\"device\":\"disk\",\"attribute\":\"queue/nomerges\",\
    \"value\":3}}
{\"error\":{\"code\":\"out-of-range\",\"message\":\"`queue/nomerges`: `3` is out of range; \
    permitted: a whole number from 0 to 2\"}}
{\"command\":\"lockstat\",\"arguments\":{\"hold\":true}}
{\"result\":{\"hold\":true,\"classes\":[{\"class\":\"control\",\"contentions\":0,\"waits\":0,\
    \"waittime_min_ns\":0,\"waittime_max_ns\":0,\"waittime_total_ns\":0,\"waittime_avg_ns\":0,\
    \"acquisitions\":1,\"holds\":0,\"holdtime_min_ns\":null,\"holdtime_max_ns\":null,\
    \"holdtime_total_ns\":null,\"holdtime_avg_ns\":null}]}}
";

fn intro() -> String {
    format!(
        "A running server listens on a Unix socket of mode 0600: \
         $XDG_RUNTIME_DIR/drystone/NAME.sock (for\n\
         root /run/drystone/NAME.sock), NAME being the stack file's stem, or what --control says. \
         Each line\n\
         is one request in JSON of at most {} bytes, and each gets one line in answer, in order:\n\
         {{\"command\": NAME, \"arguments\": {{...}}, \"id\": ANY}}. \
         `arguments` may be left out when there are\n\
         none; `id` comes back as it was written. A key that is given twice is refused. \
         The answer has\n\
         either `result` or `error` with `code` and `message`. A client that is silent for 30 s \
         is\n\
         disconnected. The server has 64 clients at a time; when one more connects, \
         the client that has\n\
         been idle for longest is disconnected. This is protocol {PROTOCOL}.\n",
        MAX_LINE_BYTES
    )
}

/// `drystone help control`.
pub fn help_text() -> String {
    let mut out = intro().replace('`', "");
    out.push_str("\nCommands\n");
    for command in COMMANDS {
        let names: Vec<String> = command.arguments.iter().map(Argument::usage).collect();
        let _ = write!(out, "\n  {}\n", [&[command.name.to_owned()], &*names].concat().join(" "));
        out.push_str(&indented(command.doc));
        for argument in command.arguments {
            out.push_str(&indented(&format!("{}: {}", argument.name, argument.doc)));
        }
    }
    out.push_str("\nAttributes\n");
    for attribute in ATTRIBUTES {
        let _ = write!(
            out,
            "\n  {} ({})\n{}",
            attribute.name,
            attribute.mode.name(),
            indented(attribute.doc)
        );
        if attribute.ty.is_some() {
            out.push_str(&indented(&format!("Permitted: {}.", attribute.permitted())));
        }
    }
    out.push_str("\nErrors\n");
    for (code, meaning) in CODES {
        let _ = write!(out, "\n  {code}\n{}", indented(meaning));
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
