//! Opens a device that is an array: found on its members, or made of members that are all new.
//!
//! Invariant: an array is made only of devices that this very start has made. A device that held
//! anything before is only ever assembled.

use std::collections::BTreeSet;
use std::sync::Arc;

use drystone_core::ring::Engine;
use drystone_core::{Context, Device, SECTOR_SIZE};
use drystone_raid::array::{self, ArrayOptions, EventSink, Manager, Opened};
use drystone_raid::layout::{Level, layout_name};
use drystone_raid::metadata::assemble::{Assembly, Candidate, Start, assemble};
use drystone_raid::metadata::create::{self, NewDevice};
use drystone_raid::metadata::foreign::Contents;
use drystone_raid::metadata::{MetadataError, Uuid};

use super::open_env::{Find, OpenEnv, OpenError};
use crate::arrays::new_array;
use crate::diagnostic::shorten;
use crate::events::What;
use crate::spec::{DeviceSpec, RaidSpec};

/// Opens an array of a stack file, without the members that are `absent`. `is_new` says of a device
/// whether this start has made it.
///
/// # Errors
/// [`OpenError`]: the members make no array, or not the one that the stack file says; the array
/// must not start.
pub(super) fn open_raid(
    spec: &DeviceSpec,
    raid: &RaidSpec,
    (find, absent): (Find<'_>, &BTreeSet<String>),
    is_new: &dyn Fn(&str) -> bool,
    (at, engine): (&OpenEnv, Engine),
) -> Result<Opened, OpenError> {
    let there = raid.members.iter().filter(|member| !absent.contains(&member.device));
    let members: Option<Vec<_>> = there.map(|member| find(&member.device)).collect();
    let opening = Opening { spec, raid, at, engine };
    let members = members.ok_or_else(|| opening.error("members", "a member is not open", ""))?;
    if let Some(message) = members.iter().find_map(|member| past_file_limit(&**member))
        && !spec.read_only
    {
        let hint = "raise the limit, or serve the array with `read_only = true`";
        return Err(opening.error("members", message, hint));
    }
    let all_new = raid.members.iter().all(|member| is_new(&member.device));
    let candidates = match all_new {
        true => opening.create(&members)?,
        false => opening.find(&members)?,
    };
    opening.open(&members, &candidates)
}

/// The reason why a device cannot be a member of a writable array: the limit of file size fails
/// writes to its end, and the array would wait for room that never comes.
pub(super) fn past_file_limit(device: &dyn Device) -> Option<String> {
    let (limit, info) = (device.attribute("file_limit")?, device.info());
    let (name, bytes) = (info.name, info.size_bytes);
    Some(match info.kind {
        "file" => format!(
            "`{name}` has {bytes} bytes, more than the limit of file size (`ulimit -f`), {limit} \
             bytes"
        ),
        _ => format!(
            "`{name}` cannot be written as a whole: a file below it is longer than the limit of \
             file size (`ulimit -f`)"
        ),
    })
}

/// Runs a manager beside the caller.
///
/// # Errors
/// When no thread can be made.
pub(super) fn run(name: &str, manager: Manager, at: &OpenEnv) -> Result<(), OpenError> {
    let work = Box::new(move || manager.run());
    (at.platform.spawn)(&format!("md:{name}"), work).map_err(|error| OpenError {
        device: name.to_owned(),
        key: "type",
        message: format!("the array's thread cannot be started: {error}"),
        hint: String::new(),
    })
}

struct Opening<'a> {
    spec: &'a DeviceSpec,
    raid: &'a RaidSpec,
    at: &'a OpenEnv,
    engine: Engine,
}

