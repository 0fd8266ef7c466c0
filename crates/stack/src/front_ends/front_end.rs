//! The interface of a front end to the checks of a stack file.

use std::path::Path;

use crate::diagnostic::{Findings, Span};
use crate::parse::fields::{Check, Fields};
use crate::spec::{ExportSpec, StackSpec};
use crate::used_files::Seen;

/// The part of a stack file that is about one front end.
pub(crate) trait FrontEnd: Sync {
    /// Reads its keys of an export's section and reports their faults. If the section has a `file`,
    /// the export also appears as that file.
    fn read(&self, check: &mut Check<'_>, section: &Section<'_>, export: &mut ExportSpec);

    /// True if its clients have a user id.
    fn knows_users(&self, export: &ExportSpec) -> bool;

    /// Reports exports that contradict one another.
    fn check(&self, stack: &StackSpec, findings: &mut Findings);

    /// Reports faults of the files that exports name, and files that are used twice. Changes
    /// nothing.
    fn look(&self, stack: &StackSpec, seen: &mut Seen, findings: &mut Findings);

    /// How clients reach the export by it: URIs, or paths.
    fn ways_in(&self, export: &ExportSpec) -> Vec<String>;

    /// The same for the tree of a stack, with the front end's name; `None` if the export does not
    /// use it.
    fn explain(&self, export: &ExportSpec) -> Option<String>;
}

/// An `[export.NAME]` section that is being read.
pub(crate) struct Section<'a> {
    /// Its values.
    pub fields: &'a Fields,
    /// Its place: `export/NAME`.
    pub path: &'a str,
    /// Where its name stands.
    pub name: &'a Span,
    /// Where the export also appears as a file.
    pub file: Option<&'a Path>,
}
