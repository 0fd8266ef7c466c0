//! Entry point for fuzzers: drive parser and session with arbitrary bytes and numbers of
//! descriptors, and check the invariants that hold for any front end. A failed check panics.
//!
//! The input is plain bytes: two that choose the offer and the pieces, then messages. A byte before
//! each message says how many descriptors come with it, and whether its action succeeds. The
//! messages arrive once in whole parts and once in pieces, and the results are compared.

use super::proto::{DESCRIPTORS_MAX, HEADER_BYTES};
use super::proto::{Features, Frame, Inflight, InflightReply, Malformed, Parser};
use super::proto::{ProtocolFeatures, Region, UserAddress};
use super::session::{Action, Offer, QueueStart, SLOTS_MAX, Session, Step};

/// Bits of the byte before a message: how many descriptors come.
const COUNT: u8 = 0x3f;
/// The descriptors come with the last bytes of the header instead of the first.
const LATE: u8 = 0x40;
/// The action of the message fails.
const FAILS: u8 = 0x80;

// One descriptor more than any message has can come.
const _: () = assert!(COUNT as usize > DESCRIPTORS_MAX);

const QUEUES: u16 = 3;
const QUEUE_SIZE_MAX: u16 = 1024;
/// The longest reply: a description of 12 bytes and 256 bytes of the configuration space.
const REPLY_BYTES_MAX: usize = HEADER_BYTES + 12 + 256;

/// The messages that the protocol text gives a reply of their own, from `GET_FEATURES` to
/// `GET_STATUS`.
const WITH_OWN_REPLY: [u32; 9] = [1, 6, 11, 15, 17, 24, 31, 36, 40];
/// `GET_CONFIG`: its reply tells a refusal, too.
const GET_CONFIG: u32 = 24;

/// Splits a byte off the input; 0 when there is none.
fn take(data: &mut &[u8]) -> u8 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    *first
}

fn offer(choice: u8) -> Offer {
    let without = match choice & 3 {
        0 | 1 => ProtocolFeatures::empty(),
        2 => ProtocolFeatures::REPLY_ACK | ProtocolFeatures::CONFIG,
        _ => ProtocolFeatures::all(),
    };
    Offer::new(Features::all(), ProtocolFeatures::all() - without, QUEUES, QUEUE_SIZE_MAX)
}

/// Drives a session with arbitrary bytes.
///
/// # Panics
/// When an invariant fails: pieces change the result, a refused message changes the session, a
/// queue starts outside of memory or of the in-flight region, regions overlap, a reply does not
/// fit, is missing or comes unasked.
pub fn fuzz_message(data: &[u8]) {
    let mut data = data;
    let (choice, seed) = (take(&mut data), take(&mut data));
    let whole = Connection::new(offer(choice)).drive(data, None);
    let pieces = Connection::new(offer(choice)).drive(data, Some(seed));
    assert_eq!(whole, pieces, "the result depends on how the stream is cut");
}

/// A session, and what it must agree with.
struct Connection {
    session: Session<u32>,
    offer: Offer,
    memory: Memory,
    started: [bool; QUEUES as usize],
    inflight: Option<Inflight>,
    /// Everything that the session said.
    said: Vec<String>,
}

/// A piece of a message: how many bytes come next.
fn piece(wanted: usize, seed: &mut Option<u8>) -> usize {
    let Some(seed) = seed else { return wanted };
    *seed = seed.wrapping_mul(5).wrapping_add(1);
    wanted.min(usize::from(*seed % 32) + 1)
}

impl Connection {
    fn new(offer: Offer) -> Self {
        let (memory, started) = (Memory::default(), Default::default());
        let (inflight, said) = (None, Vec::new());
        Self { session: Session::new(offer), offer, memory, started, inflight, said }
    }

    /// Feeds all messages; returns what the session said.
    fn drive(mut self, mut data: &[u8], mut seed: Option<u8>) -> Vec<String> {
        let mut parser = Parser::new();
        while !data.is_empty() {
            let control = take(&mut data);
            match self.drive_message(&mut parser, &mut data, control, &mut seed) {
                Ok(true) => {}
                Ok(false) => break,
                Err(reason) => {
                    self.said.push(reason.to_string());
                    break;
                }
            }
        }
        self.said
    }

