//! Polled I/O through volumes: which way a poller goes, and that it finds what it looks for.

use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::SystemClock;
use drystone_core::context::{Cookie, PollPath};
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status,
};
use drystone_stack::live::{OpenEnv, open_one};
use drystone_stack::{Source, check};

/// A stripe over two devices that complete only when polled, chunks of 4 KiB, below a linear
/// volume.
const STACK: &str = r#"
[device.a]
type = "null"
size = "1MiB"
poll_queues = 1
queue = { io_poll = true }

[device.b]
type = "null"
size = "1MiB"
poll_queues = 1
queue = { io_poll = true }

[device.stripe]
table = "0 4096 striped 2 8 a 0 b 0"

[device.top]
table = "0 4096 linear stripe 0"
"#;

fn open(set: &Arc<ContextSet>, device: &Arc<dyn Device>) -> (Context, ChannelId) {
    let mut cx = set.open(Engine::Plain).unwrap();
    let index = cx.open(device).unwrap();
    (cx, index)
}

fn polled(sector: u64, bytes: usize) -> BioList {
    let mut bio = Bio::read(Sector(sector), IoBuf::zeroed(bytes));
    bio.flags |= BioFlags::POLLED;
    let mut list = BioList::new();
    list.push(bio);
    list
}

fn statuses(list: &BioList) -> Vec<Status> {
    list.iter().map(|bio| bio.status).collect()
}

#[test]
fn a_cookie_leads_to_what_was_submitted() {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let stack = check("s", source, Path::new("/")).unwrap_or_else(|report| panic!("{report}"));
    let at = OpenEnv::new(2, SystemClock::new());
    let (top, _) = open_one(&stack, "top", &at).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(top.attribute("queue/io_poll").as_deref(), Some("1"));
    let set = ContextSet::counted_by(at.locks.clone());
    let (mut cx, dev) = open(&set, &top);
    let (mut other, other_dev) = open(&set, &top);
    let mut out = BioList::new();
    let nothing_yet = |cx: &mut Context| assert_eq!(cx.reap(&mut BioList::new()), 0);

    // Not divided: its queue, at once.
    let one = cx.submit_polled(dev, &mut polled(8, 4096));
    assert_eq!(cx.poll_path(&one), PollPath::Queue);
    nothing_yet(&mut cx);
    // The queue of another bio is not looked at.
    let elsewhere = cx.submit_polled(dev, &mut polled(0, 4096));
    assert_eq!(cx.poll_for(&elsewhere, &mut out), 1);
    assert_eq!(out.pop().unwrap().sector, Sector(0));
    assert_eq!((cx.poll_for(&one, &mut out), statuses(&out)), (1, vec![Status::Ok]));
    assert_eq!(out.take().pop().unwrap().sector, Sector(8), "as it was submitted");

    // Divided over both: the queues of this context.
    let two = cx.submit_polled(dev, &mut polled(4, 4096));
    assert_eq!(cx.poll_path(&two), PollPath::Context);
    nothing_yet(&mut cx);
    assert_eq!(cx.poll_for(&two, &mut out.take()), 1);

    // By another context: it is visited, and finds its bios reaped when it comes back.
    let theirs = cx.submit_polled(dev, &mut polled(8, 4096));
    assert_eq!(other.poll_path(&theirs), PollPath::Other);
    assert_eq!(other.poll_for(&theirs, &mut out), 0);
    assert_eq!(cx.reap(&mut out), 1);

    // Nothing to poll for: written by hand of a bio that ends as it is submitted.
    let mut list = BioList::new();
    list.push(Bio::read(Sector(1 << 40), IoBuf::zeroed(512)));
    let none: Cookie = other.submit_polled(other_dev, &mut list);
    assert_eq!(other.poll_path(&none), PollPath::None);
    assert_eq!(other.poll_for(&none, &mut out), 1);

    // A cookie of a context that is gone leads nowhere, also for its number's next owner.
    let old = cx.submit_polled(dev, &mut polled(0, 4096));
    assert_eq!(cx.poll_for(&old, &mut out), 1);
    drop(cx);
    let (mut next, _) = open(&set, &top);
    assert_eq!((next.poll_path(&old), next.poll_for(&old, &mut out)), (PollPath::Other, 0));
    assert_eq!(other.poll_for(&old, &mut out), 0);
}

/// I/O in flight when polling ends is still found by polling; later I/O ends by itself.
#[test]
fn io_in_flight_completes_when_polling_ends_below() {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let stack = check("s", source, Path::new("/")).unwrap_or_else(|report| panic!("{report}"));
    let at = OpenEnv::new(1, SystemClock::new());
    let (lower, _) = open_one(&stack, "a", &at).unwrap_or_else(|report| panic!("{report}"));
    let set = ContextSet::counted_by(at.locks.clone());
    let (mut cx, dev) = open(&set, &lower);
    let mut out = BioList::new();
    let cookie = cx.submit_polled(dev, &mut polled(0, 4096));
    lower.set_attribute("queue/io_poll", "0").unwrap();
    let later = cx.submit_polled(dev, &mut polled(8, 4096));
    assert_eq!(cx.poll_path(&later), PollPath::None);
    assert_eq!((cx.reap(&mut out), statuses(&out)), (1, vec![Status::Ok]));
    assert_eq!(cx.poll_for(&cookie, &mut out), 1);
}
