//! A checked table: the target of each sector, and the properties of the whole volume.
//!
//! Invariants:
//! * Segments follow one another from sector 0 without gap or overlap, each at least one logical
//!   block long; every area lies inside its device and on its blocks.
//! * A table does not change. A reloaded volume gets another table.

use crate::area::Area;
use crate::delay::{Class, Delay, DelaySpec};
use crate::flakey::{Flakey, FlakeySpec};
use crate::log_writes::{LogWrites, LogWritesSpec, WriteLog};
use crate::striped::Striped;
use drystone_core::{Device, Error, Limits, Result, SECTOR_SIZE};
use std::fmt::Write;
use std::sync::Arc;

/// The attribute of files, and of volumes above them, with the first byte that the limit of file
/// size forbids.
pub(crate) const FILE_LIMIT: &str = "file_limit";

/// The last sector that a 63-bit byte offset can reach. It limits the size of tables.
const MAX_SECTOR: u64 = i64::MAX as u64 / SECTOR_SIZE;

/// The target of a line of a table, with its arguments.
#[derive(Clone)]
pub enum TargetSpec {
    /// The sectors of another device, from a sector on.
    Linear(Area),
    /// Chunks, round-robin over several devices.
    Striped {
        /// Sectors of a chunk, at least 1.
        chunk_sectors: u32,
        /// The devices, at least one.
        stripes: Vec<Area>,
    },
    /// Reads return zeroes, writes are discarded.
    Zero,
    /// Every I/O fails.
    Error,
    /// The sectors of other devices, with a delay.
    Delay(DelaySpec),
    /// The sectors of another device, which misbehaves at times.
    Flakey(FlakeySpec),
    /// The sectors of another device; writes are also logged on a second one.
    LogWrites(LogWritesSpec),
}

impl TargetSpec {
    /// The target's name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            TargetSpec::Linear(_) => "linear",
            TargetSpec::Striped { .. } => "striped",
            TargetSpec::Zero => "zero",
            TargetSpec::Error => "error",
            TargetSpec::Delay(_) => "delay",
            TargetSpec::Flakey(_) => "flakey",
            TargetSpec::LogWrites(_) => "log-writes",
        }
    }

    /// The areas, each with the number of sectors that a segment of `length` sectors uses.
    fn areas(&self, length: u64) -> Vec<(&Area, u64)> {
        match self {
            TargetSpec::Linear(area) => vec![(area, length)],
            TargetSpec::Striped { stripes, .. } => {
                stripes.iter().map(|area| (area, length / stripes.len() as u64)).collect()
            }
            TargetSpec::Zero | TargetSpec::Error => Vec::new(),
            TargetSpec::Delay(spec) => spec.given().map(|class| (&class.area, length)).collect(),
            TargetSpec::Flakey(spec) => vec![(&spec.area, length)],
            TargetSpec::LogWrites(spec) => {
                vec![(&spec.area, length), (&spec.log, spec.log_sectors())]
            }
        }
    }

    /// The arguments as a table has them, each with a space before it.
    fn arguments(&self) -> String {
        match self {
            TargetSpec::Linear(area) => area.argument(),
            TargetSpec::Striped { chunk_sectors, stripes } => {
                let places: String = stripes.iter().map(Area::argument).collect();
                format!(" {} {chunk_sectors}{places}", stripes.len())
            }
            TargetSpec::Zero | TargetSpec::Error => String::new(),
            TargetSpec::Delay(spec) => spec.arguments(),
            TargetSpec::Flakey(spec) => spec.arguments(),
            TargetSpec::LogWrites(spec) => spec.arguments(),
        }
    }

    /// The constant words of `dmsetup status`, each with a space before it.
    fn status(&self) -> String {
        let TargetSpec::Striped { stripes, .. } = self else { return String::new() };
        let names: String =
            stripes.iter().map(|area| format!(" {}", area.device.info().name)).collect();
        format!(" {}{names} 1 {}", stripes.len(), "A".repeat(stripes.len()))
    }
}

/// A line of a table. Sectors have 512 bytes.
#[derive(Clone)]
pub struct Line {
    /// First sector in the volume.
    pub start: u64,
    /// Number of sectors, at least 1.
    pub length: u64,
    /// The target of the sectors.
    pub target: TargetSpec,
}

