//! What messages lead to that are served.

use super::super::super::proto::{
    Features, GuestAddress, Inflight, InflightReply, LogArea, ProtocolFeatures, Region, Reply,
    Request, UserAddress, VringAddresses,
};
use super::super::{Action, InflightShape, Offer, QueueIndex, QueueStart, Step};
use super::{FrontEnd, acknowledged, addresses, config, inflight, numbers, region, table, words};
use std::sync::Arc;

const ONE: QueueIndex = QueueIndex::new(1);

fn number(request: Request, value: u64) -> Step<u32> {
    Step::Reply(Reply::number(request.number(), value))
}

fn base(queue: u32, base: u32) -> Step<u32> {
    Step::Reply(Reply::vring_state(queue, base))
}

fn shape(queues: u16, queue_size: u16) -> InflightShape {
    InflightShape { queues, queue_size }
}

fn start_of(action: Action<u32>) -> QueueStart<u32> {
    let Action::StartQueue(start) = action else { panic!("no start but {action:?}") };
    *start
}

#[test]
fn questions_are_answered_with_the_offer() {
    let mut front_end = FrontEnd::new();
    let features = Features::all().bits();
    let step = front_end.send(Request::GetFeatures, &[], &[]);
    assert_eq!(step, number(Request::GetFeatures, features));
    let step = front_end.send(Request::GetProtocolFeatures, &[], &[]);
    assert_eq!(step, number(Request::GetProtocolFeatures, 0x1_b22b));
    let step = front_end.send(Request::GetQueueNum, &[], &[]);
    assert_eq!(step, number(Request::GetQueueNum, 2), "before the choice of features");
    front_end.send(Request::SetProtocolFeatures, &numbers(&[1 << 15]), &[]);
    let step = front_end.send(Request::GetMaxMemSlots, &[], &[]);
    assert_eq!(step, number(Request::GetMaxMemSlots, 509));
}

#[test]
fn replies_come_only_if_they_are_negotiated_and_asked_for() {
    let mut front_end = FrontEnd::new();
    front_end.flags = 9;
    assert_eq!(front_end.send(Request::SetOwner, &[], &[]), Step::Done, "not negotiated");
    let step = front_end.send(Request::SetProtocolFeatures, &numbers(&[8]), &[]);
    assert_eq!(step, acknowledged(Request::SetProtocolFeatures), "negotiated by this message");
    let step = front_end.send(Request::SetOwner, &[], &[]);
    assert_eq!(step, acknowledged(Request::SetOwner));
    front_end.flags = 1;
    assert_eq!(front_end.send(Request::SetLogFd, &[], &[3]), Step::Done, "not asked for");
}

#[test]
fn a_queue_starts_with_all_that_it_was_given() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set(Request::SetVringCall, &numbers(&[1]), &[30]);
    front_end.set(Request::SetVringErr, &numbers(&[1]), &[31]);
    front_end.prepare(1);
    let action = front_end.act(Request::SetVringKick, &numbers(&[1]), &[20]);
    assert!(!front_end.session.is_started(ONE), "not before it is done");
    assert_eq!(front_end.session.action_done(), acknowledged(Request::SetVringKick));
    assert!(front_end.session.is_started(ONE));
    let features = Features::all() - Features::RING_PACKED - Features::LOG_ALL;
    let places = VringAddresses {
        descriptors: UserAddress(0x1_0000),
        used: UserAddress(0x1_1000),
        available: UserAddress(0x1_2000),
        log: None,
    };
    let expected = QueueStart {
        queue: ONE,
        size: 16,
        base: 5,
        addresses: places,
        features,
        enabled: false,
        kick: 20,
        call: Some(Arc::new(30)),
        err: Some(Arc::new(31)),
    };
    assert_eq!(start_of(action), expected);
}

