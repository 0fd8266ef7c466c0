//! What a part was hooked for that comes back to its channel: written into its `user_data`, which
//! is of no other use there.

use drystone_core::Bio;

/// Why a part comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hooked {
    /// A flush, which the data of its write follows.
    FlushFirst,
    /// Sent while a `flakey` segment, of that number, was down.
    Flakey(u32),
    /// Goes into a log when it has ended; its place in the channel's `logging`.
    Logged(u32),
    /// Written to a log, for whoever is in that place.
    LogWrite(u32),
}

/// Marks parts that are made here: no submitter's range holds it
/// ([`drystone_core::Context::withdraw`]).
const MINE: u64 = 1 << 63;
/// Where the kind stands, above the number.
const KIND_SHIFT: u32 = 32;

impl Hooked {
    /// Have channel `channel` see the end of `part`.
    pub(super) fn hook(self, channel: u32, part: &mut Bio) {
        let (kind, number) = match self {
            Hooked::FlushFirst => (0, 0),
            Hooked::Flakey(number) => (1, number),
            Hooked::Logged(place) => (2, place),
            Hooked::LogWrite(place) => (3, place),
        };
        part.user_data = MINE | kind << KIND_SHIFT | u64::from(number);
        part.set_end_io(channel);
    }

    /// Why `part`, which has come back, was hooked.
    pub(super) fn of(part: &Bio) -> Self {
        let number = part.user_data as u32;
        match (part.user_data ^ MINE) >> KIND_SHIFT {
            1 => Hooked::Flakey(number),
            2 => Hooked::Logged(number),
            3 => Hooked::LogWrite(number),
            _ => Hooked::FlushFirst,
        }
    }
}
