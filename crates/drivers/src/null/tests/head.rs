//! The null device with a head that moves.

use super::*;

/// A time that the kernel's clock does not reach: timers go by the clock that the test moves.
const START: u64 = 1 << 60;

/// A disk of 1 MiB (2048 sectors): 100 ns an I/O; the head takes 1000 to 17000 ns.
fn disk(depth: u32) -> Null {
    null(|o| {
        (o.irqmode, o.hw_queue_depth) = (Completion::Timer, depth);
        (o.write_cache, o.latency) = (true, Some(Latency::constant(100)));
        o.seek = Some(Seek { min_ns: 1_000, max_ns: 17_000 });
    })
}

fn disk_rig(depth: u32) -> (Rig, std::sync::Arc<ManualClock>) {
    let clock = ManualClock::new(START);
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::None),
        nomerges: Some(2),
        ..QueueOptions::default()
    };
    (Rig::with(disk(depth), &options, Engine::Plain, clock.clone()), clock)
}

/// Moves the clock to each of `ends` (ns after the start), with a sector that ends just then and
/// not a nanosecond before.
fn ends_at(rig: &mut Rig, clock: &ManualClock, ends: &[(u64, u64)]) {
    for (at, sector) in ends {
        clock.advance(START + at - 1 - clock.now());
        assert!(rig.reap().is_empty(), "sector {sector} before {at}");
        clock.advance(1);
        let ended: Vec<_> = rig.reap().iter().map(|b| b.user_data).collect();
        assert_eq!(ended, [*sector], "at {at}");
    }
}

#[test]
fn a_head_takes_longer_the_farther_it_goes() {
    // With one tag a request comes when the previous one ends; with four they come together.
    for depth in [1, 4] {
        let (mut rig, clock) = disk_rig(depth);
        // A quarter of the 2048 sectors, none (513 is where the first one ended), a 16th back,
        // and a 256th.
        rig.submit([512, 513, 514 - 128, 387 + 8].map(read));
        let roots = [0.5, 0.25, 0.0625].map(|share: f64| 1_000 + (16_000.0 * share) as u64);
        let first = 100 + roots[0];
        let third = first + 100 + 100 + roots[1];
        let ends = [(first, 512), (first + 100, 513), (third, 386), (third + 100 + roots[2], 395)];
        ends_at(&mut rig, &clock, &ends);
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}

#[test]
fn a_head_rests_between_requests_and_serves_one_at_a_time() {
    let (mut rig, clock) = disk_rig(64);
    rig.submit([read(0)]);
    ends_at(&mut rig, &clock, &[(100, 0)]);
    // A later request begins when it comes, from where the previous one left the head.
    clock.advance(900);
    rig.submit([read(1)]);
    ends_at(&mut rig, &clock, &[(1_100, 1)]);
    // Three requests come together, and each begins when the previous one has ended; a flush moves
    // nothing.
    rig.submit([read(4)]);
    rig.submit([Bio::flush()]);
    rig.submit([read(5)]);
    let way = 1_000 + 500;
    let read = 1_100 + way + 100;
    let flush = Bio::flush().user_data;
    ends_at(&mut rig, &clock, &[(read, 4), (read + 100, flush), (read + 200, 5)]);
}

#[test]
fn the_queues_of_a_device_share_its_head() {
    let (mut one, clock) = disk_rig(64);
    let mut two = one.set.open(Engine::Plain).unwrap();
    let dev = two.open(&one.device).unwrap();
    one.submit([read(0)]);
    let mut list = BioList::new();
    list.push(read(1));
    two.submit(dev, &mut list);
    clock.advance(199);
    assert_eq!((one.reap().len(), two.reap(&mut list)), (1, 0), "the other waits for the head");
    clock.advance(1);
    assert_eq!(two.reap(&mut list), 1, "and has no way to go");
}

#[test]
fn a_disk_with_a_head_gets_the_scheduler() {
    let rig = Rig::with(disk(1), &QueueOptions::default(), Engine::Auto, ManualClock::new(1));
    let value = |name: &str| rig.device.attribute(name).unwrap();
    assert_eq!(value("queue/rotational"), "1");
    assert_eq!(value("queue/scheduler"), "none [mq-deadline]");
    assert_eq!(value("queue/iosched/straight"), "0");
    assert_eq!([value("seek_min_nsec"), value("seek_max_nsec")], ["1000", "17000"]);
    let plain = Rig::new(null(|_| ()), Engine::Auto);
    assert_eq!(plain.device.attribute("queue/rotational").unwrap(), "0");
    assert_eq!(plain.device.attribute("queue/scheduler").unwrap(), "[none] mq-deadline");
}
