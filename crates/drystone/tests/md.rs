//! `drystone md`: arrays made and shown without a server.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use drystone_raid::metadata::assemble::{Candidate, Start, assemble};
use drystone_raid::metadata::superblock::probe;
use drystone_raid::testing;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn md(folder: &Path, line: &str) -> Output {
    common::program(folder).arg("md").args(line.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs and expects success; standard output.
fn done(folder: &Path, line: &str) -> String {
    let output = md(folder, line);
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs and expects a refusal; standard error.
fn refused(folder: &Path, line: &str, status: i32) -> String {
    let output = md(folder, line);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{line}: {message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

fn folder_with(sizes: &[u64]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (index, size) in sizes.iter().enumerate() {
        let file = fs::File::create(folder.path().join(format!("d{index}"))).unwrap();
        file.set_len(*size).unwrap();
    }
    folder
}

/// The start that these files permit.
fn start(folder: &Path, names: &[&str]) -> Result<Start, String> {
    let candidate = |name: &&str| {
        let file = fs::File::open(folder.join(name)).unwrap();
        let found = probe(file.metadata().unwrap().len() / 512, |sector| {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, sector * 512).map(|()| bytes)
        });
        Candidate {
            name: (*name).to_owned(),
            found: found.unwrap(),
            bitmap: None,
            damage: None,
            log_damage: None,
            device_sectors: 1 << 20,
            journal: None,
        }
    };
    assemble(&names.iter().map(candidate).collect::<Vec<_>>(), None).map(|array| array.start)
}

#[test]
fn an_array_is_made_and_shown() {
    let folder = folder_with(&[64 * MIB; 4]);
    let told = done(
        folder.path(),
        "create -l 5 -n 4 --name r5 --homehost vec --uuid 0a0b0c0d:11223344:55667788:00000003 d0 \
         d1 d2 d3",
    );
    assert_eq!(
        told,
        "layout defaults to left-symmetric\nchunk size defaults to 512K\nsize set to 63488K\n\
         d3 is rebuilt from the others when the array starts\n\
         vec:r5 created, UUID 0a0b0c0d:11223344:55667788:00000003\n"
    );
    let shown = done(folder.path(), "examine d0 d3");
    for line in [
        "d0:\n",
        "           Name : vec:r5\n",
        "     Raid Level : raid5\n",
        "     Array Size : 190464 KiB (186.00 MiB 195.04 MB)\n",
        "    Data Offset : 4096 sectors\n",
        "   Device Role : Active device 0\n",
        "   Device Role : spare\n",
        "   Array State : AAA. ",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    let names = ["d0", "d1", "d2", "d3"];
    assert_eq!(start(folder.path(), &names), Ok(Start::Degraded { unexpected: None }));
    assert!(
        done(folder.path(), "examine --badblocks d1").contains("Bad-blocks list is empty in d1")
    );
}

#[test]
fn options_are_those_of_mdadm() {
    let folder = folder_with(&[64 * MIB; 6]);
    done(
        folder.path(),
        "create --assume-clean -l 6 -n 4 -x 1 -c 64 -p ra -b internal -e 1.0 d0 d1 d2 d3 d4",
    );
    let shown = done(folder.path(), "examine d0");
    for line in [
        "Version : 1.0\n",
        "raid6\n",
        "right-asymmetric\n",
        "Chunk Size : 64K\n",
        "Internal Bitmap : -16 sectors",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    let bitmap = done(folder.path(), "examine -X d1");
    assert!(
        bitmap.contains("Chunksize : 64 MB") && bitmap.contains("1 dirty (100.0%)"),
        "{bitmap}"
    );
    let again = "create --force --level=raid5 --raid-devices=3 --chunk=64KiB \
        --layout=left-asymmetric --consistency-policy=ppl --metadata=1.1 --size=8M \
        --data-offset=4M d0 missing d5";
    let output = md(folder.path(), again);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("d0 appears to contain a member of an md array"));
    let shown = done(folder.path(), "examine d0 d5");
    for line in [
        "Version : 1.1\n",
        "PPL : 2048 sectors at offset 8",
        "Data Offset : 8192 sectors",
        "Used Dev Size : 16384 sectors",
        "A.A",
    ] {
        assert!(shown.contains(line), "{line}{shown}");
    }
    // The older superblock is gone, not just hidden.
    assert!(!shown.contains("Version : 1.0"), "{shown}");
    assert_eq!(start(folder.path(), &["d0", "d5"]), Ok(Start::Degraded { unexpected: None }));
}

/// The last member of a new array is a spare until a start has rebuilt it: it is not missing.
#[test]
fn a_member_that_a_spare_becomes_is_not_called_missing() {
    let folder = folder_with(&[8 * MIB; 3]);
    done(folder.path(), "create -l 5 -n 3 d0 d1 d2");
    let stack = done(folder.path(), "assemble --print d0 d1 d2");
    for line in [
        "# member 2: to be rebuilt on a spare, until then computed from the others\n",
        "# spare: d2\n",
        "    # member 2 is to be rebuilt on a spare\n",
    ] {
        assert!(stack.contains(line), "{line}{stack}");
    }
    assert!(!stack.contains("missing"), "{stack}");
    // Without the spare it is.
    let stack = done(folder.path(), "assemble --print d0 d1");
    assert!(stack.contains("# member 2: missing, computed from the others\n"), "{stack}");
    assert!(stack.contains("    # member 2 is missing\n"), "{stack}");
}

#[test]
fn what_is_in_use_or_holds_something_is_refused() {
    let folder = folder_with(&[64 * MIB; 4]);
    let path = folder.path();
    let create = "create -l 5 -n 3 d0 d1 d2";
    fs::File::options()
        .write(true)
        .open(path.join("d1"))
        .unwrap()
        .write_all_at(b"XFSB", 0)
        .unwrap();
    let message = refused(path, create, 1);
    assert_eq!(message, "error: d1 appears to contain an XFS file system; --force overwrites it\n");
    assert!(refused(path, "examine d0", 1).contains("No md superblock detected on d0"));
    assert!(
        refused(path, "examine d1", 1)
            .contains("No md superblock detected on d1, which holds an XFS file system")
    );
    // A lock is never overridden; reading goes on.
    let served = drystone_drivers::file::OfflineFile::open(&path.join("d2"), false).unwrap();
    let message = refused(path, "create --force -l 5 -n 3 d0 d1 d2", 1);
    assert!(message.contains("d2 is in use by process"), "{message}");
    assert!(refused(path, "examine d2", 1).contains("it may be changing"));
    drop(served);
    assert!(refused(path, "examine d0", 1).contains("No md superblock"), "nothing was written");
    done(path, "create --force -l 5 -n 3 d0 d1 d2");
    let message = refused(path, create, 1);
    assert!(message.contains("d0 appears to contain a member of an md array"), "{message}");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let folder = folder_with(&[64 * MIB, 64 * MIB, MIB, 66 * MIB]);
    for (line, status, words) in [
        ("create -l 5 -n 3 d0 d1", 1, "2 devices are named, expected 3"),
        ("create -l 5 -n 3 d0 d1 d2", 1, "d2 is too small"),
        ("create -l 5 -n 3 d0 d1 d9", 1, "d9 does not exist"),
        ("create /dev/md977 -l 5 -n 3 d0 d1 d2", 2, "here only members are named: leave it out"),
        ("create -l 5 -n 3 d0 d1 d0", 1, "d0 is named twice"),
        ("create -l 5 -n 3 d0 missing missing", 1, "at most 1"),
        ("create -l 1 -n 3 d0 d1 d3", 2, "write 4, 5 or 6: there are no mirrors"),
        ("create -l raid0 -n 3 d0 d1 d3", 2, "striping is a volume of a stack file"),
        ("create -l 6 -n 3 d0 d1 d3", 2, "raid6 takes 4 to 128 members"),
        ("create -l 5 -n 3 -c 6 d0 d1 d3", 2, "power of two"),
        ("create -l 5 -n 3 -b none -k ppl d0 d1 d3", 2, "contradict"),
        ("create -l 6 -n 4 -k ppl d0 d1 d3 missing", 1, "a PPL needs a raid5"),
        ("create -l 5 -n 3 -z 1G d0 d1 d3", 1, "are to be used of each device"),
        ("create -l 5 -n 3 -p left d0 d1 d3", 2, "left-symmetric or ls"),
    ] {
        let message = refused(folder.path(), line, status);
        assert!(message.contains(words), "{line}: {message}");
    }
    assert!(!folder.path().join("d9").exists());
    let told = done(folder.path(), "create -l 5 -n 3 d0 d1 d3");
    assert!(told.contains("largest drive (d3) exceeds size (63488K) by more than 1%"), "{told}");
}

#[test]
fn an_array_that_was_made_in_part_is_not_whole() {
    let folder = folder_with(&[64 * MIB; 3]);
    let path = folder.path();
    done(path, "create -l 5 -n 3 --assume-clean d0 d1 d2");
    assert_eq!(start(path, &["d0", "d1", "d2"]), Ok(Start::Whole));
    // Superblocks come last: a device that has none is no member.
    for (name, wanted) in [("d2", "2 of 3 members are there"), ("d1", "1 of 3 members can be used")]
    {
        let file = fs::File::options().write(true).open(path.join(name)).unwrap();
        file.write_all_at(&[0; 4096], 4096).unwrap();
        let start = start(path, &["d0", "d1", "d2"]).unwrap();
        assert!(start.to_string().contains(wanted), "{start}");
    }
}

#[test]
fn members_of_linux_are_shown_as_mdadm_shows_them() {
    let folder = TempDir::new().unwrap();
    let wanted = testing::text("r5-ls-bitmap-torn", "examine.txt");
    for (index, image) in testing::members("r5-ls-bitmap-torn").iter().enumerate() {
        let name = format!("m{index}");
        fs::write(folder.path().join(&name), image.read(0, image.bytes() as usize)).unwrap();
        let shown = done(folder.path(), &format!("examine {name}"));
        assert!(wanted.contains(&format!("### mdadm --examine {name}\n{shown}")), "{shown}");
    }
    // A broken one is shown too, with what is wrong.
    let file = fs::File::options().write(true).open(folder.path().join("m0")).unwrap();
    file.write_all_at(&[1], 4096 + 217).unwrap();
    let output = md(folder.path(), "examine m0");
    assert!(text(&output.stderr).contains("superblock checksum is"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(" - expected "), "{}", text(&output.stdout));
}

/// Places in a superblock are only shown, whatever they are.
#[test]
fn places_that_no_device_has_are_shown_all_the_same() {
    let folder = folder_with(&[8 * MIB; 3]);
    done(folder.path(), "create -l 5 -n 3 -b internal -c 64K d0 d1 d2");
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("d0")).unwrap();
    for (at, value) in [(144, u64::MAX / 512 - 7), (144, u64::MAX - 7), (80, u64::MAX - 127)] {
        file.write_all_at(&9u32.to_le_bytes(), 4096 + 8).unwrap();
        file.write_all_at(&value.to_le_bytes(), 4096 + at).unwrap();
        let shown = done(folder.path(), "examine d0");
        assert!(shown.contains(&value.to_string()) && shown.contains("expected"), "{shown}");
        for option in ["--bitmap", "--badblocks"] {
            let output = md(folder.path(), &format!("examine {option} d0"));
            assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output.stderr));
        }
    }
}

/// A member that is a pipe is refused at once: nobody waits for its writer.
#[test]
fn check_opens_no_pipe() {
    let folder = folder_with(&[8 * MIB; 2]);
    assert!(Command::new("mkfifo").arg(folder.path().join("d2")).status().unwrap().success());
    let device = |n| format!("[device.d{n}]\ntype = \"file\"\npath = \"d{n}\"\n");
    let array = "[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\n\
                 [export.e]\ndevice = \"a\"\nnbd = \"unix:e.sock\"\n";
    let devices: String = (0..3).map(device).collect();
    fs::write(folder.path().join("s.toml"), devices + array).unwrap();
    let program = common::program(folder.path());
    let mut command = Command::new("timeout");
    command.arg("60").arg(program.get_program()).args(["check", "s.toml"]);
    let output = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("d2 is neither a file nor a block device"), "{said}");
}

/// Of arrays that are there, that lack a member, and that a start would make.
#[test]
fn check_tells_the_size_of_arrays() {
    for metadata in ["1.0", "1.1", "1.2"] {
        let folder = folder_with(&[8 * MIB; 3]);
        let stack = |members: &[&str]| {
            let device = |name: &&str| {
                format!(
                    "[device.{name}]\ntype = \"file\"\npath = \"{name}\"\nsize = \"8MiB\"\n\
                     create = \"never\"\n"
                )
            };
            let devices: String = members.iter().map(device).collect();
            let stack = format!(
                "{devices}[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\n\
                 run = true\n\
                 [export.e]\ndevice = \"v\"\nnbd = \"unix:e.sock\"\n\
                 [device.v]\ntype = \"linear\"\nmembers = [\"a\"]\n"
            );
            fs::write(folder.path().join("s.toml"), stack).unwrap();
        };
        let check = || {
            let mut command = common::program(folder.path());
            common::good(&["check"], command.args(["check", "--json", "s.toml"]).output().unwrap())
        };
        let sizes = || {
            let json: serde_json::Value = serde_json::from_str(&check()).unwrap();
            let devices = json["devices"].as_array().unwrap().clone();
            ["a", "v"].map(|name| {
                devices.iter().find(|device| device["name"] == name).unwrap()["size"].as_u64()
            })
        };
        let line = format!("create -l 5 -n 3 -c 64K --assume-clean -z 4M -e {metadata} d0 d1 d2");
        done(folder.path(), &line);
        stack(&["d0", "d1", "d2"]);
        assert_eq!(sizes(), [Some(8 * MIB); 2], "{metadata}");
        fs::remove_file(folder.path().join("d1")).unwrap();
        assert_eq!(sizes(), [Some(8 * MIB); 2], "{metadata}, without a member");
        for name in ["d0", "d2"] {
            fs::write(folder.path().join(name), vec![0; 8 << 20]).unwrap();
        }
        assert_eq!(sizes(), [None; 2], "{metadata}, of what holds no array");
    }
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("drystone-data")).unwrap();
    fs::write(folder.path().join("s.toml"), drystone_stack::DEFAULT_STACK).unwrap();
    let mut command = common::program(folder.path());
    let told = common::good(&["check"], command.args(["check", "s.toml"]).output().unwrap());
    // The data of three of four members of 4 GiB, beside superblock and bitmap, as `create` has it.
    let sized: Vec<&str> = told.lines().filter(|line| line.contains("array  raid5")).collect();
    assert!(sized[0].contains("KiB  4 members") || sized[0].contains("MiB  4 members"), "{told}");
}

#[test]
fn superblocks_are_told_as_json() {
    let folder = folder_with(&[8 * MIB; 3]);
    let line = "create -l 5 -n 3 -b internal -c 64K -z 4M -N box:x --assume-clean \
                -u 0a0b0c0d:11223344:55667788:99aabbcc d0 d1 d2";
    done(folder.path(), line);
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&done(folder.path(), &format!("examine --json {line}"))).unwrap()
    };
    let told = json("d0 d1");
    assert_eq!(told["devices"].as_array().unwrap().len(), 2);
    let first = &told["devices"][0];
    for (key, value) in [
        ("path", "d0".into()),
        ("uuid", "0a0b0c0d:11223344:55667788:99aabbcc".into()),
        ("set_name", "box:x".into()),
        ("level", "raid5".into()),
        ("raid_devices", 3.into()),
        ("array_size", (8 * MIB).into()),
        ("used_dev_size", (4 * MIB).into()),
        ("super_offset", 8.into()),
        ("state", "clean".into()),
        ("layout", "left-symmetric".into()),
        ("chunk_size", 65536.into()),
        ("checksum_correct", true.into()),
        ("role_devices", serde_json::json!([1, 1, 1])),
    ] {
        assert_eq!(first[key], value, "{key}: {first}");
    }
    assert_eq!(told["devices"][1]["device_role"]["role"], 1, "{told}");
    let bitmap = &json("--bitmap d0")["devices"][0];
    let counted = (&bitmap["sync_size"], &bitmap["bits"]);
    assert_eq!(counted, (&(4 * MIB).into(), &1.into()), "{bitmap}");
    let list = &json("--badblocks d0")["devices"][0];
    assert_eq!(list["bad_blocks"], serde_json::json!([]), "{list}");
    // A member that can be shown is shown, and one that cannot is the failure.
    fs::write(folder.path().join("blank"), vec![0; 65536]).unwrap();
    let output = md(folder.path(), "examine --json blank d2");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &told["devices"][0]["path"]), (Some(1), &"d2".into()));
    assert!(text(&output.stderr).starts_with("error: No md superblock detected on blank"));
}
