//! Why a part comes back to its channel by its end_io hook: written into its `user_data`, which is
//! of no other use there.

use drystone_core::{Bio, ChannelId};

/// Why a part comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndIo {
    /// A flush, which the data of its write follows.
    Preflush,
    /// A part of the `flakey` segment of that number, whose data are changed.
    Corrupt(u32),
    /// Goes into a log when it has ended: entry of that number in `Logging`.
    Log(u32),
    /// A write to a log, for the entry of that number.
    LogWrite(u32),
}

/// Marks parts that are made here: no submitter's range holds it
/// ([`drystone_core::Context::withdraw`]).
const MINE: u64 = 1 << 63;
/// Where the kind stands, above the number.
const KIND_SHIFT: u32 = 32;

impl EndIo {
    /// Have channel `channel` get `part` back when it has ended.
    pub(super) fn set(self, channel: ChannelId, part: &mut Bio) {
        part.user_data = self.encode();
        part.set_end_io(channel);
    }

    /// Why `part` has come back.
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
