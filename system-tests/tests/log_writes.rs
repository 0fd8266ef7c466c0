//! `log-writes` below real clients: logs are replayed and compared, also by a program of others.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;

use system_tests::{Server, program, python, requires, run, shell, stack};

const SECTORS: u64 = 32 << 11; // 32 MiB

/// A volume `v` over file `d` with its log in file `log`, behind the export `vol`.
fn logged(log: &str) -> String {
    format!(
        "[device.d]\ntype = \"file\"\npath = \"DIR/d.img\"\nsize = \"32MiB\"\n\
         [device.log]\ntype = \"file\"\npath = \"DIR/log.img\"\nsize = \"{log}\"\n\
         [device.v]\ntable = \"0 {SECTORS} log-writes d log\"\n{}",
        stack::export("vol", "v", "")
    )
}

/// `drystone log-writes log.img` with further words.
fn log_writes(folder: &Path, words: &[&str]) -> system_tests::client::Outcome {
    let program = program().to_str().expect("a path");
    run(folder, &[&[program, "log-writes", "log.img"], words].concat())
}

/// Replays a part of the log to a file of zeroes, and gives its bytes.
fn replayed(folder: &Path, words: &[&str]) -> Vec<u8> {
    let path = folder.join("replayed.img");
    File::create(&path).and_then(|file| file.set_len(SECTORS * 512)).expect("a file is made");
    log_writes(folder, &[&["replay", "--to", "replayed.img"], words].concat()).ok();
    fs::read(path).expect("it is read")
}

fn same(a: &[u8], b: &[u8]) {
    let differs = a.iter().zip(b).position(|(a, b)| a != b);
    assert_eq!((a.len(), differs), (b.len(), None), "the first byte that differs");
}

/// The words of the lines of `list`, without its header lines.
fn listed(folder: &Path, words: &[&str]) -> Vec<String> {
    let text = log_writes(folder, &[&["list"], words].concat()).ok();
    let lines = text.lines().skip(2);
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn each_moment_is_found_again() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&logged("16MiB"));
    let uri = server.uri("vol");
    let script = "
        h.pwrite(b'a' * 8192, 4096)
        h.flush()
        h.pwrite(b'b' * 512, 1 << 20, nbd.CMD_FLAG_FUA)
        h.trim(4096, 8192)
        h.pwrite(b'c' * 1536, 8192)
        h.flush()";
    python(server.dir(), &uri, script).ok();
    assert_eq!(server.ask(&["message", "v", "0", "mark", "here"]).ok(), "");
    let here = fs::read(server.dir().join("d.img")).expect("the device is read");
    // Zeroes are written, so that they are in the log.
    python(server.dir(), &uri, "h.zero(4096, 0)").ok();
    let status = server.ask(&["status", "v"]).ok();
    assert!(status.ends_with("log-writes 7 27\n"), "{status}");
    let why = server.ask(&["message", "v", "0", "mark", "two", "words"]).refused();
    assert!(why.contains("write mark NAME"), "{why}");
    assert!(server.sigterm().success(), "{}", server.messages());

    let expected = [
        "0 8 16 NONE",
        "1 0 0 FLUSH",
        "2 2048 1 FUA",
        "3 16 8 DISCARD",
        "4 16 3 NONE",
        "5 0 0 FLUSH",
        "6 0 0 MARK here",
        "7 0 8 NONE",
        "8 0 0 MARK dm-log-writes-end",
    ];
    let folder = server.dir();
    assert_eq!(listed(folder, &[]), expected);
    assert_eq!(listed(folder, &["--start-mark", "here", "--limit", "1"]), expected[7..8]);
    assert_eq!(listed(folder, &["--start-entry", "2", "--next-flush"]), expected[2..6]);
    assert_eq!(listed(folder, &["--next-fua"]), expected[..3]);
    same(&replayed(folder, &["--end-mark", "here"]), &here);
    same(&replayed(folder, &[]), &fs::read(folder.join("d.img")).expect("the device is read"));
    let first = replayed(folder, &["--next-flush"]);
    assert!(first[4096..12288].iter().all(|byte| *byte == b'a') && first[1 << 20] == 0);
    let part = replayed(folder, &["--start-sector", "17", "--end-sector", "18", "--no-discard"]);
    let of_a_and_c = part.iter().filter(|byte| **byte != 0).count();
    assert_eq!(of_a_and_c, 8192, "what touches sectors 17 and 18, whole");
}

