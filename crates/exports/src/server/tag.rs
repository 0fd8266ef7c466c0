//! Tags: the bits by which the worker finds the front end of a ring event or a bio.
//!
//! Invariants:
//! * Each front end has a tag of its own; numbers are given in order from 0.
//! * The upper 4 bits of a value are the tag. The lower bits belong to the front end.

/// NBD: listeners, and connections that were accepted.
pub(crate) const NBD: Tag = Tag(0);
/// FUSE: sessions of mounts.
pub(crate) const FUSE: Tag = Tag(1);
/// All tags, each at the place of its number.
#[cfg(test)]
const TAGS: [Tag; 2] = [NBD, FUSE];

/// The number of a front end, 0 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub(super) u64);

/// Bits of a ring event's value that belong to the front end; a value has 4 more.
const EVENT_BITS: u32 = 44;
/// Bits of a bio's `user_data` that belong to the front end; it has 4 more.
const BIO_BITS: u32 = 60;

impl Tag {
    /// The tag's bits in the value of an operation on the ring.
    pub(crate) const fn event(self) -> u64 {
        self.0 << EVENT_BITS
    }

    /// The tag's bits in the `user_data` of a bio.
    pub(crate) const fn bio(self) -> u64 {
        self.0 << BIO_BITS
    }

    /// The front end's own bits of an operation's value.
    pub(crate) const fn rest_of_event(value: u64) -> u64 {
        value & ((1 << EVENT_BITS) - 1)
    }

    /// The front end's own bits of a bio's `user_data`.
    pub(crate) const fn rest_of_bio(user_data: u64) -> u64 {
        user_data & ((1 << BIO_BITS) - 1)
    }

    /// The tag of the front end that started the operation with this value.
    pub(super) const fn of_event(value: u64) -> Tag {
        Tag(value >> EVENT_BITS)
    }

    /// The tag of the front end that submitted the bio with this `user_data`.
    pub(super) const fn of_bio(user_data: u64) -> Tag {
        Tag(user_data >> BIO_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_front_end_gets_back_what_is_its_own() {
        for (number, tag) in TAGS.iter().enumerate() {
            assert_eq!(tag.0, number as u64, "numbers are given in order, each once");
            assert!(tag.0 < 1 << (u64::BITS - BIO_BITS));
            let (event, bio) = ((1 << EVENT_BITS) - 1, (1 << BIO_BITS) - 1);
            for own in [0, 1, event / 3, event] {
                let value = tag.event() | own;
                assert_eq!((Tag::of_event(value), Tag::rest_of_event(value)), (*tag, own));
            }
            for own in [0, 1, bio / 3, bio] {
                let user_data = tag.bio() | own;
                assert_eq!((Tag::of_bio(user_data), Tag::rest_of_bio(user_data)), (*tag, own));
            }
        }
    }
}
