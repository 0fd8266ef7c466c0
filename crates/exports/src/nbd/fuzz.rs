//! Entry points for fuzzers: drive the state machines with arbitrary bytes and check the invariants
//! that hold for any peer. A failed check panics.
//!
//! Both feed the same bytes once as a whole and once in pieces, and compare. Bytes of the input
//! choose the configuration and the pieces, so that a corpus is plain byte strings.

use super::close::CloseReason;
use super::export::{BlockSizes, ExportInfo, MetaContext};
use super::handshake::{Event, Handshake, Negotiated, SelectedContext, TlsPolicy};
use super::proto::{Command, CommandFlags, TransmissionFlags};
use super::reply::ReplyStyle;
use super::request::Request;
use super::transmission::{Item, Transmission};

/// The most output of a handshake: the few exports offered here give at most some hundred bytes for
/// each of 1024 options.
const HANDSHAKE_OUTPUT_MAX_BYTES: usize = 1 << 20;

/// Reads the names and the times in any bytes that a peer or a file may give as a certificate.
pub fn fuzz_certificate(bytes: &[u8]) {
    super::tls::read_any_certificate(bytes);
}

/// Splits a byte off the input; 0 when there is none.
fn take(data: &mut &[u8]) -> u8 {
    let Some((first, rest)) = data.split_first() else { return 0 };
    *data = rest;
    *first
}

/// Cuts `data` into pieces of 1 to 64 bytes, chosen by `seed`.
fn pieces(data: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut rest = data;
    let mut size = usize::from(seed);
    let mut found = Vec::new();
    while !rest.is_empty() {
        size = (size * 5 + 1) % 64;
        let (piece, tail) = rest.split_at((size + 1).min(rest.len()));
        found.push(piece);
        rest = tail;
    }
    found
}

fn exports(choice: u8) -> Vec<ExportInfo> {
    let mut first = ExportInfo::new("a", 1 << 30);
    first.description = "first".into();
    let mut second = ExportInfo::new("b", (1 << 40) + 512);
    second.block_sizes = BlockSizes { min: 512, preferred: 4096, max_payload: 1 << 20 };
    second.flags.set(TransmissionFlags::READ_ONLY, choice & 0x10 != 0);
    second.flags.set(TransmissionFlags::SEND_FAST_ZERO, choice & 0x20 != 0);
    vec![first, second]
}

fn policy(choice: u8) -> TlsPolicy {
    [TlsPolicy::Off, TlsPolicy::Optional, TlsPolicy::Required, TlsPolicy::Required]
        [usize::from(choice & 3)]
}

/// Feeds `clear`, and `secret` as plain text out of TLS if the handshake upgrades after all of
/// `clear`.
fn drive_handshake(choice: u8, clear: &[&[u8]], secret: &[&[u8]]) -> (Vec<u8>, Event) {
    let exports = exports(choice);
    let mut handshake = Handshake::new(policy(choice));
    let mut out = Vec::new();
    let mut last = feed(&mut handshake, clear, &exports, &mut out);
    if last == Event::StartTls {
        handshake.tls_established();
        last = feed(&mut handshake, secret, &exports, &mut out);
    }
    assert!(out.len() <= HANDSHAKE_OUTPUT_MAX_BYTES, "{} bytes of output", out.len());
    if let Event::Transmission(negotiated) = &last {
        assert!(negotiated.tls || policy(choice) != TlsPolicy::Required, "no TLS where required");
        let structured = negotiated.style != ReplyStyle::Simple;
        assert!(structured || negotiated.contexts.is_empty(), "contexts without chunks");
    }
    (out, last)
}

/// Feeds pieces until the handshake upgrades or ends; the event it stopped at.
fn feed(
    handshake: &mut Handshake,
    pieces: &[&[u8]],
    exports: &[ExportInfo],
    out: &mut Vec<u8>,
) -> Event {
    for (index, piece) in pieces.iter().enumerate() {
        let mut rest = *piece;
        loop {
            let step = handshake.advance(rest, exports, out);
            assert!(step.consumed <= rest.len(), "consumed more than there was");
            rest = &rest[step.consumed..];
            match step.event {
                Event::NeedMore => break,
                Event::Replied => {}
                Event::StartTls if index + 1 < pieces.len() => {
                    return Event::Close(CloseReason::PlaintextAfterStartTls);
                }
                event => return event,
            }
        }
        assert!(rest.is_empty(), "asked for more with {} bytes left", rest.len());
    }
    Event::NeedMore
}

