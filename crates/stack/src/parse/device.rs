//! Builds a `[device.NAME]` section.

use crate::availability;
use crate::diagnostic::{Span, shorten};
use crate::duration::format_duration;
use crate::nearest::nearest;
use crate::parse::fields::{Check, Fields, Value};
use crate::parse::node::{Entry, Node};
use crate::parse::table::check_order;
use crate::schema::queue::SETTINGS;
use crate::schema::{
    DEVICE_COMMON, DEVICE_KINDS, DEVICE_WHAT, Kind, LATENCY_DOC, NOT_OF_VOLUMES, QUEUE,
    VOLUME_KINDS, VOLUME_QUEUE,
};
use crate::size::format_size;
use crate::spec::{
    Create, DeviceKind, DeviceSpec, FileSpec, Member, NullSpec, RaidSpec, RamSpec, SECTOR_BYTES,
    Segment, VolumeSpec,
};
use drystone_core::ring::Engine;
use drystone_drivers::file::{Direct, FileOptions};
use drystone_drivers::null::{Completion, Latency, NullOptions, Seek};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use drystone_raid::layout::{LAYOUT_DEFAULT, Layout, Level, layout_number};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::create::{CHUNK_SECTORS_DEFAULT, Policy};

/// Block size of a device that names none.
const DEFAULT_BLOCK: u64 = 512;

/// Builds a device, or reports why not.
pub fn device(
    check: &mut Check<'_>,
    name: &str,
    span: &Span,
    entries: &[Entry],
) -> Option<DeviceSpec> {
    let errors = check.findings.errors();
    let path = format!("device/{name}");
    let what = what(check, name, span, entries)?;
    let own = match &what {
        What::Kind(kind) => kind.params,
        What::Table => &[],
    };
    let fields = check.table(&[DEVICE_WHAT, own, DEVICE_COMMON], entries, &path, span);
    if check.findings.errors() > errors {
        return None;
    }
    let kind = match what {
        What::Kind(kind) if kind.name == "file" => DeviceKind::File(file(&fields)),
        What::Kind(kind) if kind.name == "ram" => DeviceKind::Ram(ram(&fields)),
        What::Kind(kind) if VOLUME_KINDS.contains(&kind.name) => {
            DeviceKind::Volume(volume(check, kind, &fields, &path))
        }
        What::Kind(kind) if kind.name.starts_with("raid") => {
            DeviceKind::Raid(raid(check, kind, &fields, &path))
        }
        What::Kind(_) => DeviceKind::Null(null(check, &fields, &path)),
        What::Table => DeviceKind::Volume(VolumeSpec::Table(table(check, &fields))),
    };
    let device = common(check, name, kind, &fields, &path);
    (check.findings.errors() == errors).then_some(device)
}

/// The kind of a device, by `type` or `table`.
enum What {
    Kind(&'static Kind),
    Table,
}

fn what(check: &mut Check<'_>, name: &str, span: &Span, entries: &[Entry]) -> Option<What> {
    let find = |key: &str| entries.iter().find(|entry| entry.key == key);
    let known = || format!("a `type` ({})", availability::available_kinds());
    match (find("type"), find("table")) {
        (Some(_), Some(table)) => {
            let message = format!("device `{name}` has both `type` and `table`");
            check.findings.error(&table.key_span, message, "keep one of the two");
            None
        }
        (None, Some(_)) => Some(What::Table),
        (None, None) => {
            let message = format!("device `{}` has no `type`", shorten(name));
            check.findings.error(span, message, format!("add {}", known()));
            None
        }
        (Some(kind), None) => kind_of(check, &kind.node),
    }
}

fn kind_of(check: &mut Check<'_>, node: &Node) -> Option<What> {
    let Some(word) = node.text() else {
        let message = format!("`type` is {}, not a text", node.written());
        check.findings.error(
            &node.span,
            message,
            format!("use {}", availability::available_kinds()),
        );
        return None;
    };
    if let Some(kind) = DEVICE_KINDS.iter().find(|kind| kind.name == word) {
        return Some(What::Kind(kind));
    }
    if let Some(kind) = availability::planned_kind(word) {
        let (message, hint) = availability::refusal(kind);
        check.findings.error(&node.span, message, hint);
        return None;
    }
    let near = nearest(word, DEVICE_KINDS.iter().map(|kind| kind.name));
    let near = meant(word).or(near).map(|near| format!("did you mean `{near}`? "));
    let near = availability::instead_of(word).map(str::to_owned).or(near).unwrap_or_default();
    let message = format!("`{}` is not a device type", shorten(word));
    check.findings.error(
        &node.span,
        message,
        format!("{near}use {}", availability::available_kinds()),
    );
    None
}

/// The kind that another program calls `word`.
fn meant(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "raid" | "raid-5" | "parity" => Some("raid5"),
        "raid-6" => Some("raid6"),
        "raid-4" => Some("raid4"),
        "stripe" | "raid0" | "raid-0" => Some("striped"),
        "concat" | "jbod" => Some("linear"),
        "disk" | "image" | "raw" | "loop" | "block" => Some("file"),
        "memory" | "tmpfs" | "brd" => Some("ram"),
        "null_blk" => Some("null"),
        _ => None,
    }
}

