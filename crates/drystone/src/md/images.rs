//! Images of members, whichever they are, and the array that they make: found without a server, and
//! without writing anything.

use std::path::{Path, PathBuf};

use drystone_raid::layout::layout_name;
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::{Assembly, Candidate, Member, Start, assemble};
use drystone_raid::metadata::foreign::Contents;
use drystone_stack::one_line;
use drystone_stack::size::format_size;

use super::member::{self, Device};
use crate::failure::Failure;

/// The description of the array that is looked for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Files or block devices, in any order.
    pub paths: Vec<PathBuf>,
    /// Which array, if the images are of several.
    pub uuid: Option<Uuid>,
    /// Start it though something may be lost.
    pub force: bool,
}

/// An image of a member.
pub struct Image {
    pub path: PathBuf,
    pub bytes: u64,
}

/// See the module's text.
pub struct Images {
    pub images: Vec<Image>,
    candidates: Vec<Candidate>,
    /// As it is found.
    found: Assembly,
    /// As it starts: with members that were forced in.
    pub array: Assembly,
    pub force: bool,
    /// Images of other arrays.
    others: Vec<PathBuf>,
}

impl Images {
    /// Reads the superblocks.
    ///
    /// # Errors
    /// One sentence on the first image that is not of an array, or on why the images make none that
    /// may start.
    pub fn open(wanted: &Wanted) -> Result<Self, Failure> {
        member::check_names(&wanted.paths)?;
        let (mut images, mut candidates, mut others) = (Vec::new(), Vec::new(), Vec::new());
        let found = all(&wanted.paths)?;
        if wanted.uuid.is_none() {
            one_array(&found)?;
        }
        for (image, candidate) in found {
            match wanted.uuid.is_none_or(|uuid| uuid_of(&candidate) == Some(uuid)) {
                true => {
                    images.push(image);
                    candidates.push(candidate);
                }
                false => others.push(image.path),
            }
        }
        let found = assemble(&candidates, wanted.uuid).map_err(Failure::Refused)?;
        let mut array = found.clone();
        if wanted.force {
            array.force(&candidates);
        }
        // The contents of its journal are compared with the members when it is started.
        let may_lack = matches!(found.start, Start::Force(_)) || found.journal.is_some();
        let force = wanted.force && may_lack;
        let images = Images { images, candidates, found, array, force, others };
        images.may_start(wanted.force).map(|()| images)
    }

    fn may_start(&self, force: bool) -> Result<(), Failure> {
        let name = match self.array.fresh.name() {
            name if name.is_empty() => self.array.fresh.set_uuid.to_string(),
            name => name.escape_debug().to_string(),
        };
        match &self.array.start {
            Start::Whole | Start::Degraded { .. } => Ok(()),
            Start::Force(_) if force => Ok(()),
            Start::Force(why) => {
                Err(Failure::Refused(format!("{name}: {why}; --force serves it anyway")))
            }
            Start::No(why) => Err(Failure::Refused(format!("{name}: {why}"))),
        }
    }

    /// The findings, in lines for people: the role of each device, and what of it is computed.
    pub fn report(&self) -> Vec<String> {
        let mut lines = vec![self.title()];
        lines.extend((0..self.array.members.len()).map(|role| self.member_line(role)));
        let replacements = self.array.replacements.iter().enumerate();
        lines.extend(replacements.filter_map(|(role, replacement)| {
            let path = self.path(replacement.as_ref()?.device);
            Some(format!("replacement of member {role}: {path}"))
        }));
        lines.extend(self.array.spares.iter().map(|spare| format!("spare: {}", self.path(*spare))));
        let journal = self.array.journal.iter();
        lines.extend(journal.map(|device| format!("journal: {}", self.path(*device))));
        lines.extend(self.array.left_out.iter().map(|(_, why)| format!("left out: {why}")));
        let others = self.others.iter();
        lines.extend(others.map(|path| format!("of another array: {}", path.display())));
        lines.extend(self.array.read_only.iter().map(|why| format!("read-only: {why}")));
        lines
    }

