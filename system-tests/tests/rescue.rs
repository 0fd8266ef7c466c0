//! Arrays of images that Linux wrote, served read-only: their data is there, whatever is missing,
//! and not one byte of the images changes.

#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::superblock::{Features, SUPERBLOCK_BYTES_MAX, Superblock};
use drystone_raid::testing;
use system_tests::client::{Mount, requires_mounts};
use system_tests::{Outcome, Server, new_folder, program, python, requires, run};
use tempfile::TempDir;

/// Members of a test vector as read-only files, with their checksums.
struct Images {
    folder: Arc<TempDir>,
    names: Vec<String>,
    sums: String,
}

impl Images {
    /// The members of `vector` without the `lost` ones, in a shuffled order.
    fn of(vector: &str, lost: &[usize]) -> Self {
        let folder = new_folder();
        let mut names = write(folder.path(), vector, lost);
        names.reverse();
        names.rotate_left(1);
        let sums = sums(folder.path(), &names);
        Images { folder, names, sums }
    }

    /// Puts a block without writes where Linux would begin to replay the journal: the test vector
    /// has only the journal's start.
    fn end_journal(&mut self, name: &str) {
        self.put_journal(name, |_| (Vec::new(), Vec::new()));
    }

    /// Puts a block with a write to one block of the array there, which the members do not have.
    fn put_write_in_journal(&mut self, name: &str, block: u64) {
        let data = vec![7; 4096];
        self.put_journal(name, |uuid| (testing::journal_data(uuid, 8 * block, &data), data));
    }

    /// The payloads of the next block of a journal, and the position after it.
    fn put_journal(&mut self, name: &str, what: impl FnOnce(Uuid) -> (Vec<u8>, Vec<u8>)) {
        let path = self.folder.path().join(name);
        let mut bytes = fs::read(&path).expect("an image");
        let own = Superblock::decode(&bytes[4096..8192]).expect("a superblock");
        let (payloads, data) = what(own.set_uuid);
        let block = testing::journal_block(own.set_uuid, own.recovery_offset, 1, &payloads);
        let (at, put) =
            ((own.data_offset + own.recovery_offset) as usize * 512, [block, data].concat());
        bytes[at..at + put.len()].copy_from_slice(&put);
        fs::remove_file(&path).expect("an image that was there");
        fs::write(&path, bytes).expect("an image");
        self.sums = sums(self.folder.path(), &self.names);
    }

    fn spawn(&self, options: &[&str]) -> Server {
        self.spawn_behind(&[], options)
    }

    fn spawn_behind(&self, prefix: &[&str], options: &[&str]) -> Server {
        let names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let words = [&["--readonly", "--md"], &names[..], options].concat();
        Server::spawn_without_stack(&self.folder, prefix, &words)
    }

    fn serve(&self, options: &[&str]) -> Server {
        self.spawn(options).announced()
    }

    fn refusal(&self, options: &[&str]) -> String {
        self.spawn(options).refusal()
    }

    /// Reads everything, stops the server, and checks that the images are unchanged.
    fn read(&self, server: &mut Server, export: &str) -> Vec<u8> {
        let uri = server.uri(export);
        run(server.dir(), &["nbdcopy", &uri, "all.out"]).ok();
        assert!(server.sigterm().success(), "{}", server.messages());
        assert_eq!(sums(self.folder.path(), &self.names), self.sums, "an image has changed");
        fs::read(self.folder.path().join("all.out")).expect("a copy")
    }
}

fn write(folder: &Path, vector: &str, lost: &[usize]) -> Vec<String> {
    let members = testing::members(vector).into_iter().enumerate();
    let write = |(number, image): (usize, testing::Image)| {
        let name = format!("{vector}-{number}.img");
        let path = folder.join(&name);
        fs::write(&path, image.read(0, image.bytes() as usize)).expect("an image");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).expect("its mode");
        name
    };
    members.filter(|(number, _)| !lost.contains(number)).map(write).collect()
}

