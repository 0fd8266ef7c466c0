//! Finds arrays on devices, and starts them.
//!
//! The start writes nothing except parity that logs correct. The manager records changes, such as a
//! missing member, before it lets the first write pass.

use super::bitmap::BitmapStorage;
use super::device::{Array, Findings, ManagerQueue};
use super::disk::{Disk, DiskState};
use super::doubtful::DoubtfulRanges;
use super::io::Io;
use super::journal::what_members_lack;
use super::look::{candidate, reader};
use super::manager::{Manager, ManagerSpec};
use super::options::ArrayOptions;
use super::ppl::{self, Replay, check_logs_take_writes};
use crate::engine::{Conf, ConfSpec, IN_SYNC, PplConf, Shared};
use crate::ids::Role;
use crate::metadata::assemble::{Assembly, BitmapUse, Candidate, Member, Start};
use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::create::{NewMember, Plan, Write};
use crate::metadata::superblock::Superblock;
use drystone_core::{Context, Device, Error, Limits, Result, SECTOR_SIZE};
use std::sync::Arc;

/// A started array, with its manager, which needs a thread of its own.
pub struct Opened {
    /// The device.
    pub array: Array,
    /// Its manager.
    pub manager: Manager,
}

/// The contents of `devices`, one for each, for [`crate::metadata::assemble::assemble`]. Reads, and
/// waits for that. A device that cannot be read counts as one without a superblock.
///
/// # Errors
/// A device cannot be opened; the message says why.
pub fn find(ctx: Context, devices: &[Arc<dyn Device>]) -> Result<(Context, Vec<Candidate>)> {
    let mut io = Io::new(ctx);
    let mut look = |device| {
        let found = candidate(&mut io, device)?;
        Ok(found.with_journal(reader(&mut io, device)?))
    };
    let found = devices.iter().map(&mut look).collect::<Result<_>>()?;
    Ok((io.ctx, found))
}

/// Start the array `found` on `devices`, which are in the order of the candidates. The array is
/// read-only if one of its devices is, as in Linux.
///
/// # Errors
/// The array must not start, or must not be written; a device cannot be opened, or its bad block
/// list cannot be read. The message is one sentence.
pub fn open(
    ctx: Context,
    devices: &[Arc<dyn Device>],
    candidates: &[Candidate],
    found: &Assembly,
    options: &ArrayOptions,
) -> Result<Opened> {
    let mut options = options.clone();
    options.read_only |= devices.iter().any(|device| device.info().limits.read_only);
    let mut assembly = found.clone();
    if options.force {
        assembly.force(candidates);
    }
    let (options, assembly) = (&options, &assembly);
    may_start(assembly, options)?;
    let mut io = Io::new(ctx);
    let (mut disks, headers) = members(&mut io, devices, candidates, assembly)?;
    let locks = io.ctx.locks().clone();
    let bitmap = match options.read_only {
        true => None,
        false => BitmapStorage::load(&mut io, &disks, &headers, assembly)?,
    };
    let journal_notice = look_into_journal(&mut io, &disks, candidates, (found, options))?;
    // A resync makes members of different ages fit one another; their logs are older than that.
    let is_mixed = found.members != assembly.members && assembly.lost() == 0;
    let mut replay = Replay::read(&mut io, &disks, assembly, !is_mixed);
    if replay.is_some() && !options.read_only {
        check_logs_take_writes(&mut io, &disks)?;
    }
    match &mut replay {
        Some(replay) if options.read_only => replay.overlay(&mut disks),
        Some(replay) => replay.write(&mut io, &disks),
        None => {}
    }
    let not_used: Vec<String> = disks
        .iter()
        .filter_map(|disk| Some(format!("{}: {}", disk.name, disk.places.unused()?)))
        .collect();
    let is_logged = replay.as_ref().is_some_and(|replay| !replay.is_wrong);
    let notices = replay.as_mut().map(|replay| std::mem::take(&mut replay.notices));
    let ppl = replay.as_ref().map(|replay| replay.conf);
    let conf = conf(&disks, assembly, options, (bitmap.as_ref(), ppl))?;
    let suspects = suspects(&mut io, (&disks, &headers), (found, assembly), is_logged);
    let shared = Shared::new(&options.name, conf, &locks);
    // The array need not be resynced once the logs have corrected all that the crash left.
    let is_whole = replay.is_some_and(|replay| !options.read_only && replay.is_whole(assembly));
    // Up to `RESYNC_PENDING`, the superblocks only say that the logs alone do not make the array
    // whole: the resync begins at 0.
    let resync_from = assembly.resync_from.filter(|_| !is_whole);
    let resync_from = resync_from.map(|from| if from <= ppl::RESYNC_PENDING { 0 } else { from });
    let shared_too = shared.clone();
    let left_out = assembly.left_out.iter().map(|(_, why)| why.clone()).collect();
    let notices = journal_notice.into_iter().chain(not_used).chain(notices.unwrap_or_default());
    let notices = notices.collect();
    let findings = Findings { suspects, left_out, notices };
    let spec =
        ManagerSpec { io, disks, assembly, options, shared: shared_too, bitmap, resync_from };
    let (manager, status) = Manager::new(spec)?;
    let queue = ManagerQueue::new(shared, status, findings, &locks);
    let manager = manager.with_queue(queue.clone());
    Ok(Opened { array: Array::new(queue), manager })
}

