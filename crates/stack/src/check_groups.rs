//! Checks of the tree of throttle groups, and of the exports that name groups.

use std::collections::BTreeSet;

use crate::diagnostic::{Findings, Span, shorten};
use crate::graph::Broken;
use crate::group::{check_path, header, nearest_group, parent};
use crate::spec::StackSpec;

/// Reports groups without parents, and exports whose groups do not exist. `broken` groups have
/// been reported before and count as existing.
pub(crate) fn check(stack: &StackSpec, broken: &Broken, findings: &mut Findings) {
    let known: BTreeSet<&str> = stack
        .groups
        .iter()
        .map(|group| group.path.as_str())
        .chain(broken.iter().map(String::as_str))
        .chain([""])
        .collect();
    for group in &stack.groups {
        let parent = parent(&group.path);
        if !known.contains(parent) {
            let message = format!("group `{}` has no parent `{parent}`", group.path);
            let span = stack.places.group(&group.path, "");
            findings.error(&span, message, format!("add {}", header(parent)));
        }
    }
    for export in &stack.exports {
        let own = (&export.group, &stack.places.export(&export.name, "group"));
        let clients = export.clients.iter().map(|client| (&client.group, &client.span));
        for (group, span) in [own].into_iter().chain(clients) {
            if !known.contains(group.as_str()) {
                missing(group, span, &known, findings);
            }
        }
    }
}

fn missing(path: &str, span: &Span, known: &BTreeSet<&str>, findings: &mut Findings) {
    let hint = match nearest_group(path, known.iter().copied()).filter(|_| !findings.is_full()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if check_path(path).is_ok() => format!("add {}", header(path)),
        None => "name a group of the stack file, or / for the root".to_owned(),
    };
    findings.error(span, format!("there is no group `{}`", shorten(path)), hint);
}
