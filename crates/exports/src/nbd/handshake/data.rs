//! The data of options, and the replies to options, as bytes.
//!
//! Parsers borrow from the received data and accept exactly what the protocol text describes:
//! lengths that do not add up, strings above 4096 bytes, with a NUL or not in UTF-8 are all
//! [`Malformed`].

use crate::nbd::proto::{
    InfoCode, OPTION_REPLY_MAGIC, ReplyCode, STRING_MAX_BYTES, TransmissionFlags,
};
use crate::nbd::wire::OptionReplyHeader;
use zerocopy::IntoBytes;

/// The data of an option breaks its format; the text says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// A reader over the data of one option.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let short = Malformed("a length reaches beyond the option's data");
        let (head, tail) = self.0.split_at_checked(count).ok_or(short)?;
        self.0 = tail;
        Ok(head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.bytes(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.bytes(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn string(&mut self) -> Result<&'a str, Malformed> {
        let length = self.u32()?;
        let length = usize::try_from(length).map_err(|_| Malformed("a string is too long"))?;
        check_string(self.bytes(length)?)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed("bytes are left after the last field"))
        }
    }
}

/// A string of the protocol: UTF-8, no NUL, at most 4096 bytes.
pub(super) fn check_string(bytes: &[u8]) -> Result<&str, Malformed> {
    if bytes.len() > STRING_MAX_BYTES {
        return Err(Malformed("a string is longer than 4096 bytes"));
    }
    if bytes.contains(&0) {
        return Err(Malformed("a string contains a NUL"));
    }
    std::str::from_utf8(bytes).map_err(|_| Malformed("a string is not UTF-8"))
}

/// The data of `INFO` and `GO`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a str,
    pub(super) wants_name: bool,
    pub(super) wants_description: bool,
    pub(super) wants_block_size: bool,
}

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let mut request =
            Self { name, wants_name: false, wants_description: false, wants_block_size: false };
        for _ in 0..fields.u16()? {
            match InfoCode::from_wire(fields.u16()?) {
                Some(InfoCode::Name) => request.wants_name = true,
                Some(InfoCode::Description) => request.wants_description = true,
                Some(InfoCode::BlockSize) => request.wants_block_size = true,
                Some(InfoCode::Export) | None => {}
            }
        }
        fields.end().map(|()| request)
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextRequest<'a> {
    pub(super) export: &'a str,
    pub(super) queries: Vec<&'a str>,
}

impl<'a> ContextRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(data);
        let export = fields.string()?;
        let mut queries = Vec::new();
        for _ in 0..fields.u32()? {
            let query = fields.string()?;
            if query.find(':').is_none_or(|colon| colon == 0) {
                return Err(Malformed("a metadata query lacks a namespace and a colon"));
            }
            queries.push(query);
        }
        fields.end().map(|()| Self { export, queries })
    }

    /// True if a context of this name matches the queries of a list request: without queries all
    /// do, and `namespace:` stands for the whole namespace.
    pub(super) fn lists(&self, name: &str) -> bool {
        let wildcard = |query: &str| query.ends_with(':') && name.starts_with(query);
        self.queries.is_empty()
            || self.queries.iter().any(|query| *query == name || wildcard(query))
    }

    /// True if a context of this name is selected: by its exact name only.
    pub(super) fn selects(&self, name: &str) -> bool {
        self.queries.contains(&name)
    }
}

/// Appends one reply to `option`, its data given in parts.
pub(super) fn reply(out: &mut Vec<u8>, option: u32, code: ReplyCode, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length).expect("replies are made of strings of bounded length");
    let (magic, option) = (OPTION_REPLY_MAGIC.into(), option.into());
    let (code, length) = (code.wire().into(), length.into());
    out.extend_from_slice(OptionReplyHeader { magic, option, code, length }.as_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// Appends an `Info` reply.
pub(super) fn reply_info(out: &mut Vec<u8>, option: u32, info: InfoCode, data: &[&[u8]]) {
    let code = info.wire().to_be_bytes();
    let mut parts: Vec<&[u8]> = vec![&code];
    parts.extend_from_slice(data);
    reply(out, option, ReplyCode::Info, &parts);
}

/// Appends the answer to `EXPORT_NAME`.
pub(super) fn export_name_answer(
    out: &mut Vec<u8>,
    size_bytes: u64,
    flags: TransmissionFlags,
    zeroes: bool,
) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&flags.bits().to_be_bytes());
    if zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text].concat()
    }

    #[test]
    fn info_request_reads_what_is_asked() {
        let data = [string(b"vol"), vec![0, 3, 0, 3, 0, 9, 0, 2]].concat();
        let request = InfoRequest::parse(&data).unwrap();
        assert_eq!(request.name, "vol");
        assert!(request.wants_block_size && request.wants_description && !request.wants_name);
    }

    #[test]
    fn info_request_refuses_lengths_that_do_not_add_up() {
        let good = [string(b"vol"), vec![0, 1, 0, 3]].concat();
        assert!(InfoRequest::parse(&good).is_ok());
        for end in 0..good.len() {
            assert!(InfoRequest::parse(&good[..end]).is_err(), "cut at {end}");
        }
        assert!(InfoRequest::parse(&[good, vec![0]].concat()).is_err(), "one byte more");
        assert!(InfoRequest::parse(&[0xff; 40]).is_err(), "huge name length");
    }

    #[test]
    fn strings_keep_to_the_rules() {
        assert_eq!(check_string("prüfung".as_bytes()), Ok("prüfung"));
        assert!(check_string(b"a\0b").is_err());
        assert!(check_string(b"\xff").is_err());
        assert!(check_string(&[b'a'; 4096]).is_ok());
        assert!(check_string(&[b'a'; 4097]).is_err());
    }

    #[test]
    fn context_queries_match_by_name_and_wildcard() {
        let request = |queries: &[&str]| {
            let mut data = [string(b"vol"), (queries.len() as u32).to_be_bytes().to_vec()].concat();
            queries.iter().for_each(|query| data.extend(string(query.as_bytes())));
            data
        };
        let check = |queries: &[&str]| {
            let data = request(queries);
            let parsed = ContextRequest::parse(&data).unwrap();
            (parsed.lists("base:allocation"), parsed.selects("base:allocation"))
        };
        assert_eq!(check(&[]), (true, false));
        assert_eq!(check(&["base:"]), (true, false));
        assert_eq!(check(&["base:allocation"]), (true, true));
        assert_eq!(check(&["base:alloc", "qemu:", "x-y:z"]), (false, false));
        assert!(ContextRequest::parse(&request(&["nocolon"])).is_err());
        assert!(ContextRequest::parse(&request(&[":leaf"])).is_err());
        let mut many = request(&[]);
        many.truncate(7);
        many.extend(u32::MAX.to_be_bytes());
        assert!(ContextRequest::parse(&many).is_err(), "a count without queries");
    }
}
