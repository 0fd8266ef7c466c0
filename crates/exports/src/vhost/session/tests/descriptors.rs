//! Which descriptors a session closes: their holders are counted.

use super::super::super::proto::{Features, Parser, ProtocolFeatures, Request};
use super::super::{Offer, Session, Step};
use super::{inflight, numbers, region, table, words};
use std::sync::Arc;

/// A front end whose descriptors are all the same, and its back end.
struct Counted {
    session: Session<Arc<()>>,
    parser: Parser<Arc<()>>,
    file: Arc<()>,
}

impl Counted {
    /// With everything negotiated, and without a wish for replies.
    fn new() -> Self {
        let offer = Offer::new(Features::all(), ProtocolFeatures::all(), 1, 256);
        let (session, parser) = (Session::new(offer), Parser::new());
        let mut counted = Self { session, parser, file: Arc::new(()) };
        let all = numbers(&[ProtocolFeatures::all().bits()]);
        assert!(matches!(counted.send(Request::SetProtocolFeatures, &all, 0), Step::Done));
        counted
    }

    /// Sends a message with that many descriptors.
    fn send(&mut self, request: Request, payload: &[u8], count: usize) -> Step<Arc<()>> {
        let header = words(&[request.number(), 1, payload.len() as u32]);
        let files = vec![self.file.clone(); count];
        let mut frame = self.parser.receive(&header, files).expect("a header");
        if frame.is_none() {
            frame = self.parser.receive(payload, []).expect("a payload");
        }
        self.session.receive(frame.expect("a message"), &[])
    }

    /// Holders of the descriptor besides the front end.
    fn holders(&self) -> usize {
        Arc::strong_count(&self.file) - 1
    }
}

#[test]
fn descriptors_of_refused_messages_are_closed() {
    let cases: [(Request, Vec<u8>, usize, &str); 8] = [
        (Request::AddMemReg, region((0, 0, 1, 0)), 2, "it needs 1"),
        (Request::AddMemReg, region((0, 0, 0, 0)), 1, "is empty or passes"),
        (Request::SetMemTable, table(&[(0, 0, 1, 0), (0, 1, 1, 0)]), 2, "shares guest addresses"),
        (Request::SetMemTable, table(&[(0, 0, 1, 0)]), 2, "it needs 1"),
        (Request::GetFeatures, vec![], 3, "it needs 0"),
        (Request::RemMemReg, region((0, 0, 1, 0)), 1, "no region has"),
        (Request::SetInflightFd, inflight(1, 0, 1, 1), 1, "the in-flight region has 1 bytes"),
        (Request::SetVringKick, numbers(&[0]), 1, "did not come before it"),
    ];
    for (request, payload, count, part) in cases {
        let mut counted = Counted::new();
        let Step::Close(reason) = counted.send(request, &payload, count) else {
            panic!("{request} was served")
        };
        assert!(reason.to_string().contains(part), "{request}: {reason}");
        assert_eq!(counted.holders(), 0, "{request}");
    }
}

#[test]
fn descriptors_of_unfinished_messages_are_closed() {
    let Counted { mut parser, file, .. } = Counted::new();
    let header = words(&[Request::SetOwner.number(), 1, 0]);
    parser.receive(&header, vec![file.clone(); 33]).expect_err("too many descriptors");
    drop(parser);
    assert_eq!(Arc::strong_count(&file), 1);
}

#[test]
fn descriptors_that_mean_nothing_are_closed() {
    let mut counted = Counted::new();
    assert!(matches!(counted.send(Request::SetLogFd, &[], 1), Step::Done));
    assert_eq!(counted.holders(), 0, "that of a log");
    let one = region((0, 0, 1, 0));
    let Step::Act(action) = counted.send(Request::AddMemReg, &one, 1) else { panic!("refused") };
    assert_eq!(counted.holders(), 1, "the action has it");
    drop(action);
    assert!(matches!(counted.session.action_done(), Step::Done));
    let Step::Act(_) = counted.send(Request::RemMemReg, &one, 1) else { panic!("refused") };
    assert_eq!(counted.holders(), 0, "that of a region to remove");
}

#[test]
fn a_replaced_descriptor_is_closed() {
    let mut counted = Counted::new();
    for _ in 0..2 {
        assert!(matches!(counted.send(Request::SetVringCall, &numbers(&[0]), 1), Step::Done));
        assert_eq!(counted.holders(), 1);
    }
    assert!(matches!(counted.send(Request::SetVringCall, &numbers(&[0x100]), 0), Step::Done));
    assert_eq!(counted.holders(), 0);
}
