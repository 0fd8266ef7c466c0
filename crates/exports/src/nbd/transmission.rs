//! The stream of requests after the handshake, as a state machine.
//!
//! Invariants:
//! - Nothing is allocated, ever.
//! - A header that is whole in the input is decoded in place; only one cut in two is copied, into
//!   `partial`.
//! - The payload of an accepted write never passes through here: it follows the consumed bytes in
//!   the stream, and the driver takes it before it calls again.
//! - The payload of a refused request is skipped here (`Phase::Skip`); the connection lives on.
//! - After `Phase::Closed` no byte is looked at.

use super::close::CloseReason;
use super::export::CONTEXTS_MAX;
use super::handshake::Negotiated;
use super::proto::{
    Command, CommandFlags, EXTENDED_REQUEST_BYTES, EXTENDED_REQUEST_MAGIC, ErrorCode,
    PAYLOAD_TOLERATED_BYTES, REQUEST_BYTES, REQUEST_MAGIC, TransmissionFlags,
};
use super::reply::ReplyStyle;
use super::request::{ContextSet, Header, Refusal, Request};

/// Longest message that is read here as a whole: a header and a block status payload (64-bit length
/// and the context ids).
const MESSAGE_MAX_BYTES: usize = EXTENDED_REQUEST_BYTES + 8 + 4 * CONTEXTS_MAX;

/// An item of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// All input was consumed; receive more.
    NeedMore,
    /// Carry this out. [`Request::payload_bytes`] bytes of data follow in the stream; the driver
    /// takes them itself, out of the rest of the input and then from the socket, before the next
    /// call.
    Request(Request),
    /// Reply with this error, in the connection's style, and go on.
    Refused(Refusal),
    /// Complete the requests in flight, send their replies, then close.
    Close(CloseReason),
}

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes taken from the input.
    pub consumed: usize,
    /// The item that these bytes were.
    pub item: Item,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Header,
    /// Skips the rest of a refused request's payload, so many bytes.
    Skip(u64),
    Closed(CloseReason),
}

/// The request parser of one connection. Owned by the thread that serves the connection.
#[derive(Debug)]
pub struct Transmission {
    phase: Phase,
    style: ReplyStyle,
    size_bytes: u64,
    max_payload_bytes: u64,
    /// Longest payload of a refused request that is skipped.
    max_skip_bytes: u64,
    read_only: bool,
    /// A bit for each command that the export serves.
    served: u16,
    /// Flags that each command takes, by its number.
    allowed: [CommandFlags; 8],
    context_count: usize,
    context_ids: [u32; CONTEXTS_MAX],
    partial_len: usize,
    partial: [u8; MESSAGE_MAX_BYTES],
}