/// Compare the journal, if the array has one, with the members. Returns a sentence on the writes
/// that only the journal has, if there are any.
///
/// # Errors
/// Some data may be stale, and the start was not forced.
fn look_into_journal(
    io: &mut Io,
    disks: &[Disk],
    candidates: &[Candidate],
    (found, options): (&Assembly, &ArrayOptions),
) -> Result<Option<String>> {
    let gap = found.journal_gap(candidates).or_else(|| {
        let candidate = &candidates[found.journal?];
        let journal = candidate.journal.as_ref()?.as_ref().ok()?;
        what_members_lack(io, disks, journal, found)
            .map(|what| format!("{}: {what}", candidate.name))
    });
    match gap {
        Some(why) if !options.force => Err(Error::invalid(format!("{}: {why}", options.name))),
        gap => Ok(gap),
    }
}

/// The devices that take part, with their bitmaps' headers.
fn members(
    io: &mut Io,
    devices: &[Arc<dyn Device>],
    candidates: &[Candidate],
    assembly: &Assembly,
) -> Result<(Vec<Disk>, Vec<Option<BitmapHeader>>)> {
    let (mut disks, mut headers) = (Vec::new(), Vec::new());
    for (index, device) in devices.iter().enumerate() {
        if let Some(state) = state_of(assembly, index)
            && let Ok((_, superblock)) = &candidates[index].found
        {
            let header = candidates[index].bitmap.as_ref().and_then(|found| found.clone().ok());
            // A spare's superblock may lack the used size.
            let superblock = Superblock { size: assembly.fresh.size, ..superblock.clone() };
            let mut disk = Disk::open(io, device, &superblock, state, header.as_ref())?;
            disk.by_bitmap = is_by_bitmap(assembly, index);
            disks.push(disk);
            headers.push(header);
        }
    }
    Ok((disks, headers))
}

/// The ranges that may be wrong in an array that was `found` and is started as it is `now`.
fn suspects(
    io: &mut Io,
    (disks, headers): (&[Disk], &[Option<BitmapHeader>]),
    (found, now): (&Assembly, &Assembly),
    is_logged: bool,
) -> Option<DoubtfulRanges> {
    if now.lost() == 0 && found.members == now.members {
        return None;
    }
    let set = match now.bitmap {
        BitmapUse::Good => BitmapStorage::load(io, disks, headers, now).ok().flatten(),
        _ => None,
    };
    DoubtfulRanges::of((found, now), set.map(|bitmap| bitmap.set_sectors()), is_logged)
}

fn may_start(assembly: &Assembly, options: &ArrayOptions) -> Result<()> {
    let is_refused = matches!(assembly.start, Start::No(_));
    if let (Some(why), false, false) = (&assembly.read_only, options.read_only, is_refused) {
        return Err(Error::invalid(format!("{}: {why}", options.name)));
    }
    match &assembly.start {
        Start::Whole | Start::Degraded { unexpected: None } => Ok(()),
        Start::Degraded { .. } if options.run || options.force => Ok(()),
        Start::Force(_) if options.force => Ok(()),
        Start::Degraded { unexpected: Some(why) } | Start::Force(why) | Start::No(why) => {
            Err(Error::invalid(format!("{}: {why}", options.name)))
        }
    }
}

/// The state of the candidate at `index`, if it takes part.
fn state_of(assembly: &Assembly, index: usize) -> Option<(DiskState, u64)> {
    let members = (0..).map(Role).zip(&assembly.members).find_map(|(role, member)| match member {
        Member::InSync { device } if *device == index => Some((DiskState::InSync(role), IN_SYNC)),
        Member::Rebuilding { device, recovered, .. } if *device == index => {
            Some((DiskState::Rebuilding(role), *recovered))
        }
        _ => None,
    });
    let replacements =
        (0..).map(Role).zip(&assembly.replacements).find_map(|(role, replacement)| {
            let replacement = replacement.as_ref().filter(|r| r.device == index)?;
            // Writes in flight when the array stopped may be on the member but not on its
            // replacement. The resync makes parity fit the member, so the replacement is copied
            // again from the start.
            let recovered = if assembly.resync_from.is_some() { 0 } else { replacement.recovered };
            Some((DiskState::Replacement(role), recovered))
        });
    let spare = assembly.spares.contains(&index).then_some((DiskState::Spare, 0));
    members.or(replacements).or(spare)
}

