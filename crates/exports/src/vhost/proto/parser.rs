//! Cuts the received bytes into messages.
//!
//! Invariants:
//! * A read never goes past the end of a message ([`Parser::wanted_bytes`]), so descriptors that
//!   came with a read belong to the message that it is part of.
//! * Nothing depends on how a message was cut into reads, nor on which of them brought descriptors.
//! * Memory is bounded: one payload of [`PAYLOAD_BYTES_MAX`], and [`DESCRIPTORS_MAX`] descriptors.

use super::malformed::Malformed;
use super::request::Request;
use super::wire::{self, DESCRIPTORS_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX};

/// A whole message, its payload not yet read.
#[derive(Debug)]
pub struct Frame<'a, F> {
    /// The number of the message.
    number: u32,
    need_reply: bool,
    payload: &'a [u8],
    descriptors: Vec<F>,
}

impl<'a, F> Frame<'a, F> {
    /// The message; `None` if this back end does not have it.
    pub fn request(&self) -> Option<Request> {
        Request::from_number(self.number)
    }

    /// The number of the message.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// True if the front end wants a reply, if `REPLY_ACK` was negotiated.
    pub fn needs_reply(&self) -> bool {
        self.need_reply
    }

    /// Its payload.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The number of its descriptors.
    pub fn descriptor_count(&self) -> usize {
        self.descriptors.len()
    }

    /// Its descriptors, in the order in which they came.
    pub fn into_descriptors(self) -> Vec<F> {
        self.descriptors
    }
}

/// What is known of the header of the message at hand.
#[derive(Clone, Copy, Debug)]
struct Head {
    number: u32,
    need_reply: bool,
    payload_bytes: usize,
}

/// Cuts the received bytes into messages. `F` is a descriptor: `OwnedFd`, or a number in tests.
#[derive(Debug)]
pub struct Parser<F> {
    header: [u8; HEADER_BYTES],
    payload: Box<[u8]>,
    /// Received bytes of the message at hand, its header included.
    filled: usize,
    /// The header, as soon as it is complete.
    head: Option<Head>,
    descriptors: Vec<F>,
}

impl<F> Default for Parser<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F> Parser<F> {
    /// A parser at the beginning of a connection.
    pub fn new() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            payload: vec![0; PAYLOAD_BYTES_MAX].into(),
            filled: 0,
            head: None,
            descriptors: Vec::new(),
        }
    }

    /// The most bytes that the next read may bring: to the end of the header or of the payload. At
    /// least 1.
    pub fn wanted_bytes(&self) -> usize {
        self.message_bytes() - self.filled
    }

    /// True between two messages, where a front end may close its socket.
    pub fn is_idle(&self) -> bool {
        self.filled == 0 && self.descriptors.is_empty()
    }

    /// Takes the bytes of a read, at most [`Self::wanted_bytes`], and the descriptors that came
    /// with it. The message if it is complete.
    ///
    /// # Errors
    /// When header or descriptors are those of no message. The stream is then out of step, so the
    /// server closes the connection and drops the parser. It does the same, for
    /// [`Malformed::LostDescriptors`], when the kernel says that descriptors of a read were cut off
    /// (`MSG_CTRUNC`): which of them belong to which region would then be a guess.
    ///
    /// # Panics
    /// When there are more bytes than wanted: a mistake of the server.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        descriptors: impl IntoIterator<Item = F>,
    ) -> Result<Option<Frame<'_, F>>, Malformed> {
        assert!(bytes.len() <= self.wanted_bytes(), "a read goes past the end of a message");
        for descriptor in descriptors {
            if self.descriptors.len() == DESCRIPTORS_MAX {
                return Err(Malformed::TooManyDescriptors);
            }
            self.descriptors.push(descriptor);
        }
        self.store(bytes);
        if self.head.is_none() && self.filled == HEADER_BYTES {
            self.head = Some(read_header(&self.header)?);
        }
        Ok(self.take_frame())
    }

    /// Bytes of the message at hand, as far as they are known.
    fn message_bytes(&self) -> usize {
        HEADER_BYTES + self.head.map_or(0, |head| head.payload_bytes)
    }

    fn store(&mut self, bytes: &[u8]) {
        let part = match self.head {
            None => &mut self.header[self.filled..],
            Some(_) => &mut self.payload[self.filled - HEADER_BYTES..],
        };
        part[..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    fn take_frame(&mut self) -> Option<Frame<'_, F>> {
        let Head { number, need_reply, payload_bytes } = self.head?;
        if self.wanted_bytes() > 0 {
            return None;
        }
        (self.filled, self.head) = (0, None);
        let descriptors = std::mem::take(&mut self.descriptors);
        Some(Frame { number, need_reply, payload: &self.payload[..payload_bytes], descriptors })
    }
}

