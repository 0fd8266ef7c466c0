//! The client's side of transmission.

use std::io::{Read, Write};

use super::{
    ClientError, Description, Result, broken, ensure, read_bytes, read_u16, read_u32, read_u64,
    send, text,
};
use drystone_exports::nbd::proto::{
    ChunkType, Command, CommandFlags, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC,
    ReplyFlags, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};
use drystone_exports::nbd::reply::ReplyStyle;

/// A request header, field by field, to send as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRequest {
    /// Command flags.
    pub flags: u16,
    /// Command number.
    pub command: u16,
    /// Name of the request.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length of the range, or of the payload.
    pub length: u64,
}

impl RawRequest {
    /// The header on the wire: compact for simple and structured replies, else extended.
    pub fn encode(&self, style: ReplyStyle) -> Vec<u8> {
        let extended = style == ReplyStyle::Extended;
        let magic = if extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        if extended {
            bytes.extend(self.length.to_be_bytes());
        } else {
            bytes.extend((self.length as u32).to_be_bytes());
        }
        bytes
    }
}

/// The status chunk of one metadata context: its id, and (length, status flags) of each descriptor.
pub type Status = (u32, Vec<(u64, u32)>);

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Reply {
    /// Which request it answers.
    pub cookie: u64,
    /// The first error: code and message.
    pub error: Option<(u32, String)>,
    /// Where an error with an offset happened.
    pub error_offset: Option<u64>,
    /// The data of a read, holes filled with zeroes.
    pub data: Vec<u8>,
    /// The content chunks of a read: offset, length, whether a hole.
    pub content: Vec<(u64, u64, bool)>,
    /// The chunks of a block status.
    pub status: Vec<Status>,
}

/// A request without its whole reply.
#[derive(Clone, Debug)]
struct Pending {
    command: Command,
    offset: u64,
    length: u64,
    reply: Reply,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
    style: ReplyStyle,
    description: Description,
    next_cookie: u64,
    pending: Vec<Pending>,
}

struct Chunk {
    flags: u16,
    kind: u16,
    cookie: u64,
    payload: Vec<u8>,
}

impl<S: Read + Write> Connection<S> {
    pub(super) fn new(stream: S, style: ReplyStyle, description: Description) -> Self {
        Self { stream, style, description, next_cookie: 1, pending: Vec::new() }
    }

    /// The export, as the server told of it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The form of requests and replies.
    pub fn style(&self) -> ReplyStyle {
        self.style
    }

    /// The stream.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Gives the stream back, whatever is pending.
    pub fn into_stream(self) -> S {
        self.stream
    }

