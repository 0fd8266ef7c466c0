//! Every reason for a refusal, with its sentence.

use super::super::super::proto::{Features, ProtocolFeatures, Reply, Request};
use super::super::{Offer, SLOTS_MAX, Step};
use super::{
    Case, FrontEnd, addresses, check, config, inflight, numbers, refused, region, table, words,
};

#[test]
fn messages_of_features_that_were_not_negotiated() {
    let cases: &[(Request, Vec<u8>, &[u32], &str)] = &[
        (
            Request::GetConfig,
            config(0, 1, 0, &[0]),
            &[],
            "GET_CONFIG belongs to the feature CONFIG",
        ),
        (
            Request::SetConfig,
            config(32, 1, 0, &[0]),
            &[],
            "SET_CONFIG belongs to the feature CONFIG",
        ),
        (Request::SetStatus, numbers(&[1]), &[], "SET_STATUS belongs to the feature STATUS"),
        (Request::GetStatus, vec![], &[], "GET_STATUS belongs to the feature STATUS"),
        (
            Request::SetLogBase,
            numbers(&[1, 0]),
            &[1],
            "SET_LOG_BASE belongs to the feature LOG_SHMFD",
        ),
        (
            Request::GetInflightFd,
            inflight(0, 0, 1, 1),
            &[],
            "GET_INFLIGHT_FD belongs to the feature INFLIGHT_SHMFD",
        ),
        (
            Request::GetMaxMemSlots,
            vec![],
            &[],
            "GET_MAX_MEM_SLOTS belongs to the feature CONFIGURE_MEM_SLOTS",
        ),
        (
            Request::AddMemReg,
            region((0, 0, 1, 0)),
            &[1],
            "ADD_MEM_REG belongs to the feature CONFIGURE_MEM_SLOTS",
        ),
    ];
    for (request, payload, files, beginning) in cases {
        let sentence = refused(&mut FrontEnd::new(), *request, payload, files);
        assert_eq!(sentence, format!("{beginning}, which was not negotiated"));
    }
    let without = || {
        let mut front_end = FrontEnd::negotiated();
        front_end.choose(Features::VERSION_1);
        front_end
    };
    let sentence = "SET_VRING_ENABLE belongs to the feature PROTOCOL_FEATURES, which was not \
                    negotiated";
    check(without, &[(Request::SetVringEnable, words(&[0, 1]), &[], sentence)]);
}

#[test]
fn messages_of_features_that_were_not_offered() {
    let none = || FrontEnd::of(Offer::new(Features::all(), ProtocolFeatures::empty(), 1, 256));
    let cases: &[Case] = &[
        (
            Request::GetQueueNum,
            vec![],
            &[],
            "GET_QUEUE_NUM belongs to the feature MQ, which was not negotiated",
        ),
        (
            Request::SetBackendReqFd,
            vec![],
            &[1],
            "SET_BACKEND_REQ_FD belongs to the feature BACKEND_REQ, which was not negotiated",
        ),
        (
            Request::ResetDevice,
            vec![],
            &[],
            "RESET_DEVICE belongs to the feature RESET_DEVICE, which was not negotiated",
        ),
    ];
    check(none, cases);
}

