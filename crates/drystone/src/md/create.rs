//! `drystone md create`.
//!
//! In three steps, each durable before the next: superblocks of older arrays are erased, bitmaps
//! and logs are written, then superblocks, spares' first. Until the last of these there is no array
//! that starts of itself, and no member of one that was there before.

use std::io::Read;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use drystone_raid::layout::{LAYOUT_DEFAULT, Layout, Level, layout_name, layout_number};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::create::{
    CHUNK_SECTORS_DEFAULT, CreateOptions, NewDevice, Plan, Policy, plan, set_name,
};
use drystone_raid::metadata::foreign::Contents;
use drystone_raid::metadata::superblock::Minor;
use drystone_stack::one_line;
use drystone_stack::size::parse_size;

use super::assemble::uuid;
use super::member::{Device, check_names};
use crate::failure::Failure;
use crate::output;

/// Where a device must be missing.
const MISSING: &str = "missing";

/// Arguments of `drystone md create`; the options are mdadm's. A number without a unit is in KiB.
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// RAID level: 4, 5 or 6
    #[arg(short, long, value_parser = level)]
    level: Level,
    /// Members of the complete array, parity included
    #[arg(short = 'n', long, value_name = "N")]
    raid_devices: u32,
    /// Spares, which wait for a member to fail: the last devices
    #[arg(short = 'x', long, value_name = "N", default_value_t = 0)]
    spare_devices: u32,
    /// Size of a chunk [default: 512K]
    #[arg(short, long, value_name = "SIZE", value_parser = sectors)]
    chunk: Option<u64>,
    /// How data and parity go round, by mdadm's name [default: left-symmetric]
    #[arg(short = 'p', long, alias = "parity", value_parser = layout)]
    layout: Option<u32>,
    /// A write-intent bitmap: internal or none [default: internal on members of more than 100 GiB]
    #[arg(short, long, value_name = "internal|none", value_parser = bitmap)]
    bitmap: Option<Policy>,
    /// Member space for a bit of the bitmap [default: 64M, or more if the bits had no room]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    bitmap_chunk: Option<u64>,
    /// How parity is made consistent after a crash: resync, bitmap or ppl
    #[arg(short = 'k', long, value_name = "POLICY", value_parser = policy)]
    consistency_policy: Option<Policy>,
    /// Place of the superblocks: 1.0 at the end, 1.1 at the start, 1.2 at 4 KiB
    #[arg(
        short = 'e',
        long,
        value_name = "1.0|1.1|1.2",
        default_value = "1.2",
        value_parser = minor,
    )]
    metadata: Minor,
    /// Space to use of each device [default: as much as the smallest has]
    #[arg(short = 'z', long, value_parser = sectors)]
    size: Option<u64>,
    /// Where data starts on each device
    #[arg(long, value_name = "SIZE", value_parser = sectors)]
    data_offset: Option<u64>,
    /// The array's name
    #[arg(short = 'N', long)]
    name: Option<String>,
    /// The host's name, which stands before the array's [default: this one]
    #[arg(long, value_name = "HOST", requires = "name")]
    homehost: Option<String>,
    /// The array's UUID [default: a random one]
    #[arg(short, long, value_parser = uuid)]
    uuid: Option<Uuid>,
    /// Skip the first synchronisation: the devices are in sync, or it does not matter yet
    #[arg(long)]
    assume_clean: bool,
    /// Overwrite arrays, file systems and partition tables; make RAID-4 and RAID-5 with all
    /// members, to be resynced, instead of rebuilding the last
    #[arg(short, long)]
    force: bool,
    /// Files or block devices, or `missing`
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn level(text: &str) -> Result<Level, String> {
    let number = text.strip_prefix("raid").unwrap_or(text).parse().ok();
    number.and_then(Level::from_number).ok_or_else(|| match text.trim_start_matches("raid") {
        "0" | "stripe" => {
            "write 4, 5 or 6; striping is a volume of a stack file, type = \"striped\"".to_owned()
        }
        "1" | "10" | "mirror" => "write 4, 5 or 6: there are no mirrors".to_owned(),
        _ => "write 4, 5 or 6".to_owned(),
    })
}