    /// Feeds one message. False when the connection ends, or the data.
    fn drive_message(
        &mut self,
        parser: &mut Parser<u32>,
        data: &mut &[u8],
        control: u8,
        seed: &mut Option<u8>,
    ) -> Result<bool, Malformed> {
        let (mut read, mut descriptors) = (0, u32::from(control & COUNT));
        while !data.is_empty() {
            let (part, rest) = data.split_at(piece(parser.wanted_bytes(), seed).min(data.len()));
            read += part.len();
            let is_their_turn = control & LATE == 0 || read >= HEADER_BYTES;
            let count = if is_their_turn { std::mem::take(&mut descriptors) } else { 0 };
            *data = rest;
            if let Some(frame) = parser.receive(part, 0..count)? {
                return Ok(self.take(frame, control & FAILS != 0));
            }
        }
        Ok(false)
    }

    /// Gives a message to the session, and tells it the outcome of an action. False at the end.
    fn take(&mut self, frame: Frame<'_, u32>, fails: bool) -> bool {
        let (number, need_reply) = (frame.number(), frame.needs_reply());
        let before = format!("{:?}", self.session);
        let mut step = self.session.receive(frame, &[0xa5; 60]);
        self.said.push(format!("{step:?}"));
        if let Step::Act(action) = step {
            assert!(self.session.is_waiting());
            self.check_action(&action);
            step = self.end_action(action, fails);
            self.said.push(format!("{step:?}"));
        }
        assert!(!self.session.is_waiting());
        assert!(self.offer.features().contains(self.session.features()));
        assert!(self.offer.protocol_features().contains(self.session.protocol_features()));
        if let Step::Refused { .. } | Step::Close(_) = &step {
            assert_eq!(before, format!("{:?}", self.session), "a refusal changed the session");
        }
        self.check_form(&step, number, need_reply);
        match step {
            Step::Reply(reply) | Step::Refused { reply, .. } => check_reply(reply.bytes(), number),
            Step::Close(_) => return false,
            Step::Done | Step::Act(_) => {}
        }
        true
    }

    /// A reply is written exactly if the message has one of its own, or if it asks for one and
    /// `REPLY_ACK` is negotiated. What cannot be told ends the connection.
    fn check_form(&self, step: &Step<u32>, number: u32, need_reply: bool) {
        let negotiated = self.session.protocol_features();
        let is_asked_for = need_reply && negotiated.contains(ProtocolFeatures::REPLY_ACK);
        let has_own = WITH_OWN_REPLY.contains(&number);
        match step {
            Step::Reply(_) | Step::Refused { .. } => {
                assert!(has_own || is_asked_for, "{step:?}");
            }
            Step::Done => assert!(!has_own && !is_asked_for, "{number} has no reply"),
            Step::Close(_) => {
                assert!(number != GET_CONFIG && (has_own || !is_asked_for), "{step:?}");
            }
            Step::Act(action) => panic!("an action after an outcome: {action:?}"),
        }
    }

    fn check_action(&self, action: &Action<u32>) {
        match action {
            Action::StartQueue(start) => self.check_start(start),
            Action::StopQueue(queue)
            | Action::EnableQueue { queue, .. }
            | Action::SetKick { queue, .. }
            | Action::SetCall { queue, .. }
            | Action::SetErr { queue, .. }
            | Action::SetRingLog { queue, .. } => {
                assert!(self.started[usize::from(queue.number())], "{action:?}");
                assert!(self.session.is_started(*queue), "{action:?}");
            }
            Action::SetInflight { inflight, .. } => {
                assert!(inflight.bytes > 0 && inflight.queues <= QUEUES);
                assert!(!self.started.contains(&true), "{action:?}");
            }
            _ => {}
        }
    }

