//! Tests of the session, with numbers in place of descriptors.

mod descriptors;
mod flow;
mod malformed;
mod refusals;

use super::super::proto::{Features, Parser, ProtocolFeatures, Reply, Request};
use super::served::has_own_reply;
use super::{Action, Offer, Session, Step};

pub(super) const QUEUES: u16 = 2;
/// A configuration space that begins with 1, 2, 3 and so on.
pub(super) const CONFIG: [u8; 4] = [1, 2, 3, 4];

/// A front end that sends what a test says.
pub(super) struct FrontEnd {
    pub(super) session: Session<u32>,
    parser: Parser<u32>,
    /// Flags of the headers.
    pub(super) flags: u32,
}

impl FrontEnd {
    /// Of a back end that offers everything, with nothing negotiated.
    pub(super) fn new() -> Self {
        Self::of(Offer::new(Features::all(), ProtocolFeatures::all(), QUEUES, 256))
    }

    /// Of a back end with this offer.
    pub(super) fn of(offer: Offer) -> Self {
        Self { session: Session::new(offer), parser: Parser::new(), flags: 1 }
    }

    /// The same with all features chosen, but for packed rings and the log, and a wish for replies.
    pub(super) fn negotiated() -> Self {
        let mut front_end = Self::new();
        front_end.flags = 9;
        front_end.send(Request::SetProtocolFeatures, &numbers(&[0x1_b22b]), &[]);
        let features = Features::all() - Features::RING_PACKED - Features::LOG_ALL;
        assert_eq!(front_end.choose(features), acknowledged(Request::SetFeatures));
        front_end
    }

    pub(super) fn choose(&mut self, features: Features) -> Step<u32> {
        self.send(Request::SetFeatures, &numbers(&[features.bits()]), &[])
    }

    /// Sends a message with these descriptors.
    pub(super) fn send(&mut self, request: Request, payload: &[u8], files: &[u32]) -> Step<u32> {
        self.send_number(request.number(), payload, files)
    }

    pub(super) fn send_number(&mut self, number: u32, payload: &[u8], files: &[u32]) -> Step<u32> {
        let header = words(&[number, self.flags, payload.len() as u32]);
        let mut frame = self.parser.receive(&header, files.iter().copied()).expect("a header");
        if frame.is_none() {
            frame = self.parser.receive(payload, []).expect("a payload");
        }
        self.session.receive(frame.expect("a message"), &CONFIG)
    }

    /// True if a refusal is told by a number, since the flags ask for it and it was negotiated.
    fn may_be_told(&self) -> bool {
        let negotiated = self.session.protocol_features();
        self.flags == 9 && negotiated.contains(ProtocolFeatures::REPLY_ACK)
    }

    /// Sends a message, and takes its action.
    pub(super) fn act(&mut self, request: Request, payload: &[u8], files: &[u32]) -> Action<u32> {
        match self.send(request, payload, files) {
            Step::Act(action) => action,
            step => panic!("{request}: no action but {step:?}"),
        }
    }

    /// Sends a message whose action is done at once.
    pub(super) fn done(&mut self, request: Request, payload: &[u8], files: &[u32]) -> Action<u32> {
        let action = self.act(request, payload, files);
        let step = self.session.action_done();
        assert_eq!(step, acknowledged(request));
        action
    }

    /// Sends a message that has no action and only an acknowledgement.
    pub(super) fn set(&mut self, request: Request, payload: &[u8], files: &[u32]) {
        assert_eq!(self.send(request, payload, files), acknowledged(request));
    }

    /// Adds 64 KiB at guest address 0, user address 0x10000, then prepares a queue of 16 entries
    /// there that begins at 5.
    pub(super) fn prepare(&mut self, queue: u32) {
        self.done(Request::SetMemTable, &table(&[(0, 0x1_0000, 0x1_0000, 0)]), &[10]);
        self.set(Request::SetVringNum, &words(&[queue, 16]), &[]);
        self.set(Request::SetVringBase, &words(&[queue, 5]), &[]);
        self.set(Request::SetVringAddr, &addresses(queue, 0, 0x1_0000), &[]);
    }