/// Drives a handshake with arbitrary bytes.
///
/// # Panics
/// When an invariant fails: pieces change the result, output grows without bound, a listener that
/// requires TLS serves without it.
pub fn fuzz_handshake(data: &[u8]) {
    let mut data = data;
    let (choice, seed) = (take(&mut data), take(&mut data));
    let cut = usize::from(u16::from_be_bytes([take(&mut data), take(&mut data)]));
    let (clear, secret) = data.split_at(cut.min(data.len()));
    let whole = drive_handshake(choice, &[clear], &[secret]);
    let cut = drive_handshake(choice, &pieces(clear, seed), &pieces(secret, seed));
    assert_eq!(whole, cut, "the result depends on how the stream is cut");
}

fn negotiated(choice: u8) -> Negotiated {
    let export = exports(choice).swap_remove(usize::from(choice & 1));
    let style = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended]
        [usize::from(choice >> 1) % 3];
    let selected = SelectedContext { id: 1, context: MetaContext::BaseAllocation };
    let contexts = if style == ReplyStyle::Simple { vec![] } else { vec![selected] };
    let payload = style == ReplyStyle::Extended;
    let flags = export.flags_on_wire(style != ReplyStyle::Simple, payload);
    Negotiated { export, flags, style, contexts, no_zeroes: true, tls: false }
}

/// Checks all that a request promises.
fn check_request(request: &Request, negotiated: &Negotiated) {
    let export = &negotiated.export;
    let writes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
    assert!(!(writes && negotiated.flags.contains(TransmissionFlags::READ_ONLY)));
    assert!(request.command != Command::Disc);
    if request.command == Command::Flush {
        assert_eq!((request.offset, request.length), (0, 0));
        return;
    }
    let end = u128::from(request.offset) + u128::from(request.length);
    assert!(request.length > 0 && end <= u128::from(export.size_bytes), "{request:?}");
    if matches!(request.command, Command::Read | Command::Write) {
        assert!(request.length <= u64::from(export.block_sizes.max_payload));
    }
    let status = request.command == Command::BlockStatus;
    assert_eq!(status, !request.contexts.is_empty(), "{request:?}");
    assert!(writes || !request.flags.contains(CommandFlags::FUA));
}

/// Feeds pieces to a parser as a driver does; the items it found, and the payload bytes it skipped
/// over.
fn drive_transmission(negotiated: &Negotiated, pieces: &[&[u8]]) -> (Vec<Item>, u64) {
    let mut parser = Transmission::new(negotiated);
    let (mut items, mut payload, mut taken) = (Vec::new(), 0_u64, 0);
    for piece in pieces {
        let mut rest = *piece;
        loop {
            let part = payload.min(rest.len() as u64);
            rest = &rest[part as usize..];
            (payload, taken) = (payload - part, taken + part);
            if payload > 0 {
                break;
            }
            let parsed = parser.next(rest);
            assert!(parsed.consumed <= rest.len(), "consumed more than there was");
            rest = &rest[parsed.consumed..];
            match parsed.item {
                Item::NeedMore => {
                    assert!(rest.is_empty(), "asked for more with {} bytes left", rest.len());
                    break;
                }
                Item::Request(request) => {
                    check_request(&request, negotiated);
                    payload = request.payload_bytes();
                }
                Item::Refused(_) => {}
                Item::Close(_) => {
                    items.push(parsed.item);
                    return (items, taken);
                }
            }
            items.push(parsed.item);
        }
    }
    (items, taken)
}

/// Drives a request parser with arbitrary bytes.
///
/// # Panics
/// When an invariant fails: pieces change the result, a request breaks what [`Request`] promises,
/// input is neither consumed nor refused.
pub fn fuzz_transmission(data: &[u8]) {
    let mut data = data;
    let (choice, seed) = (take(&mut data), take(&mut data));
    let negotiated = negotiated(choice);
    let whole = drive_transmission(&negotiated, &[data]);
    let cut = drive_transmission(&negotiated, &pieces(data, seed));
    assert_eq!(whole, cut, "the result depends on how the stream is cut");
}