/// The candidate at `index` is being rebuilt, and lacks only the chunks that the bitmap marks.
fn is_by_bitmap(assembly: &Assembly, index: usize) -> bool {
    assembly.members.iter().any(|member| {
        matches!(member, Member::Rebuilding { device, by_bitmap: true, .. } if *device == index)
    })
}

fn conf(
    disks: &[Disk],
    assembly: &Assembly,
    options: &ArrayOptions,
    (bitmap, ppl): (Option<&BitmapStorage>, Option<PplConf>),
) -> Result<Conf> {
    let layout = assembly.layout;
    let too_large = || Error::invalid(format!("{}: it has too many sectors", options.name));
    let sectors = layout.array_sectors(assembly.used()).ok_or_else(too_large)?;
    let size_bytes = sectors.checked_mul(SECTOR_SIZE).ok_or_else(too_large)?;
    let members = disks.iter().filter(|disk| disk.state != DiskState::Spare);
    let limits = members.fold(Limits::STACKING, |l, disk| l.stack(disk.device.info().limits));
    let chunk_bytes = layout.chunk_sectors() * SECTOR_SIZE;
    let row_bytes = layout.row_sectors() * SECTOR_SIZE;
    let limits = Limits {
        io_min: u32::try_from(chunk_bytes).unwrap_or(0).max(limits.io_min),
        io_opt: u32::try_from(row_bytes).unwrap_or(0),
        chunk_bytes: 0,
        // A discard is not offered: parity would need to know whether discarded sectors read as
        // zeroes.
        max_discard_bytes: 0,
        max_write_zeroes_bytes: 0,
        logical_block_size: limits.logical_block_size.max(assembly.fresh.logical_block_size),
        physical_block_size: limits.physical_block_size.max(assembly.fresh.logical_block_size),
        fast_zero: false,
        fua: true,
        // As for Linux's arrays: a member with a write cache may join, or a member may get one.
        write_cache: true,
        read_only: options.read_only || limits.read_only,
        ..limits
    };
    Ok(Conf::new(ConfSpec {
        layout,
        limits: limits.normalized(),
        size_bytes,
        role_slots: super::manager::role_slots(disks, layout.disks()),
        cache_stripes: options.cache_stripes,
        bitmap: bitmap.map(|bitmap| bitmap.words.clone()),
        ppl,
    }))
}

/// Make the new array `plan` on `devices`. Returns the contents that [`find`] would find; they are
/// not read back, because a device may be one that keeps nothing. A member's superblock is written
/// after everything else is durable, so a creation that is cut short leaves no array.
///
/// # Errors
/// A device cannot be opened or written; the message names it.
pub fn create(
    ctx: Context,
    devices: &[Arc<dyn Device>],
    plan: &Plan,
) -> Result<(Context, Vec<Candidate>)> {
    let mut io = Io::new(ctx);
    for last in [false, true] {
        for (device, member) in devices.iter().zip(&plan.members) {
            let Some(member) = member else { continue };
            let writes = if last { std::slice::from_ref(&member.last) } else { &member.before[..] };
            write_new(&mut io, device, writes)?;
        }
    }
    let found = devices
        .iter()
        .zip(&plan.members)
        .filter_map(|(device, member)| Some(created(device.info().name, member.as_ref()?)));
    Ok((io.ctx, found.collect()))
}

/// The contents of a device that was made a new member.
fn created(name: String, member: &NewMember) -> Candidate {
    let superblock = &member.superblock;
    let sector = superblock
        .bitmap_offset()
        .and_then(|offset| superblock.super_offset.checked_add_signed(offset.into()));
    let bitmap =
        sector.and_then(|sector| member.before.iter().find(|write| write.sector == sector));
    Candidate {
        name,
        found: Ok((superblock.minor(), superblock.clone())),
        bitmap: bitmap.map(|write| BitmapHeader::parse(&write.bytes)),
        damage: None,
        log_damage: None,
        device_sectors: 0,
        journal: None,
    }
}

fn write_new(io: &mut Io, device: &Arc<dyn Device>, writes: &[Write]) -> Result<()> {
    let index = io.open(device)?;
    let info = device.info();
    let block = info.limits.logical_block_size as usize;
    for write in writes {
        let mut bytes = write.bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(block), 0);
        let ticket = io.start_write(index, write.sector, &bytes);
        let status = io.wait_for(ticket).status;
        if !status.is_ok() {
            let text = format!("the superblock of {} cannot be written: {status}", info.name);
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}
