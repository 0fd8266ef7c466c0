//! The commands that concern arrays, with mdadm's words.

use drystone_core::clock::Ns;
use serde_json::{Value, json};

use super::volumes::error;
use super::{Control, ControlError};
use crate::md::{ArrayChange, Assemble, Named};

/// How long an array's manager is waited for: longer than it waits itself, for I/O that is to end
/// before a stop.
pub const MANAGER_PATIENCE_NS: Ns = 40_000_000_000;

type Result<T> = std::result::Result<T, ControlError>;

impl Control<'_> {
    /// Answers one of the commands here; `None` if it is none of them.
    pub(super) fn md(&self, command: &str, texts: &[Option<&str>]) -> Option<Result<Value>> {
        if let ("md-detail", [name]) = (command, texts) {
            let arrays = self.runtime.arrays(*name).map_err(error);
            return Some(arrays.map(|arrays| json!({ "arrays": arrays })));
        }
        let (Some(name), rest) = texts.split_first().map(|(name, rest)| (*name, rest))? else {
            return None;
        };
        let change = change(command, rest)?;
        let done = self.runtime.manage(name, &change).map_err(error);
        let takes_in = matches!(change, ArrayChange::Add { .. } | ArrayChange::Assemble(_));
        Some(done.map(|members| {
            let warning = if takes_in { self.timeout_warning(&members) } else { None };
            json!({ "device": name, "members": members, "warning": warning })
        }))
    }
}

/// The change that a command means; `rest` are its arguments after the array's name.
fn change<'a>(command: &str, rest: &[Option<&'a str>]) -> Option<ArrayChange<'a>> {
    let is = |switch: Option<&str>| switch == Some("true");
    Some(match (command, rest) {
        ("md-add", &[Some(word), path, force]) => {
            ArrayChange::Add { member: named(word, path), force: is(force) }
        }
        ("md-fail", &[Some(word), path]) => ArrayChange::Fail(named(word, path)),
        ("md-remove", &[Some(word), path]) => ArrayChange::Remove(named(word, path)),
        ("md-replace", &[Some(word), path]) => ArrayChange::Replace(named(word, path)),
        ("md-check", &[]) => ArrayChange::Sync("check"),
        ("md-repair", &[]) => ArrayChange::Sync("repair"),
        ("md-stop", &[]) => ArrayChange::Stop,
        ("md-assemble", &[Some(members), uuid, run, force, read_only]) => {
            let (run, force, read_only) = (is(run), is(force), is(read_only));
            ArrayChange::Assemble(Assemble { members, uuid, run, force, read_only })
        }
        _ => return None,
    })
}

/// A word that begins at the root is a path.
fn named<'a>(word: &'a str, path: Option<&'a str>) -> Named<'a> {
    Named { word, path: path.or(word.starts_with('/').then_some(word)) }
}