impl Opening<'_> {
    fn error(
        &self,
        key: &'static str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> OpenError {
        OpenError {
            device: self.spec.name.clone(),
            key,
            message: message.into(),
            hint: hint.into(),
        }
    }

    fn context(&self) -> Result<Context, OpenError> {
        let opened = (self.at.platform.open_context)(&self.at.contexts, self.engine);
        opened.map_err(|error| self.error("type", error.message, ""))
    }

    fn find(&self, members: &[Arc<dyn Device>]) -> Result<Vec<Candidate>, OpenError> {
        let found = array::find(self.context()?, members);
        let (_, candidates) = found.map_err(|error| self.error("members", error.message, ""))?;
        let has_none =
            |candidate: &Candidate| matches!(candidate.found, Err(MetadataError::Absent(_)));
        let blank: Vec<_> =
            members.iter().zip(&candidates).filter(|(_, candidate)| has_none(candidate)).collect();
        let Some((_, first)) = blank.first() else { return Ok(candidates) };
        let all = blank.len() == candidates.len();
        if self.raid.run && !all {
            // They count as missing, and are reported as left out.
            return Ok(candidates);
        }
        let foreign = self.foreign(blank.iter().map(|(member, _)| *member))?;
        if let Some((name, what)) = &foreign
            && what.contains("partition table")
        {
            return Err(self.error("members", holds(name, what), partition_line(name)));
        }
        let message = match (foreign, all) {
            (Some((name, what)), _) => holds(&name, what),
            (None, true) => format!("`{}` and the other members hold no array", first.name),
            (None, false) => format!("`{}` belongs to no array, but other members do", first.name),
        };
        let others = members.iter().zip(&candidates).filter(|(_, found)| !has_none(found));
        let others: Vec<_> = others.map(|(member, _)| member.clone()).collect();
        let hint = match all {
            true => self.create_line(),
            false => {
                let rest: Vec<Candidate> =
                    candidates.iter().filter(|found| !has_none(found)).cloned().collect();
                self.without(&rest, &others)
            }
        };
        Err(self.error("members", message, hint))
    }

    /// The start without the blank members: `rest` is the part of the array found on the `others`.
    fn without(&self, rest: &[Candidate], others: &[Arc<dyn Device>]) -> String {
        let start = assemble(rest, self.raid.uuid).map(|assembly| assembly.start);
        match start {
            Ok(Start::No(why) | Start::Force(why)) => {
                format!("without it the array cannot start: {why}")
            }
            Err(why) => format!("without it the array cannot start: {why}"),
            Ok(Start::Whole) => format!(
                "the array is whole without it: leave it out of `members`{}",
                self.add_later()
            ),
            Ok(Start::Degraded { .. }) => format!(
                "`run = true` in [device.{}] starts the array degraded, without it{}; `drystone md \
                 assemble --print {}` prints a stack file of the others",
                self.spec.name,
                self.add_later(),
                paths(others)
            ),
        }
    }

    fn add_later(&self) -> String {
        format!(
            ", and `drystone md add {} PATH` then gives it to the running array",
            self.spec.name
        )
    }

    /// The first of these devices that holds data of another kind, and that kind.
    fn foreign<'d>(
        &self,
        devices: impl Iterator<Item = &'d Arc<dyn Device>>,
    ) -> Result<Option<(String, &'static str)>, OpenError> {
        for device in devices {
            let found = array::contents(self.context()?, device);
            if let Contents::Known(what) =
                found.map_err(|error| self.error("members", error.message, ""))?
            {
                return Ok(Some((device.info().name, what)));
            }
        }
        Ok(None)
    }

    /// The command line that makes an array of the existing devices, which `serve` never does.
    fn create_line(&self) -> String {
        let disks = self.disks();
        format!(
            "make an array of existing files or disks with `drystone md create --level {} \
             --raid-devices {disks} PATH...`",
            self.raid.level.number()
        )
    }

    fn disks(&self) -> u32 {
        self.raid.raid_devices.unwrap_or(self.raid.members.len() as u32)
    }

    fn create(&self, members: &[Arc<dyn Device>]) -> Result<Vec<Candidate>, OpenError> {
        let uuid = Uuid((self.at.platform.random)());
        let ctime = (self.at.platform.wall_clock)();
        let options = new_array(&self.spec.name, self.raid, uuid, ctime);
        let options = options.map_err(|message| self.error("members", message, ""))?;
        let device = |device: &Arc<dyn Device>| {
            let info = device.info();
            let uuid = Uuid((self.at.platform.random)());
            Some(NewDevice {
                name: info.name,
                sectors: info.size_bytes / SECTOR_SIZE,
                block_sectors: u64::from(info.limits.logical_block_size) / SECTOR_SIZE,
                uuid,
            })
        };
        let devices: Vec<_> = members.iter().map(device).collect();
        let plan = create::plan(&options, &devices);
        let plan = plan.map_err(|message| self.error("members", message, ""))?;
        let made = array::create(self.context()?, members, &plan);
        let (_, candidates) = made.map_err(|error| self.error("members", error.message, ""))?;
        Ok(candidates)
    }

    fn open(
        &self,
        members: &[Arc<dyn Device>],
        candidates: &[Candidate],
    ) -> Result<Opened, OpenError> {
        let assembly = assemble(candidates, self.raid.uuid);
        let assembly = assembly.map_err(|message| self.error("members", message, ""))?;
        self.check(&assembly)?;
        let options = ArrayOptions {
            name: self.spec.name.clone(),
            read_only: self.spec.read_only,
            cache_stripes: self.raid.cache_stripes,
            run: self.raid.run,
            force: self.raid.force,
            wall_clock: self.at.platform.wall_clock.clone(),
            event_sink: self.event_sink(),
        };
        let opened = array::open(self.context()?, members, candidates, &assembly, &options);
        let read_only = assembly.read_only.is_some() && !options.read_only;
        let hint = match &assembly.start {
            Start::No(_) => "",
            Start::Force(_) if read_only => "",
            _ if read_only => &read_line(members),
            // No data is lost: the error names the missing device, which should be added to
            // `members` and not be left out.
            Start::Degraded { unexpected: Some(_) } if assembly.has_replaced() => {
                "name that device in `members`: `drystone md examine PATH` shows whether a file or \
                 disk is it; if it is lost, set `run = true`, which starts the array degraded"
            }
            Start::Degraded { unexpected: Some(_) } => "`run = true` starts it degraded",
            Start::Force(_) => "`force = true` starts it although data may be lost",
            Start::Whole | Start::Degraded { .. } => "",
        };
        opened.map_err(|error| self.error("members", error.message, hint))
    }

    /// The sink that publishes the events of the array.
    fn event_sink(&self) -> EventSink {
        let (events, name) = (self.at.events.clone(), self.spec.name.clone());
        Arc::new(move |event| events.publish(&name, What::Array(event)))
    }

    /// Checks that the array is the one that the stack file describes.
    fn check(&self, assembly: &Assembly) -> Result<(), OpenError> {
        let (has, raid) = (&assembly.layout, self.raid);
        let wrong = |key, says: String, is: String| {
            let message = format!("`{key}` is {says}, but the array on its members has {is}");
            Err(self.error(key, message, "say what it has, or leave it out"))
        };
        if has.level() != raid.level {
            return wrong("type", raid.kind.to_owned(), has.level().to_string());
        }
        let kib = |sectors: u64| format!("{} KiB", sectors / 2);
        if let Some(chunk) = raid.chunk_sectors.filter(|chunk| *chunk != has.chunk_sectors()) {
            return wrong("chunk", kib(chunk), kib(has.chunk_sectors()));
        }
        let name = |number| layout_name(number).unwrap_or("another").to_owned();
        let has_layout = |layout: &u32| raid.level == Level::Raid4 || *layout == has.number();
        if let Some(layout) = raid.layout.filter(|layout| !has_layout(layout)) {
            return wrong("layout", name(layout), name(has.number()));
        }
        match raid.raid_devices.filter(|disks| *disks != has.disks()) {
            Some(disks) => wrong("raid_devices", disks.to_string(), has.disks().to_string()),
            None => Ok(()),
        }
    }
}

fn holds(name: &str, what: &str) -> String {
    format!("`{name}` appears to contain {what}, and no md 1.x array")
}

/// The command line that makes a partition a member.
fn partition_line(disk: &str) -> String {
    format!(
        "if a partition of it is the member, name a volume of it instead: table = \"0 SECTORS \
         linear {disk} START\"; `drystone md examine PATH` shows where such partitions lie"
    )
}

/// The command line that reads an array without writing.
fn read_line(members: &[Arc<dyn Device>]) -> String {
    format!("`drystone serve --readonly --md {}` reads it", paths(members))
}

/// The paths of the devices' files, for a command line.
fn paths(members: &[Arc<dyn Device>]) -> String {
    let paths: Option<Vec<String>> = members.iter().map(|m| m.attribute("path")).collect();
    paths.map_or_else(|| "PATH...".to_owned(), |paths| paths.join(" "))
}

/// The members of an array, for people.
pub(super) fn description(array: &array::Array) -> String {
    let status = array.status();
    let disks: Vec<&str> = status.disks.iter().map(|disk| &*disk.name).collect();
    shorten(&disks.join(" ")).to_string()
}
