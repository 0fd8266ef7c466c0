//! Checks of the files of a stack: each exists or can be made, is large enough, and is not used
//! twice. The checks change nothing.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::diagnostic::{Findings, Span};
use crate::size::format_size;
use crate::spec::{Create, DeviceKind, DeviceSpec, FileSpec, StackSpec};
use crate::used_files::{Identity, Kind, Seen, folder};

/// Checks the files of all devices and notes the sizes of existing files in `stack.sizes`. Returns
/// the files that devices use.
pub fn check(stack: &mut StackSpec, findings: &mut Findings) -> Seen {
    let (mut seen, mut absent) = (Seen::default(), BTreeSet::new());
    for device in &stack.devices {
        let DeviceKind::File(file) = &device.kind else { continue };
        let span = stack.places.device(&device.name, "path");
        let identity = Identity::of(&file.options.path);
        if let Some(other) = seen.find(&identity) {
            // Its existence and size were checked for the first device.
            let message = format!("`{}` and `{}` are the same file", device.name, other.name);
            let also = (&other.span, "first used here");
            findings.error_also(&span, message, "give each device a file of its own", also);
            continue;
        }
        match file_device(file, &device.name, stack, findings) {
            Ok(Some(size)) => _ = stack.sizes.insert(device.name.clone(), size),
            Ok(None) => {}
            Err(flaw) => {
                let can_go_on = flaw.report(&device.name, stack, findings);
                absent.extend(can_go_on.then(|| device.name.clone()));
            }
        }
        seen.add(identity, Kind::Device, &device.name, span);
    }
    stack.absent = absent;
    seen
}

/// A fault of a device's file.
struct Flaw {
    span: Span,
    message: String,
    hint: String,
    /// The file does not exist or is too short: a user that can do without the device can go on.
    is_lack: bool,
}

impl Flaw {
    fn new(span: Span, message: String, hint: impl Into<String>) -> Self {
        Flaw { span, message, hint: hint.into(), is_lack: false }
    }

    fn lack(span: Span, message: String, hint: impl Into<String>) -> Self {
        Flaw { is_lack: true, ..Flaw::new(span, message, hint) }
    }

    /// Reports it; whether the stack can be served without the device.
    fn report(self, name: &str, stack: &StackSpec, findings: &mut Findings) -> bool {
        let Flaw { span, message, hint, is_lack } = self;
        match array_of(name, stack).filter(|_| is_lack) {
            Some((array, true)) => {
                let hint = format!("`run = true`: `{array}` starts without it");
                findings.warning(&span, message, hint);
                return true;
            }
            Some((array, false)) => {
                let hint = format!(
                    "{hint}; or set `run = true` in [device.{array}], which starts it degraded, \
                     without `{name}`"
                );
                findings.error(&span, message, hint);
            }
            None => findings.error(&span, message, hint),
        }
        false
    }
}

/// The array that a device is a member of, if nothing else uses the device; and whether it is to
/// start without members that are missing.
fn array_of<'s>(name: &str, stack: &'s StackSpec) -> Option<(&'s str, bool)> {
    let is_member =
        |device: &&DeviceSpec| device.members().iter().any(|member| member.device == name);
    let mut users = stack.devices.iter().filter(is_member);
    let array = users.next()?;
    let DeviceKind::Raid(raid) = &array.kind else { return None };
    let is_exported = stack.exports.iter().any(|export| export.device == name);
    let is_limited =
        stack.groups.iter().flat_map(|group| &group.io_max).any(|line| line.device == name);
    let is_alone = users.next().is_none() && !is_exported && !is_limited;
    is_alone.then_some((&array.name, raid.run))
}

/// Checks the file of a device; its size if known.
fn file_device(
    file: &FileSpec,
    name: &str,
    stack: &StackSpec,
    findings: &mut Findings,
) -> Result<Option<u64>, Flaw> {
    let span = stack.places.device(name, "path");
    let shown = file.options.path.display();
    match fs::metadata(&file.options.path) {
        Ok(meta) if file.create == Create::New => {
            let size = meta.len();
            let message = format!("{shown} exists ({})", format_size(size));
            Err(Flaw::new(span, message, "remove create = \"new\", or name another file"))
        }
        Ok(meta) => existing(file, name, &meta, stack, findings),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            missing(file, name, stack).map_or(Ok(file.options.size_bytes), Err)
        }
        Err(error) => {
            let message = format!("{shown}: {error}");
            Err(Flaw::new(span, message, "name a file that can be reached"))
        }
    }
}