#[test]
fn values_that_do_not_fit_the_offer() {
    use Request as R;
    let cases: &[Case] = &[
        (
            R::SetFeatures,
            numbers(&[1 << 3 | 1 << 5]),
            &[],
            "SET_FEATURES has bits 0x8 that were not offered: offered are 0x57c007e66",
        ),
        (
            R::SetProtocolFeatures,
            numbers(&[1 << 2]),
            &[],
            "SET_PROTOCOL_FEATURES has bits 0x4 that were not offered: offered are 0x1b22b",
        ),
        (
            R::SetStatus,
            numbers(&[0x100]),
            &[],
            "SET_STATUS has 0x100: the device status has 8 bits",
        ),
        (
            R::GetVringBase,
            words(&[0x1_0000, 0]),
            &[],
            "GET_VRING_BASE names queue 65536: there are 2, and the first is 0",
        ),
        (
            R::SetVringKick,
            numbers(&[2]),
            &[1],
            "SET_VRING_KICK names queue 2: there are 2, and the first is 0",
        ),
        (
            R::SetVringNum,
            words(&[1, 257]),
            &[],
            "SET_VRING_NUM gives queue 1 257 entries: 1 to 256 are possible",
        ),
        (
            R::SetVringEnable,
            words(&[1, 2]),
            &[],
            "SET_VRING_ENABLE has 2 for queue 1: 1 enables it, 0 disables it",
        ),
        (
            R::GetInflightFd,
            inflight(0, 0, 3, 4),
            &[],
            "GET_INFLIGHT_FD is for 3 queues of 4 entries: 1 to 2 queues of 1 to 256 entries are \
             possible",
        ),
        (
            R::SetInflightFd,
            inflight(1, 0, 1, 0),
            &[1],
            "SET_INFLIGHT_FD is for 1 queues of 0 entries: 1 to 2 queues of 1 to 256 entries are \
             possible",
        ),
        (
            R::SetConfig,
            config(32, 2, 0, &[1, 1]),
            &[],
            "SET_CONFIG writes 2 bytes at 32 of the configuration space: only the byte writeback \
             at 32 may be written",
        ),
        (
            R::SetConfig,
            config(0, 1, 1, &[1]),
            &[],
            "SET_CONFIG writes 1 bytes at 0 of the configuration space: only the byte writeback \
             at 32 may be written",
        ),
        (
            R::SetConfig,
            config(32, 1, 0, &[2]),
            &[],
            "SET_CONFIG sets writeback to 2: 1 turns the cache on, 0 turns it off",
        ),
    ];
    check(FrontEnd::negotiated, cases);
    let without = || {
        let mut front_end = FrontEnd::negotiated();
        front_end.choose(Features::PROTOCOL_FEATURES);
        front_end
    };
    let sentence = "SET_CONFIG sets writeback, but the driver did not negotiate CONFIG_WCE";
    check(without, &[(R::SetConfig, config(32, 1, 0, &[1]), &[], sentence)]);
}

#[test]
fn inflight_regions_that_are_too_short() {
    let packed = || {
        let mut front_end = FrontEnd::negotiated();
        front_end.choose(Features::RING_PACKED);
        front_end
    };
    let case = |bytes, sentence| -> Case {
        (Request::SetInflightFd, inflight(bytes, 0, 2, 128), &[1], sentence)
    };
    let split = case(
        2 * 2112 - 1,
        "SET_INFLIGHT_FD: the in-flight region has 4223 bytes, but 2 queues of 128 entries need \
         4224",
    );
    check(FrontEnd::negotiated, &[split]);
    let sentence = "SET_INFLIGHT_FD: the in-flight region has 4224 bytes, but 2 queues of 128 \
                    entries need 8320";
    check(packed, &[case(4224, sentence)]);
}

#[test]
fn queues_without_room_in_the_inflight_region() {
    let kick = |bytes, queues, queue_size, features| {
        let mut front_end = FrontEnd::negotiated();
        front_end.done(Request::SetInflightFd, &inflight(bytes, 0, queues, queue_size), &[1]);
        front_end.choose(features);
        front_end.prepare(1);
        refused(&mut front_end, Request::SetVringKick, &numbers(&[1]), &[1])
    };
    let (split, packed) = (Features::empty(), Features::RING_PACKED);
    let sentence = "queue 1 of 16 entries has no room in the in-flight region, which is for ";
    assert_eq!(kick(4096, 1, 16, split), format!("{sentence}1 queues of 16 entries"));
    assert_eq!(kick(4096, 2, 8, split), format!("{sentence}2 queues of 8 entries"));
    assert_eq!(
        kick(640, 2, 16, packed),
        "SET_VRING_KICK: the in-flight region has 640 bytes, but 2 queues of 16 entries need 1152"
    );
    let mut front_end = FrontEnd::negotiated();
    front_end.done(Request::SetInflightFd, &inflight(640, 0, 2, 16), &[1]);
    front_end.start(1);
}