impl Line {
    /// The areas of other devices that it uses, each with the number of its sectors.
    pub fn areas(&self) -> Vec<(&Area, u64)> {
        self.target.areas(self.length)
    }

    /// See [`Table::file_limit`]: the first byte of the volume that is beyond the limit, or an
    /// earlier byte of the same chunk.
    fn file_limit(&self) -> Option<u64> {
        let areas = self.areas();
        let (chunk, width) = match &self.target {
            TargetSpec::Striped { chunk_sectors, stripes } => {
                (u64::from(*chunk_sectors), stripes.len() as u64)
            }
            _ => (1, 1),
        };
        let reached = areas.iter().filter_map(|(area, sectors)| {
            let limit: u64 = area.device.attribute(FILE_LIMIT)?.parse().ok()?;
            let inside = (limit / SECTOR_SIZE).saturating_sub(area.sector);
            (inside < *sectors).then_some(inside / chunk * chunk * width)
        });
        Some((self.start + reached.min()?) * SECTOR_SIZE)
    }
}

/// The mapping of a segment's sectors. Members are indices of the table's.
#[derive(Debug)]
pub(crate) enum Map {
    Linear {
        member: u32,
        /// The number that is added to a sector of the volume, modulo 2^64.
        add: u64,
    },
    Striped(Striped),
    Zero,
    Error,
    /// The number of the segment among the table's `delay` segments.
    Delay(u32),
    /// The number of the segment among the table's `flakey` segments.
    Flakey(u32),
    /// The number of the segment among the table's `log-writes` segments.
    LogWrites(u32),
}

/// The destination of a piece of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// A member, by its index.
    Member(u32),
    Zero,
    Error,
    /// A `delay` segment, by its number.
    Delay(u32),
    /// A `flakey` segment, by its number.
    Flakey(u32),
    /// A `log-writes` segment, by its number.
    LogWrites(u32),
}

impl To {
    /// True if the destination changes the bio, keeps it or waits for its end, and so needs a part.
    pub(crate) fn needs_part(self) -> bool {
        matches!(self, To::Delay(_) | To::Flakey(_) | To::LogWrites(_))
    }
}

/// A segment: a line in the form that the I/O path uses.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) start: u64,
    /// The sector behind the last.
    pub(crate) end: u64,
    pub(crate) map: Map,
}

impl Segment {
    /// The piece from `sector` on: its destination, the sector there, and the bytes to its end. If
    /// the destination is the segment itself, the sector is the volume's.
    #[inline(always)]
    pub(crate) fn piece(&self, sector: u64) -> (To, u64, u64) {
        let left = self.end - sector;
        let (to, sector, left) = match &self.map {
            Map::Linear { member, add } => (To::Member(*member), sector.wrapping_add(*add), left),
            Map::Striped(striped) => {
                let there = striped.position(sector - self.start);
                // A segment consists of whole chunks.
                (To::Member(striped.member(there.stripe)), there.sector, there.left)
            }
            Map::Zero => (To::Zero, sector, left),
            Map::Error => (To::Error, sector, left),
            Map::Delay(number) => (To::Delay(*number), sector, left),
            Map::Flakey(number) => (To::Flakey(*number), sector, left),
            Map::LogWrites(number) => (To::LogWrites(*number), sector, left),
        };
        (to, sector, left * SECTOR_SIZE)
    }
}

/// A checked table.
pub struct Table {
    lines: Vec<Line>,
    segments: Vec<Segment>,
    members: Vec<Arc<dyn Device>>,
    delays: Vec<Delay>,
    flakeys: Vec<Flakey>,
    log_writes: Vec<LogWrites>,
    /// The destinations of a flush.
    flushes: Vec<To>,
}

