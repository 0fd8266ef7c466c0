//! A volume of a stack file, and the table that it comes to.
//!
//! A `table` is complete. `type = "linear"` and `type = "striped"` name whole members, so their
//! tables are known only once the members' sizes are: for files, when they are opened.

use crate::size::format_size;

use super::table::{Area, Member, SECTOR_BYTES, Segment, Target};

/// A volume as the stack file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeSpec {
    /// Lines of dmsetup's table syntax.
    Table(Vec<Segment>),
    /// Members one after the other.
    Linear(Vec<Member>),
    /// Chunks round-robin over members.
    Striped {
        /// The members.
        members: Vec<Member>,
        /// Sectors of a chunk.
        chunk_sectors: u32,
    },
    /// So many sectors of zeroes.
    Zero(u64),
    /// So many sectors that fail.
    Error(u64),
}

/// A member without usable space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooSmall {
    /// The member.
    pub member: Member,
    /// The fault, in one sentence.
    pub message: String,
}

/// Sizes of devices in bytes, by name; `None` is not known yet.
pub type Sizes<'a> = &'a dyn Fn(&str) -> Option<u64>;

impl VolumeSpec {
    /// The word after `type =`, or `table`.
    pub fn name(&self) -> &'static str {
        match self {
            VolumeSpec::Table(_) => "table",
            VolumeSpec::Linear(_) => "linear",
            VolumeSpec::Striped { .. } => "striped",
            VolumeSpec::Zero(_) => "zero",
            VolumeSpec::Error(_) => "error",
        }
    }

    /// The key of its section that defines its contents.
    pub fn key(&self) -> &'static str {
        match self {
            VolumeSpec::Table(_) => "table",
            VolumeSpec::Linear(_) | VolumeSpec::Striped { .. } => "members",
            VolumeSpec::Zero(_) | VolumeSpec::Error(_) => "size",
        }
    }

    /// Its members.
    pub fn members(&self) -> Vec<Member> {
        match self {
            VolumeSpec::Table(segments) => segments.iter().flat_map(Segment::members).collect(),
            VolumeSpec::Linear(members) | VolumeSpec::Striped { members, .. } => members.clone(),
            VolumeSpec::Zero(_) | VolumeSpec::Error(_) => Vec::new(),
        }
    }

    /// The size in bytes, if the text alone gives it.
    pub fn size(&self) -> Option<u64> {
        let sectors = match self {
            VolumeSpec::Table(segments) => segments.last().map(Segment::end_sector)?,
            VolumeSpec::Zero(sectors) | VolumeSpec::Error(sectors) => *sectors,
            VolumeSpec::Linear(_) | VolumeSpec::Striped { .. } => return None,
        };
        Some(sectors.saturating_mul(SECTOR_BYTES))
    }

    /// The table that it comes to; `None` while the size of a member is not known.
    ///
    /// # Errors
    /// A member without usable space.
    pub fn table(&self, sizes: Sizes<'_>) -> Result<Option<Vec<Segment>>, TooSmall> {
        match self {
            VolumeSpec::Table(segments) => Ok(Some(segments.clone())),
            VolumeSpec::Linear(members) => linear(members, sizes),
            VolumeSpec::Striped { members, chunk_sectors } => {
                striped(members, *chunk_sectors, sizes)
            }
            VolumeSpec::Zero(sectors) => Ok(Some(vec![whole(*sectors, Target::Zero)])),
            VolumeSpec::Error(sectors) => Ok(Some(vec![whole(*sectors, Target::Error)])),
        }
    }
}

fn whole(length_sectors: u64, target: Target) -> Segment {
    Segment { start_sector: 0, length_sectors, target, start_span: 0..0, target_span: 0..0 }
}

fn area(member: &Member) -> Area {
    Area { device: member.device.clone(), offset_sectors: 0, span: member.span.clone() }
}

/// Whole sectors of a member.
fn sectors(member: &Member, sizes: Sizes<'_>) -> Option<u64> {
    sizes(&member.device).map(|bytes| bytes / SECTOR_BYTES)
}