/// A command checks the contents after each flush; the first failure ends the replay.
#[test]
fn a_check_runs_where_it_is_told() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&logged("1MiB"));
    let uri = server.uri("vol");
    let script = "
        for n in range(4):
            h.pwrite(bytes([n]) * 512, 0)
            h.flush()";
    python(server.dir(), &uri, script).ok();
    server.sigterm();
    let folder = server.dir();
    let check = "head -c1 replayed.img >> seen; ! grep -q \"$(printf '\\003')\" replayed.img";
    File::create(folder.join("replayed.img")).and_then(|f| f.set_len(SECTORS * 512)).expect("made");
    let words = ["replay", "--to", "replayed.img", "--check", "flush", "--fsck", check];
    let why = log_writes(folder, &words).refused();
    assert!(why.contains("the check failed after entry 7"), "{why}");
    assert_eq!(fs::read(folder.join("seen")).expect("the check ran"), [0, 1, 2, 3]);
}

#[test]
fn what_is_wrong_is_said_before_anything_is_written() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&logged("1MiB"));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(b'a' * 512, 0)").ok();
    server.sigterm();
    let folder = server.dir();
    File::create(folder.join("replayed.img")).and_then(|f| f.set_len(4096)).expect("made");
    let replay = ["replay", "--to", "replayed.img"];
    for (words, why) in [
        (&["--end-mark", "no"][..], "log.img: there is no mark `no`"),
        (&["--start-entry", "2"], "there is no entry 2: the log has 2"),
        (&["--start-mark", "dm-log-writes-end", "--end-mark", "x"], "no mark `x` behind entry 1"),
    ] {
        let said = log_writes(folder, &[&replay[..], words].concat()).refused();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(fs::read(folder.join("replayed.img")).expect("read"), [0; 4096]);
    let said = log_writes(folder, &["replay", "--to", "log.img"]).refused();
    assert!(said.contains("log.img is the log itself"), "{said}");
    let said = log_writes(folder, &["replay", "--to", "none.img"]).refused();
    assert!(said.contains("none.img does not exist: make it first"), "{said}");
    let program = program().to_str().expect("a path");
    let said = run(folder, &[program, "log-writes", "d.img", "list"]).refused();
    assert!(said.contains("d.img: it does not begin as a write log does"), "{said}");
}

/// A kill at any moment leaves a log with a beginning of the writes, and with all that was flushed.
#[test]
fn a_killed_server_leaves_a_whole_log() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&logged("64MiB"));
    let (uri, pid) = (server.uri("vol"), server.pid());
    let script = format!(
        "
        handles = [connect() for n in range(4)]
        flushed = 0
        for round in range(1, 200):
            for n, handle in enumerate(handles):
                buf = nbd.Buffer.from_bytearray(bytearray(struct.pack('<Q', round) * 512))
                handle.aio_pwrite(buf, n * 65536 + round % 8 * 4096)
            for handle in handles:
                while handle.aio_in_flight():
                    handle.poll(-1)
            if round % 3 == 0:
                handles[round % 4].flush()
                flushed = round
            else:
                handles[round % 4].pwrite(struct.pack('<Q', round) * 64, 1 << 20, nbd.CMD_FLAG_FUA)
        for handle in handles:
            buf = nbd.Buffer.from_bytearray(bytearray(65536))
            handle.aio_pwrite(buf, 2 << 20)
            handle.aio_flush()
        os.kill({pid}, 9)
        print(flushed)"
    );
    let flushed: u64 = python(server.dir(), &uri, &script).ok().trim().parse().expect("a number");
    server.wait();
    let folder = server.dir();
    let data = replayed(folder, &[]);
    for n in 0..4usize {
        let rounds = (0..8).map(|at| {
            let page = &data[n * 65536 + at * 4096..][..4096];
            let words = page.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8")));
            let words: Vec<u64> = words.collect();
            assert!(words.iter().all(|word| *word == words[0]), "a write is there whole");
            words[0]
        });
        let rounds: Vec<u64> = rounds.collect();
        let last = rounds.iter().max().expect("eight");
        assert!(*last >= flushed, "flushed was {flushed}, and {last} is there");
        let expected = |at: u64| (last - 7..=*last).find(|round| round % 8 == at).expect("one");
        assert!((0..8).all(|at| rounds[at as usize] == expected(at)), "{rounds:?}");
    }
    assert!(listed(folder, &[]).len() > 900);
}

/// Random writes of fio, with flushes, come out of the log as they went into the device.
#[test]
fn what_fio_wrote_is_in_the_log() {
    if !requires("fio") {
        return;
    }
    let mut server = Server::start(&logged("256MiB"));
    let uri = format!("--uri={}", server.uri("vol"));
    let words = [
        "fio",
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--numjobs=4",
        "--size=8M",
        "--offset_increment=8M",
        "--iodepth=16",
        "--rw=randwrite",
        "--bsrange=4k-128k",
        "--fsync=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--do_verify=1",
        "--randseed=1",
        "--group_reporting",
    ];
    run(server.dir(), &words).ok();
    let status = server.ask(&["status", "v"]).ok();
    assert!(!status.contains("logging_disabled"), "{status}");
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.dir();
    same(&replayed(folder, &[]), &fs::read(folder.join("d.img")).expect("the device is read"));
    let entries = listed(folder, &[]);
    let flushes = entries.iter().filter(|entry| entry.ends_with("FLUSH")).count();
    assert!(flushes > 10 && entries.len() > 200, "{flushes} flushes of {}", entries.len());
}