/// The reason why a missing file cannot be made, if there is one.
fn missing(file: &FileSpec, name: &str, stack: &StackSpec) -> Option<Flaw> {
    let path_span = stack.places.device(name, "path");
    let shown = file.options.path.display();
    let read_only = stack.device(name).is_some_and(|device| device.read_only);
    if file.create == Create::Never || read_only {
        let reason = if read_only { "the device is read-only" } else { "create is \"never\"" };
        let message = format!("{shown} does not exist, and {reason}");
        return Some(Flaw::lack(path_span, message, "name a file that exists"));
    }
    if let Some(flaw) = of_an_array(file, name, stack) {
        return Some(flaw);
    }
    if file.options.size_bytes.is_none() {
        let message = format!("{shown} does not exist");
        let hint = "add size = \"10GiB\" to have it created, or name a file that exists";
        return Some(Flaw::lack(path_span, message, hint));
    }
    (!folder(&file.options.path).is_dir()).then(|| {
        let message = format!("{shown} cannot be created: its folder does not exist");
        let hint = format!("make the folder: mkdir -p {}", folder(&file.options.path).display());
        Flaw::lack(path_span, message, hint)
    })
}

/// The reason not to make the file of a member if other members of its array exist: an array
/// is made only together with all of its members, so this one is lost, or somewhere else.
fn of_an_array(file: &FileSpec, name: &str, stack: &StackSpec) -> Option<Flaw> {
    let is_of = |device: &&DeviceSpec| {
        let is_raid = matches!(device.kind, DeviceKind::Raid(_));
        is_raid && device.members().iter().any(|member| member.device == name)
    };
    let array = stack.devices.iter().find(is_of)?;
    let path = |device: &str| match &stack.device(device)?.kind {
        DeviceKind::File(file) => Some(file.options.path.as_path()).filter(|path| path.exists()),
        _ => None,
    };
    let others = array.members().into_iter().filter_map(|member| path(&member.device));
    let others: Vec<String> = others.map(|path| path.display().to_string()).collect();
    if others.is_empty() {
        return None;
    }
    let message = format!(
        "{} does not exist, and is not made, because other members of `{}` exist",
        file.options.path.display(),
        array.name
    );
    let hint = format!(
        "name the file that holds it, or leave `{name}` out of `members` if another device has \
         replaced it: `drystone md assemble --print {}` prints a stack file of the others",
        others.join(" ")
    );
    Some(Flaw::lack(stack.places.device(name, "path"), message, hint))
}

fn existing(
    file: &FileSpec,
    name: &str,
    meta: &Metadata,
    stack: &StackSpec,
    findings: &mut Findings,
) -> Result<Option<u64>, Flaw> {
    let span = stack.places.device(name, "path");
    let shown = file.options.path.display();
    let size = match meta.file_type() {
        kind if kind.is_file() => Some(meta.len()),
        kind if kind.is_block_device() => block_device_size(&file.options.path),
        _ => {
            let message = format!("{shown} is neither a file nor a block device");
            return Err(Flaw::new(span, message, "name a file or a block device"));
        }
    };
    match (file.options.size_bytes, size) {
        (Some(wanted), Some(size)) if size < wanted => {
            let message = format!("{shown} is too small: it has {}", format_size(size));
            let hint = format!("remove `size`, or grow the file to {}", format_size(wanted));
            Err(Flaw::lack(stack.places.device(name, "size"), message, hint))
        }
        (Some(wanted), Some(size)) if size > wanted => {
            findings.warning(
                &stack.places.device(name, "size"),
                format!("{shown} is larger than the device: it has {}", format_size(size)),
                "remove `size` to use all of it",
            );
            Ok(Some(wanted))
        }
        (None, Some(size)) if size < crate::spec::SECTOR_BYTES => {
            Err(Flaw::lack(span, format!("{shown} is empty"), "add `size`, or fill it"))
        }
        (wanted, size) => Ok(wanted.or(size)),
    }
}

/// Size of a block device, if it may be read.
fn block_device_size(path: &Path) -> Option<u64> {
    File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).ok()
}