/// Which images are changed.
type IsOne = fn(&str) -> bool;
/// The changes to the images.
type Change = fn(&mut Superblock);

/// Changes the superblock 1.2 of images that are about to be served.
fn change(images: &mut Images, is_one: IsOne, change: Change) {
    for name in images.names.iter().filter(|name| is_one(name)) {
        let path = images.folder.path().join(name);
        let mut bytes = fs::read(&path).expect("an image");
        let sectors = bytes.len() as u64 / 512;
        let own = Superblock::parse(&bytes[4096..][..SUPERBLOCK_BYTES_MAX], 8, sectors);
        let mut own = own.expect("a superblock");
        change(&mut own);
        let own = own.to_bytes();
        bytes[4096..][..own.len()].copy_from_slice(&own);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("its mode");
        fs::write(&path, bytes).expect("an image");
    }
    images.sums = sums(images.folder.path(), &images.names);
}

fn sums(folder: &Path, names: &[String]) -> String {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run(folder, &[&["sha256sum"], &names[..]].concat()).ok()
}

/// The contents of blocks that were written once.
fn tags(blocks: u64) -> Vec<u8> {
    (0..blocks)
        .flat_map(|block| (0xB10C_0000_0000_0000 + block).to_le_bytes().repeat(512))
        .collect()
}

fn logical_sha256(vector: &str) -> String {
    let meta: serde_json::Value =
        serde_json::from_str(&testing::text(vector, "meta.json")).expect("meta.json");
    meta["logical_sha256"].as_str().expect("a sum").to_owned()
}

fn assemble(folder: &Path, words: &[&str]) -> Outcome {
    let program = program().to_str().expect("a UTF-8 path");
    run(folder, &[&[program, "md", "assemble", "--print"], words].concat())
}

#[test]
fn arrays_read_as_linux_wrote_them() {
    if !requires("nbdcopy") {
        return;
    }
    for (vector, lost, said) in [
        ("r5-ls", &[][..], "4 of 4 members in sync"),
        ("r5-ls", &[2], "member 2: missing, computed from the others"),
        ("r4", &[0], "raid4"),
        ("r6-ls", &[1, 3], "3 of 5 members in sync"),
        ("r6-ddfnc", &[0, 4], "ddf-N-continue"),
        ("r5-ls-torn", &[], "not stopped cleanly"),
        ("r5-ls-stale", &[], "left out: r5-ls-stale-2.img is stale"),
        ("r5-ls-faulty-kept", &[], "member 2: failed, computed from the others"),
        ("r5-ls-spare", &[3], "spare: r5-ls-spare-4.img"),
        ("r5-ls-recovering", &[], "member 1: r5-ls-recovering-4.img, rebuilt up to sector 4096"),
        ("r5-ls-replacing", &[], "replacement of member 1: r5-ls-replacing-4.img"),
        ("r5-ls-badblocks", &[], "member 1: r5-ls-badblocks-1.img"),
        ("r5-ls-bitmap-crash", &[], "4 of 4 members in sync, not stopped cleanly"),
    ] {
        let images = Images::of(vector, lost);
        let mut server = images.serve(&[]);
        let lines = server.said().join("\n");
        assert!(lines.contains(said), "{vector}: {lines}");
        images.read(&mut server, vector);
        let sum = sums(images.folder.path(), &["all.out".to_owned()]);
        assert!(sum.starts_with(&logical_sha256(vector)), "{vector} without {lost:?}");
    }
}