#[test]
fn a_queue_stops_when_nothing_is_in_flight_and_starts_again_from_there() {
    let mut front_end = FrontEnd::negotiated();
    assert_eq!(front_end.send(Request::GetVringBase, &words(&[1, 0]), &[]), base(1, 0));
    front_end.start(1);
    let action = front_end.act(Request::GetVringBase, &words(&[1, 0]), &[]);
    assert_eq!(action, Action::StopQueue(ONE));
    assert!(front_end.session.is_waiting());
    assert_eq!(front_end.session.queue_stopped(9), base(1, 9));
    assert!(!front_end.session.is_started(ONE) && !front_end.session.is_waiting());
    assert_eq!(front_end.send(Request::GetVringBase, &words(&[1, 0]), &[]), base(1, 9));
    let again = front_end.done(Request::SetVringKick, &numbers(&[1]), &[21]);
    let start = start_of(again);
    assert_eq!((start.base, start.kick), (9, 21));
}

#[test]
#[should_panic(expected = "before the outcome")]
fn a_message_before_an_outcome_is_a_mistake_of_the_server() {
    let mut front_end = FrontEnd::negotiated();
    front_end.act(Request::ResetDevice, &[], &[]);
    front_end.send(Request::SetOwner, &[], &[]);
}

#[test]
fn a_queue_is_enabled_by_a_message_or_by_the_lack_of_protocol_features() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set(Request::SetVringEnable, &words(&[0, 1]), &[]);
    assert!(start_of(front_end.start(0)).enabled);
    let action = front_end.done(Request::SetVringEnable, &words(&[0, 0]), &[]);
    assert_eq!(action, Action::EnableQueue { queue: QueueIndex::new(0), enabled: false });
    assert!(!start_of(front_end.start(1)).enabled);
    let mut front_end = FrontEnd::negotiated();
    front_end.choose(Features::VERSION_1);
    assert!(start_of(front_end.start(0)).enabled);
}

#[test]
fn a_queue_is_enabled_before_features_are_chosen() {
    let mut front_end = FrontEnd::new();
    assert_eq!(front_end.send(Request::SetVringEnable, &words(&[1, 1]), &[]), Step::Done);
    front_end.flags = 9;
    front_end.send(Request::SetProtocolFeatures, &numbers(&[8]), &[]);
    front_end.choose(Features::PROTOCOL_FEATURES);
    assert!(start_of(front_end.start(1)).enabled);
}

#[test]
fn a_queue_is_disabled_only_when_nothing_is_in_flight() {
    let mut front_end = FrontEnd::negotiated();
    front_end.start(1);
    let action = front_end.act(Request::SetVringEnable, &words(&[1, 0]), &[]);
    assert_eq!(action, Action::EnableQueue { queue: ONE, enabled: false });
    assert!(front_end.session.is_waiting(), "no reply before the action is done");
    assert_eq!(front_end.session.action_done(), acknowledged(Request::SetVringEnable));
}

#[test]
fn any_layout_is_always_offered() {
    let offer = Offer::new(Features::RO, ProtocolFeatures::empty(), 1, 256);
    assert_eq!(offer.features().bits(), 1 << 5 | 1 << 27 | 1 << 30);
}

#[test]
fn a_table_has_as_many_regions_as_descriptors_fit_a_message() {
    let mut front_end = FrontEnd::negotiated();
    let entries: Vec<_> = (0..32).map(|slot| (slot, slot, 1, slot)).collect();
    let files: Vec<u32> = (100..132).collect();
    let action = front_end.done(Request::SetMemTable, &table(&entries), &files);
    let Action::ReplaceMemory(mapped) = action else { panic!("regions are mapped") };
    let found: Vec<_> =
        mapped.iter().map(|mapped| (mapped.region.guest().0 as u32 + 100, mapped.file)).collect();
    let expected: Vec<_> = files.iter().map(|file| (*file, *file)).collect();
    assert_eq!(found, expected);
}

