//! Tables of volumes, and the parts of other devices that they use.

use drystone_targets::Faults;

use crate::diagnostic::Span;

/// Bytes in a sector, whatever a device's block size.
pub const SECTOR_BYTES: u64 = 512;

/// A member of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub device: String,
    /// First sector and number of sectors; `None` takes the whole member.
    pub area_sectors: Option<(u64, u64)>,
    /// Where it is named.
    pub span: Span,
}

/// One line of a dmsetup table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First sector in the device.
    pub start_sector: u64,
    /// Number of sectors, at least 1.
    pub length_sectors: u64,
    /// The target that is there.
    pub target: Target,
    /// Where the first sector's number stands.
    pub start_span: Span,
    /// Where the target's word stands.
    pub target_span: Span,
}

impl Segment {
    /// The sector after the last.
    pub fn end_sector(&self) -> u64 {
        self.start_sector.saturating_add(self.length_sectors)
    }

    /// The areas of other devices that it uses.
    pub fn members(&self) -> Vec<Member> {
        let area = |place: &Area, length| Member {
            device: place.device.clone(),
            area_sectors: Some((place.offset_sectors, length)),
            span: place.span.clone(),
        };
        match &self.target {
            Target::Linear(place) => vec![area(place, self.length_sectors)],
            Target::Striped { stripes, .. } => {
                let each = self.length_sectors / stripes.len() as u64;
                stripes.iter().map(|place| area(place, each)).collect()
            }
            Target::Zero | Target::Error => Vec::new(),
            Target::Delay(classes) => {
                let mut places: Vec<&Area> = Vec::new();
                for Delayed { place, .. } in classes {
                    // Two equal areas, one read and one written, count as one use.
                    if !places.iter().any(|other| other.is_at(place)) {
                        places.push(place);
                    }
                }
                places.into_iter().map(|place| area(place, self.length_sectors)).collect()
            }
            Target::Flakey { place, .. } => vec![area(place, self.length_sectors)],
            Target::LogWrites { place, log } => {
                let whole = Member { area_sectors: None, ..area(log, 0) };
                vec![area(place, self.length_sectors), whole]
            }
        }
    }
}

/// A table target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A range of another device.
    Linear(Area),
    /// Chunks round-robin over other devices.
    Striped {
        /// Sectors of a chunk.
        chunk_sectors: u32,
        /// The devices.
        stripes: Vec<Area>,
    },
    /// Reads zeros, drops writes.
    Zero,
    /// Fails every I/O.
    Error,
    /// Ranges of other devices, with delays: for reads, writes and flushes. One to three; the last
    /// one also stands for those not given.
    Delay(Vec<Delayed>),
    /// A range of another device that misbehaves at times.
    Flakey {
        /// The range.
        place: Area,
        /// Seconds for which it works.
        up_seconds: u32,
        /// Seconds for which it then misbehaves.
        down_seconds: u32,
        /// The way it misbehaves.
        faults: Faults,
    },
    /// A range of another device, whose writes are also logged.
    LogWrites {
        /// The range: the segment's own sectors.
        place: Area,
        /// The device that holds the log.
        log: Area,
    },
}

/// A range for I/O, and its delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delayed {
    /// Where.
    pub place: Area,
    /// The delay in milliseconds.
    pub delay_ms: u32,
}

impl Target {
    /// dmsetup's word.
    pub fn name(&self) -> &'static str {
        match self {
            Target::Linear(_) => "linear",
            Target::Striped { .. } => "striped",
            Target::Zero => "zero",
            Target::Error => "error",
            Target::Delay(_) => "delay",
            Target::Flakey { .. } => "flakey",
            Target::LogWrites { .. } => "log-writes",
        }
    }
}

/// Where a target's data begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// The device.
    pub device: String,
    /// First sector in it.
    pub offset_sectors: u64,
    /// Where the device is named.
    pub span: Span,
}

impl Area {
    fn is_at(&self, other: &Area) -> bool {
        self.device == other.device && self.offset_sectors == other.offset_sectors
    }
}