fn layout(text: &str) -> Result<u32, String> {
    layout_number(text).ok_or_else(|| "write a name of mdadm's, as left-symmetric or ls".to_owned())
}

fn minor(text: &str) -> Result<Minor, String> {
    let found = Minor::ALL.into_iter().find(|minor| minor.name() == text);
    found.ok_or_else(|| "write 1.0, 1.1 or 1.2".to_owned())
}

fn bitmap(text: &str) -> Result<Policy, String> {
    match text {
        "internal" => Ok(Policy::Bitmap),
        "none" => Ok(Policy::Resync),
        _ => Err("write internal or none".to_owned()),
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    match text {
        "resync" => Ok(Policy::Resync),
        "bitmap" => Ok(Policy::Bitmap),
        "ppl" => Ok(Policy::Ppl),
        _ => Err("write resync, bitmap or ppl".to_owned()),
    }
}

/// A size in bytes; a number without a unit is in KiB, as to mdadm.
fn bytes(text: &str) -> Result<u64, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = if plain { format!("{text}K") } else { text.to_owned() };
    parse_size(&text).map_err(|error| error.to_string())
}

/// A size in sectors.
fn sectors(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        bytes if bytes > 0 && bytes.is_multiple_of(512) => Ok(bytes / 512),
        bytes => Err(format!("{bytes} bytes are not a positive multiple of 512")),
    }
}

