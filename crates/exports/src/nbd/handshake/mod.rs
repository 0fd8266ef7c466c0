//! The fixed newstyle handshake as a state machine.
//!
//! Invariants:
//! - Every received byte is consumed once; nothing depends on how the stream was cut into pieces.
//! - One call finishes at most one option, and appends at most [`OUTPUT_MAX_BYTES`], so that the
//!   driver can send a reply before it goes on. A listing takes as many calls as it needs.
//! - Memory is bounded: [`OPTION_DATA_MAX_BYTES`] of option data, which grow as bytes arrive.
//! - Before TLS, where it is required, only `STARTTLS` and `ABORT` are served, and the directory is
//!   not consulted.
//! - `STARTTLS` forgets all that was negotiated before it. No byte that was received in the clear
//!   after it is ever read as an option.
//! - Metadata contexts belong to the export that they were set for; for any other they are
//!   forgotten.

use super::close::CloseReason as Reason;
use super::export::{ExportDirectory, ExportInfo, MetaContext};
use super::proto::{
    ClientFlags, HandshakeFlags, INIT_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC, OptionCode,
    ReplyCode, STRING_MAX_BYTES, TransmissionFlags,
};
use super::reply::ReplyStyle;
use super::wire::{self, GREETING_BYTES};

mod answers;
mod data;

pub use super::close::CloseReason;

/// The longest option data that is parsed: a name with three queries of 4096 bytes each.
pub const OPTION_DATA_MAX_BYTES: u32 = 16 << 10;
/// Longest option data that is skipped with an error reply; beyond it the connection is closed.
pub const OPTION_SKIP_MAX_BYTES: u32 = 1 << 20;
/// The most options of one handshake, besides those of [`OPTIONS_PER_EXPORT`].
pub const OPTIONS_MAX: u32 = 32;
/// Further options for each export: a client may describe all exports on one connection.
pub const OPTIONS_PER_EXPORT: u32 = 4;
/// Most bytes that one call appends to the output: a batch of a listing, of which the last entry
/// may bring a name and a description of 4096 bytes each.
pub const OUTPUT_MAX_BYTES: usize = LIST_BATCH_BYTES + 2 * STRING_MAX_BYTES + 64;
/// Bytes after which a listing pauses until the next call.
const LIST_BATCH_BYTES: usize = 4 << 10;

/// A listener's policy for TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// `STARTTLS` is refused.
    Off,
    /// The client may upgrade; the directory may hold exports that need it.
    Optional,
    /// Before TLS only the upgrade is served.
    Required,
}

/// A metadata context that the client selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SelectedContext {
    /// The number by which block status requests and replies name it on this connection.
    pub id: u32,
    /// Its kind.
    pub context: MetaContext,
}

/// The outcome of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The export, as the directory described it.
    pub export: ExportInfo,
    /// The flags that the client was told.
    pub flags: TransmissionFlags,
    /// The form of headers and replies.
    pub style: ReplyStyle,
    /// The selected metadata contexts of this export.
    pub contexts: Vec<SelectedContext>,
    /// True if the client declined the zeroes after `EXPORT_NAME`.
    pub no_zeroes: bool,
    /// True if the handshake ended under TLS.
    pub tls: bool,
}

/// The driver's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All input was consumed; receive more.
    NeedMore,
    /// An option was answered. Send the output (at the latest when it grows large), then call again
    /// with the rest of the input.
    Replied,
    /// Send the output in the clear, then let a TLS session take the connection over; call
    /// [`Handshake::tls_established`] when its handshake is done, and feed plain text from it. A
    /// TLS handshake that fails ends the connection.
    StartTls,
    /// Send the output; the rest of the input belongs to a
    /// [`Transmission`](super::transmission::Transmission).
    Transmission(Box<Negotiated>),
    /// Send the output, then close.
    Close(CloseReason),
}

/// The result of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the input.
    pub consumed: usize,
    /// The next step.
    pub event: Event,
}

/// An option header that was read.
#[derive(Clone, Copy, Debug)]
struct OptionHeader {
    option: u32,
    length: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData(OptionHeader),
    /// Skips the data of an option, and then replies with an error.
    Skip {
        option: u32,
        remaining: u32,
        code: ReplyCode,
    },
    /// A listing is in progress; so many exports are in the output.
    Listing {
        option: u32,
        listed: usize,
    },
    AwaitTls,
    Done,
    Closed(Reason),
}