/// The list of bad blocks in mdadm's words and as JSON; a list inside the bitmap is not used.
#[test]
fn bad_blocks_are_shown() {
    let program = program().to_str().expect("a UTF-8 path");
    let show = |images: &Images, words: &[&str]| {
        run(images.folder.path(), &[&[program, "md", "examine", "--badblocks"], words].concat())
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let images = Images::of("r5-ls-badblocks", &[]);
    let (without, with) = ("r5-ls-badblocks-0.img", "r5-ls-badblocks-1.img");
    let text = show(&images, &[with, without]).ok();
    let line = |start: u64, sectors: u64| format!("{start:>20} for {sectors} sectors\n");
    let lines = line(2056, 8) + &line(4096, 512) + &line(8192, 512) + &line(8704, 88);
    assert_eq!(
        text,
        format!("Bad-blocks on {with}:\n{lines}Bad-blocks list is empty in {without}\n")
    );
    let found = json(&show(&images, &["--json", with, without]).ok());
    let first = &found["devices"][0]["bad_blocks"][0];
    assert_eq!((&first["sector"], &first["sectors"]), (&2056.into(), &8.into()), "{found}");
    assert_eq!(found["devices"][1]["bad_blocks"], serde_json::json!([]));
    let mut images = Images::of("r5-ls-bitmap", &[]);
    let is_second: IsOne = |name| name.ends_with("-1.img");
    let (one, two) = ("r5-ls-bitmap-0.img", "r5-ls-bitmap-1.img");
    change(&mut images, |_| true, |own| own.bblog_offset = own.bitmap_offset().expect("a bitmap"));
    change(&mut images, is_second, |own| own.feature_map |= Features::BAD_BLOCKS);
    let outcome = show(&images, &[one, two]);
    assert!(
        outcome.stderr.contains("r5-ls-bitmap-0.img: the bad block log of 8 sectors"),
        "{outcome:?}"
    );
    assert!(
        outcome.stderr.contains("reaches into the bitmap: it is empty and not used"),
        "{outcome:?}"
    );
    let why = outcome.refused();
    assert!(why.contains("reaches into the bitmap: what it lists is not known"), "{why}");
}

/// An unusable part of one member is no reason to refuse the others; a member marked by a NAS is
/// read.
#[test]
fn members_that_are_damaged_or_marked_are_told_of() {
    if !requires("nbdcopy") {
        return;
    }
    let is_second: IsOne = |name| name.ends_with("-1.img");
    let damaged = "left out: r5-ls-1.img: ";
    let cases: [(IsOne, Change, &str); 4] = [
        (is_second, |own| (own.feature_map, own.bblog_size) = (Features::BAD_BLOCKS, 0), damaged),
        (
            is_second,
            |own| (own.feature_map, own.bblog_shift) = (Features::BAD_BLOCKS, 255),
            damaged,
        ),
        (
            is_second,
            |own| (own.feature_map, own.bblog_offset) = (Features::BAD_BLOCKS, -4),
            damaged,
        ),
        (|_| true, |own| own.roles[2] = 0x8002, "read-only: member 2 has the error flag"),
    ];
    for (is_one, make, said) in cases {
        let mut images = Images::of("r5-ls", &[]);
        change(&mut images, is_one, make);
        let mut server = images.serve(&[]);
        let lines = server.said().join("\n");
        assert!(lines.contains(said), "{lines}");
        images.read(&mut server, "r5-ls");
        let sum = sums(images.folder.path(), &["all.out".to_owned()]);
        assert!(sum.starts_with(&logical_sha256("r5-ls")), "{said}");
    }
}

#[test]
fn superblocks_may_stand_at_either_end() {
    if !requires("nbdcopy") {
        return;
    }
    for (vector, metadata, blocks) in
        [("r5-ls-v10", "metadata 1.0", 3024), ("r5-ls-v11", "metadata 1.1", 2304)]
    {
        for lost in [&[][..], &[1]] {
            let images = Images::of(vector, lost);
            let mut server = images.serve(&[]);
            assert!(server.said().join("\n").contains(metadata));
            assert!(images.read(&mut server, vector) == tags(blocks), "{vector} without {lost:?}");
        }
    }
}

#[test]
fn nothing_can_be_written() {
    if !requires("nbdsh") {
        return;
    }
    let images = Images::of("r5-ls", &[3]);
    let mut server = images.serve(&["--nbd", "unix:here.sock"]);
    let uri = server.uri("r5-ls");
    assert!(uri.ends_with("here.sock"), "{uri}");
    let script = "
        assert h.is_read_only()
        h = connect(strict=False)
        refused(errno.EPERM, h.pwrite, b'x' * 4096, 0)
        refused(errno.EPERM, h.zero, 4096, 0)
        refused(errno.EPERM, h.trim, 4096, 0)
        h.flush()
        assert h.pread(4096, 4096) == (0xB10C000000000001).to_bytes(8, 'little') * 512";
    python(server.dir(), &uri, script).ok();
    assert!(server.ask(&["show", "r5-ls"]).ok().contains("readonly"));
    assert!(open_for_reading(&server, "r5-ls-0.img"), "it is open for writing");
    images.read(&mut server, "r5-ls");
}

#[test]
fn images_on_a_mount_that_cannot_be_written_are_read() {
    let Some(mounts) = requires_mounts().filter(|_| requires("nbdcopy")) else { return };
    let mut images = Images::of("r5-ls", &[0]);
    let folder = images.folder.path();
    fs::create_dir(folder.join("ro")).expect("a folder");
    for name in &mut images.names {
        fs::rename(folder.join(&*name), folder.join("ro").join(&*name)).expect("another place");
        *name = format!("ro/{name}");
    }
    images.sums = sums(folder, &images.names);
    let line =
        "mount --bind ro ro && mount -o remount,ro,bind ro && ! touch ro/x 2>&- && exec \"$@\"";
    let _mount = Mount(folder.join("ro"));
    let prefix = [mounts, &["sh", "-c", line, "sh"]].concat();
    let mut server = images.spawn_behind(&prefix, &[]).announced();
    assert!(images.read(&mut server, "r5-ls") == tags(5376));
}

/// Tells whether all of a server's descriptors of a file are read-only.
fn open_for_reading(server: &Server, name: &str) -> bool {
    let folder = format!("/proc/{}", server.pid());
    let fds = fs::read_dir(format!("{folder}/fd")).expect("descriptors").flatten();
    let of_file = fds.filter(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.ends_with(name)));
    let flags = of_file.map(|fd| {
        let info = fs::read_to_string(format!("{folder}/fdinfo/{}", fd.file_name().display()));
        let info = info.expect("its flags");
        let line = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags");
        u32::from_str_radix(line.trim(), 8).expect("a number") & 3
    });
    let flags: Vec<u32> = flags.collect();
    !flags.is_empty() && flags.iter().all(|flags| *flags == 0)
}

