//! Reads the `allow` table of an export: the clients that may use it, and whether only to read.

use drystone_exports::server::{Access, Network};

use crate::diagnostic::shorten;
use crate::parse::clients::{client, twice};
use crate::parse::fields::Check;
use crate::parse::node::{Entry, Node, Raw};
use crate::schema::ALLOW_DOC;
use crate::spec::{AllowRule, Allowed};

/// Reads the table in `node`; reports its faults, and then returns `None`.
pub fn parse_allow(check: &mut Check<'_>, node: &Node) -> Option<Vec<AllowRule>> {
    let Raw::Table(entries) = &node.value else {
        let message = format!("`allow` is {}, not a table", node.written());
        check.findings.error(&node.span, message, format!("write {ALLOW_DOC}"));
        return None;
    };
    if entries.is_empty() {
        let message = "`allow` is empty, so no client could use the export";
        check.findings.error(&node.span, message, "name a client, or remove the export");
    }
    let mut rules: Vec<(AllowRule, &Entry)> = Vec::new();
    for entry in entries {
        if let (Some(who), Some(access)) = (who_of(check, entry), access_of(check, entry)) {
            let span = entry.node.span.clone();
            rules.push((AllowRule { who, access, span }, entry));
        }
    }
    rules.sort_by(|(a, _), (b, _)| (&a.who, a.span.start).cmp(&(&b.who, b.span.start)));
    let doubled: Vec<_> = rules.windows(2).filter(|pair| pair[0].0.who == pair[1].0.who).collect();
    doubled.iter().for_each(|pair| twice(check, pair[0].1, pair[1].1));
    let whole = rules.len() == entries.len() && doubled.is_empty();
    whole.then(|| rules.into_iter().map(|(rule, _)| rule).collect())
}

fn who_of(check: &mut Check<'_>, entry: &Entry) -> Option<Allowed> {
    let who = match entry.key.strip_prefix("net:") {
        Some(network) => Network::parse(network).map(Allowed::Network),
        None => client(&entry.key).map(Allowed::Client),
    };
    if who.is_none() {
        let message = format!("`{}` is not a client", shorten(&entry.key));
        let hint = "write \"tls:NAME\", \"uid:NUMBER\", or \"net:ADDRESS/BITS\" with zeroes behind \
            the bits, as in \"net:192.0.2.0/24\"";
        check.findings.error(&entry.key_span, message, hint);
    }
    who
}

fn access_of(check: &mut Check<'_>, entry: &Entry) -> Option<Access> {
    match entry.node.text() {
        Some("read-only") => return Some(Access::ReadOnly),
        Some("read-write") => return Some(Access::ReadWrite),
        _ => {}
    }
    let (who, value) = (shorten(&entry.key), check.source.word(&entry.node.span));
    let message = format!("`{who}`: {value} is not what a client may do");
    check.findings.error(&entry.node.span, message, "write \"read-only\" or \"read-write\"");
    None
}
