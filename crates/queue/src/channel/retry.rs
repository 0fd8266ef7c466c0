//! Retries of the bios of a failed request, each by itself: so only those bios fail whose own
//! sectors cannot be read or written.
//!
//! Invariants:
//! * A bio is tried again at most once: it merges with nothing afterwards.
//! * Nothing of this is on the way of a request that succeeds.

use drystone_core::{BioFlags, BioList, Status, mistake};

/// True if `status` tells of some sectors of a request, so that others may be good. Each other
/// status tells of the whole device or operation: a retry would fail again, or take as long again.
fn is_of_sectors(status: Status) -> bool {
    matches!(status, Status::Medium | Status::IoError | Status::Protection)
}

/// Prepare the bios of a failed request for a retry of each. False if they end with `status`.
pub(crate) fn prepare_retry(bios: &mut BioList, status: Status) -> bool {
    if bios.len() < 2 || !is_of_sectors(status) || mistake!("merge_fails_whole") {
        return false;
    }
    bios.set_flags(BioFlags::NOMERGE, true);
    // A tag was found for them once, so they may wait now; and they may go to another queue.
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
