//! The null device with poll queues.

use super::*;

fn poll(cx: &mut Context) -> Vec<u64> {
    let mut out = BioList::new();
    cx.poll(&mut out);
    out.iter().map(|b| b.user_data).collect()
}

#[test]
fn polled_bios_end_by_polling_only() {
    let mut rig = Rig::new(null(|o| o.poll_queues = 1), Engine::Auto);
    let polled = |sector| {
        let mut bio = read(sector);
        bio.flags = BioFlags::POLLED;
        bio
    };
    rig.submit([polled(1), polled(10), read(20)]);
    let ended: Vec<_> = rig.reap().iter().map(|b| b.user_data).collect();
    assert_eq!(ended, [20], "the one that is not polled");
    assert!(rig.reap().is_empty());
    assert_eq!(poll(&mut rig.cx), [1, 10]);
    rig.device.set_attribute("queue/io_poll", "0").unwrap();
    rig.submit([polled(1)]);
    assert_eq!(rig.reap().len(), 1, "polling is off");
    let mut rig = Rig::new(null(|_| ()), Engine::Auto);
    rig.submit([polled(1)]);
    assert_eq!(rig.reap().len(), 1, "a device without poll queues");
}

/// Two contexts share a poll queue: the one that polls ends the due requests of both, each in its
/// context.
#[test]
fn who_polls_a_shared_queue_completes_for_all() {
    let mut rig = Rig::new(null(|o| o.poll_queues = 1), Engine::Auto);
    let mut other = rig.set.open(Engine::Auto).unwrap();
    let dev = other.open(&rig.device).unwrap();
    let polled = |sector| {
        let mut bio = read(sector);
        bio.flags = BioFlags::POLLED;
        bio
    };
    rig.submit([polled(1), polled(10)]);
    let mut list = BioList::new();
    list.push(polled(20));
    other.submit(dev, &mut list);
    assert!(rig.reap().is_empty());
    assert_eq!(poll(&mut other), [20]);
    let ended: Vec<_> = rig.reap().iter().map(|b| b.user_data).collect();
    assert_eq!(ended, [1, 10], "found by the other, reaped here");
    assert!(poll(&mut rig.cx).is_empty() && poll(&mut other).is_empty());
    assert_eq!(rig.device.stats().in_flight(), (0, 0));
}

fn polled(sector: u64) -> Box<Bio> {
    let mut bio = read(sector);
    bio.flags = BioFlags::POLLED;
    bio
}

/// Polls still find the requests in a poll queue that was removed: those of their context, or of
/// another that still uses the queue. Later requests use the remaining queues, or end by
/// themselves.
#[test]
fn what_is_in_a_poll_queue_that_goes_is_found() {
    let latency = Latency::constant(100_000);
    let driver =
        null(|o| (o.poll_queues, o.irqmode, o.latency) = (2, Completion::Timer, Some(latency)));
    let clock = ManualClock::new(1_000_000);
    let mut rig = Rig::with(driver, &QueueOptions::default(), Engine::Plain, clock.clone());
    let [mut second, mut third] = [(); 2].map(|()| rig.set.open(Engine::Plain).unwrap());
    let submit = |cx: &mut Context, sector| {
        let dev = cx.open(&rig.device).unwrap();
        let mut list = BioList::new();
        list.push(polled(sector));
        cx.submit(dev, &mut list);
    };
    // The first and the third share a queue. Nothing is due, so a poll finds nothing.
    submit(&mut second, 10);
    submit(&mut third, 20);
    rig.device.set_attribute("poll_queues", "1").unwrap();
    submit(&mut second, 11);
    clock.advance(200_000);
    assert!(poll(&mut rig.cx).is_empty());
    assert_eq!(poll(&mut second), [10], "the other one goes to the queue that is left");
    assert_eq!(poll(&mut third), [20]);
    submit(&mut third, 21);
    clock.advance(200_000);
    assert_eq!(
        poll(&mut third),
        [21],
        "a context that shares the queue finds the other for its owner"
    );
    let mut out = BioList::new();
    assert_eq!((second.reap(&mut out), out.pop().unwrap().user_data), (1, 11));
    // No poll queue is left: a poll still finds this request, and the next one ends by itself.
    submit(&mut second, 12);
    rig.device.set_attribute("poll_queues", "0").unwrap();
    clock.advance(200_000);
    assert_eq!(second.reap(&mut out), 0);
    assert_eq!(poll(&mut second), [12]);
    submit(&mut second, 13);
    clock.advance(200_000);
    // The timer ends this one: a wait polls only while polled I/O is in flight.
    second.wait(Some(0));
    assert_eq!((second.reap(&mut out), out.pop().unwrap().user_data), (1, 13));
    rig.device.set_attribute("poll_queues", "5").unwrap();
    submit(&mut second, 14);
    clock.advance(200_000);
    assert_eq!((second.reap(&mut out), poll(&mut second)), (0, vec![14]));
    assert_eq!(rig.device.stats().in_flight(), (0, 0));
}

