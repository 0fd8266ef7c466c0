//! No field that the I/O path writes shares a cache line with another context's fields.

use crate::channel::RequestChannel;
use crate::request::Request;
use crate::tags::TagSet;
use crossbeam_utils::CachePadded;
use drystone_core::context::Handle;
use drystone_core::stats::ChannelStats;

const LINE: usize = 64;

/// Values of the type begin on a cache line and fill whole lines, so they share none with others.
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
    // The tag sets of a device's hardware queues lie side by side.
    alone::<CachePadded<TagSet>>();
}