    /// Sends a request and returns its cookie. A write in extended form gets the payload flag;
    /// other commands get it when there is a payload, whose length then is the header's.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn send(
        &mut self,
        command: Command,
        mut flags: CommandFlags,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let mut length_field = length;
        if self.style == ReplyStyle::Extended && !payload.is_empty() {
            flags |= CommandFlags::PAYLOAD_LEN;
            length_field = payload.len() as u64;
        }
        let (flags, code) = (flags.bits(), command.wire());
        let raw = RawRequest { flags, command: code, cookie, offset, length: length_field };
        let reply = Reply { cookie, ..Reply::default() };
        self.pending.push(Pending { command, offset, length, reply });
        send(&mut self.stream, &[&raw.encode(self.style), payload])?;
        Ok(cookie)
    }

    /// Sends bytes as they are, and expects a reply as to `command` with this range.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn send_raw(&mut self, command: Command, raw: &RawRequest, payload: &[u8]) -> Result<()> {
        let reply = Reply { cookie: raw.cookie, ..Reply::default() };
        let (offset, length) = (raw.offset, raw.length);
        self.pending.push(Pending { command, offset, length, reply });
        send(&mut self.stream, &[&raw.encode(self.style), payload])
    }

    /// Reads until one reply is complete, whichever it is.
    ///
    /// # Errors
    /// [`ClientError`] when the stream fails or the server breaks a rule.
    pub fn receive(&mut self) -> Result<Reply> {
        loop {
            let magic = read_u32(&mut self.stream)?;
            let done = match (magic, self.style) {
                (SIMPLE_REPLY_MAGIC, ReplyStyle::Simple | ReplyStyle::Structured) => {
                    Some(self.simple_reply()?)
                }
                (STRUCTURED_REPLY_MAGIC, ReplyStyle::Structured)
                | (EXTENDED_REPLY_MAGIC, ReplyStyle::Extended) => self.chunk_reply()?,
                _ => return broken(format!("reply magic {magic:#x} in style {:?}", self.style)),
            };
            if let Some(index) = done {
                return Ok(self.pending.swap_remove(index).reply);
            }
        }
    }

    fn find(&self, cookie: u64) -> Result<usize> {
        let found = self.pending.iter().position(|pending| pending.reply.cookie == cookie);
        found.map_or_else(|| broken(format!("a reply to unknown cookie {cookie:#x}")), Ok)
    }

    fn simple_reply(&mut self) -> Result<usize> {
        let error = read_u32(&mut self.stream)?;
        let cookie = read_u64(&mut self.stream)?;
        let index = self.find(cookie)?;
        let pending = &mut self.pending[index];
        let read = pending.command == Command::Read;
        ensure(self.style == ReplyStyle::Simple || !read, "a simple reply to a structured read")?;
        ensure(pending.command != Command::BlockStatus || error != 0, "a status without chunks")?;
        if error != 0 {
            pending.reply.error = Some((error, String::new()));
        } else if read {
            pending.reply.data = read_bytes(&mut self.stream, pending.length)?;
            pending.reply.content.push((pending.offset, pending.length, false));
        }
        Ok(index)
    }

    fn read_chunk(&mut self) -> Result<(Chunk, usize)> {
        let flags = read_u16(&mut self.stream)?;
        let kind = read_u16(&mut self.stream)?;
        let cookie = read_u64(&mut self.stream)?;
        let index = self.find(cookie)?;
        let length = if self.style == ReplyStyle::Extended {
            let offset = read_u64(&mut self.stream)?;
            ensure(offset == self.pending[index].offset, "an extended reply with another offset")?;
            read_u64(&mut self.stream)?
        } else {
            read_u32(&mut self.stream)?.into()
        };
        let payload = read_bytes(&mut self.stream, length)?;
        Ok((Chunk { flags, kind, cookie, payload }, index))
    }

    /// Takes one chunk in; the index of the request that it completes.
    fn chunk_reply(&mut self) -> Result<Option<usize>> {
        let (chunk, index) = self.read_chunk()?;
        let extended = self.style == ReplyStyle::Extended;
        let pending = &mut self.pending[index];
        debug_assert_eq!(pending.reply.cookie, chunk.cookie);
        let done = chunk.flags & ReplyFlags::DONE.bits() != 0;
        let mut rest = &chunk.payload[..];
        match ChunkType::from_wire(chunk.kind) {
            Some(ChunkType::None) => ensure(done && rest.is_empty(), "a wrong final chunk")?,
            Some(ChunkType::OffsetData) => {
                let offset = read_u64(&mut rest)?;
                pending.content(offset, rest.len() as u64, false)?;
                pending.fill(offset, rest);
            }
            Some(ChunkType::OffsetHole) => {
                let (offset, length) = (read_u64(&mut rest)?, read_u32(&mut rest)?);
                ensure(rest.is_empty(), "a hole with data")?;
                pending.content(offset, length.into(), true)?;
                pending.fill(offset, &vec![0; length as usize]);
            }
            Some(ChunkType::BlockStatus) => pending.status(rest, false)?,
            Some(ChunkType::BlockStatusExt) => {
                ensure(extended, "64-bit status without extended headers")?;
                pending.status(rest, true)?;
            }
            Some(ChunkType::Error | ChunkType::ErrorOffset) => {
                pending.failed(rest, chunk.kind == ChunkType::ErrorOffset.wire())?;
            }
            None => return broken(format!("chunk type {:#x}", chunk.kind)),
        }
        if done {
            pending.complete()?;
        }
        Ok(done.then_some(index))
    }

    /// Reads replies until this request's; others must not be pending.
    fn finish(&mut self, cookie: u64) -> Result<Reply> {
        let reply = self.receive()?;
        ensure(reply.cookie == cookie, "a reply to another request")?;
        match reply.error {
            Some((code, message)) => Err(ClientError::Failed { code, message }),
            None => Ok(reply),
        }
    }

    /// Sends one request and waits for its reply.
    ///
    /// # Errors
    /// [`ClientError::Failed`] with the server's error.
    pub fn call(
        &mut self,
        command: Command,
        flags: CommandFlags,
        offset: u64,
        length: u64,
        payload: &[u8],
    ) -> Result<Reply> {
        let cookie = self.send(command, flags, offset, length, payload)?;
        self.finish(cookie)
    }

    /// Reads a range.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub fn read(&mut self, offset: u64, length: u64, flags: CommandFlags) -> Result<Vec<u8>> {
        self.call(Command::Read, flags, offset, length, &[]).map(|reply| reply.data)
    }

    /// Writes data.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub fn write(&mut self, offset: u64, data: &[u8], flags: CommandFlags) -> Result<()> {
        self.call(Command::Write, flags, offset, data.len() as u64, data).map(|_| ())
    }

    /// Flush, trim, write zeroes or cache.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub fn command(
        &mut self,
        command: Command,
        offset: u64,
        length: u64,
        flags: CommandFlags,
    ) -> Result<()> {
        self.call(command, flags, offset, length, &[]).map(|_| ())
    }

    /// The status of a range in all selected contexts.
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub fn block_status(
        &mut self,
        offset: u64,
        length: u64,
        flags: CommandFlags,
    ) -> Result<Vec<Status>> {
        let reply = self.call(Command::BlockStatus, flags, offset, length, &[])?;
        let one = flags.contains(CommandFlags::REQ_ONE);
        for (_, descriptors) in reply.status.iter().filter(|_| one) {
            let alone = descriptors.len() == 1 && descriptors[0].0 <= length;
            ensure(alone, "more status than was asked for")?;
        }
        Ok(reply.status)
    }

    /// The status of a range in these contexts (extended headers only).
    ///
    /// # Errors
    /// See [`call`](Self::call).
    pub fn block_status_of(
        &mut self,
        offset: u64,
        length: u64,
        ids: &[u32],
    ) -> Result<Vec<Status>> {
        let mut payload = length.to_be_bytes().to_vec();
        ids.iter().for_each(|id| payload.extend(id.to_be_bytes()));
        let flags = CommandFlags::empty();
        let reply = self.call(Command::BlockStatus, flags, offset, length, &payload)?;
        Ok(reply.status)
    }

    /// Ends the session and gives the stream back.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn disconnect(mut self) -> Result<S> {
        self.send(Command::Disc, CommandFlags::empty(), 0, 0, &[])?;
        Ok(self.stream)
    }
}