fn file(fields: &Fields) -> FileSpec {
    let options = FileOptions {
        path: fields.path("path").unwrap_or_else(|| unreachable!("path is required")),
        size_bytes: fields.number_if("size"),
        mode: Some(fields.number32("mode")),
        direct: match fields.choice("direct") {
            Some("true") => Direct::Yes,
            Some("false") => Direct::No,
            _ => Direct::Auto,
        },
        detect_holes: match fields.choice("detect_holes") {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        },
        ..FileOptions::default()
    };
    FileSpec {
        options,
        create: match fields.choice("create") {
            Some("never") => Create::Never,
            Some("new") => Create::New,
            _ => Create::Missing,
        },
        engine: match fields.choice("engine") {
            Some("io_uring") => Engine::Uring,
            Some("plain") => Engine::Plain,
            _ => Engine::Auto,
        },
    }
}

fn ram(fields: &Fields) -> RamSpec {
    RamSpec { size: fields.number("size"), discard: fields.bool("discard") }
}

fn null(check: &mut Check<'_>, fields: &Fields, path: &str) -> NullSpec {
    let ranges = fields.list("badblocks").iter().filter_map(|value| match value {
        Value::Sectors(range) => Some(*range),
        _ => None,
    });
    let head = fields.number_if("seek_max_nsec").filter(|max_ns| *max_ns > 0);
    let min_ns = fields.number_if("seek_min_nsec").unwrap_or(0);
    let cache_size = fields.number("cache_size");
    let options = NullOptions {
        size_bytes: fields.number("size"),
        blocksize: fields.number32("blocksize"),
        irqmode: fields.choice("irqmode").and_then(Completion::named).unwrap_or_default(),
        latency: latency(check, fields, path),
        seek: head.map(|max_ns| Seek { min_ns, max_ns }),
        poll_queues: fields.number32("poll_queues"),
        skip_busy: fields.bool("skip_busy"),
        hw_queue_depth: fields.number32("hw_queue_depth"),
        memory_backed: fields.bool("memory_backed"),
        discard: fields.bool("discard"),
        mbps: fields.number32("mbps"),
        badblocks: ranges.collect(),
        write_cache: cache_size > 0,
        fua: fields.bool("fua"),
        ..NullOptions::default()
    };
    null_timing(check, fields, options.irqmode, path);
    null_memory(check, &options, path);
    NullSpec { options, submit_queues: fields.number32_if("submit_queues"), cache_size }
}

/// The latency of a null device, if the section gives one.
fn latency(check: &mut Check<'_>, fields: &Fields, path: &str) -> Option<Latency> {
    let Some(Value::Latency(points)) = fields.get("latency") else {
        return fields.number_if("completion_nsec").map(Latency::constant);
    };
    let latency = Latency::percentiles(points.clone());
    let wrong = |message: String| {
        let span = check.places.get(&format!("{path}/latency"));
        check.findings.error(&span, message, LATENCY_DOC);
    };
    latency.map_err(wrong).ok()
}

