//! `drystone md assemble --print`, and the stack that `drystone serve --md` runs: the text of a
//! stack file for the array that some images make.

use std::path::Path;

use drystone_raid::layout::{Level, layout_name};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::{Member, Start};
use drystone_stack::size::format_size;
use drystone_stack::{LoadError, Source, StackSpec, check, check_name};

use super::images::{Image, Images, Wanted};
use crate::failure::Failure;
use crate::output;

/// The name of an array whose own name cannot be one.
const NAME_DEFAULT: &str = "array";

/// Reads an array's UUID, as mdadm writes it.
pub fn uuid(text: &str) -> Result<Uuid, String> {
    Uuid::parse(text).ok_or_else(|| "write 32 hex digits, as 0a0b0c0d:11223344:…".to_owned())
}

/// `drystone md assemble --print`. `name`: what the array is called, if not by its own name.
pub fn print(wanted: &Wanted, name: Option<&str>) -> Result<(), Failure> {
    if let Some(name) = name {
        check_name(name).map_err(Failure::Usage)?;
    }
    let images = Images::open(wanted)?;
    let name = name.map_or_else(|| name_of(&images), str::to_owned);
    let nbd = format!("unix:{name}.sock");
    let text = stack_text(&images, &name, &nbd, images.array.read_only.is_some())?;
    // The printed stack file is good.
    let stack = checked(&name, text)?;
    output::warn(&stack);
    output::print(&stack.source.text)?;
    Ok(())
}

/// The array's name without the host.
pub fn name_of(images: &Images) -> String {
    let whole = images.array.fresh.name();
    let own = whole.split_once(':').map_or(&whole[..], |(_, own)| own);
    match check_name(own) {
        Ok(()) => own.to_owned(),
        Err(_) => NAME_DEFAULT.to_owned(),
    }
}

/// The stack that a text describes, in the current folder.
pub fn checked(name: &str, text: String) -> Result<StackSpec, Failure> {
    let base = std::env::current_dir().map_err(|error| {
        Failure::Refused(format!("the current folder cannot be found: {error}"))
    })?;
    let source = Source { name: format!("the stack of {name}"), text };
    check(name, source, &base).map_err(|report| output::load_failure(LoadError::Invalid(report)))
}

/// A stack file for the array, which is called `name` and served at the address `nbd`.
pub fn stack_text(
    images: &Images,
    name: &str,
    nbd: &str,
    read_only: bool,
) -> Result<String, Failure> {
    let places = places(images, name, read_only);
    let mut text = String::new();
    for line in images.report() {
        text += &comment(&line);
    }
    text += "# Relative paths start from the folder of this file.\n";
    let flag = if read_only { "read_only = true\n" } else { "" };
    for StackMember { device, image, .. } in &places {
        text += &format!("\n[device.{device}]\ntype = \"file\"\n{}{flag}", file_keys(image)?);
    }
    text += &format!("\n[device.{}]\n{}{flag}", key(name), array_keys(images, &places));
    let (device, nbd) = (quoted(name), quoted(nbd));
    text += &format!("\n[export.{}]\ndevice = {device}\nnbd = {nbd}\n{flag}", key(name));
    Ok(text)
}

/// An image with its name in the stack, and what it is.
struct StackMember<'a> {
    device: String,
    image: &'a Image,
    what: String,
}

/// There is one at most.
const JOURNAL: &str = "journal";

/// Those that take part, members by role first; spares only where they can be of use.
fn places<'a>(images: &'a Images, name: &str, read_only: bool) -> Vec<StackMember<'a>> {
    let array = &images.array;
    let members = array.members.iter().enumerate();
    let members = members.filter_map(|(role, m)| Some((role, m.device()?, "member")));
    let replacements = array.replacements.iter().enumerate();
    let replacements = replacements
        .filter_map(|(role, found)| Some((role, found.as_ref()?.device, "replacement of member")));
    let spares = array.spares.iter().filter(|_| !read_only).enumerate();
    let spares = spares.map(|(n, device)| (n, *device, "spare"));
    // The array's name is never one of these.
    let letter = if name.starts_with('d') { 'm' } else { 'd' };
    let journal = array.journal.iter().map(|device| (0, *device, JOURNAL));
    let others = replacements.chain(spares).chain(journal).zip(array.members.len()..);
    members
        .map(|member| (member, member.0))
        .chain(others)
        .map(|((n, device, what), number)| StackMember {
            device: format!("{letter}{number}"),
            image: &images.images[device],
            what: if what == JOURNAL { what.to_owned() } else { format!("{what} {n}") },
        })
        .collect()
}

fn file_keys(image: &Image) -> Result<String, Failure> {
    let path = image.path.to_str().ok_or_else(|| {
        let shown = image.path.display();
        Failure::Refused(format!("{shown}: a stack file can only name paths that are UTF-8"))
    })?;
    let mut keys = format!("path = {}\n", quoted(path));
    if !image.bytes.is_multiple_of(512) {
        // A device has whole sectors.
        let size = image.bytes - image.bytes % 512;
        keys += &format!("size = \"{size}B\"\ncreate = \"never\"\n");
    }
    Ok(keys)
}

fn array_keys(images: &Images, places: &[StackMember<'_>]) -> String {
    let (array, layout) = (&images.array, &images.array.layout);
    let mut keys = format!("type = \"{}\"\nmembers = [\n", layout.level());
    for StackMember { device, what, .. } in places {
        keys += &format!("    \"{device}\", # {what}\n");
    }
    for (role, member) in array.members.iter().enumerate() {
        if member.device().is_none() {
            let what = match member {
                Member::Missing if array.is_left_to_spare(role) => "to be rebuilt on a spare",
                Member::Missing => "missing",
                _ => "left out",
            };
            keys += &format!("    # member {role} is {what}\n");
        }
    }
    keys += &format!("]\nraid_devices = {}\n", layout.disks());
    keys += &format!("chunk = \"{}\"\n", format_size(layout.chunk_sectors() * 512));
    let named = layout_name(layout.number()).filter(|_| layout.level() != Level::Raid4);
    if let Some(layout) = named {
        keys += &format!("layout = \"{layout}\"\n");
    }
    keys += &format!("uuid = \"{}\"\n", array.fresh.set_uuid);
    // A member that is left out as damaged is one that is missing to this stack.
    let has_damage = array.members.iter().any(|member| matches!(member, Member::Damaged { .. }));
    if has_damage || matches!(array.start, Start::Degraded { unexpected: Some(_) }) {
        keys += "run = true # start degraded\n";
    }
    if images.force {
        keys += "force = true # start although data may be lost\n";
    }
    keys
}

/// A comment of one line, whatever is in the text.
fn comment(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("# {line}\n")
}

/// A basic string of TOML: one of JSON, which may have one more character as it is.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A name as a key of TOML, in which a dot has a meaning.
fn key(name: &str) -> String {
    if name.contains('.') { quoted(name) } else { name.to_owned() }
}

/// The path's form as the address of a Unix socket.
pub fn unix_address(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().ok_or_else(|| {
        Failure::Refused(format!("{}: name another address with --nbd", path.display()))
    })?;
    Ok(format!("unix:{text}"))
}