/// The handshake of one connection. Owned by the thread that serves the connection.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    policy: TlsPolicy,
    tls: bool,
    shutting_down: bool,
    client_flags: ClientFlags,
    options_seen: u32,
    style: ReplyStyle,
    /// The canonical name of the export and what was selected for it.
    selected: Option<(String, Vec<SelectedContext>)>,
    /// The bytes so far of the message that `state` waits for.
    partial: Vec<u8>,
}

impl Handshake {
    /// A handshake that waits for the client's answer to the greeting.
    pub fn new(policy: TlsPolicy) -> Self {
        Self {
            state: State::ClientFlags,
            policy,
            tls: false,
            shutting_down: false,
            client_flags: ClientFlags::empty(),
            options_seen: 0,
            style: ReplyStyle::Simple,
            selected: None,
            partial: Vec::new(),
        }
    }

    /// The 18 bytes that the server sends first.
    pub fn greeting() -> [u8; GREETING_BYTES] {
        let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
        let greeting = wire::Greeting {
            init_magic: INIT_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: flags.bits().into(),
        };
        let mut bytes = [0; GREETING_BYTES];
        wire::write(&mut bytes, &greeting);
        bytes
    }

    /// From now on every option but `ABORT` is refused because the server goes away.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// The TLS handshake that [`Event::StartTls`] asked for is done; input is plain text from TLS
    /// now.
    ///
    /// # Panics
    /// When no upgrade was under way: a mistake of the driver.
    pub fn tls_established(&mut self) {
        assert!(matches!(self.state, State::AwaitTls), "no TLS upgrade is under way");
        self.tls = true;
        self.style = ReplyStyle::Simple;
        self.selected = None;
        self.state = State::OptionHeader;
    }

    /// Takes received bytes and appends bytes to send to `out`.
    ///
    /// The driver calls again with the rest of the input until it gets something other than
    /// [`Event::Replied`].
    ///
    /// # Panics
    /// When called after [`Event::Transmission`]: a mistake of the driver.
    pub fn advance<D: ExportDirectory + ?Sized>(
        &mut self,
        input: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Step {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match self.state {
                State::Closed(reason) => return Step { consumed, event: Event::Close(reason) },
                State::Done => panic!("the handshake is over"),
                State::Listing { option, listed } => {
                    let event = self.list_on(option, listed, directory, out);
                    return Step { consumed, event };
                }
                State::AwaitTls if rest.is_empty() => {
                    return Step { consumed, event: Event::NeedMore };
                }
                State::AwaitTls => {
                    self.close(Reason::PlaintextAfterStartTls);
                    continue;
                }
                _ => {}
            }
            let Some(taken) = self.collect(rest) else {
                return Step { consumed: input.len(), event: Event::NeedMore };
            };
            consumed += taken;
            if matches!(self.state, State::Closed(_)) {
                continue;
            }
            let event = self.message_complete(directory, out);
            if let Some(event) = self.guard_upgrade(event, &input[consumed..]) {
                return Step { consumed, event };
            }
        }
    }

    /// Takes input towards the message that the state waits for; `None` when more is needed.
    fn collect(&mut self, input: &[u8]) -> Option<usize> {
        let missing = match &mut self.state {
            State::Skip { remaining, .. } => {
                let taken = input.len().min(*remaining as usize);
                *remaining -= taken as u32;
                return (*remaining == 0).then_some(taken);
            }
            State::ClientFlags => 4,
            State::OptionHeader => OPTION_HEADER_BYTES,
            State::OptionData(header) => header.length as usize,
            State::Listing { .. } | State::AwaitTls | State::Done | State::Closed(_) => {
                unreachable!("handled by advance")
            }
        } - self.partial.len();
        let taken = input.len().min(missing);
        if self.partial.try_reserve_exact(taken).is_err() {
            self.close(Reason::OutOfMemory);
            return Some(0);
        }
        self.partial.extend_from_slice(&input[..taken]);
        (taken == missing).then_some(taken)
    }

