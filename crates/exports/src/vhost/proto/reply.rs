//! Replies to the front end, and the one message that the back end sends by itself.

use super::message::{ConfigRange, Inflight};
use super::request::Request;
use super::wire::{self, HEADER_BYTES};
use zerocopy::{Immutable, IntoBytes};

/// The number of `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG` ("Back-end message types").
const CONFIG_CHANGE: u32 = 2;

/// A reply: bytes to send, and the descriptor that goes with the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<F> {
    bytes: Vec<u8>,
    descriptor: Option<F>,
}

/// A new in-flight region, as the reply to `GET_INFLIGHT_FD` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightReply<F> {
    /// Its length, bytes.
    pub bytes: u64,
    /// Its place in the file, bytes.
    pub offset: u64,
    /// The file.
    pub file: F,
}

impl<F> Reply<F> {
    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes to send, and the descriptor that goes with the first of them. It may be closed
    /// when it was sent.
    pub fn into_parts(self) -> (Vec<u8>, Option<F>) {
        (self.bytes, self.descriptor)
    }

    /// A single 64-bit integer.
    pub fn number(request: u32, value: u64) -> Self {
        Self::new(request, &wire::Number { value: value.into() })
    }

    /// The state of a queue: the answer to `GET_VRING_BASE`.
    pub fn vring_state(queue: u32, base: u32) -> Self {
        let state = wire::VringState { index: queue.into(), num: base.into() };
        Self::new(Request::GetVringBase.number(), &state)
    }

    /// The answer to `SET_LOG_BASE`. The protocol text does not say what it holds; the area itself
    /// suits QEMU, which looks at the message's number only, and the `vhost` crate.
    pub fn log(bytes: u64, offset: u64) -> Self {
        let log = wire::Log { bytes: bytes.into(), offset: offset.into() };
        Self::new(Request::SetLogBase.number(), &log)
    }

    /// A part of the configuration space, of which `space` is the beginning. Bytes behind `space`
    /// are zero: fields of features that the device does not have.
    pub fn config(range: &ConfigRange, space: &[u8]) -> Self {
        let ConfigRange { offset, size, flags } = *range;
        let head = wire::Config { offset: offset.into(), size: size.into(), flags: flags.into() };
        let known = space.get(offset as usize..).unwrap_or_default();
        let mut payload = [head.as_bytes(), &known[..known.len().min(size as usize)]].concat();
        payload.resize(size_of::<wire::Config>() + size as usize, 0);
        Self::of_bytes(Request::GetConfig.number(), &payload)
    }

    /// The answer to a `GET_CONFIG` that fails: no payload, as the protocol text asks for.
    pub fn config_refused() -> Self {
        Self::of_bytes(Request::GetConfig.number(), &[])
    }

    /// The answer to `GET_INFLIGHT_FD`; without a region its length is zero. It is padded as the
    /// question was, since QEMU compares the lengths.
    pub fn inflight(asked: &Inflight, region: Option<InflightReply<F>>) -> Self {
        let (bytes, offset) = region.as_ref().map_or((0, 0), |new| (new.bytes, new.offset));
        let area = wire::InflightArea {
            bytes: bytes.into(),
            offset: offset.into(),
            queues: asked.queues.into(),
            queue_size: asked.queue_size.into(),
        };
        let mut payload = area.as_bytes().to_vec();
        if asked.padded {
            payload.resize(wire::PADDED_INFLIGHT_BYTES, 0);
        }
        let reply = Self::of_bytes(Request::GetInflightFd.number(), &payload);
        Self { descriptor: region.map(|new| new.file), ..reply }
    }

    fn new<T: IntoBytes + Immutable>(request: u32, payload: &T) -> Self {
        Self::of_bytes(request, payload.as_bytes())
    }

    fn of_bytes(request: u32, payload: &[u8]) -> Self {
        let head = header(request, wire::VERSION | wire::REPLY, payload.len());
        Self { bytes: [&head, payload].concat(), descriptor: None }
    }
}

/// The message that tells the front end, over the back end's own channel, that the configuration
/// space has changed. With `need_reply` the front end answers with a number that is 0 for success;
/// that needs `REPLY_ACK`.
pub fn config_change(need_reply: bool) -> [u8; HEADER_BYTES] {
    let flags = if need_reply { wire::VERSION | wire::NEED_REPLY } else { wire::VERSION };
    header(CONFIG_CHANGE, flags, 0)
}

fn header(request: u32, flags: u32, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    let size = (payload_bytes as u32).into();
    zerocopy::transmute!(wire::Header { request: request.into(), flags: flags.into(), size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(reply: &Reply<u32>) -> Vec<u32> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        reply.bytes().chunks_exact(4).map(word).collect()
    }

    #[test]
    fn replies_have_their_headers_and_fields() {
        assert_eq!(words(&Reply::number(17, 3 << 32 | 2)), [17, 5, 8, 2, 3]);
        assert_eq!(words(&Reply::vring_state(1, 0x8001_8002)), [11, 5, 8, 1, 0x8001_8002]);
        assert_eq!(words(&Reply::log(4096, 8)), [6, 5, 16, 4096, 0, 8, 0]);
        assert_eq!(words(&Reply::config_refused()), [24, 5, 0]);
    }

    #[test]
    fn a_config_reply_is_as_long_as_the_question() {
        let range = ConfigRange { offset: 2, size: 8, flags: 1 };
        let reply = Reply::<u32>::config(&range, &[9, 8, 7, 6, 5]);
        assert_eq!(words(&reply), [24, 5, 20, 2, 8, 1, 0x0005_0607, 0]);
        let far = Reply::<u32>::config(&ConfigRange { offset: 9, size: 4, flags: 0 }, &[1]);
        assert_eq!(words(&far), [24, 5, 16, 9, 4, 0, 0]);
    }

    #[test]
    fn an_inflight_reply_is_padded_as_the_question() {
        let mut asked = Inflight { bytes: 0, offset: 0, queues: 2, queue_size: 3, padded: false };
        let region = InflightReply { bytes: 4096, offset: 64, file: 7_u32 };
        let reply = Reply::inflight(&asked, Some(region));
        assert_eq!(words(&reply), [31, 5, 20, 4096, 0, 64, 0, 3 << 16 | 2]);
        assert_eq!(reply.into_parts().1, Some(7));
        asked.padded = true;
        let none = Reply::<u32>::inflight(&asked, None);
        assert_eq!(words(&none), [31, 5, 24, 0, 0, 0, 0, 3 << 16 | 2, 0]);
        assert_eq!(none.into_parts().1, None);
    }

    #[test]
    fn a_config_change_is_a_header() {
        assert_eq!(config_change(false), [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(config_change(true)[4], 9);
    }
}