/// mdadm's first word is the array, which has no device here.
fn check_is_no_array(paths: &[PathBuf]) -> Result<(), Failure> {
    let is_array =
        |path: &&PathBuf| path.to_string_lossy().starts_with("/dev/md") && !path.exists();
    match paths.first().filter(is_array) {
        Some(path) => Err(Failure::Usage(format!(
            "{} is the array's device to mdadm; here only members are named: leave it out, and \
             start the array with `drystone serve` or `drystone md assemble`",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// `drystone md create`.
pub fn run(args: &CreateArgs) -> Result<(), Failure> {
    let options = options(args)?;
    check_is_no_array(&args.paths)?;
    let named = args.paths.iter().filter(|path| path.as_os_str() != MISSING);
    check_names(&named.cloned().collect::<Vec<_>>())?;
    let mut devices = Vec::new();
    for path in &args.paths {
        let missing = path.as_os_str() == MISSING;
        devices.push(if missing { None } else { Some(Device::for_writing(path)?) });
    }
    let contents = devices.iter().flatten().map(|device| check_contents(device, args.force));
    let erased = contents.collect::<Result<Vec<_>, _>>()?;
    let new = devices.iter().map(|device| device.as_ref().map(new_device).transpose());
    let new = new.collect::<Result<Vec<_>, Failure>>()?;
    let plan = plan(&options, &new).map_err(Failure::Refused)?;
    erased.iter().flatten().for_each(|text| output::warning(text));
    output::print(&told(args, &options, &plan))?;
    write(&devices, &plan)?;
    let name = if options.set_name.is_empty() { "array" } else { &options.set_name };
    output::print(&format!("{name} created, UUID {}\n", options.set_uuid))?;
    Ok(())
}

fn options(args: &CreateArgs) -> Result<CreateOptions, Failure> {
    let chunk = args.chunk.unwrap_or(CHUNK_SECTORS_DEFAULT);
    let layout = args.layout.unwrap_or(LAYOUT_DEFAULT);
    if args.layout.is_some() && args.level == Level::Raid4 {
        let text =
            "--layout has no effect on raid4, whose parity is on the last member: leave it out";
        return Err(Failure::Usage(text.to_owned()));
    }
    let layout = Layout::new(args.level, layout, args.raid_devices, chunk);
    let layout = layout.map_err(Failure::Usage)?;
    let policy = match (args.bitmap, args.consistency_policy) {
        (Some(a), Some(b)) if a != b => {
            return Err(Failure::Usage(
                "--bitmap and --consistency-policy contradict each other: leave one out".to_owned(),
            ));
        }
        (bitmap, policy) => bitmap.or(policy),
    };
    let ctime = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(CreateOptions {
        layout,
        minor: args.metadata,
        spare_devices: args.spare_devices,
        policy,
        bitmap_chunk: args.bitmap_chunk,
        size: args.size,
        data_offset: args.data_offset,
        set_name: full_name(args),
        set_uuid: match args.uuid {
            Some(uuid) => uuid,
            None => random_uuid()?,
        },
        ctime,
        assume_clean: args.assume_clean,
        force: args.force,
    })
}

/// The name with its host before it.
fn full_name(args: &CreateArgs) -> String {
    let Some(name) = args.name.as_ref().filter(|name| !name.is_empty()) else {
        return String::new();
    };
    let host = args.homehost.clone().unwrap_or_else(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        text.trim().to_owned()
    });
    set_name(&host, name)
}

fn random_uuid() -> Result<Uuid, Failure> {
    let mut bytes = [0; 16];
    let done = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    done.map_err(|error| Failure::Refused(format!("/dev/urandom: {error}")))?;
    Ok(Uuid(bytes))
}

fn new_device(device: &Device) -> Result<NewDevice, Failure> {
    let name = device.path.display().to_string();
    let (sectors, block_sectors) = (device.sectors, device.block_sectors());
    Ok(NewDevice { name, sectors, block_sectors, uuid: random_uuid()? })
}

/// Contents of a device are named, and refused unless they may be overwritten.
fn check_contents(device: &Device, force: bool) -> Result<Option<String>, Failure> {
    let name = device.path.display();
    let array = match device.probe()? {
        Ok((_, found)) => format!(" ({})", found.called()),
        Err(_) => String::new(),
    };
    match device.contents()? {
        Contents::Known(what) if force => {
            Ok(Some(format!("{name} appears to contain {what}{array}, which is lost")))
        }
        Contents::Known(what) => Err(Failure::Refused(format!(
            "{name} appears to contain {what}{array}; --force overwrites it"
        ))),
        Contents::Blank | Contents::Unknown => Ok(None),
    }
}

/// The choices made, in mdadm's words.
fn told(args: &CreateArgs, options: &CreateOptions, plan: &Plan) -> String {
    let layout = &options.layout;
    let mut out = String::new();
    let mut say = |line: String| out.push_str(&(one_line(&line).into_owned() + "\n"));
    if args.layout.is_none() && layout.level() != Level::Raid4 {
        let name = layout_name(layout.number()).unwrap_or("unknown");
        say(format!("layout defaults to {name}"));
    }
    if args.chunk.is_none() {
        say(format!("chunk size defaults to {}K", layout.chunk_sectors() / 2));
    }
    if args.size.is_none() {
        say(format!("size set to {}K", plan.used / 2));
    }
    if options.policy.is_none() && plan.policy == Policy::Bitmap {
        say("automatically enabling write-intent bitmap on large array".to_owned());
    }
    if let Some((device, _)) = plan.larger {
        let (path, size) = (args.paths[device].display(), plan.used / 2);
        say(format!("largest drive ({path}) exceeds size ({size}K) by more than 1%"));
    }
    if let Some(device) = plan.rebuilt {
        let path = args.paths[device].display();
        say(format!("{path} is rebuilt from the others when the array starts"));
    }
    out
}

/// Writes what the plan says, in the three steps.
fn write(devices: &[Option<Device>], plan: &Plan) -> Result<(), Failure> {
    let members = || devices.iter().flatten().zip(plan.members.iter().flatten());
    for (device, _) in members() {
        for sector in device.magic_places()? {
            device.write(sector, &[0; 4096])?;
        }
        device.sync()?;
    }
    for (device, member) in members() {
        for write in &member.before {
            device.write(write.sector, &write.bytes)?;
        }
        device.sync()?;
    }
    for index in plan.order() {
        let (Some(device), Some(member)) = (&devices[index], &plan.members[index]) else {
            continue;
        };
        device.write(member.last.sector, &member.last.bytes)?;
        device.sync()?;
    }
    Ok(())
}
