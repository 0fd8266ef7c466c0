//! `fuse = "PATH"`: an export as a regular file.
//!
//! Invariant: a path is only resolved, never opened or passed to `stat`. A mount of a stopped
//! server may be there, and a call to that waits without end.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use drystone_exports::fuse::kernel::{self, MountError};

use crate::diagnostic::{Findings, Span};
use crate::parse::fields::Check;
use crate::spec::{ExportSpec, FuseSpec, StackSpec};
use crate::used_files::{Identity, Kind, Seen, folder};

use super::exposed;
use super::front_end::{FrontEnd, Section};

/// Files, by FUSE.
pub(crate) struct Fuse;

impl FrontEnd for Fuse {
    /// Reads the file, if the export has one; the other keys need it.
    fn read(&self, check: &mut Check<'_>, section: &Section<'_>, export: &mut ExportSpec) {
        let fields = section.fields;
        let file = section.file.map(Path::to_owned).or_else(|| fields.path("fuse"));
        if file.is_none() {
            without_file(check, section);
        } else if !fields.bool("fuse_allow_other") {
            without_others(check, section);
        }
        export.fuse = file.map(|path| FuseSpec {
            path,
            loop_device: fields.bool("fuse_loop"),
            allow_other: fields.bool("fuse_allow_other"),
            mode: fields.number32_if("fuse_mode"),
            uid: fields.number32_if("fuse_uid"),
            gid: fields.number32_if("fuse_gid"),
            writeback_cache: fields.bool("fuse_writeback_cache"),
            ignore_truncate: fields.bool("fuse_ignore_truncate"),
        });
    }

    /// A process that opens a file has a user id.
    fn knows_users(&self, export: &ExportSpec) -> bool {
        export.fuse.is_some()
    }

    /// Reports exports that share a folder and differ in a property of the whole mount.
    fn check(&self, stack: &StackSpec, findings: &mut Findings) {
        let mut first: BTreeMap<&Path, (&ExportSpec, &FuseSpec)> = BTreeMap::new();
        for (export, fuse) in files(stack) {
            let (other, with) = *first.entry(&fuse.path).or_insert((export, fuse));
            if other.name != export.name {
                agree((stack, export, fuse), (other, with), findings);
            }
        }
        exposed::files(stack, findings);
    }

