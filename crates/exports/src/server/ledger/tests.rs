use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const TOTAL: u64 = 90;
/// Bytes of the reserve where there is one, and bytes of a short request.
const RESERVE: u64 = 12;
const SHORT: u64 = 4;

/// A ledger of [`TOTAL`], and a plain list of the bytes that each client has and waits for.
struct Fixture {
    ledger: Ledger<usize>,
    clients: Vec<Plain>,
}

#[derive(Clone, Copy)]
struct Plain {
    id: ClientId,
    group: u32,
    held: u64,
    reserved: u64,
    waits_for: Option<u64>,
}

impl Fixture {
    /// One client for each of these groups.
    fn new(groups: &[u32]) -> Self {
        Self::of(Ledger::new(TOTAL, 0, 0), groups)
    }

    /// The same, with a reserve.
    fn with_reserve(groups: &[u32]) -> Self {
        Self::of(Ledger::new(TOTAL, RESERVE, SHORT), groups)
    }

    fn of(mut ledger: Ledger<usize>, groups: &[u32]) -> Self {
        let enter = |group: &u32| {
            let id = ledger.enter(Key { device: 1, group: *group });
            Plain { id, group: *group, held: 0, reserved: 0, waits_for: None }
        };
        let clients = groups.iter().map(enter).collect();
        Fixture { ledger, clients }
    }

    fn reserved_by(&self, group: u32) -> u64 {
        let of_group = self.clients.iter().filter(|client| client.group == group);
        of_group.map(|client| client.reserved).sum()
    }

    /// Notes that the client was given `bytes`. True if they are of the reserve, of which it had
    /// none.
    fn note(&mut self, client: usize, bytes: u64) -> bool {
        let Plain { id, held, reserved, .. } = self.clients[client];
        let is_reserved = self.ledger.clients[id.0].reserved > reserved;
        match is_reserved {
            true => {
                assert!(held + reserved == 0 && bytes <= SHORT, "a first request");
                self.clients[client].reserved = bytes;
            }
            false => self.clients[client].held += bytes,
        }
        is_reserved
    }

    /// Checks the rest of the reserve after `client` alone took something.
    fn check_part(&self, client: usize) {
        let Plain { group, reserved, .. } = self.clients[client];
        let (of_group, left) = (self.reserved_by(group), self.ledger.reserve);
        assert!(of_group == reserved || of_group <= 2 * left, "{of_group} of a group, {left} left");
    }

    fn held_by(&self, group: u32) -> u64 {
        self.clients.iter().filter(|client| client.group == group).map(|client| client.held).sum()
    }

    /// Checks the free bytes after `client` took something else than its first, and those `held` by
    /// it and its consumer.
    fn check_thresholds(&self, client: usize, before: (u64, u64)) {
        let Plain { group, held, reserved, .. } = self.clients[client];
        let held = held + reserved;
        let (free, of_group) = (self.ledger.free, self.held_by(group));
        let (client_before, group_before) = before;
        assert!(group_before == 0 || of_group <= 2 * free, "{of_group} of {free} free");
        let room = (2 * free).saturating_sub(of_group);
        assert!(
            client_before == 0 || group_before == 0 || held <= 2 * room,
            "{held} of one client, {room} of its group"
        );
    }

    fn before(&self, client: usize) -> (u64, u64) {
        let Plain { held, reserved, .. } = self.clients[client];
        (held + reserved, self.held_by(self.clients[client].group))
    }

    fn take(&mut self, client: usize, bytes: u64) -> bool {
        let before = self.before(client);
        let taken = self.ledger.take(self.clients[client].id, bytes);
        if taken {
            match self.note(client, bytes) {
                true => self.check_part(client),
                false => self.check_thresholds(client, before),
            }
        }
        self.check();
        taken
    }

    /// Takes bytes one by one, as many as the client may. Returns their number.
    fn take_all(&mut self, client: usize) -> u64 {
        (0..).take_while(|_| self.take(client, 1)).count() as u64
    }

    /// Takes `bytes`, or waits for them.
    fn ask(&mut self, client: usize, bytes: u64) {
        if !self.take(client, bytes) {
            self.clients[client].waits_for = Some(bytes);
            self.ledger.wait(self.clients[client].id, bytes, client);
            self.serve();
        }
    }

    fn waits(&self, client: usize) -> bool {
        self.clients[client].waits_for.is_some()
    }

    fn give(&mut self, client: usize, bytes: u64) {
        let reserved = self.clients[client].reserved.min(bytes);
        self.clients[client].reserved -= reserved;
        self.clients[client].held -= bytes - reserved;
        self.ledger.give_back(self.clients[client].id, bytes);
        self.serve();
    }

