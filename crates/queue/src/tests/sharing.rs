//! Several contexts on one tag set.

use super::*;

fn submit_one(cx: &mut Context, dev: ChannelId, sector: u64) {
    let mut list = BioList::new();
    list.push(read(sector, 1));
    cx.submit(dev, &mut list);
}

/// Reap each of the two contexts once.
fn both(a: &mut Context, b: &mut Context) -> (usize, usize) {
    (ended(a).len(), ended(b).len())
}

#[test]
fn a_greedy_context_does_not_starve_a_modest_one() {
    for depth in [1, 2, 4, 8] {
        let mut rig = Rig::new(Setup::depth(depth));
        rig.stage.otherwise(Answer::Hold);
        let (mut modest, dev) = rig.another();
        rig.submit((0..1000).map(|i| read(i * 10, 1)));
        let (mut served, mut others, mut longest) = (0, 0, 0);
        submit_one(&mut modest, dev, 5);
        // The bound: a waiting bio is issued after the requests that have the tags when it comes,
        // and after those that were promised to the greedy context before. So it ends within two
        // turns of all tags.
        let bound = 2 * depth as usize + 1;
        for _ in 0..400 {
            assert!(rig.stage.give_back(0, Status::Ok), "a tag is idle while bios wait");
            let (greedy, got) = both(&mut rig.cx, &mut modest);
            others += greedy;
            if got > 0 {
                (served, others, longest) = (served + 1, 0, longest.max(others));
                submit_one(&mut modest, dev, 5);
            }
            assert!(others <= bound, "depth {depth}: {others} greedy ones in between");
        }
        assert!(served * (bound + 1) >= 390, "depth {depth}: {served} of 400");
        rig.device.set_attribute("queue/iostats", "1").unwrap();
        while rig.stage.give_back(0, Status::Ok) {
            both(&mut rig.cx, &mut modest);
        }
        assert_eq!((rig.cx.outstanding(), modest.outstanding()), (0, 0), "nothing is lost");
    }
}

/// The gates of a context that is the only user of its tags: it goes on by its own completions,
/// without messages.
#[test]
fn a_lone_context_does_not_line_up_for_its_own_tags() {
    let mut rig = Rig::new(Setup::depth(4));
    rig.stage.otherwise(Answer::Hold);
    let locks = rig.cx.locks().total().acquisitions;
    rig.submit((0..100).map(|i| read(i * 10, 1)));
    for _ in 0..50 {
        assert!(rig.stage.give_back(0, Status::Ok));
        assert_eq!(rig.ended().len(), 1);
        assert_eq!(rig.stage.held(), 4, "no tag is idle");
    }
    assert_eq!(rig.cx.locks().total().acquisitions, locks, "nobody was queued or woken");
    // Another context joins: from the next completion on both wait in line.
    let (mut other, dev) = rig.another();
    submit_one(&mut other, dev, 5);
    let mut turns = 0;
    while ended(&mut other).is_empty() {
        assert!(rig.stage.give_back(0, Status::Ok));
        rig.ended();
        turns += 1;
        assert!(turns <= 9, "the newcomer waits for two turns of all tags at most");
    }
    // It leaves again: the remaining context goes on alone.
    drop(other);
    while rig.stage.give_back(0, Status::Ok) {
        rig.ended();
    }
    assert_eq!(rig.cx.outstanding(), 0);
}

#[test]
fn order_holds_within_each_context() {
    let mut rig = Rig::new(Setup::depth(2));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    for i in 0..50 {
        rig.submit([read(i * 10, 1)]);
        submit_one(&mut other, dev, i * 10 + 5);
    }
    while rig.stage.give_back(0, Status::Ok) {
        both(&mut rig.cx, &mut other);
    }
    let seen = rig.stage.seen();
    for context in [rig.cx.id().0, other.id().0] {
        let own: Vec<_> = seen.iter().filter(|s| s.context == context).map(|s| s.sector).collect();
        assert_eq!(own.len(), 50);
        assert!(own.is_sorted(), "{own:?}");
    }
}