    /// The same, and starts it.
    pub(super) fn start(&mut self, queue: u32) -> Action<u32> {
        self.prepare(queue);
        self.done(Request::SetVringKick, &numbers(&[queue.into()]), &[20])
    }
}

/// The reply that a message was served.
pub(super) fn acknowledged(request: Request) -> Step<u32> {
    Step::Reply(Reply::number(request.number(), 0))
}

pub(super) fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn numbers(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A table of regions: guest address, user address, bytes, file offset.
pub(super) fn table(regions: &[(u64, u64, u64, u64)]) -> Vec<u8> {
    let entries = regions.iter().flat_map(|entry| region(*entry).split_off(8));
    words(&[regions.len() as u32, 0]).into_iter().chain(entries).collect()
}

/// A single region: guest address, user address, bytes, file offset.
pub(super) fn region((guest, user, bytes, offset): (u64, u64, u64, u64)) -> Vec<u8> {
    numbers(&[0, guest, bytes, user, offset])
}

/// Addresses of a queue: descriptors at `start`, then 4096 bytes further the used ring, then the
/// available ring, and a log address of 77.
pub(super) fn addresses(queue: u32, flags: u32, start: u64) -> Vec<u8> {
    let places = numbers(&[start, start + 0x1000, start + 0x2000, 77]);
    [words(&[queue, flags]), places].concat()
}

/// An in-flight description without padding.
pub(super) fn inflight(bytes: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let shape = [queues.to_le_bytes(), queue_size.to_le_bytes()].concat();
    [numbers(&[bytes, offset]), shape].concat()
}

/// A part of the configuration space.
pub(super) fn config(offset: u32, size: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    [&words(&[offset, size, flags])[..], bytes].concat()
}

/// A message that is refused: its payload, its descriptors, and the sentence.
pub(super) type Case = (Request, Vec<u8>, &'static [u32], &'static str);

/// Sends a message that is refused, in the form that belongs to it; the sentence.
pub(super) fn refused(
    front_end: &mut FrontEnd,
    request: Request,
    payload: &[u8],
    files: &[u32],
) -> String {
    let before = format!("{:?}", front_end.session);
    let step = front_end.send(request, payload, files);
    assert_eq!(before, format!("{:?}", front_end.session), "{request} changed the session");
    match step {
        Step::Refused { reason, reply } => {
            check_refusal(front_end, request, payload, &reply);
            reason.to_string()
        }
        Step::Close(reason) => {
            assert!(has_own_reply(request) || !front_end.may_be_told(), "{request}: {reason}");
            assert_ne!(request, Request::GetConfig, "has a form for a refusal");
            reason.to_string()
        }
        step => panic!("{request} was not refused: {step:?}"),
    }
}

/// Compares the reply that tells a refusal: of two messages it is their own without content, of
/// others the number 1, if it was asked for.
fn check_refusal(front_end: &FrontEnd, request: Request, payload: &[u8], reply: &Reply<u32>) {
    let form = match request {
        Request::GetConfig => words(&[24, 5, 0]),
        Request::GetInflightFd => [&words(&[31, 5, 20, 0, 0, 0, 0]), &payload[16..20]].concat(),
        _ => {
            assert!(front_end.may_be_told() && !has_own_reply(request), "{request}");
            words(&[request.number(), 5, 8, 1, 0])
        }
    };
    assert_eq!(reply.bytes(), form, "{request}");
}

/// Sends each message to a new front end's session, and compares the sentence.
pub(super) fn check(front_end: impl Fn() -> FrontEnd, cases: &[Case]) {
    for (request, payload, files, sentence) in cases {
        assert_eq!(refused(&mut front_end(), *request, payload, files), *sentence);
    }
}
