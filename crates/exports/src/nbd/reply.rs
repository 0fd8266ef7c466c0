//! Replies as bytes, written into the driver's buffers. Nothing here allocates.
//!
//! All encoders write at the start of `out` and return the number of bytes written. They panic if
//! `out` is too small, which is a mistake of the driver. Functions return the sizes beforehand, so
//! that a read's header and its data can share one buffer.

use super::proto::{
    ChunkType, EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, ErrorCode, ReplyFlags,
    SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES, STRUCTURED_REPLY_BYTES,
    STRUCTURED_REPLY_MAGIC,
};
use super::wire::{ErrorHeader, ExtendedChunk, Hole, SimpleReply, StructuredChunk, write};
use zerocopy::byteorder::big_endian::U64;

/// The largest header of any reply that is not an error message or a list of extents: an extended
/// hole.
pub const REPLY_HEADER_MAX_BYTES: usize = EXTENDED_REPLY_BYTES + 12;

/// The fields of its request that a reply repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTag {
    /// The client's name for the request.
    pub cookie: u64,
    /// The request's offset; only extended replies carry it.
    pub offset: u64,
}

/// The form of a connection's replies, fixed by the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStyle {
    /// One 16-byte header for each reply.
    Simple,
    /// Reads and block status in chunks with 20-byte headers.
    Structured,
    /// Everything in chunks with 32-byte headers; requests have 32-byte headers too.
    Extended,
}

#[inline]
fn simple(out: &mut [u8], tag: ReplyTag, error: u32) -> usize {
    let (magic, error) = (SIMPLE_REPLY_MAGIC.into(), error.into());
    write(out, &SimpleReply { magic, error, cookie: tag.cookie.into() })
}

impl ReplyStyle {
    /// Bytes of one chunk's header, without its payload.
    ///
    /// # Panics
    /// For `Simple`, which has no chunks.
    #[inline]
    pub const fn chunk_header_bytes(self) -> usize {
        match self {
            Self::Simple => panic!("simple replies have no chunks"),
            Self::Structured => STRUCTURED_REPLY_BYTES,
            Self::Extended => EXTENDED_REPLY_BYTES,
        }
    }

    /// Bytes that go before the data of a whole successful read: 16, 28 or 40.
    #[inline]
    pub const fn read_header_bytes(self) -> usize {
        match self {
            Self::Simple => SIMPLE_REPLY_BYTES,
            Self::Structured => STRUCTURED_REPLY_BYTES + 8,
            Self::Extended => EXTENDED_REPLY_BYTES + 8,
        }
    }

    /// Bytes of a success without data: 16 or 32.
    #[inline]
    pub const fn success_bytes(self) -> usize {
        match self {
            Self::Simple | Self::Structured => SIMPLE_REPLY_BYTES,
            Self::Extended => EXTENDED_REPLY_BYTES,
        }
    }

    /// Writes the header of a chunk whose payload has `payload_bytes`.
    #[inline]
    pub(super) fn chunk_header(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        chunk: ChunkType,
        done: bool,
        payload_bytes: u32,
    ) -> usize {
        let flags = if done { ReplyFlags::DONE } else { ReplyFlags::empty() };
        let (flags, kind, cookie) = (flags.bits().into(), chunk.wire().into(), tag.cookie.into());
        if self == Self::Extended {
            let (magic, offset) = (EXTENDED_REPLY_MAGIC.into(), tag.offset.into());
            let length = u64::from(payload_bytes).into();
            write(out, &ExtendedChunk { magic, flags, kind, cookie, offset, length })
        } else {
            let (magic, length) = (STRUCTURED_REPLY_MAGIC.into(), payload_bytes.into());
            write(out, &StructuredChunk { magic, flags, kind, cookie, length })
        }
    }

    /// Writes the header before the data of a whole successful read of `length` bytes.
    #[inline]
    pub fn read_header(self, out: &mut [u8], tag: ReplyTag, length: u32) -> usize {
        match self {
            Self::Simple => simple(out, tag, 0),
            _ => self.data_chunk(out, tag, tag.offset, length, true),
        }
    }

    /// Writes the header before the data of one chunk of a read: `length` bytes from `offset` of
    /// the export. `done` marks the last chunk of the reply.
    #[inline]
    pub fn data_chunk(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        offset: u64,
        length: u32,
        done: bool,
    ) -> usize {
        assert!(length > 0 && length <= u32::MAX - 8, "a data chunk of {length} bytes");
        let header = self.chunk_header(out, tag, ChunkType::OffsetData, done, length + 8);
        header + write(&mut out[header..], &U64::new(offset))
    }

    /// Writes a chunk saying that `length` bytes from `offset` of the export read as zeroes.
    #[inline]
    pub fn hole_chunk(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        offset: u64,
        length: u32,
        done: bool,
    ) -> usize {
        assert!(length > 0, "an empty hole");
        let header = self.chunk_header(out, tag, ChunkType::OffsetHole, done, 12);
        let hole = Hole { offset: offset.into(), length: length.into() };
        header + write(&mut out[header..], &hole)
    }

    /// Writes an empty chunk that ends a reply.
    #[inline]
    pub fn done_chunk(self, out: &mut [u8], tag: ReplyTag) -> usize {
        self.chunk_header(out, tag, ChunkType::None, true, 0)
    }