/// With a latency, polls find requests when they are due, and not before.
#[test]
fn polled_bios_take_their_time() {
    let latency = Some(Latency::constant(10_000));
    let driver = null(|o| (o.poll_queues, o.irqmode, o.latency) = (1, Completion::Timer, latency));
    let clock = ManualClock::new(1_000_000);
    let mut rig = Rig::with(driver, &QueueOptions::default(), Engine::Plain, clock.clone());
    let mut bio = read(7);
    bio.flags = BioFlags::POLLED;
    rig.submit([bio]);
    clock.advance(9_999);
    assert!(poll(&mut rig.cx).is_empty());
    clock.advance(1);
    assert_eq!(poll(&mut rig.cx), [7]);
}

/// A request that nobody polls for is given up after the queue's time-out.
#[test]
fn a_polled_bio_that_nobody_polls_for_is_given_up() {
    let options = QueueOptions { io_timeout_ms: Some(20), ..QueueOptions::default() };
    let clock = drystone_core::clock::SystemClock::new();
    let hour = Some(Latency::constant(3_600_000_000_000));
    let driver = null(|o| (o.poll_queues, o.irqmode, o.latency) = (1, Completion::Timer, hour));
    let mut rig = Rig::with(driver, &options, Engine::Auto, clock);
    let mut bio = read(7);
    bio.flags = BioFlags::POLLED;
    assert_eq!(rig.one(bio).status, Status::Timeout);
    assert_eq!(rig.device.stats().in_flight(), (0, 0));
    assert!(poll(&mut rig.cx).is_empty());
}

#[test]
fn a_polled_bad_block_fails() {
    let driver = null(|o| (o.poll_queues, o.badblocks) = (1, vec![(5, 5)]));
    let mut rig = Rig::new(driver, Engine::Auto);
    let mut bio = read(5);
    bio.flags = BioFlags::POLLED;
    rig.submit([bio]);
    let mut out = BioList::new();
    assert_eq!(rig.cx.poll(&mut out), 1);
    assert_eq!(out.pop().unwrap().status, Status::IoError);
}

/// The holder of the only tag submits and never calls again: its timer's end is in its ring,
/// which the waiter watches.
#[test]
fn a_holder_that_stays_away_keeps_nobody_waiting() {
    for engine in ENGINES {
        let driver = null(|o| {
            (o.irqmode, o.hw_queue_depth) = (Completion::Timer, 1);
            o.latency = Some(Latency::constant(5_000_000));
        });
        let mut holder = Rig::new(driver, engine);
        holder.submit([read(1)]);
        let mut waiter = holder.set.open(engine).unwrap();
        let dev = waiter.open(&holder.device).unwrap();
        for round in 0..3 {
            let mut list = BioList::new();
            list.push(read(round));
            waiter.submit(dev, &mut list);
            let mut out = BioList::new();
            while waiter.reap(&mut out) == 0 {
                waiter.wait(None);
            }
            assert_eq!(out.pop().unwrap().status, Status::Ok);
        }
        assert_eq!(holder.reap().len(), 1, "its own bio waits for it");
    }
}

/// As above, with a thread that completes.
#[test]
fn a_holder_on_the_thread_keeps_nobody_waiting() {
    for engine in ENGINES {
        let driver = null(|o| (o.irqmode, o.hw_queue_depth) = (Completion::Thread, 1));
        let mut holder = Rig::new(driver, engine);
        let mut waiter = holder.set.open(engine).unwrap();
        let dev = waiter.open(&holder.device).unwrap();
        for round in 0..50 {
            holder.submit([read(1)]);
            let mut list = BioList::new();
            list.push(read(round));
            waiter.submit(dev, &mut list);
            let mut out = BioList::new();
            while waiter.reap(&mut out) == 0 {
                waiter.wait(None);
            }
        }
        assert_eq!(holder.drain().len(), 50);
    }
}
