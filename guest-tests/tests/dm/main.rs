//! The kernel's device-mapper as a witness of ours, with the same lines: the place of each sector
//! of a table, and the refused tables.
//!
//! Each sector of each member holds a number of its own. So a read through a mapped device gives,
//! for each of its sectors, the member and the sector behind it.

#![forbid(unsafe_code)]

mod ours;
mod tables;

use std::fs;
use std::path::Path;

use guest_tests::{Disk, Guest, available};
use system_tests::requires;

use ours::Ours;
use tables::{MAPPED, MEMBER_4K, MEMBERS, REFUSED, TAKEN, TAKEN_BY_LINUX_ONLY};

const SECTOR: usize = 512;

/// The place of a table's sector: the name of the member and its sector; `None` beyond the end of
/// the table. This follows the pages linear.rst and striped.rst below
/// Documentation/admin-guide/device-mapper of Linux, as plainly as possible.
fn expected(table: &str, sector: u64) -> Option<(String, u64)> {
    let number = |word: &str| word.parse::<u64>().expect("a decimal number");
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, length) = (number(words[0]), number(words[1]));
        if sector < start || sector >= start + length {
            continue;
        }
        let (kind, arguments) = (words[2], &words[3..]);
        return Some(match kind {
            "linear" => (arguments[0].to_owned(), number(arguments[1]) + sector - start),
            "striped" => {
                let (stripes, chunk_sectors) = (number(arguments[0]), number(arguments[1]));
                let (chunk, rest) =
                    ((sector - start) / chunk_sectors, (sector - start) % chunk_sectors);
                let (stripe, row) = (chunk % stripes, chunk / stripes);
                let member = &arguments[2 + 2 * usize::try_from(stripe).expect("a few stripes")..];
                (member[0].to_owned(), row * chunk_sectors + rest + number(member[1]))
            }
            _ => panic!("no place of a sector of {kind}"),
        });
    }
    None
}

/// The same for every sector of a table.
fn places(table: &str) -> Vec<(String, u64)> {
    (0..).map_while(|sector| expected(table, sector)).collect()
}

/// The name of a member's file on the host.
fn file_name(member: &str) -> &str {
    member.rsplit('/').next().expect("a name")
}

/// Makes images of the members in which each sector begins with its member's number and its own.
fn make_members(folder: &Path) {
    for ((name, sectors), member) in MEMBERS.iter().chain([&MEMBER_4K]).zip(0..) {
        let image: Vec<u8> = (0..*sectors).flat_map(|sector| marked(member, sector)).collect();
        fs::write(folder.join(file_name(name)), image).expect("an image is written");
    }
}

/// A sector that begins with a mark: the low 48 bits are the sector, those above the member.
fn marked(member: u64, sector: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    bytes[..8].copy_from_slice(&(member << 48 | sector).to_le_bytes());
    bytes
}

/// The members and sectors that marked sectors came from.
fn marks(bytes: &[u8]) -> Vec<(String, u64)> {
    assert_eq!(bytes.len() % SECTOR, 0, "a device is whole sectors");
    let place = |sector: &[u8]| {
        let mark = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
        let member = usize::try_from(mark >> 48).ok().and_then(|member| MEMBERS.get(member));
        (member.map_or("none", |member| member.0).to_owned(), mark & ((1 << 48) - 1))
    };
    bytes.chunks_exact(SECTOR).map(place).collect()
}

/// A guest with the members in a folder and device-mapper.
fn guest(folder: &Path) -> Guest {
    make_members(folder);
    let mut builder = Guest::builder().program("dmsetup");
    for (name, _) in MEMBERS.iter().chain([&MEMBER_4K]) {
        let disk = Disk::virtio(folder.join(file_name(name)));
        let disk = if *name == MEMBER_4K.0 { disk.block_size(4096) } else { disk };
        builder = builder.disk(file_name(name), disk);
    }
    let mut guest = builder.start();
    guest.run("modprobe dm-mod").ok();
    guest
}

/// Compares sector by sector; the first few that differ are shown.
fn compare(table: &str, found: &[(String, u64)], wanted: &[(String, u64)]) {
    let pairs = (0..).zip(found.iter().zip(wanted));
    let different = pairs.filter(|(_, (found, wanted))| found != wanted);
    let different: Vec<_> = different.take(5).collect();
    assert!(different.is_empty(), "{table}\n(sector, (found, wanted)): {different:#?}");
    assert_eq!(found.len(), wanted.len(), "{table}\nnumber of sectors");
}

