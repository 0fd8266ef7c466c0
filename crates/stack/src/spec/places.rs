//! The places of a stack file's keys in its text.

use std::collections::BTreeMap;

use crate::diagnostic::Span;
use crate::group;

/// Byte ranges of keys in the stack file, so that later errors can point at them, too.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Places {
    spans: BTreeMap<String, Span>,
}

impl Places {
    /// Notes where `path` (as `device/d0/queue/scheduler`) has its value; `device/d0` itself is
    /// the name in the section's header.
    pub fn note(&mut self, path: String, span: Span) {
        self.spans.entry(path).or_insert(span);
    }

    /// True if `path` was given.
    pub fn has(&self, path: &str) -> bool {
        self.spans.contains_key(path)
    }

    /// Where the value at `path` stands; where it was not given, the nearest enclosing place.
    pub fn get(&self, path: &str) -> Span {
        let mut path = path;
        loop {
            if let Some(span) = self.spans.get(path) {
                return span.clone();
            }
            match path.rsplit_once('/') {
                Some((outer, _)) => path = outer,
                None => return 0..0,
            }
        }
    }

    /// Where `key` of the device stands.
    pub fn device(&self, name: &str, key: &str) -> Span {
        self.get(&format!("device/{name}/{key}"))
    }

    /// Where `key` of the group stands; an empty key is the group itself.
    pub fn group(&self, path: &str, key: &str) -> Span {
        let place = group::place(path);
        self.get(&if key.is_empty() {
            format!("group/{place}")
        } else {
            format!("group/{place}/{key}")
        })
    }

    /// Where `key` of the export stands.
    pub fn export(&self, name: &str, key: &str) -> Span {
        self.get(&format!("export/{name}/{key}"))
    }
}
