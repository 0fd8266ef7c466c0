//! The allocation query: the ranges of a file that hold data, by `lseek`.
//!
//! ```text
//!   offset                                      end     actual end of the file
//!     |....hole....|######data######|...hole...|
//!     at --SEEK_DATA-->             at --SEEK_HOLE--> (asked of the file, so as far as its data
//!                                                      goes)
//! ```
//!
//! Invariants:
//! * In a file that was cut short, a later write beyond the end leaves a hole in place of the lost
//!   data. Such a hole is never reported: the query checks the length after the search for holes,
//!   and reports a file that was cut short as all data.
//! * Inconsistent answers of the file system end the search: each step goes forward, or the rest
//!   counts as data.
//! * The calls may take long. They are for threads that may block
//!   ([`drystone_core::extent::ExtentQuery`]).

use super::opened::Opened;
use super::shared::FileShared;
use drystone_core::extent::ExtentList;
use drystone_core::{Error, Extent, Result};
use std::ops::Range;

/// Answers an allocation query ([`drystone_core::Device::extents`]).
pub(super) fn extents(
    shared: &FileShared,
    offset: u64,
    length: u64,
    max: usize,
) -> Result<Vec<Extent>> {
    let opened = &*shared.opened();
    let mut list = ExtentList::new();
    let end = offset.saturating_add(length);
    let what = |e| Error::os(format!("{}: allocation query", shared.path.display()), e);
    let known = if opened.holes.is_detected() {
        let actual = opened.backing.size().map_err(what)?;
        let known = walk(opened, offset..end, actual, max, &mut list).map_err(what)?;
        if opened.is_cut_short() {
            list = ExtentList::new();
            Some(offset)
        } else {
            known
        }
    } else {
        Some(offset)
    };
    // The rest counts as data where nothing is known, also in a file that was cut short below us.
    if let Some(at) = known {
        list.push(Extent::data(at, end - at));
    }
    let mut extents = list.into_vec();
    extents.truncate(max);
    Ok(extents)
}

/// Returns the extents of `range`, at most one more than `max`, and the offset from which on
/// nothing is known. The offset is `None` if only the number of extents ended the walk.
fn walk(
    opened: &Opened,
    range: Range<u64>,
    actual: u64,
    max: usize,
    list: &mut ExtentList,
) -> std::io::Result<Option<u64>> {
    let (mut at, end) = (range.start, range.end.min(actual));
    while at < end {
        if list.as_slice().len() > max {
            return Ok(None);
        }
        let (data, mut hole) = match opened.holes.data_from(at) {
            Some(to) => (at, to),
            None => next_run(opened, at, actual)?,
        };
        hole = hole.min(end);
        let data = data.min(end);
        list.push(Extent::hole(at, data - at));
        if hole <= data && data < end {
            return Ok(Some(data));
        }
        list.push(Extent::data(data, hole.max(data) - data));
        at = hole.max(data);
    }
    Ok(Some(at))
}

