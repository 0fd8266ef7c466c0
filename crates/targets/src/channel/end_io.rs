//! The reason why a part returns to its channel by its end_io hook. It is stored in the part's
//! `user_data`, which has no other use there.

use drystone_core::{Bio, ChannelId};

/// The reason why a part returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndIo {
    /// The part is a flush; the data of its write follows.
    Preflush,
    /// The part is of the `flakey` segment with that number, which changes its data.
    Corrupt(u32),
    /// The part goes into a log when it has ended; the number is that of its entry in `Logging`.
    Log(u32),
    /// The part is a write to a log, for the entry with that number.
    LogWrite(u32),
}

/// Marks parts that a volume made: they are in no range of a submitter's `user_data`
/// ([`drystone_core::Context::withdraw`]).
const MINE: u64 = 1 << 63;
/// The position of the kind, above the number.
const KIND_SHIFT: u32 = 32;

impl EndIo {
    /// Have channel `channel` get `part` back when it ends.
    pub(super) fn set(self, channel: ChannelId, part: &mut Bio) {
        part.user_data = self.encode();
        part.set_end_io(channel);
    }

    /// The reason why `part` has returned.
    pub(super) fn of(part: &Bio) -> Self {
        Self::decode(part.user_data)
    }

    fn encode(self) -> u64 {
        let (kind, number) = match self {
            EndIo::Preflush => (0, 0),
            EndIo::Corrupt(number) => (1, number),
            EndIo::Log(entry) => (2, entry),
            EndIo::LogWrite(entry) => (3, entry),
        };
        MINE | kind << KIND_SHIFT | u64::from(number)
    }

    fn decode(user_data: u64) -> Self {
        let number = user_data as u32;
        match (user_data ^ MINE) >> KIND_SHIFT {
            1 => EndIo::Corrupt(number),
            2 => EndIo::Log(number),
            3 => EndIo::LogWrite(number),
            _ => EndIo::Preflush,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_why_it_comes_back() {
        for end_io in [
            EndIo::Preflush,
            EndIo::Corrupt(0),
            EndIo::Corrupt(u32::MAX),
            EndIo::Log(7),
            EndIo::LogWrite(u32::MAX),
        ] {
            let user_data = end_io.encode();
            assert_eq!(EndIo::decode(user_data), end_io);
            assert_ne!(user_data & MINE, 0, "no submitter's range holds it");
        }
    }
}
