//! Entry points for fuzzers: feed the parser arbitrary bytes and check the invariants that hold for
//! any input. A failed check panics.

use super::proto::{Malformed, Operation, Request, WRITE_HEAD_BYTES, Wishes, negotiate};

/// Parses arbitrary bytes as one request.
///
/// # Panics
/// When an invariant fails: a request's length differs from its header's, the first bytes of a
/// write are not enough to parse it, or an answer does not fit.
pub fn fuzz_request(data: &[u8]) {
    let parsed = Request::parse(data, data.len());
    match parsed {
        Err(Malformed::Header) => assert!(data.len() < 40),
        Err(Malformed::Body { .. }) => assert!(data.len() >= 40),
        Ok(request) => check(&request, data),
    }
}

fn check(request: &Request<'_>, data: &[u8]) {
    let length = u32::from_ne_bytes(data[..4].try_into().expect("four bytes"));
    assert_eq!(length as usize, data.len(), "{request:?}");
    match request.operation {
        Operation::Write { length, .. } => {
            assert_eq!(length as usize + WRITE_HEAD_BYTES, data.len());
            let head = Request::parse(&data[..WRITE_HEAD_BYTES], data.len());
            assert_eq!(head.as_ref(), Ok(request), "its beginning is enough");
        }
        Operation::Lookup { name } => assert!(!name.contains(&0)),
        Operation::Init(ask) => {
            if let Ok(reply) = negotiate(&ask, Wishes::default()) {
                assert!(ask.flags.contains(reply.flags), "nothing that was not offered");
            }
        }
        _ => {}
    }
}