    fn check_start(&self, start: &QueueStart<u32>) {
        let queue = usize::from(start.queue.number());
        assert!(!self.started[queue], "started twice");
        let size = u64::from(start.size);
        let packed = start.features.contains(Features::RING_PACKED);
        assert!((1..=QUEUE_SIZE_MAX).contains(&start.size));
        if let Some(Inflight { bytes, queues, queue_size, .. }) = self.inflight {
            assert!(queue < usize::from(queues) && start.size <= queue_size, "{start:?}");
            let part = if packed { 32 } else { 16 };
            assert!(bytes >= (u64::from(queue_size) + 1) * part * u64::from(queues), "{start:?}");
        }
        assert!(packed || start.size.is_power_of_two() && start.base <= 0xffff, "{start:?}");
        let (available, used) = if packed { (4, 4) } else { (4 + 2 * size, 4 + 8 * size) };
        let addresses = &start.addresses;
        assert!(addresses.descriptors.0.is_multiple_of(16), "{start:?}");
        assert!(addresses.used.0.is_multiple_of(4), "{start:?}");
        let parts = [(addresses.descriptors, 16 * size), (addresses.available, available)];
        for (place, bytes) in parts.into_iter().chain([(addresses.used, used)]) {
            assert!(self.memory.has(place, bytes), "{place:?} is not in memory: {start:?}");
        }
    }

    /// Tells the session the outcome, and follows it.
    fn end_action(&mut self, action: Action<u32>, fails: bool) -> Step<u32> {
        if fails {
            return self.session.action_failed("it fails".to_owned());
        }
        match action {
            Action::StopQueue(queue) => {
                self.started[usize::from(queue.number())] = false;
                return self.session.queue_stopped(0x1234);
            }
            Action::MakeInflight { shape, packed } => {
                let region = InflightReply { bytes: shape.bytes(packed), offset: 0, file: 99 };
                return self.session.inflight_made(region);
            }
            Action::StartQueue(start) => self.started[usize::from(start.queue.number())] = true,
            Action::SetInflight { inflight, .. } => self.inflight = Some(inflight),
            Action::Reset => (self.started, self.inflight) = Default::default(),
            Action::ReplaceMemory(regions) => {
                self.memory.regions = regions.iter().map(|mapped| mapped.region).collect();
            }
            Action::AddRegion(mapped) => self.memory.regions.push(mapped.region),
            Action::RemoveRegion(region) => self.memory.remove(&region),
            _ => {}
        }
        self.memory.check();
        self.session.action_done()
    }
}

/// The regions of memory, kept and searched in the simplest way.
#[derive(Default)]
struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    fn has(&self, start: UserAddress, bytes: u64) -> bool {
        let (first, end) = (u128::from(start.0), u128::from(start.0) + u128::from(bytes));
        self.regions.iter().any(|region| {
            let user = u128::from(region.user().0);
            user <= first && end <= user + u128::from(region.bytes())
        })
    }

    fn remove(&mut self, region: &Region) {
        let before = self.regions.len();
        self.regions.retain(|known| known != region);
        assert_eq!(self.regions.len() + 1, before, "{region} was not there");
    }

    /// No region is empty, wraps or overlaps with another.
    fn check(&self) {
        assert!(self.regions.len() <= SLOTS_MAX);
        let spaces: [fn(&Region) -> u64; 2] = [|region| region.guest().0, |region| region.user().0];
        for start in spaces {
            let ranges = self.regions.iter().map(|region| (start(region), region.bytes()));
            let mut ranges: Vec<(u64, u64)> = ranges.collect();
            ranges.sort_unstable();
            assert!(ranges.iter().all(|(start, bytes)| start.checked_add(bytes - 1).is_some()));
            let mut pairs = ranges.windows(2);
            assert!(pairs.all(|pair| pair[1].0 - pair[0].0 >= pair[0].1), "regions overlap");
        }
    }
}

/// A reply names its message, says that it is one, and is as long as it says.
fn check_reply(bytes: &[u8], number: u32) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert!((HEADER_BYTES..=REPLY_BYTES_MAX).contains(&bytes.len()));
    assert_eq!((word(0), word(4)), (number, 5));
    assert_eq!(word(8) as usize, bytes.len() - HEADER_BYTES);
}