fn read_header(bytes: &[u8; HEADER_BYTES]) -> Result<Head, Malformed> {
    let header: wire::Header = zerocopy::transmute!(*bytes);
    let (request, flags, bytes) = (header.request.get(), header.flags.get(), header.size.get());
    let version = flags & wire::VERSION_BITS;
    if version != wire::VERSION {
        return Err(Malformed::Version { request, version });
    }
    if flags & wire::REPLY != 0 {
        return Err(Malformed::UnexpectedReply { request });
    }
    if flags & !(wire::VERSION_BITS | wire::NEED_REPLY) != 0 {
        return Err(Malformed::Flags { request, flags });
    }
    if bytes as usize > PAYLOAD_BYTES_MAX {
        return Err(Malformed::TooLong { request, bytes });
    }
    let need_reply = flags & wire::NEED_REPLY != 0;
    Ok(Head { number: request, need_reply, payload_bytes: bytes as usize })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, flags: u32, size: u32) -> Vec<u8> {
        [request, flags, size].map(u32::to_le_bytes).concat()
    }

    /// Number, wish for a reply, payload and descriptors of a message in reads of at most `most`
    /// bytes, of which the one with number `with` brings a descriptor.
    fn parse(bytes: &[u8], most: usize, with: usize) -> (u32, bool, Vec<u8>, Vec<u32>) {
        let mut parser = Parser::new();
        let (mut rest, mut reads) = (bytes, 0..);
        loop {
            let (part, tail) = rest.split_at(parser.wanted_bytes().min(most).min(rest.len()));
            rest = tail;
            let descriptor = (reads.next() == Some(with)).then_some(7);
            let frame = parser.receive(part, descriptor).expect("a good message");
            if let Some(frame) = frame {
                assert!(rest.is_empty(), "complete before its end");
                let payload = frame.payload().to_vec();
                return (frame.number(), frame.needs_reply(), payload, frame.into_descriptors());
            }
        }
    }

    #[test]
    fn a_message_is_the_same_however_it_is_cut() {
        let payload = vec![1, 0, 0, 0, 0, 1, 0, 0];
        let message = [header(8, 9, 8), payload.clone()].concat();
        for most in 1..=message.len() {
            for with in [0, 1] {
                assert_eq!(parse(&message, most, with), (8, true, payload.clone(), vec![7]));
            }
        }
        assert_eq!(parse(&header(1, 1, 0), 12, 0), (1, false, vec![], vec![7]));
    }

    #[test]
    fn the_next_message_starts_anew() {
        let mut parser = Parser::new();
        for number in [3, 4] {
            assert!(parser.is_idle());
            assert_eq!(parser.wanted_bytes(), HEADER_BYTES);
            let none = parser.receive(&header(number, 1, 2), [number]).expect("a good header");
            assert!(none.is_none(), "its payload is missing");
            assert_eq!((parser.wanted_bytes(), parser.is_idle()), (2, false));
            let frame = parser.receive(&[1, 2], []).expect("a good payload").expect("a message");
            assert_eq!((frame.number(), frame.descriptor_count()), (number, 1));
        }
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn a_read_past_the_end_is_a_mistake_of_the_server() {
        let _ = Parser::<u32>::new().receive(&[0; HEADER_BYTES + 1], []);
    }

    #[test]
    fn bad_headers_are_refused() {
        let refused = |flags, size, descriptors: usize| {
            let mut parser = Parser::new();
            let header = header(5, flags, size);
            let result = parser.receive(&header, 0..descriptors);
            result.map(|_| ()).expect_err("refused").to_string()
        };
        let table = [
            (refused(0, 0, 0), "message 5 has version 0: only version 1 is known"),
            (refused(5, 0, 0), "message 5 is a reply, but the back end asked nothing"),
            (refused(0x11, 0, 0), "message 5 has flags 0x11: bits 4 to 31 must be zero"),
            (refused(1, 4097, 0), "message 5 has 4097 bytes of payload: at most 4096 are read"),
            (refused(1, 0, 33), "more than 32 descriptors came with one message"),
        ];
        for (found, sentence) in table {
            assert_eq!(found, sentence);
        }
        let mut parser = Parser::new();
        assert!(parser.receive(&header(5, 9, 4096), 0..32).is_ok(), "the longest of all");
    }
}