impl Table {
    /// Check `lines` and take them as a table.
    ///
    /// # Errors
    /// One sentence that names the line (from 1) and what would be right.
    pub fn new(lines: Vec<Line>) -> Result<Self> {
        if lines.is_empty() {
            return Err(Error::invalid("the table is empty: it needs at least one line"));
        }
        check_order(&lines)?;
        let mut table = Table {
            lines,
            segments: Vec::new(),
            members: Vec::new(),
            delays: Vec::new(),
            flakeys: Vec::new(),
            log_writes: Vec::new(),
            flushes: Vec::new(),
        };
        let block = u64::from(table.limits().logical_block_size) / SECTOR_SIZE;
        for (index, line) in table.lines.iter().enumerate() {
            check_line(line, block).map_err(|what| {
                Error::invalid(format!("line {} of the table: {what}", index + 1))
            })?;
        }
        let lines = std::mem::take(&mut table.lines);
        lines.iter().for_each(|line| table.add_segment(line));
        table.lines = lines;
        Ok(table)
    }

    /// The lines as they were given.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// The devices below, each once, in the order in which the lines first name them.
    pub fn members(&self) -> &[Arc<dyn Device>] {
        &self.members
    }

    /// The number of bytes from the start that can be written, if that is not all: a file below
    /// reaches beyond the limit of file size.
    pub(crate) fn file_limit(&self) -> Option<u64> {
        self.lines.iter().filter_map(Line::file_limit).min()
    }

    /// The place of `sector`: the member, as an index of [`Table::members`], and the sector there.
    /// For `delay` this is the place that reads go to. `None` if no device has the sector: `zero`,
    /// `error`, and sectors beyond the end.
    pub fn place(&self, sector: u64) -> Option<(usize, u64)> {
        if sector >= self.size_bytes() / SECTOR_SIZE {
            return None;
        }
        let (to, found, _) = self.piece(sector);
        let moved = |(member, add): (u32, u64)| (member, sector.wrapping_add(add));
        let (member, sector) = match to {
            To::Member(member) => (member, found),
            To::Delay(number) => moved(self.delay(number).place(Class::Read)),
            To::Flakey(number) => moved(self.flakey(number).place()),
            To::LogWrites(number) => (self.log_writes(number).member, found),
            To::Zero | To::Error => return None,
        };
        Some((member as usize, sector))
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.end * SECTOR_SIZE)
    }

    /// The limits that follow from the present limits of the members.
    pub fn limits(&self) -> Limits {
        let of_line = |line: &Line| {
            let areas = line.target.areas(line.length);
            let stacked = areas.iter().map(|(area, _)| area.device.info().limits);
            let stacked = stacked.fold(Limits::STACKING, Limits::stack);
            match &line.target {
                TargetSpec::LogWrites(spec) => spec.limits(),
                TargetSpec::Striped { chunk_sectors, stripes } => {
                    striped_limits(stacked, *chunk_sectors, stripes.len())
                }
                _ => stacked,
            }
        };
        let limits = self.lines.iter().map(of_line).fold(Limits::STACKING, Limits::stack);
        limits.normalized()
    }

    /// The lines in table syntax, with members by name.
    pub fn text(&self) -> String {
        self.each_line(|target, _| target.arguments())
    }

    /// The present words of `dmsetup status` for each line.
    pub fn status(&self) -> String {
        self.each_line(|target, map| match map {
            Map::Delay(number) => self.delay(*number).status(),
            Map::LogWrites(number) => self.log_writes(*number).log.log.status(),
            _ => target.status(),
        })
    }

    fn each_line(&self, arguments: impl Fn(&TargetSpec, &Map) -> String) -> String {
        let mut text = String::new();
        for (Line { start, length, target }, segment) in self.lines.iter().zip(&self.segments) {
            let arguments = arguments(target, &segment.map);
            let _ = writeln!(text, "{start} {length} {}{arguments}", target.name());
        }
        text
    }

    /// The logs that the table's lines write.
    pub fn logs(&self) -> impl Iterator<Item = &WriteLog> {
        self.log_writes.iter().map(|segment| &segment.log)
    }

    /// The log of the line that has `sector`, if it has one.
    pub fn log_at(&self, sector: u64) -> Option<&WriteLog> {
        let segment = self.segments.iter().find(|s| (s.start..s.end).contains(&sector))?;
        match segment.map {
            Map::LogWrites(number) => Some(&self.log_writes(number).log),
            _ => None,
        }
    }

    /// The segment that has `sector`, which is inside the table.
    #[inline]
    pub(crate) fn segment(&self, sector: u64) -> &Segment {
        match self.segments.as_slice() {
            [only] => only,
            many => &many[many.partition_point(|segment| segment.end <= sector)],
        }
    }

    /// The member and the number that is added to a sector, if the table is a single linear
    /// segment.
    #[inline]
    pub(crate) fn only_linear(&self) -> Option<(u32, u64)> {
        match self.segments.as_slice() {
            [Segment { map: Map::Linear { member, add }, .. }] => Some((*member, *add)),
            _ => None,
        }
    }

    /// The arithmetic, if the table is a single striped segment.
    #[inline]
    pub(crate) fn only_striped(&self) -> Option<&Striped> {
        match self.segments.as_slice() {
            [Segment { map: Map::Striped(striped), .. }] => Some(striped),
            _ => None,
        }
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// [`Segment::piece`] of the segment that has `sector`.
    #[inline(always)]
    pub(crate) fn piece(&self, sector: u64) -> (To, u64, u64) {
        self.segment(sector).piece(sector)
    }

    /// The destinations of a flush: every member of `linear` and `striped` segments once, and every
    /// segment that treats flushes itself.
    pub(crate) fn flushes(&self) -> &[To] {
        &self.flushes
    }

    pub(crate) fn delays(&self) -> &[Delay] {
        &self.delays
    }

    pub(crate) fn delay(&self, number: u32) -> &Delay {
        &self.delays[number as usize]
    }

    pub(crate) fn flakeys(&self) -> &[Flakey] {
        &self.flakeys
    }

    pub(crate) fn flakey(&self, number: u32) -> &Flakey {
        &self.flakeys[number as usize]
    }

    pub(crate) fn log_writes(&self, number: u32) -> &LogWrites {
        &self.log_writes[number as usize]
    }
}