/// Checks that keys about time come with a mode that takes time, and that only one of them gives
/// the time.
fn null_timing(check: &mut Check<'_>, fields: &Fields, irqmode: Completion, path: &str) {
    for key in ["completion_nsec", "latency", "seek_min_nsec", "seek_max_nsec"] {
        let by_thread = irqmode == Completion::Thread && !key.starts_with("seek");
        if fields.has(key) && irqmode != Completion::Timer && !by_thread {
            let span = check.places.get(&format!("{path}/{key}"));
            let message = format!("`{key}` has no effect without the timer");
            let seek = key.starts_with("seek");
            let hint = if seek {
                "add irqmode = \"timer\""
            } else {
                "add irqmode = \"timer\" or \"thread\""
            };
            check.findings.error(&span, message, format!("{hint}, or remove it"));
        }
    }
    if let (Some(Value::Latency(points)), Some(nsec)) =
        (fields.get("latency"), fields.number_if("completion_nsec"))
    {
        let span = check.places.get(&format!("{path}/completion_nsec"));
        let message = format!(
            "`completion_nsec` ({}) and `latency` ({} points) both say how long an I/O takes",
            format_duration(nsec),
            points.len()
        );
        check.findings.error(&span, message, "keep one of the two");
    }
    let seek = |key: &str| fields.number_if(key).unwrap_or(0);
    let (min, max) = (seek("seek_min_nsec"), seek("seek_max_nsec"));
    if min > max {
        let span = check.places.get(&format!("{path}/seek_min_nsec"));
        let (min, max) = (format_duration(min), format_duration(max));
        let message = format!("`seek_min_nsec` ({min}) is more than `seek_max_nsec` ({max})");
        check.findings.error(&span, message, "the longest way takes at least as long");
    }
}

fn null_memory(check: &mut Check<'_>, null: &NullOptions, path: &str) {
    for (key, wanted) in [("discard", null.discard), ("cache_size", null.write_cache)] {
        if wanted && !null.memory_backed {
            let span = check.places.get(&format!("{path}/{key}"));
            let message = format!("`{key}` needs memory");
            check.findings.error(&span, message, "add memory_backed = true or remove it");
        }
    }
    let sectors = null.size_bytes / SECTOR_BYTES;
    if let Some((_, last)) = null.badblocks.iter().find(|(_, last)| *last >= sectors) {
        let span = check.places.get(&format!("{path}/badblocks"));
        let message = format!("bad sector {last} is beyond the device");
        check.findings.error(&span, message, format!("its last sector is {}", sectors - 1));
    }
}

fn volume(check: &Check<'_>, kind: &Kind, fields: &Fields, path: &str) -> VolumeSpec {
    let sectors = |key: &str| fields.number(key) / SECTOR_BYTES;
    match kind.name {
        "linear" => VolumeSpec::Linear(members(check, fields, path)),
        // At most 1 GiB by its type.
        "striped" => VolumeSpec::Striped {
            members: members(check, fields, path),
            chunk_sectors: sectors("chunk") as u32,
        },
        "zero" => VolumeSpec::Zero(sectors("size")),
        _ => VolumeSpec::Error(sectors("size")),
    }
}

fn raid(check: &mut Check<'_>, kind: &Kind, fields: &Fields, path: &str) -> RaidSpec {
    let level = match kind.name {
        "raid4" => Level::Raid4,
        "raid5" => Level::Raid5,
        _ => Level::Raid6,
    };
    let spec = RaidSpec {
        kind: kind.name,
        level,
        members: members(check, fields, path),
        raid_devices: fields.number32_if("raid_devices"),
        chunk_sectors: fields.number_if("chunk").map(|bytes| bytes / SECTOR_BYTES),
        layout: fields.choice("layout").and_then(layout_number),
        policy: fields.choice("consistency_policy").map(|word| match word {
            "bitmap" => Policy::Bitmap,
            "ppl" => Policy::Ppl,
            _ => Policy::Resync,
        }),
        uuid: uuid(check, fields, path),
        cache_stripes: fields.number32("stripe_cache_size"),
        run: fields.bool("run"),
        force: fields.bool("force"),
    };
    if level == Level::Raid4 && spec.layout.is_some() {
        let span = check.places.get(&format!("{path}/layout"));
        let message = "`layout` has no effect on raid4, whose parity is on the last member";
        check.findings.error(&span, message, "remove it, or write type = \"raid5\"");
    }
    raid_shape(check, &spec, path);
    spec
}