impl Pending {
    /// Notes a content chunk and checks that it lies in the request and on no other.
    fn content(&mut self, offset: u64, length: u64, hole: bool) -> Result<()> {
        ensure(self.command == Command::Read, "content in reply to something else")?;
        ensure(length > 0, "an empty content chunk")?;
        let end = self.offset + self.length;
        let within = offset >= self.offset && offset <= end && length <= end - offset;
        ensure(within, "content outside the request")?;
        let apart = |(other, size, _): &(u64, u64, bool)| {
            offset + length <= *other || other + size <= offset
        };
        ensure(self.reply.content.iter().all(apart), "content chunks that overlap")?;
        self.reply.content.push((offset, length, hole));
        Ok(())
    }

    fn fill(&mut self, offset: u64, data: &[u8]) {
        self.reply.data.resize(self.length as usize, 0xdb);
        let start = (offset - self.offset) as usize;
        self.reply.data[start..start + data.len()].copy_from_slice(data);
    }

    fn status(&mut self, mut rest: &[u8], extended: bool) -> Result<()> {
        ensure(self.command == Command::BlockStatus, "status in reply to something else")?;
        let id = read_u32(&mut rest)?;
        ensure(self.reply.status.iter().all(|(other, _)| *other != id), "a context twice")?;
        let count = if extended { read_u32(&mut rest)? as usize } else { 0 };
        let size = if extended { 16 } else { 8 };
        ensure(!rest.is_empty() && rest.len().is_multiple_of(size), "a wrong status length")?;
        ensure(count == 0 || count == rest.len() / size, "a wrong descriptor count")?;
        let mut descriptors = Vec::new();
        while !rest.is_empty() {
            let length = if extended { read_u64(&mut rest)? } else { read_u32(&mut rest)?.into() };
            ensure(!extended || read_u32(&mut rest)? == 0, "padding that is not zero")?;
            ensure(length > 0, "an empty extent")?;
            descriptors.push((length, read_u32(&mut rest)?));
        }
        self.reply.status.push((id, descriptors));
        Ok(())
    }

    fn failed(&mut self, mut rest: &[u8], with_offset: bool) -> Result<()> {
        let code = read_u32(&mut rest)?;
        let length = read_u16(&mut rest)? as usize;
        ensure(code != 0, "an error without a code")?;
        ensure(length <= rest.len(), "an error message longer than its chunk")?;
        let message = text(&rest[..length])?;
        let mut rest = &rest[length..];
        if with_offset {
            let offset = read_u64(&mut rest)?;
            let within = offset >= self.offset && offset - self.offset < self.length;
            ensure(within, "an error outside the request")?;
            self.reply.error_offset.get_or_insert(offset);
        }
        ensure(rest.is_empty(), "bytes after an error")?;
        self.reply.error.get_or_insert((code, message));
        Ok(())
    }

    /// Checks that a reply that reports success is whole.
    fn complete(&self) -> Result<()> {
        let failed = self.reply.error.is_some();
        let sum: u64 = self.reply.content.iter().map(|(_, length, _)| length).sum();
        let whole = match self.command {
            Command::Read => sum == self.length,
            Command::BlockStatus => !self.reply.status.is_empty(),
            _ => true,
        };
        ensure(failed || whole, "success without all of the content")
    }
}