fn striped_limits(below: Limits, chunk_sectors: u32, stripes: usize) -> Limits {
    let chunk = u64::from(chunk_sectors) * SECTOR_SIZE;
    let Ok(io_min) = u32::try_from(chunk) else { return Limits { chunk_bytes: chunk, ..below } };
    let io_opt = io_min.checked_mul(stripes as u32).unwrap_or(0);
    Limits { io_min, io_opt, chunk_bytes: chunk, ..below }
}

fn check_order(lines: &[Line]) -> Result<()> {
    let mut expected = 0;
    for (index, line) in lines.iter().enumerate() {
        let refuse =
            |what: String| Err(Error::invalid(format!("line {} of the table: {what}", index + 1)));
        if line.start != expected {
            let what = if line.start > expected { "gap" } else { "overlap" };
            return refuse(format!(
                "{what} in the table: it starts at sector {}, where {expected} would be next",
                line.start
            ));
        }
        if line.length == 0 {
            return refuse("zero-length target: at least one sector is needed".to_owned());
        }
        expected = match line.start.checked_add(line.length) {
            Some(end) if end <= MAX_SECTOR => end,
            _ => return refuse(format!("it ends beyond sector {MAX_SECTOR}, the last possible")),
        };
    }
    Ok(())
}

/// Checks a line and its devices; `block` is in sectors.
fn check_line(line: &Line, block: u64) -> std::result::Result<(), String> {
    match &line.target {
        TargetSpec::Striped { chunk_sectors, stripes } => {
            check_stripes(line.length, *chunk_sectors, stripes.len(), block)?;
        }
        TargetSpec::Flakey(spec) => spec.check()?,
        TargetSpec::LogWrites(spec) => spec.check(line.start)?,
        _ => {}
    }
    if !line.start.is_multiple_of(block) || !line.length.is_multiple_of(block) {
        return Err(format!(
            "its {} sectors from {} are not whole blocks of {} bytes",
            line.length,
            line.start,
            block * SECTOR_SIZE
        ));
    }
    for (area, sectors) in line.target.areas(line.length) {
        check_area(area, sectors, block)?;
    }
    Ok(())
}

