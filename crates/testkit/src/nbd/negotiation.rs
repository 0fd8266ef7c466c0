//! The client's side of the handshake.

use std::io::{Read, Write};

use super::{
    ClientError, Connection, Description, Result, ensure, read_bytes, read_u16, read_u32, read_u64,
    send, text,
};
use drystone_exports::nbd::export::BlockSizes;
use drystone_exports::nbd::proto::{
    ClientFlags, HandshakeFlags, INIT_MAGIC, InfoCode, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    OptionCode, ReplyCode, TransmissionFlags,
};
use drystone_exports::nbd::reply::ReplyStyle;

/// One reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    /// The reply code on the wire.
    pub code: u32,
    /// Its data.
    pub data: Vec<u8>,
}

impl OptionReply {
    /// True if this is the last reply to its option.
    fn is_final(&self) -> bool {
        self.code == ReplyCode::Ack.wire() || ReplyCode::wire_is_error(self.code)
    }
}

/// A handshake under way.
#[derive(Debug)]
pub struct Negotiation<S> {
    stream: S,
    style: ReplyStyle,
    flags: ClientFlags,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// The data of `INFO` and `GO`.
fn info_data(export: &str, wanted: &[InfoCode]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|info| data.extend(info.wire().to_be_bytes()));
    data
}