#[test]
fn regions_that_overlap_or_are_not_there() {
    let with_one = || {
        let mut front_end = FrontEnd::negotiated();
        front_end.done(Request::AddMemReg, &region((0x1000, 0x9000, 0x1000, 0)), &[1]);
        front_end
    };
    let cases: &[Case] = &[
        (
            Request::AddMemReg,
            region((0x1fff, 0, 1, 0)),
            &[1],
            "ADD_MEM_REG: the region of 0x1 bytes at guest 0x1fff, user 0x0 shares guest \
             addresses with that of 0x1000 bytes at guest 0x1000, user 0x9000",
        ),
        (
            Request::AddMemReg,
            region((0, 0x8fff, 2, 0)),
            &[1],
            "ADD_MEM_REG: the region of 0x2 bytes at guest 0x0, user 0x8fff shares user \
             addresses with that of 0x1000 bytes at guest 0x1000, user 0x9000",
        ),
        (
            Request::SetMemTable,
            table(&[(0, 0, 2, 0), (1, 2, 1, 0)]),
            &[1, 2],
            "SET_MEM_TABLE: the region of 0x1 bytes at guest 0x1, user 0x2 shares guest \
             addresses with that of 0x2 bytes at guest 0x0, user 0x0",
        ),
        (
            Request::RemMemReg,
            region((0x1000, 0x9000, 0xfff, 0)),
            &[],
            "REM_MEM_REG: no region has 0xfff bytes at guest 0x1000, user 0x9000",
        ),
    ];
    check(with_one, cases);
}

#[test]
fn one_region_more_than_there_are_slots() {
    let mut front_end = FrontEnd::negotiated();
    for slot in 0..SLOTS_MAX as u64 {
        front_end.done(Request::AddMemReg, &region((slot, slot, 1, 0)), &[1]);
    }
    let one_more = region((1 << 40, 1 << 40, 1, 0));
    let sentence = refused(&mut front_end, Request::AddMemReg, &one_more, &[1]);
    assert_eq!(sentence, "ADD_MEM_REG: there are 509 regions, and no more fit");
}

#[test]
fn queues_that_cannot_start() {
    let kick = |change: &dyn Fn(&mut FrontEnd)| {
        let mut front_end = FrontEnd::negotiated();
        front_end.prepare(0);
        change(&mut front_end);
        refused(&mut front_end, Request::SetVringKick, &numbers(&[0]), &[1])
    };
    let set = |request: Request, payload: Vec<u8>| {
        kick(&|front_end: &mut FrontEnd| front_end.set(request, &payload, &[]))
    };
    let moved = |start| set(Request::SetVringAddr, addresses(0, 0, start));
    let table = [
        (
            set(Request::SetVringNum, words(&[0, 24])),
            "queue 0 has 24 entries: those of a split ring are a power of two",
        ),
        (
            set(Request::SetVringBase, words(&[0, 0x1_0000])),
            "queue 0 is to begin at index 0x10000: that of a split ring has 16 bits",
        ),
        (
            moved(0x1_0008),
            "the descriptor table of queue 0 begins at user address 0x10008, which is no \
             multiple of 16",
        ),
        (
            moved(0xfff0),
            "the descriptor table of queue 0, 256 bytes at user address 0xfff0, lies in no region \
             of memory",
        ),
        (
            moved(0x1_e000),
            "the available ring of queue 0, 38 bytes at user address 0x20000, lies in no region \
             of memory",
        ),
        (
            kick(&|front_end| drop(front_end.done(Request::SetMemTable, &words(&[0, 0]), &[]))),
            "the descriptor table of queue 0, 256 bytes at user address 0x10000, lies in no region \
             of memory",
        ),
    ];
    for (found, sentence) in table {
        assert_eq!(found, sentence);
    }
}

#[test]
fn kicks_that_come_too_early_or_without_a_descriptor() {
    let mut front_end = FrontEnd::new();
    front_end.flags = 9;
    front_end.send(Request::SetProtocolFeatures, &numbers(&[8]), &[]);
    let kick = |front_end: &mut FrontEnd, sentence: &str| {
        let found = refused(front_end, Request::SetVringKick, &numbers(&[1]), &[1]);
        assert_eq!(found, sentence);
    };
    kick(&mut front_end, "SET_VRING_KICK starts queue 1, but SET_FEATURES did not come before it");
    front_end.choose(Features::empty());
    kick(&mut front_end, "SET_VRING_KICK starts queue 1, but SET_VRING_NUM did not come before it");
    front_end.set(Request::SetVringNum, &words(&[1, 16]), &[]);
    kick(
        &mut front_end,
        "SET_VRING_KICK starts queue 1, but SET_VRING_ADDR did not come before it",
    );
    let polled = refused(&mut front_end, Request::SetVringKick, &numbers(&[0x101]), &[]);
    assert_eq!(
        polled,
        "SET_VRING_KICK brings no descriptor for queue 1: this back end needs one, since it does \
         not poll all the time"
    );
}