fn check_stripes(
    length: u64,
    chunk: u32,
    stripes: usize,
    block: u64,
) -> std::result::Result<(), String> {
    if chunk == 0 {
        return Err("a chunk of 0 sectors: at least 1 is needed".to_owned());
    }
    if stripes == 0 || stripes > u32::MAX as usize {
        return Err("striped needs at least one stripe".to_owned());
    }
    let row = stripes as u64 * u64::from(chunk);
    if !length.is_multiple_of(row) {
        return Err(format!(
            "its {length} sectors do not divide into whole chunks: use a multiple of {row}, \
             {stripes} stripes of {chunk} sectors"
        ));
    }
    if !u64::from(chunk).is_multiple_of(block) {
        let bytes = block * SECTOR_SIZE;
        return Err(format!("a chunk of {chunk} sectors is not whole blocks of {bytes} bytes"));
    }
    Ok(())
}

fn check_area(area: &Area, sectors: u64, block: u64) -> std::result::Result<(), String> {
    let info = area.device.info();
    let has = info.size_bytes / SECTOR_SIZE;
    match area.sector.checked_add(sectors) {
        Some(end) if end <= has => {}
        _ => {
            return Err(format!(
                "`{}` is too small: {sectors} sectors from {} are used, it has {has}",
                info.name, area.sector
            ));
        }
    }
    if !area.sector.is_multiple_of(block) {
        return Err(format!(
            "sector {} of `{}` does not begin a block of {} bytes",
            area.sector,
            info.name,
            block * SECTOR_SIZE
        ));
    }
    Ok(())
}

/// The construction of a table.
impl Table {
    fn add_segment(&mut self, line: &Line) {
        let map = match &line.target {
            TargetSpec::Linear(area) => {
                let member = self.flushed_member(area);
                Map::Linear { member, add: area.sector.wrapping_sub(line.start) }
            }
            TargetSpec::Striped { chunk_sectors, stripes } => {
                let stripes = stripes.iter().map(|area| (self.flushed_member(area), area.sector));
                Map::Striped(Striped::new(*chunk_sectors, stripes.collect()))
            }
            TargetSpec::Zero => Map::Zero,
            TargetSpec::Error => Map::Error,
            TargetSpec::Delay(spec) => self.add_delay(spec, line.start),
            TargetSpec::Flakey(spec) => self.add_flakey(spec, line.start),
            TargetSpec::LogWrites(spec) => self.add_log_writes(spec),
        };
        self.segments.push(Segment { start: line.start, end: line.start + line.length, map });
    }

    /// The index of a device.
    fn member(&mut self, area: &Area) -> u32 {
        let same = |d: &Arc<dyn Device>| Arc::as_ptr(d).addr() == Arc::as_ptr(&area.device).addr();
        let index = self.members.iter().position(same).unwrap_or_else(|| {
            self.members.push(area.device.clone());
            self.members.len() - 1
        });
        index as u32
    }

    /// The same, for a member that gets flushes directly.
    fn flushed_member(&mut self, area: &Area) -> u32 {
        let member = self.member(area);
        self.flush_to(To::Member(member));
        member
    }

    fn flush_to(&mut self, to: To) {
        if !self.flushes.contains(&to) {
            self.flushes.push(to);
        }
    }

    fn add_delay(&mut self, spec: &DelaySpec, start: u64) -> Map {
        let delay = Delay::new(spec, start, |area| self.member(area));
        let number = self.delays.len() as u32;
        self.flush_to(match delay.delay_ns(Class::Flush) > 0 {
            true => To::Delay(number),
            false => To::Member(delay.place(Class::Flush).0),
        });
        self.delays.push(delay);
        Map::Delay(number)
    }

    fn add_flakey(&mut self, spec: &FlakeySpec, start: u64) -> Map {
        let member = self.member(&spec.area);
        let number = self.flakeys.len() as u32;
        self.flush_to(To::Flakey(number));
        self.flakeys.push(Flakey::new(spec, start, member));
        Map::Flakey(number)
    }

    fn add_log_writes(&mut self, spec: &LogWritesSpec) -> Map {
        let (member, log_member) = (self.member(&spec.area), self.member(&spec.log));
        let number = self.log_writes.len() as u32;
        self.flush_to(To::LogWrites(number));
        self.log_writes.push(LogWrites::new(spec, member, log_member));
        Map::LogWrites(number)
    }
}