#[test]
fn a_waiter_that_is_dropped_passes_its_turn_on() {
    let mut rig = Rig::new(Setup::depth(1));
    rig.stage.otherwise(Answer::Hold);
    let (mut quitter, dev) = rig.another();
    let (mut patient, dev2) = rig.another();
    rig.submit([read(0, 1)]);
    submit_one(&mut quitter, dev, 1);
    submit_one(&mut patient, dev2, 2);
    drop(quitter);
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended().len(), 1);
    assert_eq!(rig.set.free_idle_orphans(), 0, "the one that gave up is gone");
    assert!(rig.stage.give_back(0, Status::Ok), "the patient one has the tag");
    assert_eq!(ended(&mut patient), [(2, Status::Ok)]);
    assert_eq!(rig.taken(), [(0, 512), (2, 512)], "the bio of the one that gave up was never sent");
}

#[test]
fn contexts_with_queues_of_their_own_do_not_wait() {
    let hw = crate::HwQueues { default: 2, poll: 0, depth: 1 };
    let mut rig = Rig::new(Setup { hw, ..Setup::depth(1) });
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit([read(0, 1)]);
    submit_one(&mut other, dev, 1);
    assert_eq!(rig.taken().len(), 2);
    rig.stage.give_back(1, Status::Ok);
    assert_eq!(both(&mut rig.cx, &mut other), (0, 1));
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(both(&mut rig.cx, &mut other), (1, 0));
}

#[test]
fn a_plug_holds_no_tags() {
    let mut rig = Rig::new(Setup::depth(1));
    let (mut other, dev) = rig.another();
    rig.cx.start_plug();
    rig.submit([read(0, 1)]);
    submit_one(&mut other, dev, 1);
    assert_eq!(ended(&mut other), [(1, Status::Ok)]);
}

/// The holder of the tag submits and then stays away. The driver gives the holder's request back,
/// and the waiter, which only waits, gets the tag.
#[test]
fn a_holder_that_stays_away_keeps_nobody_waiting() {
    for engine in ENGINES {
        let mut rig = Rig::with(Setup::depth(1), &QueueOptions::default(), engine);
        rig.stage.next(Answer::Hold);
        rig.submit([read(0, 1)]);
        let mut waiter = rig.set.open(engine).expect("a ring");
        let dev = waiter.open(&rig.device).expect("a channel");
        submit_one(&mut waiter, dev, 1);
        let stage = rig.stage.clone();
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut got = Vec::new();
                while got.is_empty() {
                    waiter.wait(None);
                    got = ended(&mut waiter);
                }
                assert_eq!(got, [(1, Status::Ok)]);
            });
            // This stands for the thread of the device.
            stage.give_back(0, Status::Ok);
        });
        assert_eq!(rig.ended(), [(0, Status::Ok)], "the holder finds its bio when it comes back");
    }
}

#[test]
fn many_threads_on_few_tags_lose_nothing() {
    const EACH: u64 = 2_000;
    let mut rig = Rig::new(Setup::depth(2));
    let contexts: Vec<_> = (0..4).map(|_| rig.another()).collect();
    std::thread::scope(|s| {
        for (mut cx, dev) in contexts {
            s.spawn(move || {
                let (mut submitted, mut reaped) = (0, 0);
                while reaped < EACH {
                    while submitted < EACH && submitted - reaped < 16 {
                        submit_one(&mut cx, dev, submitted * 10);
                        submitted += 1;
                    }
                    let got = ended(&mut cx);
                    assert!(got.iter().all(|(_, status)| status.is_ok()));
                    reaped += got.len() as u64;
                    if got.is_empty() {
                        cx.wait(None);
                    }
                }
            });
        }
    });
    assert_eq!(rig.device.stats().group(drystone_core::op::OpGroup::Read).completed, 4 * EACH);
    assert!(rig.ended().is_empty());
}