#[test]
fn changes_of_a_queue_that_runs() {
    let running = || {
        let mut front_end = FrontEnd::negotiated();
        front_end.start(1);
        front_end
    };
    let cases: &[Case] = &[
        (
            Request::SetVringNum,
            words(&[1, 8]),
            &[],
            "SET_VRING_NUM came while queue 1 runs: GET_VRING_BASE stops it",
        ),
        (
            Request::SetVringBase,
            words(&[1, 8]),
            &[],
            "SET_VRING_BASE came while queue 1 runs: GET_VRING_BASE stops it",
        ),
        (
            Request::SetVringAddr,
            addresses(1, 0, 0x1_0010),
            &[],
            "SET_VRING_ADDR came while queue 1 runs: GET_VRING_BASE stops it",
        ),
        (
            Request::SetInflightFd,
            inflight(4096, 0, 1, 16),
            &[1],
            "SET_INFLIGHT_FD came while queue 1 runs: GET_VRING_BASE stops it",
        ),
        (
            Request::SetFeatures,
            numbers(&[Features::VERSION_1.bits()]),
            &[],
            "SET_FEATURES changes more than LOG_ALL while queue 1 runs: GET_VRING_BASE stops it",
        ),
    ];
    check(running, cases);
}

#[test]
fn a_refusal_is_told_in_the_form_of_its_message() {
    let mut front_end = FrontEnd::negotiated();
    let reply = |front_end: &mut FrontEnd, number, payload: &[u8]| match front_end.send_number(
        number,
        payload,
        &[],
    ) {
        Step::Refused { reply, .. } => Some(reply.bytes().to_vec()),
        Step::Close(_) => None,
        step => panic!("{step:?}"),
    };
    let no = Reply::<u32>::number(8, 1).bytes().to_vec();
    assert_eq!(reply(&mut front_end, 8, &words(&[9, 1])), Some(no));
    assert_eq!(reply(&mut front_end, 24, &[]), Some(words(&[24, 5, 0])), "a failed GET_CONFIG");
    assert_eq!(reply(&mut front_end, 11, &words(&[9, 0])), None, "GET_VRING_BASE has no failure");
    let nothing = [words(&[31, 5, 20]), inflight(0, 0, 9, 1)].concat();
    assert_eq!(reply(&mut front_end, 31, &inflight(5, 5, 9, 1)), Some(nothing));
    let unknown = Reply::<u32>::number(22, 1).bytes().to_vec();
    assert_eq!(reply(&mut front_end, 22, &[]), Some(unknown));
    front_end.flags = 1;
    assert_eq!(reply(&mut front_end, 8, &words(&[9, 1])), None, "no reply was asked for");
    let Step::Close(reason) = front_end.send_number(22, &[], &[]) else { panic!("refused") };
    let sentence = "message 22 is not known here: it belongs to a feature that was not offered";
    assert_eq!(reason.to_string(), sentence);
}

#[test]
fn an_action_that_fails_changes_nothing() {
    let mut front_end = FrontEnd::negotiated();
    let before = format!("{:?}", front_end.session);
    front_end.act(Request::AddMemReg, &region((0, 0, 1, 0)), &[1]);
    let Step::Refused { reason, .. } = front_end.session.action_failed("no room".to_owned()) else {
        panic!("refused")
    };
    assert_eq!(reason.to_string(), "ADD_MEM_REG: no room");
    assert_eq!(before, format!("{:?}", front_end.session));
    front_end.act(Request::GetInflightFd, &inflight(7, 7, 1, 16), &[]);
    let Step::Refused { reply, .. } = front_end.session.action_failed("no room".to_owned()) else {
        panic!("refused")
    };
    assert_eq!(reply.bytes()[12..], inflight(0, 0, 1, 16), "no region");
}