    /// Acts on a complete message; `None` when there is nothing to tell the driver yet.
    fn message_complete<D: ExportDirectory + ?Sized>(
        &mut self,
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Option<Event> {
        let message = std::mem::take(&mut self.partial);
        let event = match self.state {
            State::ClientFlags => self.client_flags(&message),
            State::OptionHeader => self.option_header(&message, self.options_max(directory), out),
            State::OptionData(header) => {
                self.state = State::OptionHeader;
                Some(self.option(header.option, &message, directory, out))
            }
            State::Skip { option, code, .. } => {
                self.state = State::OptionHeader;
                Some(Self::refuse(out, option, code, "the option's data is too long"))
            }
            State::Listing { .. } | State::AwaitTls | State::Done | State::Closed(_) => {
                unreachable!("handled by advance")
            }
        };
        self.partial = message;
        self.partial.clear();
        event
    }

    /// Refuses an upgrade when input follows it: an attacker could have injected the input in the
    /// clear, so that it would count as sent by the authenticated client.
    fn guard_upgrade(&mut self, event: Option<Event>, rest: &[u8]) -> Option<Event> {
        if event == Some(Event::StartTls) && !rest.is_empty() {
            return Some(self.close(Reason::PlaintextAfterStartTls));
        }
        event
    }

    fn close(&mut self, reason: Reason) -> Event {
        self.state = State::Closed(reason);
        Event::Close(reason)
    }

    fn refuse(out: &mut Vec<u8>, option: u32, code: ReplyCode, message: &str) -> Event {
        data::reply(out, option, code, &[message.as_bytes()]);
        Event::Replied
    }

    fn acknowledge(out: &mut Vec<u8>, option: u32) -> Event {
        data::reply(out, option, ReplyCode::Ack, &[]);
        Event::Replied
    }

    fn client_flags(&mut self, message: &[u8]) -> Option<Event> {
        let value = u32::from_be_bytes(message.try_into().expect("four bytes were collected"));
        let Some(flags) = ClientFlags::from_bits(value) else {
            return Some(self.close(Reason::UnknownClientFlags(value)));
        };
        self.client_flags = flags;
        self.state = State::OptionHeader;
        None
    }

    /// Options that this handshake may bring.
    fn options_max<D: ExportDirectory + ?Sized>(&self, directory: &D) -> u32 {
        let exports = if self.lacks_tls() { 0 } else { directory.count() };
        let exports = u32::try_from(exports).unwrap_or(u32::MAX);
        OPTIONS_MAX.saturating_add(exports.saturating_mul(OPTIONS_PER_EXPORT))
    }

    fn option_header(&mut self, message: &[u8], most: u32, out: &mut Vec<u8>) -> Option<Event> {
        let header: wire::OptionHeader = wire::read(message).expect("16 bytes were collected");
        let magic = header.magic.get();
        let header = OptionHeader { option: header.option.get(), length: header.length.get() };
        if magic != OPTION_MAGIC {
            return Some(self.close(Reason::BadOptionMagic(magic)));
        }
        self.options_seen += 1;
        if self.options_seen > most {
            return Some(self.close(Reason::TooManyOptions(most)));
        }
        self.begin_option(header, out)
    }

    /// Decides by the header alone what happens to the option's data.
    fn begin_option(&mut self, header: OptionHeader, out: &mut Vec<u8>) -> Option<Event> {
        let OptionHeader { option, length } = header;
        let code = OptionCode::from_wire(option);
        if code != Some(OptionCode::ExportName)
            && !self.client_flags.contains(ClientFlags::FIXED_NEWSTYLE)
        {
            return Some(self.close(Reason::NotFixedNewstyle(option)));
        }
        if code == Some(OptionCode::Abort) {
            Self::acknowledge(out, option);
            return Some(self.close(Reason::Aborted));
        }
        if code == Some(OptionCode::ExportName) && length as usize > STRING_MAX_BYTES {
            return Some(self.close(Reason::ExportName("the name is too long")));
        }
        if length > OPTION_SKIP_MAX_BYTES {
            return Some(self.close(Reason::OptionTooLong { option, length }));
        }
        self.state = if length > OPTION_DATA_MAX_BYTES {
            self.selected.take_if(|_| code == Some(OptionCode::SetMetaContext));
            let code = if self.lacks_tls() { ReplyCode::ErrTlsReqd } else { ReplyCode::ErrTooBig };
            State::Skip { option, remaining: length, code }
        } else {
            State::OptionData(header)
        };
        None
    }
}
