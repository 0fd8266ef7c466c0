//! Arrays over files, served to real clients: written data is there, also after a kill of the
//! server or the loss of a member.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use system_tests::server::PATIENCE;
use system_tests::{Server, program, python, requires, run, stack};

fn attribute(server: &Server, name: &str) -> String {
    let listed = server.ask(&["show", "array"]).ok();
    let line = listed.lines().find(|line| line.starts_with(name)).expect("the attribute");
    line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
}

/// Ask until the attribute is that.
fn until(server: &Server, name: &str, value: &str) {
    let began = Instant::now();
    while attribute(server, name) != value {
        let waited = began.elapsed();
        assert!(waited < PATIENCE, "{name} is {}", attribute(server, name));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Parity fits all over the array.
fn check(server: &Server) {
    until(server, "md/sync_action", "idle");
    server.ask(&["set", "array", "md/sync_action=check"]).ok();
    until(server, "md/sync_action", "idle");
    assert_eq!(attribute(server, "md/mismatch_cnt"), "0");
}

fn fio(server: &mut Server, options: &[&str]) {
    let uri = server.uri("vol");
    let words = ["fio", "--name=t", "--ioengine=nbd", &format!("--uri={uri}"), "--output=fio.log"];
    run(server.dir(), &[&words, options].concat()).ok();
}

#[test]
fn fio_finds_what_it_wrote_on_every_level() {
    if !requires("fio") {
        return;
    }
    for (kind, members, keys) in [
        ("raid4", 3, "chunk = \"4KiB\""),
        ("raid5", 4, "chunk = \"64KiB\""),
        ("raid5", 5, "chunk = \"512KiB\"\nlayout = \"parity-first\"\nstripe_cache_size = 17"),
        ("raid6", 5, "chunk = \"16KiB\""),
        ("raid6", 6, "chunk = \"128KiB\"\nlayout = \"ddf-N-continue\""),
    ] {
        let mut server = Server::start(&stack::array(kind, members, "24MiB", keys));
        let shape = ["--size=32M", "--verify=crc32c", "--bsrange=512-192k", "--bs_unaligned=0"];
        fio(&mut server, &[&shape[..], &["--rw=randwrite", "--iodepth=16"]].concat());
        fio(
            &mut server,
            &["--rw=write", "--bs=256k", "--size=32M", "--verify=crc32c", "--iodepth=8"],
        );
        check(&server);
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}

/// Data that a client has written and flushed is there after a kill, and the parity is corrected.
#[test]
fn a_killed_array_comes_back() {
    if !requires("nbdsh") {
        return;
    }
    let text = stack::array("raid5", 4, "16MiB", "chunk = \"64KiB\"");
    let mut server = Server::start(&text);
    let uri = server.uri("vol");
    let script = format!(
        "
        import random
        for n in range(64):
            h.pwrite(bytes([n + 1]) * 40000, n * 400000 // 512 * 512 )
        h.flush()
        buffers = [nbd.Buffer.from_bytearray(bytearray(random.randbytes(100352))) for _ in \
        range(32)]
        for n, buffer in enumerate(buffers):
            h.aio_pwrite(buffer, 26000 * 1024 + n * 100352)
        h.poll(0)
        os.kill({}, 9)",
        server.pid()
    );
    let script = script.replace("40000, n", "39936, n");
    python(server.dir(), &uri, &script).ok();
    server.wait();

    let folder = server.folder();
    let mut server = Server::start_in(&folder, &text, &[]);
    let uri = server.uri("vol");
    let script = "
        for n in range(64):
            assert h.pread(39936, n * 400000 // 512 * 512) == bytes([n + 1]) * 39936, n";
    python(server.dir(), &uri, script).ok();
    check(&server);
    assert!(server.sigterm().success(), "{}", server.messages());
    let examined =
        run(server.dir(), &[&program().display().to_string(), "md", "examine", "m2.img"]);
    let examined = examined.ok();
    assert!(
        examined.contains("State : clean") && examined.contains("Array State : AAAA"),
        "{examined}"
    );
}

/// The default stack is killed under load, started again, and has all flushed data.
#[test]
fn the_default_stack_survives_a_kill() {
    if !requires("nbdsh") {
        return;
    }
    let folder = system_tests::new_folder();
    let serve = |folder: &Path| {
        let mut command = Command::new(program());
        command.arg("serve").args(["--control", "c.sock"]).current_dir(folder);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("its output")).lines();
        let ready = said.map_while(Result::ok).any(|line| line.starts_with("Stop with"));
        assert!(ready, "it does not serve");
        child
    };
    let uri = "nbd+unix:///?socket=drystone-data/nbd.sock";
    for round in 0..3 {
        let mut child = serve(folder.path());
        let script = format!(
            "
            for n in range({round}):
                assert h.pread(8192, n << 20) == bytes([n + 1]) * 8192, n
            h.pwrite(bytes([{round} + 1]) * 8192, {round} << 20)
            h.flush()"
        );
        python(folder.path(), uri, &script).ok();
        child.kill().and_then(|()| child.wait()).expect("it is killed");
    }
}

/// A stripe takes a block for each member, and a smaller cache returns its memory to the system.
#[test]
fn a_stripe_cache_takes_what_it_says_and_gives_it_back() {
    let server = Server::start(&stack::array("raid5", 4, "16MiB", "chunk = \"64KiB\""));
    check(&server);
    let resident = |stripes: u64| {
        server.ask(&["set", "array", &format!("md/stripe_cache_size={stripes}")]).ok();
        let began = Instant::now();
        let mut now = (0, server.resident_kib());
        // Every data thread does its share at its next turn.
        while now.0 != now.1 && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
            now = (now.1, server.resident_kib());
        }
        now.1
    };
    let (few, many) = (resident(32), resident(16384));
    let blocks = (16384 - 32) * 4 * 4;
    let taken = many - few;
    assert!((blocks..blocks * 9 / 8).contains(&taken), "{taken} KiB for {blocks} KiB of blocks");
    let kept = resident(32).saturating_sub(few);
    assert!(kept < blocks / 16, "{kept} of {taken} KiB are kept");
}

/// A member is missing: with `run = true` the array starts without it, and computes its data. From
/// then on the member is marked as failed.
#[test]
fn an_array_starts_without_a_member_if_told_to() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&stack::array("raid5", 4, "16MiB", "chunk = \"64KiB\""));
    let uri = server.uri("vol");
    python(server.dir(), &uri, "h.pwrite(bytes(range(256)) * 4096, 0)").ok();
    assert!(server.sigterm().success(), "{}", server.messages());

    let folder = server.folder();
    let without = |keys: &str| {
        let text = stack::array("raid5", 4, "16MiB", keys);
        let text = text.replace("\"m1\", ", "");
        let start = text.find("[device.m1]").expect("its section");
        let end = text.find("[device.m2]").expect("the next");
        format!("{}{}", &text[..start], &text[end..])
    };
    let message = Server::spawn_in(&folder, &without(""), &[]).refusal();
    assert!(message.contains("member 1 is missing but was never marked as failed"), "{message}");
    assert!(message.contains("run = true"), "{message}");
    for keys in ["run = true", ""] {
        let mut server = Server::start_in(&folder, &without(keys), &[]);
        assert_eq!(attribute(&server, "md/degraded"), "1");
        let uri = server.uri("vol");
        let script = "
            assert h.pread(1 << 20, 0) == bytes(range(256)) * 4096
            h.pwrite(b'x' * 4096, 8 << 20)
            assert h.pread(4096, 8 << 20) == b'x' * 4096";
        python(server.dir(), &uri, script).ok();
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}

#[test]
fn what_makes_no_array_is_refused_in_a_sentence() {
    let mut server = Server::start(&stack::array("raid5", 3, "8MiB", ""));
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.folder();
    for (kind, keys, sentence) in [
        ("raid6", "raid_devices = 4", "`type` is raid6, but the array on its members has raid5"),
        ("raid5", "chunk = \"4KiB\"", "`chunk` is 4 KiB, but the array on its members has 512 KiB"),
        ("raid5", "uuid = \"01234567:01234567:01234567:01234567\"", "no device is of the array"),
    ] {
        let message =
            Server::spawn_in(&folder, &stack::array(kind, 3, "8MiB", keys), &[]).refusal();
        assert!(message.contains(sentence), "{message}");
    }
    std::fs::write(folder.path().join("m1.img"), vec![0; 8 << 20]).expect("it is written");
    let message = Server::spawn_in(&folder, &stack::array("raid5", 3, "8MiB", ""), &[]).refusal();
    assert!(message.contains("`m1` belongs to no array, but other members do"), "{message}");
}

/// A refusal names the missing part of a member, and the key that starts the array without it. With
/// the key the member counts as missing, and other exports are served.
#[test]
fn a_member_that_is_gone_or_empty_counts_as_missing_if_told_to() {
    let mut server = Server::start(&stack::array("raid6", 4, "8MiB", ""));
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.folder();
    let member = folder.path().join("m1.img");
    let key = "set `run = true` in [device.array], which starts it degraded, without `m1`";
    let blank = "`run = true` in [device.array] starts the array degraded, without it";
    // `size` is that of the member, or left out; then the start makes no file in place of a missing
    // one.
    for (size, bytes, sentence) in [
        ("", None, key),
        ("", Some(0), key),
        ("", Some(8 << 20), blank),
        ("size = \"8MiB\"\n", None, key),
        ("size = \"8MiB\"\n", Some(0), key),
    ] {
        let text = |keys: &str| {
            let ram = "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n";
            let text = stack::array("raid6", 4, "8MiB", keys);
            let own = "path = \"DIR/m1.img\"\n";
            let text = text.replace(&format!("{own}size = \"8MiB\"\n"), &format!("{own}{size}"));
            format!("{text}{ram}{}", stack::export("ram", "r", ""))
        };
        let make = || match bytes {
            Some(bytes) => std::fs::write(&member, vec![0; bytes]).expect("it is written"),
            None => _ = std::fs::remove_file(&member),
        };
        make();
        let message = Server::spawn_in(&folder, &text(""), &[]).refusal();
        assert!(message.contains(sentence), "{size}{bytes:?}: {message}");
        assert_eq!(
            member.exists(),
            bytes.is_some(),
            "{size}{bytes:?}: nothing is made in its place"
        );
        let mut server = Server::start_in(&folder, &text("run = true"), &[]);
        assert_eq!(attribute(&server, "md/degraded"), "1", "{size}{bytes:?}");
        assert_eq!(
            member.exists(),
            bytes.is_some(),
            "{size}{bytes:?}: nothing is made in its place"
        );
        assert!(server.uri("ram").starts_with("nbd"));
        assert!(server.sigterm().success(), "{}", server.messages());
        // The others record it as missing now: it is made again.
        (0..4).for_each(|n| _ = std::fs::remove_file(folder.path().join(format!("m{n}.img"))));
        let mut server = Server::start_in(&folder, &stack::array("raid6", 4, "8MiB", ""), &[]);
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}

/// The file must name the device that has replaced a member: the array is whole, and must not start
/// degraded.
#[test]
fn a_member_that_was_replaced_is_told_from_one_that_is_missing() {
    let mut server = Server::start(&stack::array("raid5", 3, "8MiB", ""));
    std::fs::write(server.dir().join("new.img"), vec![0; 8 << 20]).expect("it is written");
    for words in ["fail array m1", "remove array m1", "add array new.img", "wait array"] {
        let words: Vec<&str> = ["md"].into_iter().chain(words.split(' ')).collect();
        server.ask(&words).ok();
    }
    assert!(server.sigterm().success(), "{}", server.messages());
    let folder = server.folder();
    let text = stack::array("raid5", 3, "8MiB", "");
    let message = Server::spawn_in(&folder, &text, &[]).refusal();
    assert!(message.contains("m1 was replaced as member 1 by a device that is not"), "{message}");
    assert!(message.contains("help: name that device in `members`"), "{message}");
    let text = text.replace("m1.img", "new.img");
    let server = Server::start_in(&folder, &text, &[]);
    assert_eq!(attribute(&server, "md/degraded"), "0");
}

/// The default stack has no file: `--print-default` makes the file that starts it again.
#[test]
fn the_default_stack_can_be_had_as_a_file() {
    let folder = system_tests::new_folder();
    let program = program().to_str().expect("a path");
    let text = run(folder.path(), &[program, "serve", "--print-default"]).ok();
    assert!(!folder.path().join("drystone-data").exists(), "it was only printed");
    std::fs::create_dir(folder.path().join("drystone-data")).expect("a folder");
    let mut server = Server::start_in(&folder, &text.replace("4GiB", "8MiB"), &[]);
    assert!(server.sigterm().success(), "{}", server.messages());
    // The second disk is another one.
    for n in 0..4 {
        let path = folder.path().join(format!("drystone-data/disk{n}.img"));
        let disk = if n == 1 {
            std::fs::File::create(path)
        } else {
            std::fs::File::options().write(true).open(path)
        };
        disk.and_then(|disk| disk.set_len(4 << 30)).expect("it is as large");
    }
    let message = run(folder.path(), &[program, "serve", "--control", "c.sock"]).refused();
    assert!(message.contains("`run = true` in [device.array]"), "{message}");
    assert!(message.contains("`drystone serve --print-default > stack.toml`"), "{message}");
    let text = text.replace("type = \"raid5\"", "type = \"raid5\"\nrun = true");
    let server = Server::start_in(&folder, &text, &[]);
    assert_eq!(attribute(&server, "md/degraded"), "1");
}