/// The kernel, our table, our volume's reads and the pages agree on every sector.
#[test]
fn every_sector_is_where_it_is_expected() {
    if !available() || !requires("dmsetup") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = guest(folder.path());
    let ours = Ours::new();
    for (name, _) in MEMBERS {
        ours.write_member(name, &fs::read(folder.path().join(file_name(name))).expect("an image"));
    }
    for table in MAPPED {
        let script = "dmsetup create t && cat /dev/mapper/t && dmsetup remove t";
        let output = guest.run_with_input(script, table.as_bytes());
        assert_eq!(output.status, 0, "{table}\n{}", output.errors());
        let kernel = marks(&output.stdout);
        compare(table, &kernel, &places(table));
        let our_table = ours.table(table).expect(table);
        compare(table, &ours::places(&our_table), &kernel);
        let read = ours::read(&ours.volume(our_table));
        compare(table, &marks(&read), &kernel);
    }
}

/// Writes through a mapped device are found in the members' files, and nothing else has changed in
/// them.
#[test]
fn every_written_sector_is_where_it_is_expected() {
    if !available() || !requires("dmsetup") {
        return;
    }
    let table = "0 5 linear /dev/disk/m3 1498\n5 6000 striped 4 12 /dev/disk/m0 1 /dev/disk/m1 2 \
                 /dev/disk/m2 4 /dev/disk/m3 1";
    const WRITER: u64 = 99;
    let wanted = places(table);
    let written = (0..wanted.len()).flat_map(|sector| marked(WRITER, sector as u64));
    let written: Vec<u8> = written.collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = guest(folder.path());
    guest.run_with_input("dmsetup create t", table.as_bytes()).ok();
    let script = "dd of=/dev/mapper/t bs=64k conv=fsync && dmsetup remove t";
    guest.run_with_input(script, &written).ok();
    guest.power_off().expect("it powers off");
    let ours = Ours::new();
    for ((name, sectors), member) in MEMBERS.iter().zip(0..) {
        let image = (0..*sectors).flat_map(|sector| marked(member, sector));
        ours.write_member(name, &image.collect::<Vec<u8>>());
    }
    ours::write(&ours.volume(ours.table(table).expect(table)), &written);

    for ((name, sectors), member) in MEMBERS.iter().zip(0..) {
        let mut image: Vec<[u8; SECTOR]> =
            (0..*sectors).map(|sector| marked(member, sector)).collect();
        for (sector, place) in wanted.iter().enumerate().filter(|(_, place)| place.0 == *name) {
            image[usize::try_from(place.1).expect("a sector")] = marked(WRITER, sector as u64);
        }
        let found = fs::read(folder.path().join(file_name(name))).expect("the image");
        let (found, rest) = found.as_chunks::<SECTOR>();
        let different = found.iter().zip(&image).position(|(found, wanted)| found != wanted);
        assert_eq!(different, None, "a sector of {name}");
        assert_eq!((found.len(), rest.len()), (image.len(), 0), "sectors of {name}");
        let ours = ours.read_member(name);
        assert!(ours == found.as_flattened(), "{name} differs between the kernel and ours");
    }
}

/// We refuse the tables that the kernel refuses, and take those that it takes, except for a list.
#[test]
fn bad_tables_are_refused_by_both() {
    if !available() || !requires("dmsetup") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = guest(folder.path());
    let ours = Ours::new();
    for (table, words) in REFUSED {
        let script = "dmesg -c >/dev/null; dmsetup create t; status=$?; dmesg; exit $status";
        let output = guest.run_with_input(script, table.as_bytes());
        let said = output.text() + &output.errors();
        assert_eq!(output.status, 1, "{table}\n{said}");
        assert!(said.contains("reload ioctl on t") || words.contains("format"), "{table}\n{said}");
        assert!(said.contains(words), "{table}\nshould be refused with {words:?}:\n{said}");
        let sentence = ours.table(table).err().expect(table);
        assert!(!sentence.is_empty() && !sentence.contains('\n'), "{table}\n{sentence}");
    }
    for (table, last) in TAKEN {
        assert_taken(&mut guest, table, last);
        let text = ours.table(table).expect(table).text();
        assert_eq!(text.split_whitespace().last(), Some(*last), "{table}");
    }
    for (table, last, sentence) in TAKEN_BY_LINUX_ONLY {
        assert_taken(&mut guest, table, last);
        let said = ours.table(table).err().expect(table);
        assert!(said.contains(sentence), "{table}\n{said}");
    }
}

fn assert_taken(guest: &mut Guest, table: &str, last: &str) {
    let script = "dmsetup create t && dmsetup table t && dmsetup remove t";
    let output = guest.run_with_input(script, table.as_bytes());
    assert_eq!(output.status, 0, "{table}\n{}", output.errors());
    assert_eq!(output.text().split_whitespace().last(), Some(last), "{table}");
}

