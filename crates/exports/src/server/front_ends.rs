//! The table of all front ends: the one place that names them.
//!
//! Whoever writes a front end makes a folder with a type that implements [`FrontEnd`], and adds a line to the table
//! at the end of this file. All front ends of a worker together are one again, [`FrontEnds`]: the worker
//! knows no other.
//!
//! Invariants:
//! * A front end marks what it starts with its [`Tag`]: the values of its operations on the ring, and the
//!   `user_data` of its bios. By that it gets back what has ended.
//! * Calls are resolved when this is compiled: nothing on the way of an I/O goes by a pointer.

use super::worker::{FrontEnd, Work};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use drystone_core::ring::RingEvent;

/// Whose an operation on the ring or a bio is: the number of a front end, in the upper 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

/// Bits of a ring event's value that are the front end's own; a value has 4 more.
const EVENT_BITS: u32 = 44;
/// The same of the `user_data` of a bio.
const BIO_BITS: u32 = 60;

impl Tag {
    /// The bits that it has in the value of an operation on the ring.
    pub(crate) const fn event(self) -> u64 {
        self.0 << EVENT_BITS
    }

    /// The bits that it has in the `user_data` of a bio.
    pub(crate) const fn bio(self) -> u64 {
        self.0 << BIO_BITS
    }

    /// What its front end has put into the value of an operation.
    pub(crate) const fn rest_of_event(value: u64) -> u64 {
        value & ((1 << EVENT_BITS) - 1)
    }

    /// What its front end has put into the `user_data` of a bio.
    pub(crate) const fn rest_of_bio(user_data: u64) -> u64 {
        user_data & ((1 << BIO_BITS) - 1)
    }

    const fn of_event(value: u64) -> Tag {
        Tag(value >> EVENT_BITS)
    }

    const fn of_bio(user_data: u64) -> Tag {
        Tag(user_data >> BIO_BITS)
    }
}

/// Makes all that depends on how many front ends there are out of one line for each.
macro_rules! front_ends {
    ($($(#[$doc:meta])* $tag:ident = $number:literal, $field:ident: $type:ty, $name:ident($arrival:ty);)*) => {
        $($(#[$doc])* pub(crate) const $tag: Tag = Tag($number);)*

        /// What comes through a worker's door, and which front end it is for.
        pub enum Arrival {
            $($(#[$doc])* $name(Box<$arrival>),)*
        }

        $(impl From<$arrival> for Arrival {
            fn from(arrival: $arrival) -> Self {
                Arrival::$name(Box::new(arrival))
            }
        })*

        /// All front ends of a worker.
        #[derive(Default)]
        pub(super) struct FrontEnds {
            $($field: $type,)*
        }

        impl FrontEnd for FrontEnds {
            type Arrival = Arrival;

            fn is_empty(&self) -> bool {
                $(self.$field.is_empty())&&*
            }

            fn deadline(&self) -> Option<Ns> {
                [$(self.$field.deadline()),*].into_iter().flatten().min()
            }

            fn begin_look(&mut self) -> Option<Ns> {
                [$(self.$field.begin_look()),*].into_iter().flatten().max()
            }

            fn look(&mut self, work: &mut Work) -> bool {
                [$(self.$field.look(work)),*].contains(&true)
            }

            fn end_look(&mut self) {
                $(self.$field.end_look();)*
            }

            fn begin_wait(&mut self, work: &mut Work) {
                $(self.$field.begin_wait(work);)*
            }

            #[inline]
            fn begin_round(&mut self, work: &mut Work) {
                $(self.$field.begin_round(work);)*
            }

            fn admit(&mut self, work: &mut Work, arrival: Arrival) {
                match arrival {
                    $(Arrival::$name(arrival) => self.$field.admit(work, *arrival),)*
                }
            }

            #[inline]
            fn handle(&mut self, work: &mut Work, event: RingEvent) {
                match Tag::of_event(event.token.value()) {
                    $($tag => self.$field.handle(work, event),)*
                    Tag(number) => unreachable!("an event of front end {number}, which there is not"),
                }
            }

            #[inline]
            fn completed(&mut self, bio: Box<Bio>) {
                match Tag::of_bio(bio.user_data) {
                    $($tag => self.$field.completed(bio),)*
                    Tag(number) => unreachable!("a bio of front end {number}, which there is not"),
                }
            }

            #[inline]
            fn collected(&mut self, work: &mut Work) {
                $(self.$field.collected(work);)*
            }

            #[inline]
            fn has_work(&self) -> bool {
                $(self.$field.has_work())||*
            }

            #[inline]
            fn advance(&mut self, work: &mut Work) {
                $(self.$field.advance(work);)*
            }

            fn begin_stop(&mut self, work: &mut Work) {
                $(self.$field.begin_stop(work);)*
            }

            fn abort(&mut self, work: &mut Work) {
                $(self.$field.abort(work);)*
            }
        }

        #[cfg(test)]
        const TAGS: &[Tag] = &[$($tag),*];
    };
}

// A line: the front end's tag and number (0 to 15, no other's), the field with its part of a worker, and the variant
// of `Arrival` with what comes to it.
front_ends! {
    /// NBD: listeners, and connections that were accepted.
    NBD = 0, nbd: crate::nbd::server::Connections, Nbd(crate::nbd::server::Arrival);
    /// FUSE: sessions of mounts.
    FUSE = 1, fuse: crate::fuse::server::Sessions, Fuse(crate::fuse::server::Incoming);
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