fn linear(members: &[Member], sizes: Sizes<'_>) -> Result<Option<Vec<Segment>>, TooSmall> {
    let (mut segments, mut start_sector) = (Vec::new(), 0u64);
    for member in members {
        let Some(length_sectors) = sectors(member, sizes) else { return Ok(None) };
        if length_sectors == 0 {
            let message = format!("`{}` is empty", member.device);
            return Err(TooSmall { member: member.clone(), message });
        }
        let target = Target::Linear(area(member));
        let (start_span, target_span) = (member.span.clone(), member.span.clone());
        segments.push(Segment { start_sector, length_sectors, target, start_span, target_span });
        start_sector = start_sector.saturating_add(length_sectors);
    }
    Ok(Some(segments))
}

/// The segments of a striped volume: all stripes are as long as the smallest member, in whole
/// chunks.
fn striped(
    members: &[Member],
    chunk_sectors: u32,
    sizes: Sizes<'_>,
) -> Result<Option<Vec<Segment>>, TooSmall> {
    let chunk = u64::from(chunk_sectors);
    let mut smallest = u64::MAX;
    for member in members {
        let Some(length) = sectors(member, sizes) else { return Ok(None) };
        if length < chunk {
            let chunk = format_size(chunk * SECTOR_BYTES);
            let message = format!("`{}` is smaller than one chunk of {chunk}", member.device);
            return Err(TooSmall { member: member.clone(), message });
        }
        smallest = smallest.min(length);
    }
    let length = (smallest / chunk * chunk).saturating_mul(members.len() as u64);
    let stripes = members.iter().map(area).collect();
    Ok(Some(vec![whole(length, Target::Striped { chunk_sectors, stripes })]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(count: usize) -> Vec<Member> {
        let member = |n| Member { device: format!("m{n}"), area_sectors: None, span: n..n };
        (0..count).map(member).collect()
    }

    /// The n-th of `sizes`, in bytes, for member `mN`.
    fn size(sizes: &[u64], name: &str) -> Option<u64> {
        sizes.get(name.strip_prefix('m')?.parse::<usize>().ok()?).copied()
    }

    #[test]
    fn a_size_that_is_not_known_leaves_the_table_open() {
        let known = |name: &str| (name != "m1").then_some(1 << 20);
        assert_eq!(VolumeSpec::Linear(members(2)).table(&known), Ok(None));
        let striped = VolumeSpec::Striped { members: members(2), chunk_sectors: 8 };
        assert_eq!(striped.table(&known), Ok(None));
        assert_eq!((striped.size(), striped.key()), (None, "members"));
    }

    #[test]
    fn nothing_of_a_member_is_an_error() {
        let sizes = |name: &str| size(&[4096, 4095, 511], name);
        let too_small = VolumeSpec::Linear(members(3)).table(&sizes).unwrap_err();
        assert_eq!((too_small.member.span, too_small.message.as_str()), (2..2, "`m2` is empty"));
        let striped = VolumeSpec::Striped { members: members(2), chunk_sectors: 8 };
        let message = striped.table(&sizes).unwrap_err().message;
        assert_eq!(message, "`m1` is smaller than one chunk of 4KiB");
    }

    proptest! {
        #[test]
        fn members_follow_one_another(sizes in prop::collection::vec(512u64..1 << 40, 1..9)) {
            let volume = VolumeSpec::Linear(members(sizes.len()));
            let table = volume.table(&|name| size(&sizes, name)).unwrap().unwrap();
            let mut expected = 0;
            for (segment, size) in table.iter().zip(&sizes) {
                prop_assert_eq!(segment.start_sector, expected);
                prop_assert_eq!(segment.length_sectors, size / 512);
                expected = segment.end_sector();
            }
            prop_assert_eq!(table.len(), sizes.len());
        }

        #[test]
        fn stripes_are_as_long_as_the_smallest(
            sizes in prop::collection::vec(1u64 << 20..1 << 40, 1..9),
            chunk_sectors in 1u32..2048,
        ) {
            let volume = VolumeSpec::Striped { members: members(sizes.len()), chunk_sectors };
            let table = volume.table(&|name| size(&sizes, name)).unwrap().unwrap();
            let [segment] = &table[..] else { panic!("{table:?}") };
            let each = segment.length_sectors / sizes.len() as u64;
            let smallest = sizes.iter().min().unwrap() / 512;
            prop_assert_eq!(each * sizes.len() as u64, segment.length_sectors);
            prop_assert_eq!(each % u64::from(chunk_sectors), 0);
            prop_assert!(each <= smallest && smallest - each < chunk_sectors.into());
        }
    }
}
