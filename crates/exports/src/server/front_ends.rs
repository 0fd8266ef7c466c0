//! The table of all front ends: the one place that names them.
//!
//! A new front end is a folder with a type that implements [`FrontEnd`], a [`Tag`] of its own, and
//! a line in the table at the end of this file. [`FrontEnds`] is all front ends of a worker as one:
//! the worker knows no other.
//!
//! Invariants:
//! * A front end puts its [`Tag`] into the values of its operations on the ring and into the
//!   `user_data` of its bios. The table finds the front end of an ended operation by that tag.
//! * Calls are resolved at compile time: no I/O goes through a pointer.

use super::front_end::{FrontEnd, Work};
use super::tag::{FUSE, NBD, Tag};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use drystone_core::ring::RingEvent;

/// Generates all code that depends on the set of front ends, from one line for each.
macro_rules! front_ends {
    ($($(#[$doc:meta])* $tag:ident, $field:ident: $type:ty, $name:ident($arrival:ty);)*) => {
        /// An arrival in a worker's inbox, by the front end that takes it.
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

            fn begin_busy_poll(&mut self) -> Option<Ns> {
                [$(self.$field.begin_busy_poll()),*].into_iter().flatten().max()
            }

            fn busy_poll(&mut self, work: &mut Work) -> bool {
                [$(self.$field.busy_poll(work)),*].contains(&true)
            }

            fn end_busy_poll(&mut self) {
                $(self.$field.end_busy_poll();)*
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
                    Tag(number) => unreachable!("an event of front end {number}, which there is \
                        not"),
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
    };
}

// A line: the front end's tag (`tag.rs`), the field with its part of a worker, and the variant of
// `Arrival` with the arrivals that it takes.
front_ends! {
    /// NBD: listeners, and connections that were accepted.
    NBD, nbd: crate::nbd::server::Connections, Nbd(crate::nbd::server::Arrival);
    /// FUSE: sessions of mounts.
    FUSE, fuse: crate::fuse::server::Sessions, Fuse(crate::fuse::server::Incoming);
}