/// The next run of data from `at`: its begin and end. The end is not behind the begin if the file
/// system's answer is inconsistent.
fn next_run(opened: &Opened, at: u64, actual: u64) -> std::io::Result<(u64, u64)> {
    let data = opened.backing.next_data(at, actual)?;
    if data >= actual {
        return Ok((data, data));
    }
    opened.holes.begin_asking();
    let hole = opened.backing.next_hole(data, actual)?;
    opened.holes.remember(data..hole);
    Ok((data, hole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Backing, File};
    use drystone_queue::Driver;
    use std::io;
    use std::os::fd::RawFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
    use std::sync::{Arc, Mutex};

    const MIB: u64 = 1 << 20;
    const SIZE: u64 = 64 * MIB;

    type Seek = fn(u64) -> io::Result<u64>;

    /// A fake file system whose answers the test sets.
    #[derive(Clone)]
    struct Told {
        data: Arc<Mutex<Seek>>,
        hole: Arc<Mutex<Seek>>,
        asked: Arc<AtomicU32>,
        size: Arc<AtomicU64>,
    }

    impl Backing for Told {
        fn descriptor(&self) -> RawFd {
            -1
        }

        fn size(&self) -> io::Result<u64> {
            Ok(self.size.load(SeqCst))
        }

        fn extend(&self, _bytes: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn next_data(&self, from: u64, end: u64) -> io::Result<u64> {
            self.asked.fetch_add(1, SeqCst);
            super::super::backing::sought(
                self.data.lock().unwrap()(from),
                libc::SEEK_DATA,
                from,
                end,
            )
        }

        fn next_hole(&self, from: u64, end: u64) -> io::Result<u64> {
            self.asked.fetch_add(1, SeqCst);
            super::super::backing::sought(
                self.hole.lock().unwrap()(from),
                libc::SEEK_HOLE,
                from,
                end,
            )
        }
    }

    fn told(data: Seek, hole: Seek) -> (File, Told) {
        let data = Arc::new(Mutex::new(data));
        let size = Arc::new(AtomicU64::new(SIZE));
        let told = Told { data, hole: Arc::new(Mutex::new(hole)), asked: Arc::default(), size };
        (File::over(Box::new(told.clone()), Path::new("told"), 4096).unwrap(), told)
    }

    fn same(at: u64) -> io::Result<u64> {
        Ok(at)
    }

    fn end(_: u64) -> io::Result<u64> {
        Ok(SIZE)
    }

    fn einval(_: u64) -> io::Result<u64> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn before(at: u64) -> io::Result<u64> {
        Ok(at.saturating_sub(4096))
    }

    /// openzfs issue 6050: both answer the offset asked for. Others refuse one, or go back.
    #[test]
    fn a_file_system_that_talks_nonsense_has_data_everywhere() {
        let data = Extent::data(8192, SIZE - 8192);
        let nonsense: [(Seek, Seek); 7] = [
            (same, same),
            (einval, einval),
            (einval, same),
            (same, einval),
            (before, before),
            (before, same),
            (einval, before),
        ];
        for (n, (seek_data, seek_hole)) in nonsense.into_iter().enumerate() {
            let (file, told) = told(seek_data, seek_hole);
            assert_eq!(file.extents(8192, SIZE - 8192, 10).unwrap(), [data], "case {n}");
            assert!(told.asked.load(SeqCst) <= 2, "case {n}");
        }
    }

    #[test]
    fn a_run_of_data_is_asked_for_once_until_a_hole_is_made() {
        let (file, told) = told(same, end);
        for at in (0..SIZE).step_by(MIB as usize) {
            assert_eq!(file.extents(at, MIB, 10).unwrap(), [Extent::data(at, MIB)]);
        }
        assert_eq!(told.asked.load(SeqCst), 2, "one look for data and one for its end");
        // A user of the device makes all of it a hole.
        *told.data.lock().unwrap() = end;
        file.shared.opened().holes.made();
        assert_eq!(file.extents(MIB, MIB, 10).unwrap(), [Extent::hole(MIB, MIB)]);
        // The query remembers no hole, so it sees a later write there.
        *told.data.lock().unwrap() = same;
        assert_eq!(file.extents(MIB, MIB, 10).unwrap(), [Extent::data(MIB, MIB)]);
    }

    /// A write behind the end makes the file longer again, with a hole in place of the lost data.
    #[test]
    fn a_file_cut_short_has_no_holes() {
        let (file, told) = told(|at| Ok(at.max(SIZE / 2)), end);
        let asked = |file: &File| file.extents(0, SIZE, 10).unwrap();
        let (hole, data) = (Extent::hole(0, SIZE / 2), Extent::data(SIZE / 2, SIZE / 2));
        assert_eq!(asked(&file), [hole, data]);
        told.size.store(SIZE - MIB, SeqCst);
        assert_eq!(asked(&file), [Extent::data(0, SIZE)]);
        told.size.store(SIZE, SeqCst);
        assert_eq!(asked(&file), [Extent::data(0, SIZE)], "what was seen is not forgotten");
    }

    #[test]
    fn the_work_of_a_query_is_bounded() {
        // Every other block is a hole.
        let (file, told) =
            told(|at| Ok((at / 8192) * 8192 + 4096), |at| Ok(at.next_multiple_of(8192)));
        let extents = file.extents(0, SIZE, 10).unwrap();
        assert_eq!(extents.len(), 10);
        assert_eq!(extents[1], Extent::data(4096, 4096));
        assert!(told.asked.load(SeqCst) <= 12);
    }

    /// openzfs issue 15526: ZFS reports data that was just written as a hole.
    #[test]
    fn without_detection_the_file_system_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let options = |detect_holes| crate::file::FileOptions {
            path: path.clone(),
            size_bytes: Some(MIB),
            detect_holes,
            ..Default::default()
        };
        let asked = |detect| File::open(&options(detect)).unwrap().extents(0, MIB, 10).unwrap();
        assert_eq!(asked(Some(false)), [Extent::data(0, MIB)]);
        assert_eq!(asked(Some(true)), [Extent::hole(0, MIB)]);
        assert_eq!(asked(None), [Extent::hole(0, MIB)]);
    }

    /// The number is that of include/sys/zfs_context.h, which statfs(2) gives.
    #[test]
    fn zfs_is_not_asked_unless_a_stack_says_so() {
        use super::super::system::tells_holes;
        assert!(!tells_holes(Some(0x2fc1_2fc1)));
        let others = [libc::TMPFS_MAGIC, libc::EXT4_SUPER_MAGIC, libc::XFS_SUPER_MAGIC];
        assert!(others.into_iter().all(|kind| tells_holes(Some(kind))) && tells_holes(None));
    }
}