/// A block of a torn row that was being written to member 1 when power went: it is lost with it.
const IN_FLIGHT: usize = 3024;

#[test]
fn partial_parity_logs_are_heeded_without_being_written() {
    if !requires("nbdcopy") {
        return;
    }
    let right = {
        let images = Images::of("r5-ls-ppl-torn-after", &[]);
        images.read(&mut images.serve(&[]), "r5-ls-ppl-torn")
    };
    for lost in [&[][..], &[1]] {
        let images = Images::of("r5-ls-ppl-torn", lost);
        let mut server = images.serve(&[]);
        assert!(!server.messages().contains("may be wrong"), "{}", server.messages());
        let read = images.read(&mut server, "r5-ls-ppl-torn");
        let pairs = right.chunks(4096).zip(read.chunks(4096)).enumerate();
        let different: Vec<usize> = pairs.filter(|(_, (a, b))| a != b).map(|(n, _)| n).collect();
        let expected: &[usize] = if lost.is_empty() { &[] } else { &[IN_FLIGHT] };
        assert_eq!(different, expected, "without {lost:?}");
    }
}

/// A log whose header cannot be used is no log.
#[test]
fn a_log_that_is_lost_refuses_what_is_dirty_and_degraded() {
    let images = Images::of("r5-ls-ppl-torn", &[1]);
    let path = images.folder.path().join("r5-ls-ppl-torn-0.img");
    let mut bytes = fs::read(&path).expect("an image");
    // The log follows the superblock, at 8 KiB.
    bytes[8192 + 600] ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("its mode");
    fs::write(&path, bytes).expect("an image");
    let message = images.refusal(&[]);
    let says = "(r5-ls-ppl-torn-0.img: partial parity log: PPL header checksum is ";
    assert!(
        message.contains("not stopped cleanly and lacks member 1") && message.contains(says),
        "{message}"
    );
    assert!(message.contains("--force"), "{message}");
    let mut server = images.serve(&["--force"]);
    let messages = server.messages();
    assert!(messages.contains(": partial parity log: PPL header checksum is "), "{messages}");
    assert!(messages.contains("all data of member 1 may be wrong, in "), "{messages}");
    assert!(
        messages.contains("\n  0-65535\n") || messages.contains("\n  65536-131071\n"),
        "{messages}"
    );
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn what_may_be_wrong_is_served_only_if_told_to_and_then_named() {
    if !requires("nbdcopy") {
        return;
    }
    let images = Images::of("r5-ls-bitmap-torn", &[1]);
    let message = images.refusal(&[]);
    assert!(message.contains("was not stopped cleanly and lacks member 1"), "{message}");
    assert!(message.contains("--force"), "{message}");
    let mut server = images.serve(&["--force"]);
    let messages = server.messages();
    assert!(messages.contains("data of member 1 may be wrong in 3 ranges of bytes"), "{messages}");
    for range in ["65536-131071", "3997696-4063231", "12386304-12451839"] {
        assert!(messages.contains(&format!("  {range}\n")), "{messages}");
    }
    let read = images.read(&mut server, "r5-ls-bitmap-torn");
    let whole = Images::of("r5-ls-bitmap-torn", &[]);
    let right = whole.read(&mut whole.serve(&["--force"]), "r5-ls-bitmap-torn");
    let suspect = [65536..131072, 3997696..4063232, 12386304..12451840];
    let wrong = (0..right.len()).step_by(4096).find(|at| {
        !suspect.iter().any(|range| range.contains(at))
            && right[*at..at + 4096] != read[*at..at + 4096]
    });
    assert_eq!(wrong, None);

    let images = Images::of("r5-ls-torn", &[1]);
    let server = images.serve(&["--force"]);
    let messages = server.messages();
    assert!(messages.contains("all data of member 1 may be wrong"), "{messages}");
    // The same in a stack file.
    let names: Vec<&str> = images.names.iter().map(String::as_str).collect();
    assert!(assemble(images.folder.path(), &names).refused().contains("--force"));
    let text = assemble(images.folder.path(), &[&["--force"], &names[..]].concat()).ok();
    let text = text.replace("type = \"file\"\n", "type = \"file\"\nread_only = true\n");
    let second = Server::start_in(&images.folder, &text, &[]);
    assert!(second.messages().contains("all data of member 1 may be wrong"), "{text}");
}

#[test]
fn a_stale_member_is_used_only_if_told_to() {
    if !requires("nbdcopy") {
        return;
    }
    let images = Images::of("r5-ls-stale", &[0]);
    let message = images.refusal(&[]);
    assert!(message.contains("r5-ls-stale-2.img can be forced in"), "{message}");
    let mut server = images.serve(&["--force"]);
    let lines = server.said().join("\n");
    assert!(lines.contains("member 2: r5-ls-stale-2.img, forced in"), "{lines}");
    let messages = server.messages();
    assert!(messages.contains("all data of member 0 and 2 may be wrong"), "{messages}");
    // Data of members that have kept up is unchanged.
    let read = images.read(&mut server, "r5-ls-stale");
    assert_eq!(&read[16 * 4096..][..8], (0xB10C_0000_0000_0010_u64).to_le_bytes());
}

#[test]
fn arrays_that_cannot_be_written_are_read_where_that_is_safe() {
    if !requires("nbdcopy") {
        return;
    }
    let mut images = Images::of("r5-ls-journal", &[]);
    images.end_journal("r5-ls-journal-4.img");
    let mut server = images.serve(&[]);
    let lines = server.said().join("\n");
    assert!(lines.contains("read-only: the array has a journal"), "{lines}");
    assert!(images.read(&mut server, "r5-ls-journal") == tags(5376));
    // The superblocks call the array clean, whatever the journal holds.
    let images = Images::of("r5-ls-journal", &[4]);
    let message = images.refusal(&[]);
    assert!(message.contains("a journal, which is not among the devices"), "{message}");
    assert!(message.contains("--force serves it anyway"), "{message}");
    let mut server = images.serve(&["--force"]);
    assert!(images.read(&mut server, "r5-ls-journal") == tags(5376));
    let messages = server.messages();
    assert!(messages.contains("may be read as they were before"), "{messages}");
    // A refusal of a writable start says how to read the array.
    let images = Images::of("r5-ls-journal", &[]);
    let stack: String = (0..4)
        .map(|n| format!("[device.d{n}]\ntype = \"file\"\npath = \"r5-ls-journal-{n}.img\"\n"))
        .collect();
    let stack = format!(
        "{stack}[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [export.a]\ndevice = \"a\"\nnbd = \"unix:a.sock\"\n"
    );
    let message = Server::spawn_in(&images.folder, &stack, &[]).refusal();
    assert!(message.contains("the array has a journal, which is not supported"), "{message}");
    assert!(message.contains("only if its journal is among the devices"), "{message}");
    let message = Images::of("r5-ls-reshape", &[]).refusal(&["--force"]);
    assert!(message.contains("is being reshaped"), "{message}");
    let message = Images::of("r6-ls", &[0, 1, 2]).refusal(&["--force"]);
    assert!(message.contains("2 of 5 members can be used, expected at least 3"), "{message}");
}

/// The array's data is older than what was acknowledged: the server must say so.
#[test]
fn a_journal_with_writes_is_not_passed_over() {
    if !requires("nbdcopy") {
        return;
    }
    for lost in [&[][..], &[1]] {
        let mut images = Images::of("r5-ls-journal", lost);
        images.put_write_in_journal("r5-ls-journal-4.img", 21);
        let message = images.refusal(&[]);
        assert!(
            message.contains("the journal holds writes that the members do not have"),
            "{message}"
        );
        assert!(message.contains("86016-90111") && message.contains("mdadm on Linux"), "{message}");
        let mut server = images.serve(&["--force"]);
        let read = images.read(&mut server, "r5-ls-journal");
        assert!(read == tags(5376), "as it was before these writes");
        let messages = server.messages();
        assert!(messages.contains("86016-90111"), "{messages}");
    }
}

#[test]
fn the_printed_stack_file_serves_the_array() {
    if !requires("nbdcopy") {
        return;
    }
    let images = Images::of("r5-ls-spare", &[1]);
    let folder = images.folder.path();
    let odd = "a \"b\" \\ é.img";
    fs::rename(folder.join("r5-ls-spare-0.img"), folder.join(odd)).expect("a new name");
    let whole = folder.join("r5-ls-spare-2.img").display().to_string();
    let words = ["r5-ls-spare-4.img", "r5-ls-spare-3.img", &whole, odd];
    let text = assemble(folder, &words).ok();
    for part in [
        "\"d0\", # member 0\n    \"d2\", # member 2\n    \"d3\", # member 3\n    \"d4\", # spare",
        "# member 1 is missing",
        "type = \"raid5\"",
        "chunk = \"64KiB\"",
        "run = true",
        "uuid = \"0a0b0c0d:11223344:55667788:00000025\"",
        "[export.r5-ls-spare]",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    fs::write(folder.join("printed.toml"), &text).expect("the stack file");
    let program = program().to_str().expect("a UTF-8 path");
    let tree = run(folder, &[program, "check", "printed.toml"]).ok();
    assert!(tree.contains(odd), "{tree}");
    // The array is served for writing, so its images are written, and the spare is used.
    for name in [odd, "r5-ls-spare-2.img", "r5-ls-spare-3.img", "r5-ls-spare-4.img"] {
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o644)).expect("a mode");
    }
    let mut server = Server::start_in(&images.folder, &text, &[]);
    let uri = server.uri("r5-ls-spare");
    run(server.dir(), &["nbdcopy", &uri, "all.out"]).ok();
    let sum = sums(folder, &["all.out".to_owned()]);
    assert!(sum.starts_with(&logical_sha256("r5-ls-spare")));
    assert!(server.sigterm().success(), "{}", server.messages());
    let named = assemble(folder, &["--name", "d.1", "r5-ls-spare-2.img", "r5-ls-spare-3.img", odd]);
    assert!(named.ok().contains("[device.\"d.1\"]"));
}