    fn look(&self, stack: &StackSpec, seen: &mut Seen, findings: &mut Findings) {
        let mut places: BTreeMap<PathBuf, MountPath<'_>> = BTreeMap::new();
        for (export, fuse) in files(stack) {
            let span = stack.places.export(&export.name, "fuse");
            let Some(real) = real_path(&fuse.path, &span, findings) else { continue };
            let place = MountPath { export, path: &fuse.path, real: real.clone(), span };
            let met = place.met(&places);
            match met.and_then(|other| Some((other, place.clash(other)?))) {
                Some((other, (message, hint))) => {
                    let also = (&other.span, "first used here");
                    findings.error_also(&place.span, message, hint, also);
                }
                None => place.check_others(seen, findings),
            }
            places.entry(real).or_insert(place);
        }
    }

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

/// Keys that say which other users may open the file.
const OF_OTHERS: [&str; 3] = ["fuse_mode", "fuse_uid", "fuse_gid"];

/// Reports keys of a file although the export appears as none.
fn without_file(check: &mut Check<'_>, section: &Section<'_>) {
    let switches =
        ["fuse_loop", "fuse_allow_other", "fuse_writeback_cache", "fuse_ignore_truncate"];
    let on = switches.into_iter().filter(|key| section.fields.bool(key));
    for key in on.chain(OF_OTHERS) {
        let place = format!("{}/{key}", section.path);
        if check.places.has(&place) {
            let message = format!("`{key}` has no effect: the export has no `fuse`");
            let span = check.places.get(&place);
            check.findings.error(&span, message, "add fuse = \"NAME.img\" or remove it");
        }
    }
}

/// Reports keys for other users without `allow_other`: the kernel then lets only the mounting user
/// open the file, whatever its mode and owner are.
fn without_others(check: &mut Check<'_>, section: &Section<'_>) {
    for key in OF_OTHERS {
        let place = format!("{}/{key}", section.path);
        if check.places.has(&place) {
            let message = format!(
                "`{key}` has no effect: only the user who runs the server can open the file"
            );
            let span = check.places.get(&place);
            check.findings.error(&span, message, "add fuse_allow_other = true or remove it");
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
        ("fuse_mode", fuse.permissions() != with.permissions()),
        ("fuse_uid", fuse.uid != with.uid),
        ("fuse_gid", fuse.gid != with.gid),
        ("fuse_writeback_cache", fuse.writeback_cache != with.writeback_cache),
        ("fuse_ignore_truncate", fuse.ignore_truncate != with.ignore_truncate),
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

/// The place at which an export appears.
struct MountPath<'a> {
    export: &'a ExportSpec,
    path: &'a Path,
    /// Without symbolic links.
    real: PathBuf,
    span: Span,
}

impl<'a> MountPath<'a> {
    /// One of `places` that is equal to this one, above it or below it.
    fn met<'p>(&self, places: &'p BTreeMap<PathBuf, MountPath<'a>>) -> Option<&'p MountPath<'a>> {
        let around = self.real.ancestors().find_map(|folder| places.get(folder));
        // Files in a folder follow it directly in the order.
        let behind = (Bound::Excluded(self.real.as_path()), Bound::<&Path>::Unbounded);
        let next = places.range::<Path, _>(behind);
        let inside = { next }.next().filter(|(path, _)| path.starts_with(&self.real));
        around.or(inside.map(|(_, place)| place))
    }

    /// The reason why this place conflicts with `other` (equal, above or below), and the remedy.
    fn clash(&self, other: &MountPath<'_>) -> Option<(String, String)> {
        let (own, their, shown) = (&self.export.name, &other.export.name, self.path.display());
        if self.real != other.real {
            let message = format!(
                "{shown} of export `{own}` and {} of export `{their}` lie in one another, and one \
                 would hide the other",
                other.path.display()
            );
            return Some((message, "give each a path outside of the other's".to_owned()));
        }
        if self.path != other.path {
            let message =
                format!("{shown} of export `{own}` is where export `{their}` appears too");
            return Some((message, "write both paths alike to share a folder".to_owned()));
        }
        if can_be_shared(&self.real) {
            return None;
        }
        let message = format!(
            "exports `{their}` and `{own}` are both to appear as {shown}, but only a folder that \
             exists can be shared"
        );
        Some((message, format!("give each a path of its own, or make a folder: mkdir {shown}")))
    }

    /// Reports a place that another part of the stack uses.
    fn check_others(&self, seen: &Seen, findings: &mut Findings) {
        let Some(other) = seen.find(&Identity::named(self.real.clone())) else { return };
        let what = match other.kind {
            Kind::Device => "the file of device",
            Kind::Socket => "the socket of export",
        };
        let message = format!("{} is {what} `{}`", self.path.display(), other.name);
        let also = (&other.span, "first used here");
        findings.error_also(&self.span, message, "name a path where there is nothing", also);
    }
}

/// Resolves the path, or reports why nothing can be made there. `None` also if that is unknown: the
/// start finds out.
fn real_path(path: &Path, span: &Span, findings: &mut Findings) -> Option<PathBuf> {
    let shown = path.display();
    match kernel::resolve(path) {
        Ok(real) => return Some(real),
        Err(MountError::Missing { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let message = format!("{shown} cannot be made: its folder does not exist");
            let hint = format!("make the folder: mkdir -p {}", folder(path).display());
            findings.error(span, message, hint);
        }
        Err(MountError::Missing { source, .. }) => {
            let hint = "name a path that can be reached";
            findings.error(span, format!("{shown} cannot be made: {source}"), hint);
        }
        Err(_) => {}
    }
    None
}

/// True if the path is a folder, or a mount that may be one; the start finds out.
fn can_be_shared(path: &Path) -> bool {
    kernel::is_mount_point(path).unwrap_or(true)
        || fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}
