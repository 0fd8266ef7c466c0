//! No field that is written on the way of an I/O shares a cache line with another context's.

use crate::channel::RequestChannel;
use crate::request::Request;
use crate::tags::TagSet;
use crossbeam_utils::CachePadded;
use drystone_core::context::Handle;
use drystone_core::stats::ChannelStats;

const LINE: usize = 64;

/// A type whose values begin on a line and fill whole lines shares none with its neighbours.
fn alone<T>() {
    let name = std::any::type_name::<T>();
    assert!(align_of::<T>() >= LINE, "{name} begins at multiples of {}", align_of::<T>());
    assert_eq!(size_of::<T>() % LINE, 0, "{name}");
}

#[test]
fn what_a_context_writes_stands_alone() {
    alone::<Handle>();
    alone::<RequestChannel<super::Fake>>();
    alone::<Request>();
    alone::<ChannelStats>();
}

#[test]
fn words_of_tags_stand_alone() {
    let set = TagSet::new(64);
    let mut addresses = set.word_addresses();
    addresses.sort_unstable();
    assert_eq!(addresses.len(), 4);
    assert!(addresses.windows(2).all(|w| w[1] - w[0] >= LINE));
    let header = std::ptr::from_ref(&set).addr();
    let far = |a: &usize| a.abs_diff(header) >= size_of::<TagSet>() || *a < header;
    assert!(addresses.iter().all(far), "words are not in the set's own lines");
    // The sets of a queue's hardware queues lie side by side.
    alone::<CachePadded<TagSet>>();
}
