//! `fuse = "PATH"`: an export as a regular file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::diagnostic::Findings;
use crate::fields::Check;
use crate::files::Seen;
use crate::spec::{ExportSpec, FuseSpec, StackSpec};

use super::{FrontEnd, Section};

/// Files, by FUSE.
pub(crate) struct Fuse;

impl FrontEnd for Fuse {
    /// The file, if there is to be one; what is said of it needs it.
    fn read(&self, check: &mut Check<'_>, section: &Section<'_>, export: &mut ExportSpec) {
        let fields = section.fields;
        let file = section.file.map(Path::to_owned).or_else(|| fields.path("fuse"));
        if file.is_none() {
            without_file(check, section);
        }
        export.fuse = file.map(|path| FuseSpec {
            path,
            loop_device: fields.bool("fuse_loop"),
            allow_other: fields.bool("fuse_allow_other"),
            writeback_cache: fields.bool("fuse_writeback_cache"),
        });
    }

    /// Whoever opens a file has one.
    fn knows_users(&self, export: &ExportSpec) -> bool {
        export.fuse.is_some()
    }

    /// Exports that share a folder: what holds for all files in it must agree.
    fn check(&self, stack: &StackSpec, findings: &mut Findings) {
        let mut first: BTreeMap<&Path, (&ExportSpec, &FuseSpec)> = BTreeMap::new();
        for (export, fuse) in files(stack) {
            let (other, with) = *first.entry(&fuse.path).or_insert((export, fuse));
            if other.name != export.name {
                agree((stack, export, fuse), (other, with), findings);
            }
        }
    }

    /// Whoever starts finds out.
    fn look(&self, _stack: &StackSpec, _seen: &mut Seen, _findings: &mut Findings) {}

    fn ways_in(&self, export: &ExportSpec) -> Vec<String> {
        export.fuse.iter().map(|fuse| fuse.path.display().to_string()).collect()
    }

    fn explain(&self, export: &ExportSpec) -> Option<String> {
        let fuse = export.fuse.as_ref()?;
        let with = if fuse.loop_device { " with a loop device" } else { "" };
        Some(format!("fuse {}{with}", fuse.path.display()))
    }
}

/// The exports that appear as files.
fn files(stack: &StackSpec) -> Vec<(&ExportSpec, &FuseSpec)> {
    stack.exports.iter().filter_map(|export| Some((export, export.fuse.as_ref()?))).collect()
}

/// Keys that say something of a file which there is not.
fn without_file(check: &mut Check<'_>, section: &Section<'_>) {
    for key in ["fuse_loop", "fuse_allow_other", "fuse_writeback_cache"] {
        let place = format!("{}/{key}", section.path);
        if check.places.has(&place) && section.fields.bool(key) {
            let message = format!("`{key}` has no effect: the export has no `fuse`");
            let span = check.places.get(&place);
            check.findings.error(&span, message, "add fuse = \"NAME.img\" or remove it");
        }
    }
}

/// Reports what differs between two exports that share a folder.
fn agree(
    (stack, export, fuse): (&StackSpec, &ExportSpec, &FuseSpec),
    (other, with): (&ExportSpec, &FuseSpec),
    findings: &mut Findings,
) {
    let differs = [
        ("fuse_loop", fuse.loop_device != with.loop_device),
        ("fuse_allow_other", fuse.allow_other != with.allow_other),
        ("fuse_writeback_cache", fuse.writeback_cache != with.writeback_cache),
    ];
    for (key, _) in differs.iter().filter(|(_, differs)| *differs) {
        let folder = fuse.path.display();
        findings.error_also(
            &stack.places.export(&export.name, "fuse"),
            format!("{folder} is shared with export `{}`, but `{key}` differs", other.name),
            format!("give both the same `{key}`, or another path"),
            (&stack.places.export(&other.name, "fuse"), "first used here"),
        );
    }
}