    fn wait_no_more(&mut self, client: usize) {
        self.clients[client].waits_for = None;
        self.ledger.wait_no_more(self.clients[client].id);
        self.serve();
    }

    fn serve(&mut self) {
        let mut served = Vec::new();
        self.ledger.serve(|client| served.push(client));
        let before: Vec<_> = served.iter().map(|client| self.before(*client)).collect();
        let mut reserved = false;
        for client in &served {
            let bytes = self.clients[*client].waits_for.take().expect("a waiter is served, once");
            reserved |= self.note(*client, bytes);
        }
        if let ([client], [before]) = (&served[..], &before[..]) {
            match reserved {
                true => self.check_part(*client),
                false => self.check_thresholds(*client, *before),
            }
        }
        self.check();
    }

    /// Checks the sums, and that no client waits whom the plain rules would serve.
    fn check(&self) {
        let held: u64 = self.clients.iter().map(|client| client.held).sum();
        assert_eq!(held + self.ledger.free + self.ledger.set_aside, TOTAL);
        self.check_reserve();
        let waiting = self.clients.iter().filter(|client| client.waits_for.is_some());
        assert_eq!(self.ledger.waiting(), waiting.clone().count());
        let groups: BTreeMap<u32, bool> = self.clients.iter().map(|c| (c.group, true)).collect();
        let active = |group: &&u32| {
            self.held_by(**group) > 0 || waiting.clone().any(|client| client.group == **group)
        };
        let active = groups.keys().filter(active).count() as u64;
        assert_eq!(self.ledger.active, active);
        let starves = |client: &&Plain| self.held_by(client.group) == 0;
        let fair = TOTAL / active.max(1);
        for client in waiting.clone().filter(starves) {
            // All but the first of each group may wait behind it, and the groups behind the head.
            let least = waiting.clone().filter(starves).filter_map(|c| c.waits_for).min();
            assert!(client.waits_for >= least);
        }
        let frozen = waiting.clone().filter(starves).any(|c| c.waits_for.unwrap() > fair);
        let alone = |client: &&Plain| {
            let own = self.clients.iter().filter(|other| other.group == client.group);
            own.filter(|other| other.waits_for.is_some()).count() == 1
        };
        for client in waiting.clone().filter(alone).filter(|_| !frozen) {
            let (bytes, of_group) = (client.waits_for.unwrap(), self.held_by(client.group));
            let free = self.ledger.free.saturating_sub(bytes);
            let room = (2 * free).saturating_sub(of_group + bytes);
            let below = of_group == 0 || of_group + bytes <= 2 * free;
            let own = client.held + client.reserved;
            let below = below && (own == 0 || own + bytes <= 2 * room);
            assert!(!below || bytes > self.ledger.free, "{bytes} more were due to it");
        }
    }

    /// Checks that a client that holds nothing and wants little has it, unless the reserve lacks it
    /// or its group has its part.
    fn check_reserve(&self) {
        let reserved: u64 = self.clients.iter().map(|client| client.reserved).sum();
        let whole = reserved + self.ledger.reserve;
        assert!(whole == RESERVE || whole == 0);
        for client in self.clients.iter().filter(|it| it.held + it.reserved == 0) {
            let Some(bytes) = client.waits_for.filter(|bytes| *bytes <= SHORT) else { continue };
            let (of_group, left) = (self.reserved_by(client.group), self.ledger.reserve);
            let lacks = bytes > left || of_group > 0 && of_group + bytes > 2 * (left - bytes);
            assert!(lacks || whole == 0, "{bytes} more of {left} were due to it");
        }
    }

    /// Gives all held memory back, one client after the other, until no client waits.
    fn everybody_gets_on(&mut self) {
        for _ in 0..self.clients.len() * 2 {
            for client in 0..self.clients.len() {
                let Plain { held, reserved, .. } = self.clients[client];
                self.give(client, held + reserved);
            }
        }
        assert_eq!((self.ledger.waiting(), self.ledger.free), (0, TOTAL));
        assert_eq!(self.ledger.short_waiting, 0);
        assert_eq!((self.ledger.set_aside, self.ledger.active), (0, 0));
    }
}