fn uuid(check: &mut Check<'_>, fields: &Fields, path: &str) -> Option<Uuid> {
    let text = fields.text_if("uuid")?;
    let uuid = Uuid::parse(&text);
    if uuid.is_none() {
        let span = check.places.get(&format!("{path}/uuid"));
        let message = format!("`{}` is not the UUID of an array", shorten(&text));
        let hint = "four groups of eight hexadecimal digits, as `drystone md examine` shows it";
        check.findings.error(&span, message, hint);
    }
    uuid
}

/// Reports faults in the given shape of an array that md would refuse.
fn raid_shape(check: &mut Check<'_>, spec: &RaidSpec, path: &str) {
    // A member may be missing now; the superblocks give the real number.
    let named = (spec.members.len() as u32).max(spec.level.disks_min());
    let (disks, key) = match spec.raid_devices {
        Some(disks) => (disks, "raid_devices"),
        None => (named, "members"),
    };
    let layout = Layout::new(
        spec.level,
        spec.layout.unwrap_or(LAYOUT_DEFAULT),
        disks,
        spec.chunk_sectors.unwrap_or(CHUNK_SECTORS_DEFAULT),
    );
    if let Err(message) = layout {
        let key = match () {
            () if message.contains("chunk") => "chunk",
            () if message.contains("layout") => "layout",
            () => key,
        };
        let span = check.places.get(&format!("{path}/{key}"));
        check.findings.error(&span, message, "see md(4) for what each level takes");
    }
}

/// The devices of `members`, each as a whole.
fn members(check: &Check<'_>, fields: &Fields, path: &str) -> Vec<Member> {
    let names = fields.list("members").iter().enumerate().filter_map(|(index, value)| {
        let Value::Text(name) = value else { return None };
        let span = check.places.get(&format!("{path}/members/{index}"));
        Some(Member { device: name.clone(), area_sectors: None, span })
    });
    names.collect()
}

/// Reports keys of a volume that need a request queue.
fn not_of_volumes(check: &mut Check<'_>, name: &str, path: &str, is_array: bool) {
    let own = |key: &&str| check.places.has(&format!("{path}/{key}"));
    for key in NOT_OF_VOLUMES.into_iter().filter(own).collect::<Vec<_>>() {
        let span = check.places.get(&format!("{path}/{key}"));
        let what = if is_array { "an array" } else { "a volume" };
        let message = format!("`{name}` is {what}: it has the `{key}` of its members");
        check.findings.error(&span, message, format!("set `{key}` of the devices below it"));
    }
    let (what, has, only) = match is_array {
        true => ("an array", &[][..], ""),
        false => ("a volume", &VOLUME_QUEUE[..], "; a volume has only `iostats`"),
    };
    let keys = QUEUE.iter().map(|param| param.key).filter(|key| !has.contains(key));
    let given = keys.filter(|key| check.places.has(&format!("{path}/queue/{key}")));
    for key in given.collect::<Vec<_>>() {
        let span = check.places.get(&format!("{path}/queue/{key}"));
        let message = format!("`{name}` is {what}: it has no request queue, so no `{key}`");
        let hint = format!("set `{key}` of the devices below it{only}");
        check.findings.error(&span, message, hint);
    }
}

fn table(check: &mut Check<'_>, fields: &Fields) -> Vec<Segment> {
    let parts = fields.list("table").iter().filter_map(|value| match value {
        Value::Segments(segments) => Some(segments.as_slice()),
        _ => None,
    });
    let segments = parts.collect::<Vec<_>>().concat();
    check_order(check, &segments);
    segments
}

