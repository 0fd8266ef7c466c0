//! Superblocks, bitmaps and bad block logs as text, in the lines of `mdadm --examine`,
//! `--examine-bitmap` and `--examine-badblocks` (mdadm 4.2). Times are in UTC.

use std::fmt::Write as _;

use super::MetadataError;
use super::bad_blocks::BadBlocks;
use super::bitmap::{self, BitmapHeader, HEADER_BYTES};
use super::superblock::{
    DevRole, Features, MAGIC, Minor, ROLES_MAX, Superblock, checksum, level_name, seconds,
};
use crate::layout::{Level, layout_name};

/// Sectors behind the start of a superblock that Linux keeps for itself, as mdadm counts them.
const KEPT_SECTORS: u64 = 72;

/// The lines of `--examine` for a device of `device_sectors` sectors. `bytes` are its superblock,
/// whose checksum may be wrong.
///
/// # Errors
/// There is no superblock, or it cannot be shown.
pub fn superblock_text(
    name: &str,
    bytes: &[u8],
    device_sectors: u64,
    bitmap: Option<&BitmapHeader>,
) -> Result<String, MetadataError> {
    let found = Superblock::decode(bytes)?;
    let mut out = Lines(format!("{name}:\n"));
    out.array(&found);
    out.blank();
    out.sizes(&found);
    out.offsets(&found, device_sectors, bitmap);
    out.line("State", if found.is_clean() { "clean" } else { "active" });
    out.line("Device UUID", found.device_uuid);
    out.blank();
    out.logs(&found);
    out.reshape(&found);
    out.update(&found, checksum(bytes));
    out.blank();
    out.geometry(&found);
    out.blank();
    out.roles(&found);
    Ok(out.0)
}

/// The lines of `--examine-bitmap`; `bytes` begin with the header, and hold all bits.
///
/// # Errors
/// There is no bitmap, or it cannot be shown.
pub fn bitmap_text(name: &str, bytes: &[u8]) -> Result<String, MetadataError> {
    let header = BitmapHeader::parse(bytes)?;
    let mut out = Lines(String::new());
    let mut line = |word: &str, value: String| {
        let _ = writeln!(out.0, "{word:>16} : {value}");
    };
    let stale = header.state & bitmap::STATE_STALE != 0;
    line("Filename", name.to_owned());
    line("Magic", format!("{:08x}", bitmap::MAGIC));
    line("Version", header.version.to_string());
    line("UUID", header.uuid.to_string());
    line("Events", header.events.to_string());
    line("Events Cleared", header.events_cleared.to_string());
    line("State", if stale { "Out of date" } else { "OK" }.to_owned());
    line("Chunksize", chunk_words(header.chunk_bytes.into()));
    line("Daemon", format!("{}s flush period", header.daemon_sleep));
    line(
        "Write Mode",
        match header.write_behind {
            0 => "Normal".to_owned(),
            most => format!("Allow write behind, max {most}"),
        },
    );
    line("Sync Size", format!("{}{}", header.sync_size / 2, size_words(header.sync_size)));
    let (bits, dirty) = (header.bits(), dirty(&header, bytes));
    let percent = 100.0 * dirty as f64 / bits.max(1) as f64;
    line("Bitmap", format!("{bits} bits (chunks), {dirty} dirty ({percent:.1}%)"));
    Ok(out.0)
}

/// The number of set bits in those bytes that are present; `bytes` begin with the header.
pub fn dirty(header: &BitmapHeader, bytes: &[u8]) -> u64 {
    let there = &bytes[HEADER_BYTES..];
    let bits = header.bits().min(there.len() as u64 * 8);
    let (whole, rest) = ((bits / 8) as usize, bits % 8);
    let full: u64 = there[..whole].iter().map(|byte| u64::from(byte.count_ones())).sum();
    let last = there.get(whole).map_or(0, |byte| byte & ((1 << rest) - 1));
    full + u64::from(last.count_ones())
}

/// The lines of `--examine-badblocks`; `None`: the device has no log.
pub fn bad_blocks_text(name: &str, list: Option<&BadBlocks>) -> String {
    match list {
        None => format!("No bad-blocks list configured on {name}\n"),
        Some(list) if list.is_empty() => format!("Bad-blocks list is empty in {name}\n"),
        Some(list) => {
            let lines = list.iter().map(|(start, len)| format!("{start:>20} for {len} sectors\n"));
            format!("Bad-blocks on {name}:\n{}", lines.collect::<String>())
        }
    }
}

struct Lines(String);

impl Lines {
    fn line(&mut self, word: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{word:>15} : {value}");
    }

    fn blank(&mut self) {
        self.0.push('\n');
    }

    fn array(&mut self, found: &Superblock) {
        self.line("Magic", format!("{MAGIC:08x}"));
        self.line("Version", found.minor().name());
        self.line("Feature Map", format!("{:#x}", found.feature_map.bits()));
        self.line("Array UUID", found.set_uuid);
        self.line("Name", found.name().escape_default());
        self.line("Creation Time", time_words(found.ctime));
        self.line("Raid Level", level_name(found.level));
        self.line("Raid Devices", found.raid_disks);
    }