/// Memory for a long request is set aside, whatever its group gets of the reserve meanwhile.
#[test]
fn the_head_keeps_its_place_when_its_group_is_served_of_the_reserve() {
    let mut all = Fixture::with_reserve(&[1, 2, 1, 3, 4]);
    all.ask(4, TOTAL - 20);
    all.ask(0, TOTAL - 10);
    // Another's short request takes the reserve, so that one of the first group waits.
    all.ask(3, SHORT);
    while all.ledger.reserve >= SHORT {
        let id = all.ledger.enter(Key { device: 2, group: all.ledger.reserve as u32 });
        assert!(all.ledger.take(id, SHORT));
        all.clients.push(Plain { id, group: 90, held: 0, reserved: SHORT, waits_for: None });
    }
    all.ask(2, SHORT);
    all.ask(1, 30);
    assert!(all.waits(0) && all.waits(1) && all.waits(2));
    all.give(3, SHORT);
    assert!(!all.waits(2), "the reserve serves it");
    all.give(4, TOTAL - 20);
    assert!(!all.waits(0) && all.waits(1), "the first is the first still");
}

#[test]
fn a_consumer_leaves_a_third_and_two_leave_a_fifth() {
    // Clients of a group have more than one: that has 4/7 of it.
    let mut all = Fixture::new(&[1, 1, 1, 1, 2, 2, 2]);
    assert_eq!(all.take_all(0), TOTAL * 4 / 7);
    (1..4).for_each(|client| assert!(all.take_all(client) > 0, "others of its group have some"));
    assert!((TOTAL * 5 / 9..=TOTAL * 2 / 3).contains(&all.held_by(1)), "{}", all.held_by(1));
    let (first, free) = (all.held_by(1), all.ledger.free());
    (4..7).for_each(|client| assert!(all.take_all(client) > 0));
    assert!(all.held_by(2) <= free * 2 / 3 && all.held_by(2) >= free / 2);
    // The first exceeds its threshold now, until its memory has come back.
    all.ask(0, 1);
    assert!(all.waits(0));
    for client in [0, 1, 2, 3].into_iter().cycle().take(TOTAL as usize) {
        if all.clients[client].held > 0 && all.held_by(1) > first / 2 {
            all.give(client, 1);
        }
    }
    assert!(!all.waits(0), "{} of {}", all.held_by(1), all.ledger.free());
}

#[test]
fn who_waits_beyond_its_threshold_holds_nobody_up() {
    let mut all = Fixture::new(&[1, 1, 2, 3]);
    all.take_all(0);
    all.take_all(1);
    all.ask(0, 8);
    all.ask(1, 8);
    assert!(all.waits(0) && all.waits(1));
    for _ in 0..100 {
        all.ask(2, 8);
        all.ask(3, 4);
        assert!(!all.waits(2) && !all.waits(3), "they are below theirs");
        all.give(2, 8);
        all.give(3, 4);
    }
    assert!(!all.ledger.is_wanted_from(all.clients[2].id), "nobody waits for what another has");
}

#[test]
fn a_client_leaves_something_to_others_of_its_group() {
    let mut all = Fixture::new(&[1, 1]);
    all.take_all(0);
    all.ask(0, 1);
    assert!(all.waits(0), "beyond its threshold");
    assert!(all.take(1, 1), "which the other is not");
    all.ask(1, 20);
    assert!(all.waits(1));
    all.give(1, 1);
    assert!(all.waits(1) && all.ledger.is_wanted_from(all.clients[0].id));
    assert!(!all.take(0, 1), "the next of its group comes first");
}

#[test]
fn a_long_request_is_gathered_beside_others() {
    let mut all = Fixture::new(&[1, 1, 2, 3]);
    all.take_all(0);
    all.take_all(1);
    let fair = TOTAL / 3;
    let taken = all.ledger.free() + 2 - fair;
    all.take(3, taken);
    all.ask(2, fair);
    assert!(all.waits(2) && all.ledger.free() == fair - 2, "a fair part, but more than there is");
    // A third client goes on with free memory.
    for _ in 0..10 {
        assert!(all.take(3, 4));
        all.give(3, 4);
    }
    assert!(all.waits(2) && all.ledger.is_wanted_from(all.clients[0].id));
    all.give(0, 1);
    assert!(all.waits(2) && all.ledger.set_aside == 1);
    all.give(0, 1);
    assert!(!all.waits(2) && all.ledger.free() == 0);
}

#[test]
fn a_longer_one_is_waited_for_by_all() {
    let mut all = Fixture::new(&[1, 2, 3]);
    all.take(0, 5);
    all.ask(1, TOTAL);
    assert!(all.waits(1) && !all.take(2, 1), "nobody takes what it waits for");
    all.ask(2, 1);
    all.give(0, 5);
    assert!(!all.waits(1) && all.waits(2));
    all.give(1, TOTAL);
    assert!(!all.waits(2));
    all.ask(1, TOTAL);
    all.wait_no_more(1);
    assert!(all.take(0, 1), "a client that goes gives way");
}

