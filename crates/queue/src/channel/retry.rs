//! Retries of the bios of a failed request, one by one, so that only the bios fail whose own
//! sectors cannot be read or written.
//!
//! Invariants:
//! * A bio is retried at most once, because a retried bio does not merge.
//! * A request that succeeds runs none of this code.

use drystone_core::{BioFlags, BioList, Status, mistake};

/// True if `status` concerns some sectors of a request, so that other sectors may be good. Any
/// other status concerns the whole device or operation: a retry would fail again, or take as long
/// again.
fn is_of_sectors(status: Status) -> bool {
    matches!(status, Status::Medium | Status::IoError | Status::Protection)
}

/// Prepare the bios of a failed request for one retry each. False if they must end with `status`.
pub(crate) fn prepare_retry(bios: &mut BioList, status: Status) -> bool {
    if bios.len() < 2 || !is_of_sectors(status) || mistake!("merge_fails_whole") {
        return false;
    }
    bios.set_flags(BioFlags::NOMERGE, true);
    // The bios had a tag once, so they may wait now; and the retry may use another queue.
    bios.set_flags(BioFlags::NOWAIT | BioFlags::POLLED, false);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::{Bio, IoBuf, Sector};

    fn reads(number: u64) -> BioList {
        let mut list = BioList::new();
        list.extend((0..number).map(|at| Bio::read(Sector(at), IoBuf::zeroed(512))));
        list
    }

    #[test]
    fn bios_are_retried_once_and_only_where_others_may_be_good() {
        let mut bios = reads(2);
        bios.set_flags(BioFlags::NOWAIT, true);
        assert!(!prepare_retry(&mut bios, Status::NoSpace), "the whole device");
        assert!(prepare_retry(&mut bios, Status::Medium));
        assert!(bios.iter().all(|bio| bio.flags == BioFlags::NOMERGE), "alone, and they may wait");
        assert!(!prepare_retry(&mut reads(1), Status::Medium), "it was alone already");
    }
}