    fn title(&self) -> String {
        let (name, uuid) = (self.array.fresh.name(), self.array.fresh.set_uuid);
        let called = match name.is_empty() {
            true => uuid.to_string(),
            false => format!("{} ({uuid})", name.escape_debug()),
        };
        let (array, layout) = (&self.array, &self.array.layout);
        let dirty = if self.found.resync_from.is_some() { ", not stopped cleanly" } else { "" };
        format!(
            "array {}: {} {}, chunk {}, metadata {}, {} of {} members in sync{dirty}",
            called,
            layout.level(),
            layout_name(layout.number()).unwrap_or("with a layout of its own"),
            format_size(layout.chunk_sectors() * 512),
            array.minor.name(),
            layout.disks() - array.lost(),
            layout.disks(),
        )
    }

    fn member_line(&self, role: usize) -> String {
        const COMPUTED: &str = "computed from the others";
        let text = match &self.array.members[role] {
            Member::InSync { device } if self.found.members[role].is_in_sync() => {
                self.path(*device)
            }
            Member::InSync { device } => {
                format!("{}, forced in though it has not kept up", self.path(*device))
            }
            Member::Rebuilding { device, recovered, .. } => format!(
                "{}, rebuilt up to sector {recovered} of {}, from there on {COMPUTED}",
                self.path(*device),
                self.array.used()
            ),
            Member::Stale { .. } => format!("stale, {COMPUTED}"),
            Member::Faulty { .. } => format!("failed, {COMPUTED}"),
            Member::Damaged { .. } => format!("damaged, {COMPUTED}"),
            Member::Missing if self.array.is_left_to_spare(role) => {
                format!("to be rebuilt on a spare, until then {COMPUTED}")
            }
            Member::Missing => format!("missing, {COMPUTED}"),
        };
        format!("member {role}: {text}")
    }

    fn path(&self, device: usize) -> String {
        self.candidates[device].name.clone()
    }
}

/// The images at these paths, all of which must be of an array.
fn all(paths: &[PathBuf]) -> Result<Vec<(Image, Candidate)>, Failure> {
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for path in paths {
        match image(path)? {
            Ok(image) => found.push(image),
            Err(why) => wrong.push(why),
        }
    }
    match wrong.as_slice() {
        [] => Ok(found),
        [why] => Err(Failure::Refused(why.clone())),
        all => {
            let lines = all.iter().map(|why| format!("\n  {}", one_line(why)));
            Err(Failure::Report(format!(
                "error: {} images cannot be used:{}",
                all.len(),
                lines.collect::<String>()
            )))
        }
    }
}

/// The image at a path, or why it is of no array.
fn image(path: &Path) -> Result<Result<(Image, Candidate), String>, Failure> {
    let device = Device::locked(path, true)?;
    let candidate = device.candidate()?;
    let Err(error) = &candidate.found else {
        return Ok(Ok((Image { path: path.to_owned(), bytes: device.bytes }, candidate)));
    };
    if let Some(why) = device.whole_disk()? {
        return Ok(Err(why));
    }
    let holds = match device.contents()? {
        Contents::Known(what) => format!("; it appears to contain {what}"),
        Contents::Blank | Contents::Unknown => String::new(),
    };
    let path = path.display();
    Ok(Err(format!("{path} cannot be used: {error}{holds}; leave it out to go on without it")))
}

fn uuid_of(candidate: &Candidate) -> Option<Uuid> {
    candidate.found.as_ref().ok().map(|(_, superblock)| superblock.set_uuid)
}

/// All images are of the same array.
fn one_array(found: &[(Image, Candidate)]) -> Result<(), Failure> {
    let mut arrays: Vec<(Uuid, String)> = Vec::new();
    for (_, candidate) in found {
        let Ok((_, own)) = &candidate.found else { continue };
        match arrays.iter_mut().find(|(uuid, _)| *uuid == own.set_uuid) {
            Some((_, text)) => *text += &format!(", {}", candidate.name),
            None => arrays.push((own.set_uuid, format!("{}: {}", own.name(), candidate.name))),
        }
    }
    if arrays.len() < 2 {
        return Ok(());
    }
    let line = |(uuid, text): &(Uuid, String)| format!("\n  --uuid {uuid} for {}", one_line(text));
    let lines = arrays.iter().map(line);
    Err(Failure::Report(format!(
        "error: the images are of {} arrays; say which:{}",
        arrays.len(),
        lines.collect::<String>()
    )))
}
