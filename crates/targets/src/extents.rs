//! The allocation query of a table: asks the members and translates the answers.

use crate::delay::Class;
use crate::striped::Striped;
use crate::table::{Map, Segment, Table};
use drystone_core::extent::ExtentList;
use drystone_core::{Extent, Result, SECTOR_SIZE};
use std::ops::Range;

/// Append the extents of `length` bytes from `offset` to `list`, about `max` of them at most.
///
/// # Errors
/// A member's query fails.
pub(crate) fn of_table(
    table: &Table,
    offset: u64,
    length: u64,
    max: usize,
    list: &mut ExtentList,
) -> Result<()> {
    let end = offset + length;
    let mut at = offset;
    while at < end && list.as_slice().len() < max {
        let segment = table.segment(at / SECTOR_SIZE);
        let until = end.min(segment.end * SECTOR_SIZE);
        let room = max - list.as_slice().len();
        at = match &segment.map {
            Map::Striped(map) => {
                let reached = striped(table, (segment, map), at, until, room, list)?;
                if reached < until {
                    return Ok(());
                }
                reached
            }
            Map::Linear { member, add } => ask(table, (*member, *add), at..until, room, list)?,
            // The answer is for the place that reads go to.
            Map::Delay(number) => {
                let place = table.delay(*number).place(Class::Read);
                ask(table, place, at..until, room, list)?
            }
            // The answer is the same whether the device is up or down.
            Map::Flakey(number) => {
                ask(table, table.flakey(*number).place(), at..until, room, list)?
            }
            Map::LogWrites(number) => {
                ask(table, (table.log_writes(*number).member, 0), at..until, room, list)?
            }
            Map::Zero => {
                list.push(Extent::hole(at, until - at));
                until
            }
            Map::Error => {
                list.push(Extent::data(at, until - at));
                until
            }
        };
    }
    Ok(())
}

/// Ask a member for a range of bytes of the volume; `add` is added to the sectors, modulo 2^64.
/// Returns the end of the answered range.
fn ask(
    table: &Table,
    (member, add): (u32, u64),
    range: Range<u64>,
    max: usize,
    list: &mut ExtentList,
) -> Result<u64> {
    let (from, to) = (range.start, range.end);
    let below = from.wrapping_add(add.wrapping_mul(SECTOR_SIZE));
    let mut at = from;
    for extent in table.members()[member as usize].extents(below, to - from, max)? {
        let length = extent.length.min(to - at);
        list.push(Extent { offset: at, length, ..extent });
        at += length;
    }
    if at == from {
        // A member without an answer counts as data.
        list.push(Extent::data(from, to - from));
        return Ok(to);
    }
    Ok(at)
}

/// Ask each stripe once for all of its sectors in `from..to`, and merge the answers chunk by chunk.
/// Returns the end of the answered range.
fn striped(
    table: &Table,
    (segment, striped): (&Segment, &Striped),
    from: u64,
    to: u64,
    max: usize,
    list: &mut ExtentList,
) -> Result<u64> {
    let mut answers = (0..striped.stripes())
        .map(|stripe| answer(table, (segment, striped), stripe, from, to, max))
        .collect::<Result<Vec<_>>>()?;
    let mut at = from;
    for _ in 0..CHUNKS_MAX {
        if at == to || list.as_slice().len() > max {
            break;
        }
        let sector = at / SECTOR_SIZE;
        let there = striped.position(sector - segment.start);
        let below = there.sector * SECTOR_SIZE + at % SECTOR_SIZE;
        let left = to.min((sector + there.left) * SECTOR_SIZE) - at;
        let Some((known, length)) = answers[there.stripe].at(below) else { break };
        let length = length.min(left);
        list.push(Extent { offset: at, length, ..known });
        at += length;
    }
    Ok(at)
}

/// The most pieces of chunks that one query merges.
const CHUNKS_MAX: usize = 1 << 16;

/// The extents of a stripe's device, which are asked for in rising order.
struct Answer {
    extents: std::vec::IntoIter<Extent>,
    current: Option<Extent>,
}

impl Answer {
    /// The extent that contains byte `below`, and the bytes from there to its end.
    fn at(&mut self, below: u64) -> Option<(Extent, u64)> {
        loop {
            let current = self.current?;
            let end = current.offset + current.length;
            if below < end {
                return Some((current, end - below));
            }
            self.current = self.extents.next();
        }
    }
}

fn answer(
    table: &Table,
    (segment, striped): (&Segment, &Striped),
    stripe: usize,
    from: u64,
    to: u64,
    max: usize,
) -> Result<Answer> {
    let upper = |byte: u64| byte - segment.start * SECTOR_SIZE;
    let (first, sectors) =
        striped.range(stripe, upper(from) / SECTOR_SIZE, upper(to).div_ceil(SECTOR_SIZE));
    let (start, length) = (first * SECTOR_SIZE, sectors * SECTOR_SIZE);
    let device = &table.members()[striped.member(stripe) as usize];
    let mut extents = match length {
        0 => Vec::new(),
        _ => device.extents(start, length, max)?,
    };
    if extents.is_empty() {
        extents.push(Extent::data(start, length.max(1)));
    }
    let mut extents = extents.into_iter();
    let current = extents.next();
    Ok(Answer { extents, current })
}