    fn sizes(&mut self, found: &Superblock) {
        let sectors = |count: u64| format!("{count} sectors{}", size_words(count));
        self.line("Avail Dev Size", sectors(found.data_size));
        let parity = Level::from_number(found.level).map_or(0, Level::parity_disks);
        let data = u64::from(found.raid_disks.saturating_sub(parity));
        let array = found.size.saturating_mul(data);
        self.line("Array Size", format!("{} KiB{}", array / 2, size_words(array)));
        if found.size != found.data_size {
            self.line("Used Dev Size", sectors(found.size));
        }
    }

    fn offsets(&mut self, found: &Superblock, device_sectors: u64, bitmap: Option<&BitmapHeader>) {
        if found.data_offset > 0 {
            self.line("Data Offset", format!("{} sectors", found.data_offset));
        }
        let moved = found.feature_map.contains(Features::NEW_OFFSET);
        if moved {
            let new = found.data_offset.wrapping_add_signed(found.new_offset.into());
            self.line("New Offset", format!("{new} sectors"));
        }
        self.line("Super Offset", format!("{} sectors", found.super_offset));
        if found.feature_map.contains(Features::RECOVERY_OFFSET) {
            self.line("Recovery Offset", format!("{} sectors", found.recovery_offset));
        }
        if !moved {
            let (before, after) = unused(found, device_sectors, bitmap);
            self.line("Unused Space", format!("before={before} sectors, after={after} sectors"));
        }
    }

    fn logs(&mut self, found: &Superblock) {
        if let Some(offset) = found.bitmap_offset() {
            self.line("Internal Bitmap", format!("{offset} sectors from superblock"));
        }
        if let Some(area) = found.ppl() {
            let text = format!(
                "{} sectors at offset {} sectors from superblock",
                area.sectors, area.offset
            );
            self.line("PPL", text);
        }
    }

    fn reshape(&mut self, found: &Superblock) {
        if !found.feature_map.contains(Features::RESHAPE_ACTIVE) {
            return;
        }
        let position = found.reshape_position;
        self.line("Reshape pos'n", format!("{}{}", position / 2, size_words(position)));
        let (delta, disks) = (found.delta_disks, found.raid_disks);
        if delta != 0 {
            let old = disks.wrapping_sub_signed(delta);
            self.line("Delta Devices", format!("{delta} ({old}->{disks})"));
        }
        if found.new_level != found.level {
            self.line("New Level", level_name(found.new_level));
        }
        if found.new_layout != found.layout {
            self.line("New Layout", layout_words(found.new_layout));
        }
        if found.new_chunk != found.chunk_sectors {
            self.line("New Chunksize", chunk_size(found.new_chunk));
        }
        self.blank();
    }

    fn update(&mut self, found: &Superblock, expected: u32) {
        if found.devflags & 3 != 0 {
            let words = [(1, " write-mostly"), (2, " failfast")];
            let words = words.iter().filter(|(bit, _)| found.devflags & bit != 0);
            let words: String = words.map(|(_, word)| *word).collect();
            self.line("Flags", words.trim_start());
        }
        self.line("Update Time", time_words(found.utime));
        if found.bblog_size > 0 && found.bblog_offset != 0 {
            let entries = u32::from(found.bblog_size) * 64;
            let present = match found.feature_map.contains(Features::BAD_BLOCKS) {
                true => " - bad blocks present.",
                false => "",
            };
            let offset = found.bblog_offset;
            let text = format!("{entries} entries available at offset {offset} sectors{present}");
            self.line("Bad Block Log", text);
        }
        let right = match found.checksum == expected {
            true => "correct".to_owned(),
            false => format!("expected {expected:x}"),
        };
        self.line("Checksum", format!("{:x} - {right}", found.checksum));
        self.line("Events", found.events);
    }

    fn geometry(&mut self, found: &Superblock) {
        if matches!(Level::from_number(found.level), Some(Level::Raid5 | Level::Raid6)) {
            self.line("Layout", layout_words(found.layout));
        }
        self.line("Chunk Size", chunk_size(found.chunk_sectors));
    }

    fn roles(&mut self, found: &Superblock) {
        let replacement = found.feature_map.contains(Features::REPLACEMENT);
        let role = match found.role() {
            DevRole::Active(role) if replacement => format!("Replacement device {role}"),
            DevRole::Active(role) => format!("Active device {role}"),
            DevRole::Journal => "Journal".to_owned(),
            DevRole::Spare | DevRole::Faulty => "spare".to_owned(),
        };
        let _ = writeln!(self.0, "   Device Role : {role}");
        let disks = found.raid_disks.min(ROLES_MAX as u32);
        let state = |role| match found.roles.iter().filter(|r| u32::from(**r) == role).count() {
            0 => '.',
            1 => 'A',
            _ => 'R',
        };
        let states: String = (0..disks).map(state).collect();
        let words = "('A' == active, '.' == missing, 'R' == replacing)";
        let _ = writeln!(self.0, "   Array State : {states} {words}");
    }
}