fn common(
    check: &mut Check<'_>,
    name: &str,
    kind: DeviceKind,
    fields: &Fields,
    path: &str,
) -> DeviceSpec {
    let queue_fields =
        fields.fields("queue").cloned().unwrap_or_else(|| Fields::defaults_of(QUEUE));
    let mut device = DeviceSpec {
        name: name.to_owned(),
        queue: queue(&queue_fields),
        hw_queues: queue_fields.number32_if("hw_queues"),
        logical_block_size: fields.number32_if("logical_block_size"),
        physical_block_size: fields.number32_if("physical_block_size"),
        read_only: fields.bool("read_only"),
        kind,
    };
    if device.read_only {
        device.make_read_only();
    }
    if matches!(device.kind, DeviceKind::Volume(_) | DeviceKind::Raid(_)) {
        not_of_volumes(check, name, path, matches!(device.kind, DeviceKind::Raid(_)));
        return device;
    }
    blocks(check, &device, path);
    match &device.kind {
        DeviceKind::Null(null) => null_queue(check, null, &device, path),
        DeviceKind::Ram(_) if device.queue.io_poll == Some(true) => {
            let span = check.places.get(&format!("{path}/queue/io_poll"));
            let message = "a ram device has no queues to poll".to_owned();
            check.findings.error(&span, message, "remove io_poll");
        }
        _ => {}
    }
    device
}

/// Reports contradictions between a null device's own keys and those of its queue.
fn null_queue(check: &mut Check<'_>, null: &NullSpec, device: &DeviceSpec, path: &str) {
    let queue = &device.queue;
    let mut wrong = |key: &str, message: String, hint: &str| {
        let span = check.places.get(&format!("{path}/queue/{key}"));
        check.findings.error(&span, message, hint);
    };
    if let (Some(own), Some(queues)) = (null.submit_queues, device.hw_queues)
        && own != queues
    {
        let message = format!("`hw_queues` is {queues}, but `submit_queues` is {own}");
        wrong("hw_queues", message, "keep one of the two");
    }
    let depth = null.options.hw_queue_depth;
    let scheduled = queue.scheduler == Some(SchedulerKind::MqDeadline);
    if let Some(requests) = queue.nr_requests.filter(|requests| *requests > depth && !scheduled) {
        let message = format!("`nr_requests` is {requests}, but a queue has {depth} tags");
        wrong("nr_requests", message, "without a scheduler at most `hw_queue_depth`");
    }
    if queue.io_poll == Some(true) && null.options.poll_queues == 0 {
        let message = "`io_poll` needs a queue to poll".to_owned();
        wrong("io_poll", message, "set `poll_queues` to 1 or more");
    }
}

/// Block sizes that fit each other and the size.
fn blocks(check: &mut Check<'_>, device: &DeviceSpec, path: &str) {
    let own = match &device.kind {
        DeviceKind::Null(null) => Some(null.options.blocksize),
        _ => None,
    };
    let span = |check: &Check<'_>, key: &str| check.places.get(&format!("{path}/{key}"));
    if let (Some(own), Some(logical)) = (own, device.logical_block_size) {
        let given = check.places.has(&format!("{path}/blocksize"));
        if given && own != logical {
            let span = span(check, "logical_block_size");
            let message = format!("`logical_block_size` is {logical}, but `blocksize` is {own}");
            check.findings.error(&span, message, "keep one of the two");
        }
    }
    let logical = device.logical_block_size.or(own).map_or(DEFAULT_BLOCK, u64::from);
    if let Some(physical) = device.physical_block_size.filter(|size| u64::from(*size) < logical) {
        let span = span(check, "physical_block_size");
        let message = format!("`physical_block_size` {physical} is below the logical block size");
        check.findings.error(&span, message, format!("at least {logical}"));
    }
    if let Some(size) = device.size().filter(|size| size % logical != 0) {
        let span = span(check, "size");
        let message = format!("{} is not a whole number of blocks", format_size(size));
        check.findings.error(&span, message, format!("a multiple of {}", format_size(logical)));
    }
}

/// The options of a queue that were given, or that have a default.
fn queue(fields: &Fields) -> QueueOptions {
    let mut options = QueueOptions::default();
    for setting in &SETTINGS {
        if let Some(value) = fields.get(setting.key) {
            setting.put(&mut options, value.setting());
        }
    }
    options
}