type Refuse = (ErrorCode, &'static str);

impl Transmission {
    /// The parser for a connection whose handshake ended like this.
    pub fn new(negotiated: &Negotiated) -> Self {
        let sizes = negotiated.export.block_sizes;
        let mut context_ids = [0; CONTEXTS_MAX];
        let context_count = negotiated.contexts.len();
        for (id, selected) in context_ids.iter_mut().zip(&negotiated.contexts) {
            *id = selected.id;
        }
        assert!(context_count <= CONTEXTS_MAX, "more contexts selected than exist");
        assert!(sizes.min.is_power_of_two(), "exports are validated before they are offered");
        Self {
            phase: Phase::Header,
            style: negotiated.style,
            size_bytes: negotiated.export.size_bytes,
            // The 32-bit length of a chunk covers the data and its 8-byte offset.
            max_payload_bytes: u64::from(sizes.max_payload.min(u32::MAX - 8)),
            max_skip_bytes: u64::from(sizes.max_payload.max(PAYLOAD_TOLERATED_BYTES)),
            read_only: negotiated.flags.contains(TransmissionFlags::READ_ONLY),
            served: served_commands(negotiated.flags, context_count),
            allowed: allowed_flags(negotiated.flags, negotiated.style),
            context_count,
            context_ids,
            partial_len: 0,
            partial: [0; MESSAGE_MAX_BYTES],
        }
    }

    /// The form in which requests come and replies must go.
    pub fn style(&self) -> ReplyStyle {
        self.style
    }

    /// Finds the next request in the received bytes.
    ///
    /// The driver calls again with the rest of the input (less the payload of a write) until it
    /// gets [`Item::NeedMore`], which comes with all input consumed, or [`Item::Close`].
    #[inline]
    pub fn next(&mut self, input: &[u8]) -> Parsed {
        if self.partial_len == 0
            && matches!(self.phase, Phase::Header)
            && let Some(header) = self.decode(input)
        {
            let header_bytes = self.header_bytes();
            let message_bytes = header_bytes + self.inline_payload_bytes(&header);
            if let Some(payload) = input.get(header_bytes..message_bytes) {
                return Parsed { consumed: message_bytes, item: self.decide(&header, payload) };
            }
        }
        self.next_in_pieces(input)
    }

    /// As `next`, for a stream that is cut inside a message or has a payload to skip.
    #[cold]
    fn next_in_pieces(&mut self, input: &[u8]) -> Parsed {
        let mut consumed = 0;
        loop {
            match self.phase {
                Phase::Closed(reason) => return Parsed { consumed, item: Item::Close(reason) },
                Phase::Skip(0) => self.phase = Phase::Header,
                Phase::Skip(_) if consumed == input.len() => break,
                Phase::Skip(remaining) => {
                    let skipped = remaining.min((input.len() - consumed) as u64);
                    consumed += skipped as usize;
                    self.phase = Phase::Skip(remaining - skipped);
                }
                Phase::Header => {
                    let (taken, item) = self.collect(&input[consumed..]);
                    consumed += taken;
                    match item {
                        Some(item) => return Parsed { consumed, item },
                        None => break,
                    }
                }
            }
        }
        debug_assert_eq!(consumed, input.len(), "more is needed only when all is used up");
        Parsed { consumed, item: Item::NeedMore }
    }

    /// Moves input into `partial`. Returns the item once the message is complete.
    fn collect(&mut self, input: &[u8]) -> (usize, Option<Item>) {
        let header_bytes = self.header_bytes();
        let mut taken = self.fill(input, header_bytes);
        let Some(header) = self.decode(&self.partial[..self.partial_len]) else {
            return (taken, None);
        };
        let message_bytes = header_bytes + self.inline_payload_bytes(&header);
        taken += self.fill(&input[taken..], message_bytes);
        if self.partial_len < message_bytes {
            return (taken, None);
        }
        self.partial_len = 0;
        let message = self.partial;
        (taken, Some(self.decide(&header, &message[header_bytes..message_bytes])))
    }

    /// Copies input until `partial` holds `goal` bytes; returns how many it took.
    fn fill(&mut self, input: &[u8], goal: usize) -> usize {
        let taken = input.len().min(goal.saturating_sub(self.partial_len));
        self.partial[self.partial_len..][..taken].copy_from_slice(&input[..taken]);
        self.partial_len += taken;
        taken
    }

    #[inline]
    fn header_bytes(&self) -> usize {
        if self.style == ReplyStyle::Extended { EXTENDED_REQUEST_BYTES } else { REQUEST_BYTES }
    }

    #[inline]
    fn decode(&self, bytes: &[u8]) -> Option<Header> {
        if self.style == ReplyStyle::Extended {
            Header::extended(bytes)
        } else {
            Header::compact(bytes)
        }
    }

    /// Bytes of payload that are read together with the header: those of a block status request
    /// whose list of contexts has a possible length.
    #[inline]
    fn inline_payload_bytes(&self, header: &Header) -> usize {
        if header.command != Command::BlockStatus.wire() || self.payload_bytes(header) == 0 {
            return 0;
        }
        let lists = header.length >= 12 && (header.length - 8).is_multiple_of(4);
        let known = header.length <= 8 + 4 * self.context_count as u64;
        let magic = header.magic == EXTENDED_REQUEST_MAGIC;
        if lists && known && magic { header.length as usize } else { 0 }
    }

    /// Bytes of payload that follow the header.
    #[inline]
    fn payload_bytes(&self, header: &Header) -> u64 {
        let carries = if self.style == ReplyStyle::Extended {
            header.flags & CommandFlags::PAYLOAD_LEN.bits() != 0
        } else {
            header.command == Command::Write.wire()
        };
        if carries { header.length } else { 0 }
    }

    /// Turns a header, with its inline payload if any, into the driver's next item.
    #[inline]
    fn decide(&mut self, header: &Header, inline: &[u8]) -> Item {
        let magic =
            if self.style == ReplyStyle::Extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        if header.magic != magic {
            return self.close(CloseReason::BadRequestMagic(header.magic));
        }
        if header.command == Command::Disc.wire() {
            return self.close(CloseReason::Disconnected);
        }
        let payload = self.payload_bytes(header);
        if payload > self.max_skip_bytes {
            return self.close(CloseReason::PayloadTooLong(payload));
        }
        match self.check(header, inline) {
            Ok(request) => Item::Request(request),
            Err((error, message)) => {
                self.phase = Phase::Skip(payload - inline.len() as u64);
                Item::Refused(header.refusal(error, message))
            }
        }
    }

    #[cold]
    fn close(&mut self, reason: CloseReason) -> Item {
        self.phase = Phase::Closed(reason);
        Item::Close(reason)
    }

    /// Checks everything that [`Request`] guarantees.
    #[inline]
    fn check(&self, header: &Header, inline: &[u8]) -> Result<Request, Refuse> {
        let flags = CommandFlags::from_bits_retain(header.flags);
        let Some(command) = Command::from_wire(header.command) else {
            return Err((ErrorCode::Einval, "the command is not known here"));
        };
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if self.read_only && writes {
            return Err((ErrorCode::Eperm, "the export is read-only"));
        }
        if self.served & (1 << command.wire()) == 0 {
            return Err((ErrorCode::Einval, "the command was not offered"));
        }
        if !self.allowed[command.wire() as usize].contains(flags) {
            return Err((
                ErrorCode::Einval,
                "a flag was not offered or does not go with the command",
            ));
        }
        let keep = if writes { !CommandFlags::PAYLOAD_LEN } else { WITHOUT_FUA_AND_PAYLOAD };
        let mut request = Request {
            command,
            flags: flags & keep,
            contexts: ContextSet::default(),
            cookie: header.cookie,
            offset: header.offset,
            length: header.length,
        };
        match command {
            Command::Flush => return check_flush(request),
            Command::BlockStatus => self.read_contexts(&mut request, flags, inline)?,
            Command::Read | Command::Write => self.check_transfer(&request, flags)?,
            _ => {}
        }
        self.check_range(&request)?;
        Ok(request)
    }

    /// The limits of commands that move data.
    #[inline]
    fn check_transfer(&self, request: &Request, flags: CommandFlags) -> Result<(), Refuse> {
        let writes = request.command == Command::Write;
        if writes
            && self.style == ReplyStyle::Extended
            && !flags.contains(CommandFlags::PAYLOAD_LEN)
        {
            return Err((
                ErrorCode::Einval,
                "a write needs the payload flag with extended headers",
            ));
        }
        if request.length <= self.max_payload_bytes {
            return Ok(());
        }
        if flags.contains(CommandFlags::DF) {
            return Err((ErrorCode::Eoverflow, "the read is too long for one chunk"));
        }
        Err((ErrorCode::Einval, "the length exceeds the maximum payload"))
    }

    /// The range of all commands but `Flush`.
    #[inline]
    fn check_range(&self, request: &Request) -> Result<(), Refuse> {
        if request.length == 0 {
            return Err((ErrorCode::Einval, "the length is zero"));
        }
        let fits =
            request.offset <= self.size_bytes && request.length <= self.size_bytes - request.offset;
        if fits {
            return Ok(());
        }
        let fills = matches!(request.command, Command::Write | Command::WriteZeroes);
        let error = if fills { ErrorCode::Enospc } else { ErrorCode::Einval };
        Err((error, "the range ends beyond the end of the export"))
    }

    /// The contexts that a block status request wants: all that were selected, or those in its
    /// payload.
    fn read_contexts(
        &self,
        request: &mut Request,
        flags: CommandFlags,
        inline: &[u8],
    ) -> Result<(), Refuse> {
        if !flags.contains(CommandFlags::PAYLOAD_LEN) {
            request.contexts = ContextSet::first(self.context_count);
            return Ok(());
        }
        let malformed = (ErrorCode::Einval, "the payload is not a length and a list of contexts");
        let (length, ids) = inline.split_first_chunk::<8>().ok_or(malformed)?;
        request.length = u64::from_be_bytes(*length);
        let selected = &self.context_ids[..self.context_count];
        for id in ids.chunks_exact(4) {
            let id = u32::from_be_bytes(id.try_into().expect("chunks of four"));
            let index = selected.iter().position(|known| *known == id);
            if !index.is_some_and(|index| request.contexts.insert(index)) {
                return Err((ErrorCode::Einval, "a context is unknown or named twice"));
            }
        }
        Ok(())
    }
}

const WITHOUT_FUA_AND_PAYLOAD: CommandFlags =
    CommandFlags::FUA.union(CommandFlags::PAYLOAD_LEN).complement();

fn check_flush(request: Request) -> Result<Request, Refuse> {
    if request.offset != 0 || request.length != 0 {
        return Err((ErrorCode::Einval, "a flush takes no range"));
    }
    Ok(request)
}

fn served_commands(flags: TransmissionFlags, context_count: usize) -> u16 {
    let optional = [
        (Command::Flush, flags.contains(TransmissionFlags::SEND_FLUSH)),
        (Command::Trim, flags.contains(TransmissionFlags::SEND_TRIM)),
        (Command::Cache, flags.contains(TransmissionFlags::SEND_CACHE)),
        (Command::WriteZeroes, flags.contains(TransmissionFlags::SEND_WRITE_ZEROES)),
        (Command::BlockStatus, context_count > 0),
        (Command::Read, true),
        (Command::Write, true),
    ];
    let bits =
        optional.iter().filter(|(_, served)| *served).map(|(command, _)| 1 << command.wire());
    bits.fold(0, |set, bit: u16| set | bit)
}

fn allowed_flags(flags: TransmissionFlags, style: ReplyStyle) -> [CommandFlags; 8] {
    let if_offered = |offer: TransmissionFlags, flag: CommandFlags| {
        if flags.contains(offer) { flag } else { CommandFlags::empty() }
    };
    let fua = if_offered(TransmissionFlags::SEND_FUA, CommandFlags::FUA);
    let mut allowed = [fua; 8];
    let mut add = |command: Command, flag| allowed[command.wire() as usize] |= flag;
    add(Command::Read, if_offered(TransmissionFlags::SEND_DF, CommandFlags::DF));
    add(Command::WriteZeroes, CommandFlags::NO_HOLE);
    let fast = if_offered(TransmissionFlags::SEND_FAST_ZERO, CommandFlags::FAST_ZERO);
    add(Command::WriteZeroes, fast);
    add(Command::BlockStatus, CommandFlags::REQ_ONE);
    let payload = if_offered(TransmissionFlags::BLOCK_STATUS_PAYLOAD, CommandFlags::PAYLOAD_LEN);
    add(Command::BlockStatus, payload);
    if style == ReplyStyle::Extended {
        add(Command::Write, CommandFlags::PAYLOAD_LEN);
    }
    allowed
}