#[test]
fn descriptors_of_a_queue_that_runs_are_replaced() {
    let mut front_end = FrontEnd::negotiated();
    front_end.start(1);
    let action = front_end.done(Request::SetVringKick, &numbers(&[1]), &[40]);
    assert_eq!(action, Action::SetKick { queue: ONE, kick: 40 });
    let action = front_end.done(Request::SetVringCall, &numbers(&[1]), &[41]);
    assert_eq!(action, Action::SetCall { queue: ONE, call: Some(Arc::new(41)) });
    let action = front_end.done(Request::SetVringErr, &numbers(&[0x101]), &[]);
    assert_eq!(action, Action::SetErr { queue: ONE, err: None });
    front_end.act(Request::GetVringBase, &words(&[1, 0]), &[]);
    front_end.session.queue_stopped(0);
    let start = start_of(front_end.done(Request::SetVringKick, &numbers(&[1]), &[42]));
    assert_eq!((start.kick, start.call, start.err), (42, Some(Arc::new(41)), None));
}

#[test]
fn memory_is_replaced_added_to_and_removed_from() {
    let mut front_end = FrontEnd::negotiated();
    let regions = table(&[(0, 0x1000, 0x1000, 0), (0x1000, 0x3000, 0x1000, 0x1000)]);
    let Action::ReplaceMemory(mapped) = front_end.done(Request::SetMemTable, &regions, &[1, 2])
    else {
        panic!("regions are mapped")
    };
    let new = |guest, user, offset| {
        Region::new(GuestAddress(guest), UserAddress(user), 0x1000, offset).expect("a region")
    };
    let found: Vec<_> = mapped.iter().map(|mapped| (mapped.region, mapped.file)).collect();
    assert_eq!(found, [(new(0, 0x1000, 0), 1), (new(0x1000, 0x3000, 0x1000), 2)]);
    let added = region((0x2000, 0x5000, 0x1000, 7));
    let action = front_end.done(Request::AddMemReg, &added, &[3]);
    assert!(matches!(action, Action::AddRegion(mapped) if mapped.file == 3));
    // Neither the offset of a region to remove nor its descriptor means anything.
    let named = region((0x2000, 0x5000, 0x1000, u64::MAX));
    let action = front_end.done(Request::RemMemReg, &named, &[4]);
    assert_eq!(action, Action::RemoveRegion(new(0x2000, 0x5000, 7)));
    front_end.done(Request::AddMemReg, &added, &[3]);
}

#[test]
fn a_migration_changes_queues_that_run() {
    let mut front_end = FrontEnd::negotiated();
    front_end.start(1);
    let features = front_end.session.features() | Features::LOG_ALL;
    let action = front_end.done(Request::SetFeatures, &numbers(&[features.bits()]), &[]);
    assert_eq!(action, Action::SetLogging(true));
    assert_eq!(front_end.session.features(), features);
    let action = front_end.done(Request::SetVringAddr, &addresses(1, 1, 0x1_0000), &[]);
    assert_eq!(action, Action::SetRingLog { queue: ONE, log: Some(GuestAddress(77)) });
    front_end.flags = 1;
    let action = front_end.act(Request::SetLogBase, &numbers(&[4096, 64]), &[5]);
    let log = LogArea { bytes: 4096, offset: 64 };
    assert_eq!(action, Action::SetLog { log, file: 5 });
    let step = front_end.session.action_done();
    assert_eq!(step, Step::Reply(Reply::log(4096, 64)), "even if no reply is asked for");
}

#[test]
fn the_configuration_space_is_read_and_the_cache_set() {
    let mut front_end = FrontEnd::negotiated();
    let Step::Reply(reply) = front_end.send(Request::GetConfig, &config(2, 4, 0, &[0; 4]), &[])
    else {
        panic!("no reply")
    };
    assert_eq!(reply.bytes()[12..], config(2, 4, 0, &[3, 4, 0, 0]));
    let without_room = front_end.send(Request::GetConfig, &config(2, 4, 0, &[]), &[]);
    assert_eq!(without_room, Step::Reply(reply));
    for (value, writeback) in [(0, false), (1, true)] {
        let action = front_end.done(Request::SetConfig, &config(32, 1, 0, &[value]), &[]);
        assert_eq!(action, Action::SetWriteback(writeback));
    }
    front_end.done(Request::ResetDevice, &[], &[]);
    let action = front_end.done(Request::SetConfig, &config(32, 1, 0, &[1]), &[]);
    assert_eq!(action, Action::SetWriteback(true), "it is offered, and nothing is chosen");
}

