//! The front ends in a stack file: how their keys are read and checked, and how clients reach an
//! export.
//!
//! A front end is a file here, and a line in [`ALL`]. Its keys are in [`crate::schema`] with all
//! others, and their values in a field of [`ExportSpec`].

use crate::diagnostic::Findings;
use crate::parse::fields::Check;
use crate::spec::{ExportSpec, StackSpec};
use crate::used_files::Seen;

mod certificates;
mod exposed;
mod front_end;
pub(crate) mod fuse;
pub(crate) mod nbd;

pub use certificates::certificate_warnings;
pub(crate) use certificates::tls;
pub(crate) use front_end::{FrontEnd, Section};

/// All front ends, in the order in which ways in are listed.
static ALL: [&dyn FrontEnd; 2] = [&nbd::Nbd, &fuse::Fuse];

/// Takes the keys of all front ends out of a section.
pub(crate) fn read(check: &mut Check<'_>, section: &Section<'_>, export: &mut ExportSpec) {
    ALL.iter().for_each(|front_end| front_end.read(check, section, export));
}

/// True if some of an export's clients have a user id.
pub(crate) fn know_users(export: &ExportSpec) -> bool {
    ALL.iter().any(|front_end| front_end.knows_users(export))
}

/// Reports exports that contradict one another.
pub(crate) fn check(stack: &StackSpec, findings: &mut Findings) {
    ALL.iter().for_each(|front_end| front_end.check(stack, findings));
}

/// Reports what is wrong with the files that exports name.
pub(crate) fn look(stack: &StackSpec, seen: &mut Seen, findings: &mut Findings) {
    ALL.iter().for_each(|front_end| front_end.look(stack, seen, findings));
}

/// How clients reach an export.
pub(crate) fn ways_in(export: &ExportSpec) -> Vec<String> {
    ALL.iter().flat_map(|front_end| front_end.ways_in(export)).collect()
}

/// How clients reach an export, as the tree of a stack says it.
pub(crate) fn explain(export: &ExportSpec) -> String {
    let used: Vec<String> = ALL.iter().filter_map(|front_end| front_end.explain(export)).collect();
    used.join(", ")
}