    /// Writes the success of a command without data (any but `Read` and `BlockStatus`).
    #[inline]
    pub fn success(self, out: &mut [u8], tag: ReplyTag) -> usize {
        match self {
            Self::Extended => self.done_chunk(out, tag),
            Self::Simple | Self::Structured => simple(out, tag, 0),
        }
    }

    /// Bytes of an error reply with this message.
    pub fn error_bytes(self, message: &str) -> usize {
        match self {
            Self::Simple => SIMPLE_REPLY_BYTES,
            _ => self.chunk_header_bytes() + 6 + bounded(message).len(),
        }
    }

    /// Writes an error as the whole, or the last chunk, of a reply. Simple replies drop the
    /// message; one above 4096 bytes is cut.
    pub fn error(self, out: &mut [u8], tag: ReplyTag, error: ErrorCode, message: &str) -> usize {
        if self == Self::Simple {
            return simple(out, tag, error.wire());
        }
        let message = bounded(message);
        let payload = 6 + message.len() as u32;
        let header = self.chunk_header(out, tag, ChunkType::Error, true, payload);
        header + error_payload(&mut out[header..], error, message)
    }

    /// Bytes of an error chunk with this message and an offset.
    pub fn error_offset_bytes(self, message: &str) -> usize {
        self.chunk_header_bytes() + 14 + bounded(message).len()
    }

    /// Writes an error chunk for the byte at `offset` of the export, within the request's range.
    ///
    /// # Panics
    /// For `Simple`, which has no chunks.
    pub fn error_offset_chunk(
        self,
        out: &mut [u8],
        tag: ReplyTag,
        error: ErrorCode,
        message: &str,
        offset: u64,
        done: bool,
    ) -> usize {
        let message = bounded(message);
        let payload = 14 + message.len() as u32;
        let header = self.chunk_header(out, tag, ChunkType::ErrorOffset, done, payload);
        let written = header + error_payload(&mut out[header..], error, message);
        written + write(&mut out[written..], &U64::new(offset))
    }
}

/// Error, message length and message.
fn error_payload(out: &mut [u8], error: ErrorCode, message: &str) -> usize {
    let message_bytes = (message.len() as u16).into();
    let text = write(out, &ErrorHeader { error: error.wire().into(), message_bytes });
    out[text..text + message.len()].copy_from_slice(message.as_bytes());
    text + message.len()
}

/// The message, cut to what a string of the protocol may hold.
fn bounded(message: &str) -> &str {
    &message[..message.floor_char_boundary(STRING_MAX_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: ReplyTag = ReplyTag { cookie: 0x0102_0304_0506_0708, offset: 0x1000 };

    #[test]
    fn read_headers_have_the_bytes_of_the_protocol_text() {
        let mut out = [0xee; 64];
        assert_eq!(ReplyStyle::Simple.read_header(&mut out, TAG, 512), 16);
        assert_eq!(out[..16], *b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");

        assert_eq!(ReplyStyle::Structured.read_header(&mut out, TAG, 512), 28);
        assert_eq!(out[..8], *b"\x66\x8e\x33\xef\0\x01\0\x01");
        assert_eq!(out[8..16], *b"\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(out[16..28], *b"\0\0\x02\x08\0\0\0\0\0\0\x10\0");

        assert_eq!(ReplyStyle::Extended.read_header(&mut out, TAG, 512), 40);
        assert_eq!(out[..8], *b"\x6e\x8a\x27\x8c\0\x01\0\x01");
        assert_eq!(out[16..32], *b"\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x02\x08");
        assert_eq!(out[32..40], *b"\0\0\0\0\0\0\x10\0");
        assert_eq!(out[40], 0xee, "nothing behind the header was touched");
    }

    #[test]
    fn sizes_told_are_sizes_written() {
        let mut out = [0; 8192];
        for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
            assert_eq!(style.read_header(&mut out, TAG, 9), style.read_header_bytes());
            assert_eq!(style.success(&mut out, TAG), style.success_bytes());
            for message in ["", "no room", &"ü".repeat(4000)] {
                let written = style.error(&mut out, TAG, ErrorCode::Enospc, message);
                assert_eq!(written, style.error_bytes(message));
            }
        }
        for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
            let written = style.error_offset_chunk(&mut out, TAG, ErrorCode::Eio, "bad", 7, true);
            assert_eq!(written, style.error_offset_bytes("bad"));
            assert!(style.hole_chunk(&mut out, TAG, 0, 9, false) <= REPLY_HEADER_MAX_BYTES);
        }
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let text = format!("a{}", "ü".repeat(3000));
        assert_eq!(bounded(&text).len(), 4095);
        assert_eq!(bounded("short"), "short");
    }

    #[test]
    fn errors_carry_code_and_message() {
        let mut out = [0; 64];
        let bytes = ReplyStyle::Structured.error(&mut out, TAG, ErrorCode::Enospc, "full");
        assert_eq!(bytes, 30);
        assert_eq!(out[4..8], *b"\0\x01\x80\x01");
        assert_eq!(out[16..30], *b"\0\0\0\x0a\0\0\0\x1c\0\x04full");
        ReplyStyle::Simple.error(&mut out, TAG, ErrorCode::Eperm, "ignored");
        assert_eq!(out[4..8], *b"\0\0\0\x01");
    }

    #[test]
    #[should_panic(expected = "no room for 32 bytes")]
    fn a_buffer_too_small_is_the_drivers_mistake() {
        ReplyStyle::Extended.done_chunk(&mut [0; 31], TAG);
    }
}