/// The data of the metadata context options.
fn context_data(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

impl<S: Read + Write> Negotiation<S> {
    /// Reads the greeting and answers it with these flags.
    ///
    /// # Errors
    /// [`ClientError`] when the stream fails or the greeting is wrong.
    pub fn start(mut stream: S, flags: ClientFlags) -> Result<Self> {
        ensure(read_u64(&mut stream)? == INIT_MAGIC, "the greeting starts wrong")?;
        ensure(read_u64(&mut stream)? == OPTION_MAGIC, "the server is oldstyle")?;
        let offered = HandshakeFlags::from_bits_retain(read_u16(&mut stream)?);
        ensure(offered.contains(HandshakeFlags::FIXED_NEWSTYLE), "fixed newstyle is not offered")?;
        ensure(HandshakeFlags::all().contains(offered), "unknown handshake flags")?;
        send(&mut stream, &[&flags.bits().to_be_bytes()])?;
        Ok(Self { stream, style: ReplyStyle::Simple, flags })
    }

    /// As [`start`](Self::start) with all flags that exist.
    ///
    /// # Errors
    /// See [`start`](Self::start).
    pub fn new(stream: S) -> Result<Self> {
        Self::start(stream, ClientFlags::all())
    }

    /// Sends an option header and data, and waits for nothing.
    ///
    /// # Errors
    /// [`ClientError::Io`].
    pub fn send_option(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let length = (data.len() as u32).to_be_bytes();
        let magic = OPTION_MAGIC.to_be_bytes();
        send(&mut self.stream, &[&magic, &option.to_be_bytes(), &length, data])
    }

    /// Reads one reply to an option.
    ///
    /// # Errors
    /// [`ClientError`] when the stream fails or the reply belongs to another option.
    pub fn receive_reply(&mut self, option: u32) -> Result<OptionReply> {
        ensure(read_u64(&mut self.stream)? == OPTION_REPLY_MAGIC, "an option reply starts wrong")?;
        ensure(read_u32(&mut self.stream)? == option, "a reply to another option")?;
        let code = read_u32(&mut self.stream)?;
        let length = read_u32(&mut self.stream)?;
        let data = read_bytes(&mut self.stream, length.into())?;
        Ok(OptionReply { code, data })
    }

    /// Sends an option and reads its replies up to the acknowledgement, which is left out.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when the final reply is an error.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<OptionReply>> {
        self.send_option(option, data)?;
        let mut replies = Vec::new();
        loop {
            let reply = self.receive_reply(option)?;
            if !reply.is_final() {
                replies.push(reply);
            } else if reply.code == ReplyCode::Ack.wire() {
                ensure(reply.data.is_empty(), "an acknowledgement with data")?;
                return Ok(replies);
            } else {
                let message = text(&reply.data)?;
                return Err(ClientError::Refused { code: reply.code, message });
            }
        }
    }

    fn simple_option(&mut self, option: OptionCode) -> Result<()> {
        let replies = self.option(option.wire(), &[])?;
        ensure(replies.is_empty(), "replies where only an acknowledgement may come")
    }

    /// Names and descriptions of the exports.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&mut self) -> Result<Vec<(String, String)>> {
        let replies = self.option(OptionCode::List.wire(), &[])?;
        let entry = |reply: OptionReply| {
            ensure(reply.code == ReplyCode::Server.wire(), "not an export in a list")?;
            let mut rest = &reply.data[..];
            let length = read_u32(&mut rest)? as usize;
            ensure(length <= rest.len(), "a name longer than its reply")?;
            Ok((text(&rest[..length])?, text(&rest[length..])?))
        };
        replies.into_iter().map(entry).collect()
    }

    /// Asks for structured replies.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn structured_replies(&mut self) -> Result<()> {
        self.simple_option(OptionCode::StructuredReply)?;
        self.style = ReplyStyle::Structured;
        Ok(())
    }

    /// Asks for extended headers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn extended_headers(&mut self) -> Result<()> {
        self.simple_option(OptionCode::ExtendedHeaders)?;
        self.style = ReplyStyle::Extended;
        Ok(())
    }

    /// Asks for TLS and gives the stream back to be wrapped; go on with
    /// [`after_tls`](Self::after_tls).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn start_tls(mut self) -> Result<S> {
        self.simple_option(OptionCode::StartTls)?;
        Ok(self.stream)
    }

    /// Goes on over a stream under TLS, with nothing negotiated but the client flags.
    pub fn after_tls(stream: S, flags: ClientFlags) -> Self {
        Self { stream, style: ReplyStyle::Simple, flags }
    }

    /// The stream.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Ends the negotiation politely.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn abort(mut self) -> Result<()> {
        self.simple_option(OptionCode::Abort)
    }

    fn contexts(&mut self, option: OptionCode, data: &[u8]) -> Result<Vec<(u32, String)>> {
        let replies = self.option(option.wire(), data)?;
        let entry = |reply: OptionReply| {
            ensure(reply.code == ReplyCode::MetaContext.wire(), "not a metadata context")?;
            let mut rest = &reply.data[..];
            Ok((read_u32(&mut rest)?, text(rest)?))
        };
        replies.into_iter().map(entry).collect()
    }

    /// The metadata contexts of an export that match the queries.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list_contexts(&mut self, export: &str, queries: &[&str]) -> Result<Vec<(u32, String)>> {
        self.contexts(OptionCode::ListMetaContext, &context_data(export, queries))
    }

    /// Selects metadata contexts of an export.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_contexts(&mut self, export: &str, queries: &[&str]) -> Result<Vec<(u32, String)>> {
        self.contexts(OptionCode::SetMetaContext, &context_data(export, queries))
    }

    fn describe(
        &mut self,
        option: OptionCode,
        export: &str,
        wanted: &[InfoCode],
    ) -> Result<Description> {
        let replies = self.option(option.wire(), &info_data(export, wanted))?;
        let mut description = None;
        let (mut name, mut words, mut block_sizes) = (None, None, None);
        for reply in replies {
            ensure(reply.code == ReplyCode::Info.wire(), "not a piece of information")?;
            let mut rest = &reply.data[..];
            match InfoCode::from_wire(read_u16(&mut rest)?) {
                Some(InfoCode::Export) => {
                    let size_bytes = read_u64(&mut rest)?;
                    let flags = TransmissionFlags::from_bits_retain(read_u16(&mut rest)?);
                    ensure(rest.is_empty(), "export information is too long")?;
                    description = Some((size_bytes, flags));
                }
                Some(InfoCode::Name) => name = Some(text(rest)?),
                Some(InfoCode::Description) => words = Some(text(rest)?),
                Some(InfoCode::BlockSize) => {
                    let [min, preferred, max_payload] =
                        [read_u32(&mut rest)?, read_u32(&mut rest)?, read_u32(&mut rest)?];
                    ensure(rest.is_empty(), "block size information is too long")?;
                    block_sizes = Some(BlockSizes { min, preferred, max_payload });
                }
                None => {}
            }
        }
        let Some((size_bytes, flags)) = description else {
            return super::broken("an export without its size and flags");
        };
        ensure(flags.contains(TransmissionFlags::HAS_FLAGS), "flags without HAS_FLAGS")?;
        Ok(Description { size_bytes, flags, name, description: words, block_sizes })
    }

    /// Asks about an export.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn info(&mut self, export: &str, wanted: &[InfoCode]) -> Result<Description> {
        self.describe(OptionCode::Info, export, wanted)
    }

    /// Asks for an export and starts transmission. When it is refused the negotiation is lost;
    /// probe with [`info`](Self::info) or [`option`](Self::option) where that matters.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn go(mut self, export: &str, wanted: &[InfoCode]) -> Result<Connection<S>> {
        let description = self.describe(OptionCode::Go, export, wanted)?;
        Ok(Connection::new(self.stream, self.style, description))
    }

    /// Starts transmission the old way.
    ///
    /// # Errors
    /// [`ClientError::Io`] when the server closes instead of accepting.
    pub fn export_name(mut self, export: &str) -> Result<Connection<S>> {
        self.send_option(OptionCode::ExportName.wire(), export.as_bytes())?;
        let size_bytes = read_u64(&mut self.stream)?;
        let flags = TransmissionFlags::from_bits_retain(read_u16(&mut self.stream)?);
        if !self.flags.contains(ClientFlags::NO_ZEROES) {
            let padding = read_bytes(&mut self.stream, 124)?;
            ensure(padding.iter().all(|byte| *byte == 0), "padding that is not zero")?;
        }
        let description =
            Description { size_bytes, flags, name: None, description: None, block_sizes: None };
        Ok(Connection::new(self.stream, self.style, description))
    }
}
