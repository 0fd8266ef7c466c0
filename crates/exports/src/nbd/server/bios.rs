//! Bios for requests: their flags and ranges.

use crate::nbd::proto::CommandFlags;
use crate::nbd::request::Request;
use crate::server::Pool;
use drystone_core::{Bio, BioFlags, Op as BioOp, Sector};
use std::ops::Range;

/// The flags of a bio that writes for `request`.
pub(super) fn write_flags(request: &Request) -> BioFlags {
    let mut flags = BioFlags::empty();
    flags.set(BioFlags::FUA, request.flags.contains(CommandFlags::FUA));
    flags.set(BioFlags::NOUNMAP, request.flags.contains(CommandFlags::NO_HOLE));
    flags.set(BioFlags::FAST_ZERO, request.flags.contains(CommandFlags::FAST_ZERO));
    flags
}

/// Gives a bio that was not submitted back, with its buffer.
pub(super) fn give_back(bio: Box<Bio>, pool: &mut Pool) {
    let buf = pool.give_bio(bio);
    buf.into_iter().for_each(|buf| pool.give(buf));
}

/// The bytes that a bio is for.
pub(super) fn range_of(bio: &Bio) -> Range<u64> {
    let start = bio.sector.bytes();
    start..start + bio.bytes
}

/// A bio without data, with the request's flags.
pub(super) fn bare(request: &Request, kind: BioOp, range: Range<u64>, pool: &mut Pool) -> Box<Bio> {
    let mut bio = pool.bio();
    bio.op = kind;
    bio.flags = write_flags(request);
    bio.sector = Sector::from_bytes(range.start);
    bio.bytes = range.end - range.start;
    bio
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::proto::Command;
    use crate::nbd::request::ContextSet;

    #[test]
    fn each_flag_of_a_request_becomes_that_of_its_bio() {
        let flags = [
            (CommandFlags::FUA, BioFlags::FUA),
            (CommandFlags::NO_HOLE, BioFlags::NOUNMAP),
            (CommandFlags::FAST_ZERO, BioFlags::FAST_ZERO),
            (CommandFlags::DF, BioFlags::empty()),
        ];
        for (flags, wanted) in flags {
            let (command, contexts) = (Command::WriteZeroes, ContextSet::default());
            let request = Request { command, flags, contexts, cookie: 1, offset: 0, length: 512 };
            assert_eq!(write_flags(&request), wanted);
        }
    }

    #[test]
    fn the_range_of_a_bio_is_in_bytes() {
        let mut bio = Bio::flush();
        (bio.sector, bio.bytes) = (Sector(3), 1024);
        assert_eq!(range_of(&bio), 1536..2560);
    }
}