#[test]
fn of_several_arrays_one_is_chosen() {
    if !requires("nbdcopy") {
        return;
    }
    let mut images = Images::of("r5-ls", &[]);
    images.names.extend(write(images.folder.path(), "r5-la", &[3]));
    images.sums = sums(images.folder.path(), &images.names);
    let message = images.refusal(&[]);
    assert!(message.contains("the images are of 2 arrays"), "{message}");
    assert!(message.contains("vec:r5-la: r5-la-0.img, r5-la-1.img, r5-la-2.img"), "{message}");
    let line = message.lines().find(|line| line.contains("vec:r5-la")).expect("a line");
    let uuid = line.split_whitespace().nth(1).expect("a UUID");
    let mut server = images.serve(&["--uuid", uuid]);
    let lines = server.said().join("\n");
    assert!(lines.contains("of another array: r5-ls-0.img"), "{lines}");
    images.read(&mut server, "r5-la");
    let sum = sums(images.folder.path(), &["all.out".to_owned()]);
    assert!(sum.starts_with(&logical_sha256("r5-la")));
    let message = images.refusal(&["--uuid", "00000000:00000000:00000000:00000001"]);
    assert!(message.contains("no device is of the array 00000000:"), "{message}");
}

#[test]
fn what_is_no_array_is_refused_in_a_sentence() {
    let images = Images::of("r5-ls", &[]);
    let folder = images.folder.path();
    let refused = |names: &[&str], sentence: &str| {
        let words = [&["--readonly", "--md"], names].concat();
        let message = Server::spawn_without_stack(&images.folder, &[], &words).refusal();
        assert!(message.contains(sentence), "{message}");
        let message = assemble(folder, names).refused();
        assert!(message.contains(sentence), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    };
    let (first, second) = ("r5-ls-0.img", "r5-ls-1.img");
    refused(&[first, "absent.img"], "absent.img does not exist");
    refused(&[first, "."], ". is neither a file nor a block device");
    refused(&[first, second, &format!("./{first}")], "./r5-ls-0.img is named twice");
    fs::copy(folder.join(first), folder.join("copy.img")).expect("a copy");
    refused(&[first, second, "copy.img"], "are both device 0 of the array");
    fs::write(folder.join("blank.img"), vec![0; 1 << 20]).expect("a file");
    refused(&[first, "blank.img"], "blank.img cannot be used: there is no md superblock");
    let mut other = vec![0; 1 << 20];
    other[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    fs::write(folder.join("other.img"), &other).expect("a file");
    refused(&[first, "other.img"], "it appears to contain an ext2 file system");
    let whole = fs::read(folder.join(second)).expect("an image");
    // A whole disk: the member is its second partition, by an MBR.
    let mut disk = vec![0; 1 << 20];
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let (start, sectors) = (2048_u32, whole.len() as u32 / 512);
    disk[446 + 16 + 4] = 0xFD;
    disk[446 + 16 + 8..][..4].copy_from_slice(&start.to_le_bytes());
    disk[446 + 16 + 12..][..4].copy_from_slice(&sectors.to_le_bytes());
    disk.extend(&whole);
    fs::write(folder.join("disk.img"), disk).expect("a file");
    let place = "partition 2 (start sector 2048, size 8MiB) is a member of vec:r5-ls 0a0b0c0d:";
    let instead = |name: &str| {
        format!(
            "; name /dev/loopNp2 instead, where `losetup --read-only --partscan --find --show \
             {name}`, as root, prints /dev/loopN"
        )
    };
    for part in [&format!("error: disk.img is a whole disk: its {place}"), &instead("disk.img")] {
        refused(&[first, "disk.img"], part);
        let shown =
            run(folder, &[program().to_str().expect("a path"), "md", "examine", "disk.img"]);
        assert!(shown.refused().contains(part.trim_start_matches("error: ")));
    }
    fs::copy(folder.join("disk.img"), folder.join("disk2.img")).expect("a copy");
    // Each is named once, in a line of its own.
    let message = assemble(folder, &["disk.img", first, "disk2.img", "blank.img"]).refused();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    assert_eq!(lines[0], "error: 3 images cannot be used:");
    assert!(lines[1].starts_with("  disk.img is a whole disk: its partition 2 "), "{message}");
    assert!(lines[2].ends_with(&instead("disk2.img")), "{message}");
    assert!(lines[3].starts_with("  blank.img cannot be used: there is no md"), "{message}");
    fs::write(folder.join("short.img"), &whole[..4 << 20]).expect("a file");
    refused(&[first, "short.img"], "need a device of 16384 sectors, this one has 8192");
    refused(&[first, second], "2 of 4 members can be used, expected at least 3");
    for (words, part) in [
        (&["--readonly", "--md"][..], "a value is required"),
        (&["--md", first], "only with --readonly"),
        (&["--readonly"], "--md"),
        (&["--readonly", "--md", first, "--uuid", "1"], "32 hex digits"),
    ] {
        let program = program().to_str().expect("a UTF-8 path");
        let message = run(folder, &[&[program, "serve"], words].concat()).refused();
        assert!(message.contains(part), "{message}");
    }
}

/// A server that writes to the images keeps others from reading them, and the other way round.
#[test]
fn images_are_locked_as_readers_lock_them() {
    if !requires("nbdcopy") {
        return;
    }
    let images = Images::of("r5-ls", &[]);
    let first = images.serve(&[]);
    let mut second = images.serve(&["--nbd", "unix:second.sock"]);
    images.read(&mut second, "r5-ls");
    let text = "[device.d]\ntype = \"file\"\npath = \"r5-ls-0.img\"\n\
                [export.e]\ndevice = \"d\"\nnbd = \"unix:e.sock\"\n";
    let message = Server::spawn_in(&images.folder, text, &[]).refusal();
    assert!(message.contains("is in use by process"), "{message}");
    drop(first);
    let writer = Server::start_in(&images.folder, text, &[]);
    let message = images.refusal(&[]);
    assert!(message.contains(&format!("is in use by process {}", writer.pid())), "{message}");
}

/// Also for a read-only stack file: the refusal says how to start without a missing image.
#[test]
fn who_misses_an_image_is_told_of_a_stack_file_without_it() {
    let images = Images::of("r5-ls", &[3]);
    let device = |n| format!("[device.d{n}]\ntype = \"file\"\npath = \"r5-ls-{n}.img\"\n");
    let stack: String = (0..4).map(device).collect();
    let stack = format!(
        "{stack}size = \"16MiB\"\n[device.a]\ntype = \"raid5\"\n\
         members = [\"d0\", \"d1\", \"d2\", \"d3\"]\n\
         [export.a]\ndevice = \"a\"\nnbd = \"unix:a.sock\"\n"
    );
    let message = Server::spawn_in(&images.folder, &stack, &[]).refusal();
    assert!(message.contains("r5-ls-3.img does not exist, and is not made"), "{message}");
    assert!(!images.folder.path().join("r5-ls-3.img").exists());
    assert!(message.contains("`drystone md assemble --print /"), "{message}");
    assert!(message.contains("r5-ls-2.img` prints a stack file"), "{message}");
}
