//! Arrays that are changed on a running server, under load, with mdadm's words.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use drystone_raid::testing;
use system_tests::server::PATIENCE;
use system_tests::{Server, program, python, requires, run, shell, stack};

const MIB: u64 = 1 << 20;
/// Sectors of the volume that clients see.
const SECTORS: u64 = 65536;

/// An array `array` of four files below a volume `v`, which clients use; and a RAM disk that may
/// take the array's place.
fn array_below_volume(keys: &str) -> String {
    let array = stack::array("raid5", 4, "24MiB", keys);
    let array = array.split("[export").next().expect("the devices").to_owned();
    format!(
        "{array}[device.r]\ntype = \"ram\"\nsize = \"32MiB\"\n\
         [device.v]\ntable = \"0 {SECTORS} linear array 0\"\n{}",
        stack::export("vol", "v", "")
    )
}

fn new_file(server: &Server, name: &str, bytes: u64) -> String {
    let path = server.path(name);
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    path
}

fn md(server: &Server, line: &str) -> String {
    let words: Vec<&str> = ["md"].into_iter().chain(line.split_whitespace()).collect();
    server.ask(&words).ok()
}

/// A command that is refused, in one sentence with these words.
fn refused(server: &Server, line: &str, sentence: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let message = server.ask(&words).refused();
    assert!(message.contains(sentence), "{line}: {message}");
    assert_eq!(message.lines().count(), 1, "{line}: {message}");
}

fn json(server: &Server, array: &str) -> serde_json::Value {
    let text = md(server, &format!("detail {array} --json"));
    serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["arrays"][0].take()
}

/// True if the server has a file open.
fn has_open(server: &Server, path: &str) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs");
    open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(path)))
}

/// Parity fits all over the array.
fn check(server: &Server, array: &str) {
    md(server, &format!("check {array}"));
    md(server, &format!("wait {array}"));
    let told = json(server, array);
    assert_eq!((&told["sync"], &told["mismatch_cnt"]), (&serde_json::Value::Null, &0.into()));
}

/// Clients write to the array.
fn until_written(server: &Server) {
    let began = Instant::now();
    while json(server, "array")["array_state"] != "active" {
        assert!(began.elapsed() < PATIENCE, "nobody writes");
        thread::sleep(Duration::from_millis(10));
    }
}

fn contents(server: &mut Server) -> String {
    let uri = server.uri("vol");
    shell(server.dir(), "nbdcopy \"$1\" - | sha256sum", &[&uri]).ok()
}

/// Members fail, leave, come and are replaced while clients write. Then the array is stopped, and
/// started again under another name with the same data.
#[test]
fn an_array_is_changed_while_it_is_used() {
    if !requires("fio") || !requires("nbdcopy") {
        return;
    }
    for keys in ["chunk = \"64KiB\"\nconsistency_policy = \"bitmap\"", "chunk = \"4KiB\""] {
        let mut server = Server::start(&array_below_volume(keys));
        let (uri, folder) = (server.uri("vol"), server.folder());
        let load = thread::spawn(move || {
            let words =
                ["fio", "--name=t", "--ioengine=nbd", &format!("--uri={uri}"), "--output=fio.log"];
            let shape = ["--rw=randrw", "--size=32M", "--io_size=160M", "--bsrange=4k-128k"];
            let rest = ["--iodepth=16", "--verify=crc32c", "--verify_backlog=128"];
            run(folder.path(), &[&words[..], &shape, &rest].concat()).ok();
        });
        let (n0, n1) =
            (new_file(&server, "n0.img", 24 * MIB), new_file(&server, "n1.img", 24 * MIB));

        until_written(&server);
        assert_eq!(md(&server, "fail array m1"), "set m1 faulty in array\n");
        let state = json(&server, "array")["state"].to_string();
        assert!(state.ends_with(", degraded\""), "{state}");
        assert_eq!(md(&server, "remove array failed"), "hot removed m1 from array\n");
        // A relative path, from the folder of the client.
        assert_eq!(md(&server, "add array ./n0.img"), "added n0\n");
        md(&server, "wait array");
        let told = json(&server, "array");
        assert_eq!((&told["active_devices"], &told["spare_devices"]), (&4.into(), &0.into()));
        assert!(has_open(&server, &n0));

        assert_eq!(md(&server, &format!("add array {n1}")), "added n1\n");
        assert_eq!(md(&server, "replace array m2"), "marked m2 in array for replacement\n");
        md(&server, "wait array");
        assert_eq!(md(&server, "remove array faulty"), "hot removed m2 from array\n");
        check(&server, "array");
        load.join().expect("fio finds what it wrote");
        check(&server, "array");

        let before = contents(&mut server);
        refused(&server, "md stop array", "`array` is in use by `v`");
        server.ask(&["reload", "v", "--now", "--table", &format!("0 {SECTORS} linear r 0")]).ok();
        assert_eq!(md(&server, "stop array"), "stopped array\n");
        assert!(!has_open(&server, &n0) && !has_open(&server, &n1), "they are free");
        assert!(has_open(&server, &server.path("m0.img")), "it is of the stack file");
        let told = md(&server, "assemble again m0 n0.img m3.img n1.img");
        assert_eq!(told, "again has been started with 4 drives.\n");
        server
            .ask(&["reload", "v", "--now", "--table", &format!("0 {SECTORS} linear again 0")])
            .ok();
        assert_eq!(contents(&mut server), before);
        check(&server, "again");
        assert!(server.sigterm().success(), "{}", server.messages());
    }
}