/// Long requests of others of its group, granted or waiting, do not delay a client's first one.
#[test]
fn the_first_short_request_waits_for_no_long_one() {
    let mut all = Fixture::with_reserve(&[1, 1, 1, 1, 1, 1, 2, 2]);
    assert!(all.take(0, TOTAL / 2));
    (1..4).for_each(|client| all.ask(client, TOTAL / 2));
    assert!((1..4).all(|client| all.waits(client)));
    assert!(all.take(4, SHORT), "at once, though others of its group wait");
    assert!(!all.take(4, SHORT) && all.clients[4].reserved == SHORT, "that was its first");
    assert!(all.take(5, SHORT), "another's");
    // All wait for a request longer than a fair part, except these.
    all.ask(6, TOTAL);
    assert!(all.waits(6) && all.take(7, SHORT));
    all.give(4, SHORT);
    all.give(5, SHORT);
    assert!(all.take(4, SHORT), "its next is a first one again");
    all.everybody_gets_on();
}

#[test]
fn a_consumer_leaves_a_part_of_the_reserve() {
    let mut all = Fixture::with_reserve(&[1, 1, 1, 1, 2, 2]);
    assert!(all.take(0, TOTAL));
    all.ask(1, SHORT);
    all.ask(2, SHORT);
    all.ask(3, SHORT);
    assert!(!all.waits(1) && !all.waits(2), "two thirds of it");
    assert!(all.waits(3) && all.ledger.is_revoked_from(all.clients[1].id));
    all.ask(4, SHORT);
    all.ask(5, 1);
    assert!(!all.waits(4) && all.waits(5), "the rest");
    all.give(1, SHORT);
    assert!(all.waits(3) && !all.waits(5), "the first has a third of it, the other less");
    all.give(2, SHORT);
    assert!(!all.waits(3));
    all.everybody_gets_on();
}

/// A client that waits for nearly everything gets it, although another of its group always has a
/// request under way.
#[test]
fn a_busy_client_is_told_when_all_of_its_memory_is_wanted() {
    let mut all = Fixture::new(&[1, 1, 2]);
    assert!(all.take(0, 3) && all.take(2, 1));
    assert!(!all.ledger.is_starving() && !all.ledger.is_revoked_from(all.clients[0].id));
    all.ask(1, TOTAL);
    assert!(all.waits(1) && all.ledger.is_starving());
    assert!(all.ledger.is_revoked_from(all.clients[0].id), "it has what the other waits for");
    assert!(!all.ledger.is_revoked_from(all.clients[2].id), "its group is not in the way yet");
    all.give(0, 3);
    assert!(all.waits(1) && all.ledger.is_revoked_from(all.clients[2].id), "now it is");
    all.give(2, 1);
    assert!(!all.waits(1) && !all.ledger.is_starving());
}

#[test]
fn a_consumer_goes_with_its_last_client() {
    let mut ledger: Ledger<()> = Ledger::new(TOTAL, 0, 0);
    let (one, other) = (Key { device: 1, group: 1 }, Key { device: 2, group: 1 });
    let first = ledger.enter(one);
    let second = ledger.enter(one);
    let third = ledger.enter(other);
    assert_eq!(ledger.consumers.len(), 2, "devices are apart");
    [first, second, third].into_iter().for_each(|client| ledger.leave(client));
    assert_eq!((ledger.consumers.len(), ledger.clients.len()), (0, 0));
    ledger.enter(one);
    assert_eq!((ledger.consumers.numbers_end(), ledger.clients.numbers_end()), (2, 3));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize, u64),
    Give(usize, u64),
    GoAway(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![4 => 1..8u64, 2 => 8..40u64, 1 => 40..=TOTAL];
    prop_oneof![
        6 => (0..9usize, bytes()).prop_map(|(client, bytes)| Step::Ask(client, bytes)),
        6 => (0..9usize, bytes()).prop_map(|(client, bytes)| Step::Give(client, bytes)),
        1 => (0..9usize).prop_map(Step::GoAway),
    ]
}

proptest! {
    #[test]
    fn thresholds_hold_and_everybody_gets_on(
        steps in prop::collection::vec(step(), 1..200),
        reserve in any::<bool>(),
    ) {
        let groups = [1, 1, 1, 1, 2, 2, 3, 4, 5];
        let mut all =
            if reserve { Fixture::with_reserve(&groups) } else { Fixture::new(&groups) };
        for step in steps {
            match step {
                Step::Ask(client, bytes) if !all.waits(client) => all.ask(client, bytes),
                Step::Give(client, bytes) => {
                    let Plain { held, reserved, .. } = all.clients[client];
                    all.give(client, bytes.min(held + reserved));
                }
                Step::GoAway(client) if all.waits(client) => all.wait_no_more(client),
                _ => {}
            }
        }
        all.everybody_gets_on();
    }
}
