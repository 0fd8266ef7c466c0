//! Tests of the lab's own file server: reads through the mount return what was written.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::case::{Below, cases};
use super::{Task, serve};
use crate::folder::Folder;
use crate::raid5_wait::array::Array;
use crate::raid5_wait::load::content;

const MEMBER_BYTES: u64 = 8 << 20;
const PAGE: usize = 4096;
/// The number of writing threads, and the bytes of each one's own part, not a whole number of
/// chunks or requests.
const THREADS: usize = 7;
const PART: usize = (1 << 20) + 5 * PAGE;

/// True if FUSE is available, as in the tests of the product's own mounts.
fn has_fuse() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        println!("SKIPPED: a real mount needs /dev/fuse and root");
    }
    can
}

fn task(variant: &str, disks: bool, members: u32) -> Task {
    Task { variant: variant.to_owned(), disks, members, member_bytes: MEMBER_BYTES }
}

/// Serves while `body` has the file; forgotten waiters are woken.
fn with_file(task: &Task, body: impl FnOnce(&File)) {
    let (folder, ended) = (Folder::make().unwrap(), AtomicBool::new(false));
    let path = folder.path().join("vol.img");
    File::create(&path).unwrap();
    let used = |array: &dyn Array| {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                    array.rescue();
                }
            });
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&file)));
            ended.store(true, Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        assert!(array.counts().freed > 0);
        Ok(())
    };
    serve(task, &path, used).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "nothing is mounted any more");
}

/// Writes `data` at `at` in pieces of several lengths, and reads it in other pieces. The memory
/// begins at a page: otherwise the kernel would cut longer I/O inside pages, as no loop device
/// does.
fn write_and_read(file: &File, at: usize, data: &[u8]) -> io::Result<()> {
    let mut from = 0;
    for pages in [1, 255, 17, 2, 16].into_iter().cycle() {
        let to = data.len().min(from + pages * PAGE);
        file.write_all_at(&data[from..to], (at + from) as u64)?;
        from = to;
        if from == data.len() {
            break;
        }
    }
    file.sync_data()?;
    assert!(read(file, at, data.len())? == data, "other data at {at}");
    Ok(())
}

fn read(file: &File, at: usize, bytes: usize) -> io::Result<Vec<u8>> {
    let mut found = vec![0; bytes];
    for from in (0..bytes).step_by(33 * PAGE) {
        let to = bytes.min(from + 33 * PAGE);
        file.read_exact_at(&mut found[from..to], (at + from) as u64)?;
    }
    Ok(found)
}

fn holds_what_is_written(task: &Task, threads: usize) {
    let bytes = MEMBER_BYTES * u64::from(task.members - 1);
    with_file(task, |file| {
        assert_eq!(file.metadata().unwrap().len(), bytes);
        for round in 0..2 {
            let part = |number: usize| content((round * threads + number) as u64, PART);
            thread::scope(|scope| {
                for number in 0..threads {
                    scope.spawn(move || {
                        write_and_read(file, number * PART, &part(number)).unwrap();
                    });
                }
            });
            // No thread has written to another's part.
            for number in 0..threads {
                let found = read(file, number * PART, PART).unwrap();
                assert!(found[..] == part(number)[..], "part {number}");
            }
        }
        let page = [7; PAGE];
        assert!(file.write_at(&page, bytes).is_err() && file.write_at(&page[1..], 0).is_err());
        assert_eq!(file.read_at(&mut [0; PAGE], bytes).unwrap(), 0);
    });
}

#[test]
fn a_file_holds_what_is_written() {
    if !has_fuse() {
        return;
    }
    for variant in ["before", "mailed"] {
        holds_what_is_written(&task(variant, false, 4), THREADS);
        // A file system needs its data, so disks keep it here.
        holds_what_is_written(&task(variant, true, 3), 2);
    }
    holds_what_is_written(&task("mailed", false, 9), THREADS);
}

#[test]
fn what_is_served_is_checked() {
    let path = Path::new("/nonexistent/vol.img");
    let error = serve(&task("other", false, 4), path, |_| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "there is no variant `other`");
    assert!(serve(&task("before", false, 4), path, |_| Ok(())).is_err());
    for disks in [false, true] {
        let there = std::env::temp_dir().join("vol.img");
        let spec = task("ours", disks, 4).product(&there).unwrap();
        assert_eq!((spec.devices.len(), spec.exports.len()), (5, 1));
    }
}

#[test]
fn cases_are_the_mails() {
    let all = cases(4 << 30, 64, &[]);
    assert_eq!(all.len(), 15);
    let only = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        cases(4 << 30, 64, &words).iter().map(|case| case.name()).collect::<Vec<_>>()
    };
    assert_eq!(only(&["9 ram", "NoSync"]), ["1t-9 ram-btrfs-NoSync"]);
    assert_eq!(only(&["1t-", "xfs"]), ["1t-3 simulated disks-xfs-fsyncBeforeClose"]);
    assert!(only(&["zfs"]).is_empty());
    for case in &all {
        assert!(case.files() * (4 << 20) >= case.bytes && case.bytes == 4 << 30);
        assert!(case.device_bytes() > case.bytes);
        let array = case.below != Below::Ceiling;
        assert_eq!(
            (case.task("ours").is_some(), case.variants().len()),
            (array, if array { 3 } else { 1 })
        );
    }
}
