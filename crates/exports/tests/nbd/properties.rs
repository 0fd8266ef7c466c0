//! Properties that hold for all inputs.

use drystone_exports::nbd::fuzz::{fuzz_handshake, fuzz_transmission};
use drystone_exports::nbd::{Command, CommandFlags, ExportInfo, ReplyStyle};
use drystone_testkit::nbd::{Negotiation, RawRequest};
use proptest::prelude::*;

use crate::support::server;

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

/// Option data that often makes sense.
fn option_data() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("a"), Just("b"), Just(""), Just("nothing")];
    let infos = proptest::collection::vec(0_u16..5, 0..4);
    let query = prop_oneof![Just("base:"), Just("base:allocation"), Just("x:y"), Just("bare")];
    let queries = proptest::collection::vec(query, 0..4);
    let info = (name.clone(), infos).prop_map(|(name, infos)| {
        let mut data = [string(name), (infos.len() as u16).to_be_bytes().to_vec()].concat();
        infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
        data
    });
    let context = (name.clone(), queries).prop_map(|(name, queries)| {
        let mut data = [string(name), (queries.len() as u32).to_be_bytes().to_vec()].concat();
        queries.iter().for_each(|query| data.extend(string(query)));
        data
    });
    prop_oneof![
        3 => Just(Vec::new()),
        3 => info,
        3 => context,
        1 => name.prop_map(|name| name.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..60),
    ]
}

fn option() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![9 => 1_u32..12, 1 => any::<u32>()];
    (code, option_data()).prop_map(|(code, data)| {
        let length = (data.len() as u32).to_be_bytes();
        [&b"IHAVEOPT"[..], &code.to_be_bytes(), &length, &data].concat()
    })
}

/// A conversation: configuration bytes, client flags, options before and after a possible upgrade.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let options = || proptest::collection::vec(option(), 0..7).prop_map(|options| options.concat());
    (any::<[u8; 2]>(), 0_u32..4, options(), any::<bool>(), options()).prop_map(
        |(config, flags, before, upgrade, after)| {
            let mut clear = [&flags.to_be_bytes()[..], &before].concat();
            if upgrade {
                clear.extend([&b"IHAVEOPT"[..], &5_u32.to_be_bytes(), &[0; 4]].concat());
            }
            let cut = (clear.len() as u16).to_be_bytes();
            [&config[..], &cut, &clear, &after].concat()
        },
    )
}

/// A request that often makes sense, with as much payload as it should have.
fn request() -> impl Strategy<Value = (RawRequest, usize)> {
    let flags = prop_oneof![4 => Just(0_u16), 4 => 0_u16..64, 1 => any::<u16>()];
    let offset = prop_oneof![4 => (0_u64..64).prop_map(|n| n * 512), 1 => any::<u64>()];
    let length =
        prop_oneof![4 => (0_u64..4).prop_map(|n| n * 512), 1 => 0_u64..40, 1 => any::<u64>()];
    (flags, 0_u16..10, any::<u64>(), offset, length).prop_map(
        |(flags, command, cookie, offset, length)| {
            let carries = command == 1 || flags & 32 != 0;
            let payload = if carries { (length as usize).min(2048) } else { 0 };
            (RawRequest { flags, command, cookie, offset, length }, payload)
        },
    )
}

fn requests() -> impl Strategy<Value = Vec<u8>> {
    (any::<[u8; 2]>(), proptest::collection::vec(request(), 0..20)).prop_map(
        |(config, requests)| {
            let extended = usize::from(config[0] >> 1) % 3 == 2;
            let style = if extended { ReplyStyle::Extended } else { ReplyStyle::Simple };
            let mut bytes = config.to_vec();
            for (request, payload) in requests {
                bytes.extend(request.encode(style));
                bytes.extend(vec![0; payload]);
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn handshakes_do_not_depend_on_how_the_stream_is_cut(conversation in conversation()) {
        fuzz_handshake(&conversation);
    }

    #[test]
    fn requests_stay_in_range_and_do_not_depend_on_how_the_stream_is_cut(requests in requests()) {
        fuzz_transmission(&requests);
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz_handshake(&data);
        fuzz_transmission(&data);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Zero(bool, u64, u64),
    Read(u64, u64, bool),
    Status(u64, u64),
}

const DISK_BYTES: u64 = 20_000;

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..DISK_BYTES, 1..4000_u64);
    let clip = |(offset, length): (u64, u64)| (offset, length.min(DISK_BYTES - offset));
    let data = proptest::collection::vec(1_u8.., 1..3000);
    prop_oneof![
        (0..DISK_BYTES - 3000, data).prop_map(|(offset, data)| Step::Write(offset, data)),
        (any::<bool>(), range().prop_map(clip)).prop_map(|(t, (o, l))| Step::Zero(t, o, l)),
        (range().prop_map(clip), any::<bool>()).prop_map(|((o, l), df)| Step::Read(o, l, df)),
        range().prop_map(clip).prop_map(|(o, l)| Step::Status(o, l)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Client and server agree with an array of bytes, in each style, however the stream is cut.
    #[test]
    fn a_session_behaves_like_an_array(
        steps in proptest::collection::vec(step(), 1..15),
        style in 0_usize..3, cut in 1_usize..100, sparse: bool,
    ) {
        let mut server = server(vec![ExportInfo::new("", DISK_BYTES)]).with_cut(cut);
        server.sparse_reads = sparse;
        let mut negotiation = Negotiation::new(server).unwrap();
        match style {
            0 => {}
            1 => negotiation.structured_replies().unwrap(),
            _ => negotiation.extended_headers().unwrap(),
        }
        if style > 0 {
            negotiation.set_contexts("", &["base:allocation"]).unwrap();
        }
        let mut connection = negotiation.go("", &[]).unwrap();
        let mut model = vec![0_u8; DISK_BYTES as usize];
        let none = CommandFlags::empty();
        for step in steps {
            match step {
                Step::Write(offset, data) => {
                    connection.write(offset, &data, none).unwrap();
                    model[offset as usize..][..data.len()].copy_from_slice(&data);
                }
                Step::Zero(trim, offset, length) => {
                    let command = if trim { Command::Trim } else { Command::WriteZeroes };
                    connection.command(command, offset, length, none).unwrap();
                    model[offset as usize..][..length as usize].fill(0);
                }
                Step::Read(offset, length, df) => {
                    let flags = if df && style > 0 { CommandFlags::DF } else { none };
                    let data = connection.read(offset, length, flags).unwrap();
                    prop_assert_eq!(&data, &model[offset as usize..][..length as usize]);
                }
                Step::Status(offset, length) if style > 0 => {
                    let status = connection.block_status(offset, length, none).unwrap();
                    let mut at = offset;
                    for (extent, flags) in &status[0].1 {
                        let bytes = &model[at as usize..(at + extent) as usize];
                        prop_assert!(flags & 2 == 0 || bytes.iter().all(|byte| *byte == 0));
                        at += extent;
                    }
                    prop_assert!(at > offset && at <= offset + length);
                }
                Step::Status(..) => {}
            }
        }
    }
}
