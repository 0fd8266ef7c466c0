//! Builds a `[group.PATH]` section.

use std::collections::BTreeMap;

use crate::diagnostic::Span;
use crate::group::place;
use crate::iomax::IoMax;
use crate::parse::fields::{Check, Value};
use crate::parse::node::Entry;
use crate::schema::GROUP;
use crate::spec::GroupSpec;

/// Builds a group, or reports why not.
pub fn group(check: &mut Check<'_>, section: &Entry) -> Option<GroupSpec> {
    let errors = check.findings.errors();
    let path = format!("group/{}", place(&section.key));
    let fields = check.table(&[GROUP], section.node.entries(), &path, &section.key_span);
    let io = fields.fields("io").map_or(&[][..], |io| io.list("max"));
    let lines = io.iter().filter_map(|value| match value {
        Value::IoMax(line) => Some(line.clone()),
        _ => None,
    });
    let group = GroupSpec { path: section.key.clone(), io_max: lines.collect() };
    limited_twice(check, &group.io_max);
    (check.findings.errors() == errors).then_some(group)
}

fn limited_twice(check: &mut Check<'_>, lines: &[IoMax]) {
    let mut seen: BTreeMap<&str, &Span> = BTreeMap::new();
    for line in lines {
        let Some(first) = seen.insert(&line.device, &line.span) else { continue };
        let message = format!("`{}` has two lines", line.device);
        let also = (first, "the first line");
        check.findings.error_also(&line.span, message, "put all its limits into one line", also);
    }
}