const LOGGING: &str = "driver=blklogwrites,file.driver=raw,file.file.driver=file,\
    file.file.filename=q.img,log.driver=raw,log.file.driver=file,log.file.filename=log.img";

/// QEMU writes such logs too: `drystone log-writes` reads them.
#[test]
fn a_log_that_qemu_wrote_is_replayed() {
    if !requires("qemu-io") {
        return;
    }
    let folder = system_tests::new_folder();
    let line = format!(
        "truncate -s 32M q.img; truncate -s 8M log.img
         qemu-io --image-opts {LOGGING} -c 'write -P 5 0 8k' -c 'write -f -P 6 4096 512' \
             -c flush -c 'discard 0 1k' -c 'write -P 7 64k 68k' -c flush"
    );
    shell(folder.path(), &line, &[]).ok();
    let q = fs::read(folder.path().join("q.img")).expect("the device is read");
    same(&replayed(folder.path(), &[]), &q);
    let entries = listed(folder.path(), &[]);
    assert!(entries.contains(&"0 0 16 NONE".to_owned()), "{entries:?}");
    assert!(entries.iter().any(|entry| entry.ends_with("0 2 DISCARD")), "{entries:?}");
}

/// QEMU appends to an existing log, so it has read ours to the end.
#[test]
fn qemu_finds_its_way_through_a_log() {
    if !requires("nbdsh") || !requires("qemu-io") {
        return;
    }
    let mut server = Server::start(&logged("4MiB"));
    let uri = server.uri("vol");
    let script = "
        h.pwrite(b'a' * 8192, 4096)
        h.flush()
        h.trim(4096, 8192)
        h.pwrite(b'b' * 512, 1 << 20, nbd.CMD_FLAG_FUA)";
    python(server.dir(), &uri, script).ok();
    server.ask(&["message", "v", "0", "mark", "here"]).ok();
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.dir();
    let before = listed(folder, &[]);
    assert_eq!(before.len(), 6);
    let line = format!(
        "cp --sparse=always d.img q.img
         # The kernel closes what io_uring used a moment after the server has ended.
         until qemu-io --image-opts {LOGGING},log-append=on -c 'write -P 9 12288 512' -c flush
         do sleep 0.1; done"
    );
    shell(folder, &line, &[]).ok();
    let after = listed(folder, &[]);
    assert_eq!(after[..6], before[..]);
    assert!(after[6].starts_with("6 24 1 NONE"), "{after:?}");
    same(&replayed(folder, &[]), &fs::read(folder.join("q.img")).expect("the device is read"));
}

/// A log that is too small: clients do not notice, and `status` reports it.
#[test]
fn a_full_log_is_told_by_its_status() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&logged("64KiB"));
    let uri = server.uri("vol");
    let script = "
        for n in range(8):
            h.pwrite(b'a' * 16384, n * 16384)
            h.flush()
        assert h.pread(131072, 0) == b'a' * 131072";
    python(server.dir(), &uri, script).ok();
    let status = server.ask(&["status", "v"]).ok();
    assert!(status.ends_with("logging_disabled\n"), "{status}");
    let why = server.ask(&["message", "v", "0", "mark", "late"]).refused();
    assert!(why.contains("logging is disabled"), "{why}");
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.dir();
    assert_eq!(
        listed(folder, &[]),
        [
            "0 0 32 NONE",
            "1 0 0 FLUSH",
            "2 32 32 NONE",
            "3 0 0 FLUSH",
            "4 64 32 NONE",
            "5 0 0 FLUSH"
        ]
    );
}

/// A volume is removed while the server runs.
#[test]
fn a_log_ends_when_its_volume_is_removed() {
    if !requires("nbdsh") {
        return;
    }
    let text = format!(
        "{}[device.l2]\ntype = \"file\"\npath = \"DIR/log.img\"\nsize = \"1MiB\"\n\
         [device.d2]\ntype = \"ram\"\nsize = \"1MiB\"\n",
        stack::ram("1MiB")
    );
    let mut server = Server::start(&text);
    let _ = server.uri("vol");
    server.ask(&["create", "w", "--table", "0 2048 log-writes d2 l2"]).ok();
    server.ask(&["message", "w", "0", "mark", "one"]).ok();
    server.ask(&["remove", "w"]).ok();
    assert_eq!(listed(server.dir(), &[]), ["0 0 0 MARK one", "1 0 0 MARK dm-log-writes-end"]);
}