/// A suspension lets I/O in a `delay` go on, and does not wait for it: here that would take a
/// quarter of an hour. Ours does the same (`a_suspension_waits_for_no_delay`).
#[test]
fn a_suspension_waits_for_no_delay() {
    if !available() || !requires("dmsetup") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut guest = guest(folder.path());
    for suspend in ["suspend", "suspend --noflush"] {
        let script = format!(
            "dmsetup create t
            dd if=/dev/mapper/t of=/dev/null bs=4096 count=1 2>/dev/null & read=$!
            until dmsetup status t | grep -q 'delay [1-9]'; do sleep 0.1; done
            dmsetup {suspend} t && dmsetup status t && dmsetup resume t
            wait $read && dmsetup remove t"
        );
        let output = guest.run_with_input(&script, b"0 2048 delay /dev/disk/m0 0 1000000");
        assert_eq!(output.status, 0, "{suspend}\n{}", output.errors());
        assert_eq!(output.text().trim(), "0 2048 delay 0 0 0", "{suspend}");
    }
}

/// `drystone log-writes` reads and replays a log of the kernel. Its contents and their order are
/// those of ours (`each_moment_is_found_again`).
#[test]
fn a_log_of_the_kernels_is_replayed() {
    if !available() || !requires("dmsetup") || !requires("blkdiscard") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["d", "log", "replayed"] {
        fs::File::create(path(name)).and_then(|file| file.set_len(1 << 20)).expect("an image");
    }
    let mut guest = Guest::builder().program("dmsetup").program("blkdiscard");
    for name in ["d", "log"] {
        guest = guest.disk(name, Disk::virtio(path(name)));
    }
    let mut guest = guest.start();
    let script = "
        modprobe dm-mod
        dmsetup create t
        put() {
            tr '\\0' \"$1\" </dev/zero | dd of=/dev/mapper/t bs=4096 count=$2 seek=$3 \
            iflag=fullblock \
                oflag=direct conv=notrunc$4 2>/dev/null
        }
        put a 2 1 ,fsync
        put b 1 3
        blkdiscard -o 8192 -l 4096 /dev/mapper/t
        put c 1 2 ,fsync
        dmsetup message t 0 mark here
        put d 1 0
        dmsetup status t
        dmsetup remove t";
    let output = guest.run_with_input(script, b"0 2048 log-writes /dev/disk/d /dev/disk/log");
    assert_eq!(output.status, 0, "{}", output.errors());
    guest.power_off().expect("it powers off");
    let status = output.text();
    let drystone = system_tests::program().to_str().expect("a path");
    let listed = system_tests::run(folder.path(), &[drystone, "log-writes", "log", "list"]).ok();
    let lines =
        listed.lines().skip(2).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let expected = [
        "0 8 8 NONE",
        "1 16 8 NONE",
        "2 0 0 FLUSH",
        "3 24 8 NONE",
        "4 16 8 DISCARD",
        "5 16 8 NONE",
        "6 0 0 FLUSH",
        "7 0 0 MARK here",
        "8 0 8 NONE",
        "9 0 0 MARK dm-log-writes-end",
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected, "{status}");
    // As ours: entries, and the last sector of the log that is used.
    assert_eq!(status.trim(), "0 2048 log-writes 8 40", "{listed}");
    let replay = [drystone, "log-writes", "log", "replay", "--to", "replayed"];
    system_tests::run(folder.path(), &replay).ok();
    let bytes = |name: &str| fs::read(path(name)).expect("an image");
    assert_eq!([0, 4096, 8192, 12288, 16384].map(|at| bytes("d")[at]), *b"dacb\0");
    assert!(bytes("replayed") == bytes("d"), "the replayed log is not what the kernel wrote");
}

#[test]
fn the_expectation_is_that_of_the_kernels_pages() {
    // The example of striped.rst, in small: three stripes with chunks of two sectors.
    let table = "0 12 striped 3 2 a 0 b 10 c 20";
    let found: Vec<(String, u64)> = places(table);
    let found: Vec<String> = found.iter().map(|(name, sector)| format!("{name}{sector}")).collect();
    assert_eq!(found.join(" "), "a0 a1 b10 b11 c20 c21 a2 a3 b12 b13 c22 c23");
    assert_eq!(expected("0 4 linear a 7\n4 4 linear b 1", 5), Some(("b".to_owned(), 2)));
    assert_eq!(expected("0 4 linear a 7\n4 4 linear b 1", 8), None);
}