#[test]
fn an_inflight_region_is_made_and_set() {
    let mut front_end = FrontEnd::negotiated();
    let action = front_end.act(Request::GetInflightFd, &inflight(1, 2, 2, 16), &[]);
    assert_eq!(action, Action::MakeInflight { shape: shape(2, 16), packed: false });
    let step = front_end.session.inflight_made(InflightReply { bytes: 8192, offset: 0, file: 50 });
    let Step::Reply(reply) = step else { panic!("no reply") };
    assert_eq!(reply.bytes()[12..], inflight(8192, 0, 2, 16));
    assert_eq!(reply.into_parts().1, Some(50));
    let padded = [inflight(8192, 0, 2, 16), vec![0; 4]].concat();
    let action = front_end.done(Request::SetInflightFd, &padded, &[51]);
    let region = Inflight { bytes: 8192, offset: 0, queues: 2, queue_size: 16, padded: true };
    assert_eq!(action, Action::SetInflight { inflight: region, file: 51 });
}

#[test]
fn a_reset_forgets_the_driver_and_keeps_the_connection() {
    for reset in [Request::ResetDevice, Request::ResetOwner, Request::SetStatus] {
        let mut front_end = FrontEnd::negotiated();
        front_end.set(Request::SetStatus, &numbers(&[15]), &[]);
        front_end.set(Request::SetVringCall, &numbers(&[1]), &[30]);
        front_end.done(Request::SetInflightFd, &inflight(1024, 0, 2, 16), &[50]);
        front_end.start(1);
        let payload = if reset == Request::SetStatus { numbers(&[0]) } else { vec![] };
        assert_eq!(front_end.done(reset, &payload, &[]), Action::Reset);
        assert!(!front_end.session.is_started(ONE));
        assert_eq!(front_end.session.features(), Features::empty());
        assert_eq!(front_end.send(Request::GetStatus, &[], &[]), number(Request::GetStatus, 0));
        assert_eq!(front_end.send(Request::GetVringBase, &words(&[1, 0]), &[]), base(1, 0));
        let overlaps = region((0, 0x1_0000, 1, 0));
        let step = front_end.send(Request::AddMemReg, &overlaps, &[1]);
        assert!(matches!(step, Step::Refused { .. }), "memory stays");
        // Front ends disable queues after a reset, too.
        front_end.set(Request::SetVringEnable, &words(&[1, 0]), &[]);
        front_end.choose(Features::RING_PACKED | Features::PROTOCOL_FEATURES);
        let start = start_of(front_end.start(1));
        assert_eq!(start.call, Some(Arc::new(30)), "and no in-flight region is too short for it");
    }
}

#[test]
fn the_status_is_kept() {
    let mut front_end = FrontEnd::negotiated();
    front_end.set(Request::SetStatus, &numbers(&[11]), &[]);
    assert_eq!(front_end.send(Request::GetStatus, &[], &[]), number(Request::GetStatus, 11));
}

#[test]
fn a_back_end_channel_is_handed_on() {
    let mut front_end = FrontEnd::negotiated();
    let action = front_end.done(Request::SetBackendReqFd, &[], &[60]);
    assert_eq!(action, Action::SetBackendChannel(60));
}

#[test]
fn a_packed_ring_has_other_sizes_and_bases() {
    let mut front_end = FrontEnd::negotiated();
    front_end.choose(Features::RING_PACKED | Features::PROTOCOL_FEATURES);
    front_end.prepare(1);
    front_end.set(Request::SetVringNum, &words(&[1, 24]), &[]);
    front_end.set(Request::SetVringBase, &words(&[1, 0x8001_8002]), &[]);
    let start = start_of(front_end.done(Request::SetVringKick, &numbers(&[1]), &[20]));
    assert_eq!((start.size, start.base), (24, 0x8001_8002));
    let action = front_end.act(Request::GetInflightFd, &inflight(0, 0, 1, 24), &[]);
    assert_eq!(action, Action::MakeInflight { shape: shape(1, 24), packed: true });
}
