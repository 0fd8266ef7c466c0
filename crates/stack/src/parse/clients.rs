//! Reads the `clients` table of an export: the throttle group of each client.

use crate::diagnostic::shorten;
use crate::group::from_shown;
use crate::parse::fields::Check;
use crate::parse::node::{Entry, Node, Raw};
use crate::parse::values::parse_number;
use crate::schema::CLIENTS_DOC;
use crate::spec::{Client, ClientGroup};

/// Longest name in a certificate; a DNS name has 253 at most, a common name 64.
const MAX_NAME_BYTES: usize = 256;

/// Reads the table in `node`; reports its faults, and then returns `None`.
pub fn parse_clients(check: &mut Check<'_>, node: &Node) -> Option<Vec<ClientGroup>> {
    let Raw::Table(entries) = &node.value else {
        let message = format!("`clients` is {}, not a table", node.written());
        check.findings.error(&node.span, message, format!("write {CLIENTS_DOC}"));
        return None;
    };
    let mut clients: Vec<(ClientGroup, &Entry)> = Vec::new();
    for entry in entries {
        let client = client_of(check, entry);
        let group = group_of(check, entry);
        if let (Some(client), Some(group)) = (client, group) {
            let span = entry.node.span.clone();
            clients.push((ClientGroup { client, group, span }, entry));
        }
    }
    let whole = clients.len() == entries.len() && !has_twice(check, &mut clients);
    whole.then(|| clients.into_iter().map(|(client, _)| client).collect())
}

fn client_of(check: &mut Check<'_>, entry: &Entry) -> Option<Client> {
    let client = client(&entry.key);
    if client.is_none() {
        let message = format!("`{}` is not a client", shorten(&entry.key));
        let hint = "write \"uid:NUMBER\" or \"tls:NAME\", as in \"uid:1000\"";
        check.findings.error(&entry.key_span, message, hint);
    }
    client
}

/// Reads a client; `None` if it is not written as one.
pub fn client(key: &str) -> Option<Client> {
    match key.split_once(':') {
        // The largest number stands for no user.
        Some(("uid", number)) => parse_number(number)
            .and_then(|uid| u32::try_from(uid).ok())
            .filter(|uid| *uid != u32::MAX)
            .map(Client::Uid),
        Some(("tls", name)) => {
            let right = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
            right.then(|| Client::Tls(name.to_owned()))
        }
        _ => None,
    }
}

fn group_of(check: &mut Check<'_>, entry: &Entry) -> Option<String> {
    let group = entry.node.text().filter(|path| !path.is_empty());
    if group.is_none() {
        let (client, value) = (shorten(&entry.key), check.source.word(&entry.node.span));
        let message = format!("`{client}`: {value} is not the path of a group");
        check.findings.error(&entry.node.span, message, "write it as in \"tenants/a\"");
    }
    Some(from_shown(group?).to_owned())
}

/// Reports clients that the table has in two spellings.
fn has_twice(check: &mut Check<'_>, clients: &mut [(ClientGroup, &Entry)]) -> bool {
    clients.sort_by(|(a, _), (b, _)| (&a.client, a.span.start).cmp(&(&b.client, b.span.start)));
    let mut twice = false;
    for pair in clients.windows(2).filter(|pair| pair[0].0.client == pair[1].0.client) {
        self::twice(check, pair[0].1, pair[1].1);
        twice = true;
    }
    clients.sort_by_key(|(client, _)| client.span.start);
    twice
}

/// Reports a client that the table has twice.
pub fn twice(check: &mut Check<'_>, first: &Entry, second: &Entry) {
    let message = format!("`{}` and `{}` are the same", first.key, second.key);
    let also = (&first.key_span, "the first");
    check.findings.error_also(&second.key_span, message, "give each client once", also);
}