/// Unused sectors between the superblock and the data, and behind the data.
fn unused(found: &Superblock, device_sectors: u64, bitmap: Option<&BitmapHeader>) -> (u64, u64) {
    let log_start = |offset: i32| found.super_offset.saturating_add_signed(offset.into());
    let mut parts = vec![(log_start(found.bblog_offset), u64::from(found.bblog_size))];
    if let Some(offset) = found.bitmap_offset() {
        parts.push((log_start(offset), bitmap.map_or(8, BitmapHeader::area_sectors)));
    }
    if let Some(area) = found.ppl() {
        parts.push((log_start(area.offset.into()), area.sectors.into()));
    }
    let data_end = found.data_offset.saturating_add(found.size);
    if found.minor() == Minor::V1_0 {
        let first = parts.iter().map(|(start, _)| *start).min().unwrap_or(0);
        let end = first.min(found.super_offset);
        return (found.data_offset, end.saturating_sub(data_end));
    }
    let end = parts.iter().map(|(start, len)| start.saturating_add(*len)).max().unwrap_or(0);
    let end = end.max(found.super_offset.saturating_add(KEPT_SECTORS));
    (found.data_offset.saturating_sub(end), device_sectors.saturating_sub(data_end))
}

fn layout_words(layout: u32) -> String {
    layout_name(layout).map_or_else(|| format!("-unknown- ({layout})"), str::to_owned)
}

/// A chunk of a superblock, in KiB.
fn chunk_size(sectors: u32) -> String {
    format!("{}K", sectors / 2)
}

/// A chunk of a bitmap, in the largest unit that it is a multiple of.
fn chunk_words(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MB", bytes >> 20),
        _ => format!("{} GB", bytes >> 30),
    }
}

/// ` (7.00 MiB 7.34 MB)`: a number of sectors in words; nothing for less than about 5 MB.
pub fn size_words(sectors: u64) -> String {
    let bytes = u128::from(sectors) * 512;
    let (binary, decimal, unit) = match bytes {
        0..0x4E_2000 => return String::new(),
        0x4E_2000..0x8000_0000 => (1 << 20, 1_000_000, 'M'),
        0x8000_0000..0x200_0000_0000 => (1 << 30, 1_000_000_000, 'G'),
        _ => (1u128 << 40, 1_000_000_000_000u128, 'T'),
    };
    let hundredths = |of: u128| {
        let rounded = (bytes * 200 / of).div_ceil(2);
        format!("{}.{:02}", rounded / 100, rounded % 100)
    };
    format!(" ({} {unit}iB {} {unit}B)", hundredths(binary), hundredths(decimal))
}

/// `Fri Nov 20 23:44:53 2026`: a superblock's time, in UTC.
pub fn time_words(time: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = seconds(time);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Count years from March on, so that a leap day is the last day of a year.
    let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = era * 400 + year + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metadata::Uuid;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (time, words) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (951_868_800, "Wed Mar  1 00:00:00 2000"),
            (4_107_542_400, "Mon Mar  1 00:00:00 2100"),
            (1_735_689_599, "Tue Dec 31 23:59:59 2024"),
            (1_735_689_600 | 5 << 40, "Wed Jan  1 00:00:00 2025"),
        ] {
            assert_eq!(time_words(time), words);
        }
        assert!(time_words(u64::MAX).ends_with(" 36812"), "{}", time_words(u64::MAX));
    }

    #[test]
    fn sizes_have_two_decimals_and_a_unit() {
        assert_eq!(size_words(6144), "");
        assert_eq!(size_words(14336), " (7.00 MiB 7.34 MB)");
        assert_eq!(size_words(2147219456), " (1023.87 GiB 1099.38 GB)");
        assert_eq!(size_words(u64::MAX), " (8589934592.00 TiB 9444732965.74 TB)");
    }

    #[test]
    fn a_bitmap_is_shown_as_mdadm_does() {
        let header = BitmapHeader { events: 35, ..BitmapHeader::new(Uuid([1; 16]), 14336, 65536) };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend([1, 0, 0x10, 0, 0, 0, 0, 0xC0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF]);
        let text = bitmap_text("m0", &bytes).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "        Filename : m0",
                "           Magic : 6d746962",
                "         Version : 4",
                "            UUID : 01010101:01010101:01010101:01010101",
                "          Events : 35",
                "  Events Cleared : 0",
                "           State : OK",
                "       Chunksize : 64 KB",
                "          Daemon : 5s flush period",
                "      Write Mode : Normal",
                "       Sync Size : 7168 (7.00 MiB 7.34 MB)",
                "          Bitmap : 112 bits (chunks), 4 dirty (3.6%)",
            ]
        );
        assert!(bitmap_text("m0", &[0; 4096]).is_err());
    }
}