/// A device that came by path is closed, file and all, while contexts that have used it live on.
#[test]
fn a_device_that_is_removed_can_be_used_by_others() {
    if !requires("nbdsh") {
        return;
    }
    let mut server = Server::start(&array_below_volume("consistency_policy = \"bitmap\""));
    let uri = server.uri("vol");
    let path = new_file(&server, "n0.img", 24 * MIB);
    md(&server, "fail array m1");
    md(&server, "remove array m1");
    for _ in 0..3 {
        md(&server, "add array n0.img");
        md(&server, "wait array");
        python(server.dir(), &uri, "h.pwrite(b'x' * (8 << 20), 0)\nh.pread(8 << 20, 0)").ok();
        md(&server, &format!("fail array {path}"));
        assert!(has_open(&server, &path));
        md(&server, "remove array n0");
        assert!(!has_open(&server, &path), "others may have it");
        let listed = server.ask(&["list"]).ok();
        assert!(!listed.contains("n0"), "{listed}");
    }
    // A former member that has missed little gets only the missed blocks.
    md(&server, "add array m1");
    md(&server, "wait array");
    check(&server, "array");
    // A file that is gone is known by that.
    md(&server, "add array n0.img");
    fs::remove_file(&path).expect("it is there");
    assert_eq!(md(&server, "fail array detached"), "set n0 faulty in array\n");
    assert_eq!(md(&server, "remove array detached"), "hot removed n0 from array\n");
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn what_an_array_is_like_is_shown_in_the_words_of_mdadm_and_linux() {
    let mut server = Server::start(&stack::array("raid6", 5, "24MiB", "chunk = \"64KiB\""));
    let spare = new_file(&server, "spare.img", 24 * MIB);
    md(&server, &format!("add array {spare}"));
    let detail = md(&server, "detail array");
    for line in [
        "array:\n",
        "           Version : 1.2\n",
        "        Raid Level : raid6\n",
        "        Array Size : 70656 (69.00 MiB 72.35 MB)\n",
        "     Used Dev Size : 23552 (23.00 MiB 24.12 MB)\n",
        "     Total Devices : 6\n",
        "             State : clean \n",
        "    Active Devices : 5\n",
        "     Spare Devices : 1\n",
        "            Layout : left-symmetric\n",
        "Consistency Policy : resync\n",
        "              Name : array\n",
        "       4       0        0        4      active sync   m4\n\n       5       0        \
         0        -      spare   spare\n",
    ] {
        assert!(detail.contains(line), "{line:?} is not in {detail}");
    }
    let status = md(&server, "status");
    assert_eq!(
        status,
        "Personalities : [raid6] [raid5] [raid4] \n\
         array : active raid6 spare[5](S) m4[4] m3[3] m2[2] m1[1] m0[0]\n      \
         70656 blocks super 1.2 level 6, 64k chunk, algorithm 2 [5/5] [UUUUU]\n      \n\
         unused devices: <none>\n"
    );
    for speed in ["md/sync_speed_min=1", "md/sync_speed_max=1"] {
        assert_eq!(server.ask(&["set", "array", speed]).ok(), format!("array {speed}\n"));
    }
    md(&server, "fail array m1 m3");
    let status = md(&server, "status array");
    for part in ["m3[3](F)", "m1[1](F)", "[5/3] [U_U_U]", "recovery =  0.0%", "speed="] {
        assert!(status.contains(part), "{part} is not in {status}");
    }
    assert!(md(&server, "detail array").contains("State : clean, degraded, recovering \n"));
    refused(&server, "set array md/sync_action=check", "array is being synchronised already");
    refused(&server, "md check array", "array is being synchronised already");
    server.ask(&["set", "array", "md/sync_speed_max=1000000"]).ok();
    server.ask(&["set", "array", "md/sync_speed_min=1000000"]).ok();
    // `--watch` ends with the action.
    let watched = md(&server, "status array --watch 10ms");
    assert!(watched.ends_with("[5/4] [UUU_U]\n      \n"), "{watched}");
    let told = json(&server, "array");
    assert_eq!((&told["state"], &told["failed_devices"]), (&"clean, degraded".into(), &2.into()));
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn what_would_do_harm_is_refused_in_a_sentence() {
    let text = stack::array("raid5", 3, "16MiB", "chunk = \"64KiB\"");
    let mut server = Server::start(&format!(
        "{text}[device.r]\ntype = \"ram\"\nsize = \"16MiB\"\n{}",
        stack::export("ram", "r", "")
    ));
    new_file(&server, "small.img", MIB);
    let file_system = new_file(&server, "ext.img", 16 * MIB);
    let file = File::options().write(true).open(&file_system).expect("it is there");
    // The magic number of ext2, and that it has no journal.
    file.write_all_at(&[0x53, 0xEF], 1080).expect("it is written");
    let other = ["o0.img", "o1.img", "o2.img"].map(|name| new_file(&server, name, 16 * MIB));
    let program = program().to_str().expect("a path");
    let create = ["md", "create", "-l", "5", "-n", "3", "-N", "other", "--homehost", "here"];
    let create = [&[program][..], &create, &other.each_ref().map(|path| &**path)].concat();
    run(server.dir(), &create).ok();
    let copy = ["m1.img", "copy.img"].map(|name| server.dir().join(name));
    fs::copy(&copy[0], &copy[1]).expect("a copy");
    let journal = drystone_raid::testing::member("r5-ls-journal", 4).expect("a journal");
    let bytes = journal.read(0, journal.bytes() as usize);
    fs::write(server.dir().join("journal.img"), bytes).expect("a journal");

    for (line, sentence) in [
        ("md detail arry", "there is no device `arry`: did you mean `array`?"),
        ("md detail /dev/md0", "`/dev/md0` is a path of Linux, not an array of this server"),
        ("md fail /dev/md/array m0", "as `drystone md status` shows it"),
        ("md status m0", "`m0` is a file device, not an array"),
        ("md fail array r", "r is no device of array"),
        ("md fail array m7", "there is no device `m7`: did you mean"),
        ("md remove array m0", "m0 is in use: fail it before it is removed"),
        ("md replace array m0", "there is no spare: add one first"),
        ("md add array m0", "`m0` is in use by `array`"),
        ("md add array m1.img", "`m1` is in use by `array`"),
        ("md add array r", "`r` is in use by export `ram`"),
        ("md add array array", "`array` is in use by export `vol`"),
        ("md add array nothing.img", "there is no device `nothing.img`, and no file /"),
        ("md add array small.img", "small is not large enough to join array: it has 1024 KiB"),
        ("md add array ext.img", "`ext` appears to contain an ext"),
        ("md add array o0.img", "`o0` appears to contain a member of an md array (here:other "),
        (
            "md add array journal.img",
            "`journal` appears to contain the journal of an md array (vec:",
        ),
        ("md add array copy.img", "`copy` is a copy of `m1`, which the array has"),
        ("md add array .", "is neither a file nor a block device"),
        ("md stop array", "`array` is in use by export `vol`"),
        ("md assemble array o0.img", "there is a device `array` already"),
        ("md assemble a/b o0.img", "`a/b` is not a name"),
        ("md assemble new ext.img small.img", "`ext`: there is no md superblock"),
        ("md assemble new o0.img m0", "`m0` is in use by `array`"),
        ("md assemble new o0.img o1.img o0.img", "`o0` is named twice"),
        ("md assemble new o0.img", "1 of 3 members can be used, expected at least 2"),
    ] {
        refused(&server, line, sentence);
    }
    for path in other.iter().chain([&file_system]) {
        assert!(!has_open(&server, path), "{path} was opened for nothing");
    }
    let listed = server.ask(&["list"]).ok();
    assert!(!listed.contains("o0") && !listed.contains("new"), "{listed}");

    md(&server, "fail array m0");
    refused(&server, "md fail array m1", "m1 cannot be failed: array would be broken");
    // `--force` takes it.
    md(&server, "add array copy.img --force");
    md(&server, "wait array");
    md(&server, "fail array copy");
    md(&server, "add array ext.img --force");
    md(&server, "wait array");
    check(&server, "array");
    md(&server, "assemble other o0.img o1.img o2.img");
    md(&server, "wait other");
    refused(&server, "md add array o1", "`o1` is in use by `other`");
    let table = ["create", "v", "--table", "0 8 linear o1 0"];
    let message = server.ask(&table).refused();
    assert!(message.contains("sectors 0 to 7 of `o1` are used by `other`"), "{message}");
    md(&server, "stop other");
    refused(&server, "md assemble other o2.img o0.img", "`--run` starts it degraded");
    let read_only = md(&server, "assemble other o2.img o0.img --readonly --run");
    assert_eq!(read_only, "other has been started with 2 drives (out of 3).\n");
    refused(&server, "md check other", "other is read-only: nothing of it is changed");
    md(&server, "stop other");
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// Each attribute that is shown as `rw` can be set to its own value.
#[test]
fn attributes_are_shown_as_what_they_are() {
    let text = stack::array("raid5", 3, "8MiB", "");
    let volume = "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n\
                  [device.v]\ntable = \"0 2048 linear r 0\"\n";
    let server = Server::start(&format!("{text}{volume}{}", stack::export("v", "v", "")));
    md(&server, "wait array");
    for (device, some) in [("array", "md/rmw_level"), ("v", "queue/iostats"), ("m0", "size")] {
        let shown = server.ask(&["show", device]).ok();
        let rows = shown.lines().filter_map(|line| line.split_once(" rw "));
        let rows: Vec<_> = rows.map(|(name, value)| (name.trim(), value.trim())).collect();
        assert!(rows.iter().any(|(name, _)| *name == some), "{shown}");
        // Some attributes show another form than they take.
        let plain = |(name, value): &&(&str, &str)| {
            !["size", "queue/scheduler"].contains(name) && !value.is_empty()
        };
        for (name, value) in rows.iter().filter(plain) {
            server.ask(&["set", device, &format!("{name}={value}")]).ok();
        }
    }
}

/// The exit status reports the state of an array, as that of `mdadm --detail --test`.
#[test]
fn the_exit_status_tells_how_an_array_is() {
    let mut server = Server::start(&stack::array("raid6", 4, "8MiB", ""));
    let status = |server: &Server, line: &str| {
        let words: Vec<&str> = ["md"].into_iter().chain(line.split_whitespace()).collect();
        server.ask(&words).status.expect("a status")
    };
    assert_eq!(status(&server, "detail --test array"), 0);
    md(&server, "fail array m0");
    for command in ["detail", "status", "wait"] {
        assert_eq!(status(&server, &format!("{command} --test array")), 1, "{command}");
        assert_eq!(status(&server, &format!("{command} array")), 0, "{command}");
        assert_eq!(status(&server, &format!("{command} -t none")), 4, "{command}");
    }
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// An array that crashed while a member was missing may have wrong blocks: a forced start prints
/// where.
#[test]
fn what_may_be_wrong_of_an_array_that_is_forced_to_start_is_told() {
    let mut server = Server::start(&stack::ram("1MiB"));
    for (n, image) in testing::members("r5-ls-torn").iter().enumerate() {
        let bytes = image.read(0, image.bytes() as usize);
        fs::write(server.path(&format!("t{n}.img")), bytes).expect("it is written");
    }
    let message = "torn: the array was not stopped cleanly and lacks member 1 (missing)";
    refused(&server, "md assemble torn t0.img t2.img t3.img --run", message);
    let told = md(&server, "assemble torn t0.img t2.img t3.img --force");
    let (first, second) = told.split_once('\n').expect("two lines");
    assert_eq!(first, "torn has been started with 3 drives (out of 4).");
    assert!(second.starts_with("torn: ") && second.contains("may be wrong"), "{told}");
    md(&server, "add torn t1.img");
    md(&server, "wait torn");
    check(&server, "torn");
    assert!(server.sigterm().success(), "{}", server.messages());
}

/// A wait for an array that was just started includes the work that the start begins.
#[test]
fn a_synchronisation_has_begun_when_the_server_answers() {
    let keys = "chunk = \"64KiB\"";
    let mut server = Server::start(&stack::array("raid5", 4, "24MiB", keys));
    let folder = server.folder();
    md(&server, "fail array m1");
    md(&server, "remove array m1");
    for speed in ["md/sync_speed_min=1", "md/sync_speed_max=1"] {
        server.ask(&["set", "array", speed]).ok();
    }
    md(&server, "add array m1");
    server.signal("KILL");
    server.wait();
    let mut server = Server::start_in(&folder, &stack::array("raid5", 4, "24MiB", keys), &[]);
    let told = json(&server, "array");
    let is_over = told["active_devices"] == 4;
    assert!(is_over || !told["sync"].is_null(), "{told}");
    md(&server, "wait array");
    assert_eq!(json(&server, "array")["active_devices"], 4);
    check(&server, "array");
    assert!(server.sigterm().success(), "{}", server.messages());
}
