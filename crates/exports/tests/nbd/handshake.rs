//! Each option of the handshake.

use drystone_exports::nbd::proto::{ClientFlags, InfoCode, OptionCode, ReplyCode};
use drystone_exports::nbd::{
    BlockSizes, CloseReason, Event, ExportInfo, Handshake, ReplyStyle, TlsPolicy, TransmissionFlags,
};
use drystone_testkit::nbd::{ClientError, Negotiation};

use crate::support::{Server, server};

fn exports() -> Vec<ExportInfo> {
    let mut first = ExportInfo::new("vol", 1 << 20);
    first.description = "the first volume".into();
    let mut aligned = ExportInfo::new("aligned", 1 << 20);
    aligned.block_sizes = BlockSizes { min: 4096, preferred: 4096, max_payload: 1 << 20 };
    vec![first, ExportInfo::new("other", 4096), aligned]
}

fn negotiation() -> Negotiation<Server> {
    Negotiation::new(server(exports()).with_cut(1)).unwrap()
}

fn refusal<T>(result: Result<T, ClientError>) -> Option<ReplyCode> {
    result.err().expect("a refusal").refusal()
}

#[test]
fn export_name_sends_size_flags_and_zeroes_unless_declined() {
    for flags in [ClientFlags::FIXED_NEWSTYLE, ClientFlags::all(), ClientFlags::empty()] {
        let negotiation = Negotiation::start(server(exports()), flags).unwrap();
        let mut connection = negotiation.export_name("other").unwrap();
        assert_eq!(connection.description().size_bytes, 4096);
        let told = connection.description().flags;
        assert!(told.contains(TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH));
        assert!(!told.contains(TransmissionFlags::SEND_DF), "DF without structured replies");
        let negotiated = connection.stream().negotiated();
        assert_eq!(negotiated.no_zeroes, flags.contains(ClientFlags::NO_ZEROES));
        assert_eq!(negotiated.export.name, "other");
    }
}

#[test]
fn export_name_closes_where_it_cannot_be_served() {
    let close = |name: &[u8], prepare: fn(&mut Negotiation<Server>)| {
        let mut negotiation = negotiation();
        prepare(&mut negotiation);
        negotiation.send_option(OptionCode::ExportName.wire(), name).unwrap();
        negotiation.stream().closed
    };
    let refused = |closed| matches!(closed, Some(CloseReason::ExportName(_)));
    assert!(refused(close(b"nothing", |_| {})));
    assert!(refused(close(b"v\0l", |_| {})));
    assert!(refused(close(b"\xff", |_| {})));
    assert!(refused(close(&[b'a'; 4097], |_| {})));
    assert!(refused(close(b"vol", |n| n.extended_headers().unwrap())));
    assert!(refused(close(b"vol", |n| n.stream().shut_down())));
    assert_eq!(close(b"vol", |_| {}), None);
}

#[test]
fn the_default_export_has_the_empty_name() {
    let mut negotiation = negotiation();
    let told = negotiation.info("", &[InfoCode::Name]).unwrap();
    assert_eq!(told.name.as_deref(), Some("vol"));
    let mut connection = negotiation.export_name("").unwrap();
    assert_eq!(connection.stream().negotiated().export.name, "vol");
}

#[test]
fn abort_is_acknowledged_and_its_data_ignored() {
    let mut negotiation = negotiation();
    negotiation.send_option(OptionCode::Abort.wire(), b"bye").unwrap();
    let reply = negotiation.receive_reply(OptionCode::Abort.wire()).unwrap();
    assert_eq!(reply.code, ReplyCode::Ack.wire());
    assert_eq!(negotiation.stream().closed, Some(CloseReason::Aborted));
}

#[test]
fn list_names_and_describes_and_takes_no_data() {
    let mut negotiation = negotiation();
    let listed = negotiation.list().unwrap();
    assert_eq!(listed[0], ("vol".into(), "the first volume".into()));
    assert_eq!(listed.len(), 3);
    let with_data = negotiation.option(OptionCode::List.wire(), b"x");
    assert_eq!(refusal(with_data), Some(ReplyCode::ErrInvalid));
    assert_eq!(negotiation.list().unwrap().len(), 3, "the negotiation goes on");
}

#[test]
fn info_tells_what_is_asked_and_go_tells_the_same() {
    let mut negotiation = negotiation();
    let plain = negotiation.info("vol", &[]).unwrap();
    assert_eq!((plain.size_bytes, plain.name, plain.block_sizes), (1 << 20, None, None));
    let wanted = [InfoCode::Name, InfoCode::Description, InfoCode::BlockSize, InfoCode::Export];
    let told = negotiation.info("vol", &wanted).unwrap();
    assert_eq!(told.description.as_deref(), Some("the first volume"));
    assert_eq!(told.block_sizes, Some(BlockSizes::default()));
    assert_eq!(refusal(negotiation.info("nothing", &[])), Some(ReplyCode::ErrUnknown));
    let connection = negotiation.go("vol", &wanted).unwrap();
    assert_eq!(connection.description(), &told);
}

#[test]
fn block_sizes_are_told_unasked_where_they_are_not_the_default() {
    let mut negotiation = negotiation();
    for asked in [&[][..], &[InfoCode::BlockSize]] {
        let told = negotiation.info("aligned", asked).unwrap();
        assert_eq!(told.block_sizes.unwrap().min, 4096);
        let connection = self::negotiation().go("aligned", asked).unwrap();
        assert_eq!(connection.description(), &told);
    }
}

#[test]
fn malformed_info_is_invalid_and_the_negotiation_goes_on() {
    let mut negotiation = negotiation();
    for data in [&b""[..], b"\0\0\0\x09vol\0\0", b"\0\0\0\x03vol\0\x01", b"\0\0\0\x01\0\0\0"] {
        for option in [OptionCode::Info, OptionCode::Go] {
            let result = negotiation.option(option.wire(), data);
            assert_eq!(refusal(result), Some(ReplyCode::ErrInvalid), "{data:?}");
        }
    }
    negotiation.info("vol", &[]).unwrap();
}

#[test]
fn structured_replies_and_extended_headers() {
    let mut negotiation = negotiation();
    for option in [OptionCode::StructuredReply, OptionCode::ExtendedHeaders] {
        let with_data = negotiation.option(option.wire(), b"x");
        assert_eq!(refusal(with_data), Some(ReplyCode::ErrInvalid));
    }
    assert!(!negotiation.info("vol", &[]).unwrap().flags.contains(TransmissionFlags::SEND_DF));
    negotiation.structured_replies().unwrap();
    assert!(negotiation.info("vol", &[]).unwrap().flags.contains(TransmissionFlags::SEND_DF));
    negotiation.extended_headers().unwrap();
    let back = negotiation.structured_replies();
    assert_eq!(refusal(back), Some(ReplyCode::ErrExtHeaderReqd));
    let mut connection = negotiation.go("vol", &[]).unwrap();
    assert_eq!(connection.stream().negotiated().style, ReplyStyle::Extended);
}

#[test]
fn contexts_need_structured_replies_and_a_known_export() {
    let mut negotiation = negotiation();
    let query = ["base:allocation"];
    assert_eq!(refusal(negotiation.list_contexts("vol", &query)), Some(ReplyCode::ErrInvalid));
    assert_eq!(refusal(negotiation.set_contexts("vol", &query)), Some(ReplyCode::ErrInvalid));
    negotiation.structured_replies().unwrap();
    assert_eq!(refusal(negotiation.list_contexts("no", &query)), Some(ReplyCode::ErrUnknown));
    assert_eq!(refusal(negotiation.set_contexts("no", &query)), Some(ReplyCode::ErrUnknown));
    assert_eq!(refusal(negotiation.set_contexts("vol", &["bare"])), Some(ReplyCode::ErrInvalid));
}

#[test]
fn contexts_are_listed_by_name_wildcard_or_all() {
    let mut negotiation = negotiation();
    negotiation.structured_replies().unwrap();
    let mut list = |queries: &[&str]| {
        let found = negotiation.list_contexts("vol", queries).unwrap();
        found.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(list(&[]), ["base:allocation"]);
    assert_eq!(list(&["base:"]), ["base:allocation"]);
    assert_eq!(list(&["base:allocation", "base:"]), ["base:allocation"]);
    assert!(list(&["base:other", "qemu:dirty-bitmap:x"]).is_empty());
}

#[test]
fn contexts_are_selected_by_name_and_replaced_by_the_next_selection() {
    let selected = |queries: &[&[&str]], export: &str| {
        let mut negotiation = negotiation();
        negotiation.extended_headers().unwrap();
        for query in queries {
            negotiation.set_contexts("vol", query).ok();
        }
        let mut connection = negotiation.go(export, &[]).unwrap();
        let told = connection.description().flags;
        let negotiated = connection.stream().negotiated();
        let payload = told.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD);
        assert_eq!(payload, !negotiated.contexts.is_empty());
        negotiated.contexts.len()
    };
    assert_eq!(selected(&[&["base:allocation"]], "vol"), 1);
    assert_eq!(selected(&[&["base:allocation"]], ""), 1, "the same export by another name");
    assert_eq!(selected(&[&["base:allocation", "base:allocation"]], "vol"), 1);
    assert_eq!(selected(&[&["base:"]], "vol"), 0, "a wildcard selects nothing");
    assert_eq!(selected(&[&["base:allocation"], &[]], "vol"), 0, "replaced by nothing");
    assert_eq!(selected(&[&["base:allocation"], &["bare"]], "vol"), 0, "replaced by a failure");
    assert_eq!(selected(&[&["base:allocation"]], "other"), 0, "forgotten for another export");
}

#[test]
fn unknown_options_are_unsupported_and_skipped() {
    let mut negotiation = negotiation();
    for option in [0, 4, 12, 0xffff_ffff] {
        let result = negotiation.option(option, &[7; 1000]);
        assert_eq!(refusal(result), Some(ReplyCode::ErrUnsup));
    }
    negotiation.info("vol", &[]).unwrap();
}

#[test]
fn long_option_data_is_skipped_and_absurd_data_closes() {
    let mut negotiation = Negotiation::new(server(exports())).unwrap();
    let result = negotiation.option(OptionCode::Info.wire(), &vec![0; (16 << 10) + 1]);
    assert_eq!(refusal(result), Some(ReplyCode::ErrTooBig));
    let result = negotiation.option(99, &vec![0; 1 << 20]);
    assert_eq!(refusal(result), Some(ReplyCode::ErrTooBig));
    negotiation.info("vol", &[]).unwrap();
    negotiation.send_option(99, &vec![0; (1 << 20) + 1]).unwrap();
    let closed = negotiation.stream().closed;
    assert_eq!(closed, Some(CloseReason::OptionTooLong { option: 99, length: (1 << 20) + 1 }));
}

#[test]
fn a_failed_selection_that_is_too_long_still_forgets() {
    let mut negotiation = Negotiation::new(server(exports())).unwrap();
    negotiation.structured_replies().unwrap();
    negotiation.set_contexts("vol", &["base:allocation"]).unwrap();
    let long = vec![0; 40 << 10];
    let result = negotiation.option(OptionCode::SetMetaContext.wire(), &long);
    assert_eq!(refusal(result), Some(ReplyCode::ErrTooBig));
    let mut connection = negotiation.go("vol", &[]).unwrap();
    assert!(connection.stream().negotiated().contexts.is_empty());
}

#[test]
fn options_are_counted() {
    let mut negotiation = Negotiation::new(server(exports())).unwrap();
    // 32, and 4 for each of 3 exports.
    for _ in 0..44 {
        negotiation.send_option(77, &[]).unwrap();
    }
    assert_eq!(negotiation.stream().closed, None);
    negotiation.send_option(77, &[]).unwrap();
    assert_eq!(negotiation.stream().closed, Some(CloseReason::TooManyOptions(44)));
}

/// A driver asks for the next batch when this one is sent: a client that takes nothing costs no
/// more memory.
#[test]
fn one_call_appends_at_most_64_kib() {
    let export = |number| {
        let mut export = ExportInfo::new(format!("{number:03}"), 4096);
        export.description = "d".repeat(4096);
        export
    };
    let exports: Vec<ExportInfo> = (0..300).map(export).collect();
    let list = [&b"IHAVEOPT"[..], &OptionCode::List.wire().to_be_bytes(), &[0; 4]].concat();
    let input = [&[0, 0, 0, 3][..], &list.repeat(8)].concat();
    let mut handshake = Handshake::new(TlsPolicy::Off);
    let (mut used, mut all) = (0, 0);
    loop {
        let mut out = Vec::new();
        let step = handshake.advance(&input[used..], exports.as_slice(), &mut out);
        (used, all) = (used + step.consumed, all + out.len());
        assert!(out.len() <= 64 << 10, "{} bytes at once", out.len());
        match step.event {
            Event::Replied => {}
            Event::NeedMore => break,
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(used, input.len());
    assert!(all > 8 * 300 * 4096, "all listings came whole");
}

#[test]
fn bad_client_flags_and_magic_close() {
    let drive = |bytes: &[u8]| {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(TlsPolicy::Off);
        handshake.advance(bytes, exports().as_slice(), &mut out).event
    };
    let flags = drive(&[0, 0, 0, 7]);
    assert_eq!(flags, Event::Close(CloseReason::UnknownClientFlags(7)));
    let magic = drive(&[&[0, 0, 0, 3][..], &[0x11; 16]].concat());
    assert_eq!(magic, Event::Close(CloseReason::BadOptionMagic(0x1111_1111_1111_1111)));
}

#[test]
fn a_client_without_fixed_newstyle_may_only_choose_an_export() {
    let mut negotiation = Negotiation::start(server(exports()), ClientFlags::empty()).unwrap();
    negotiation.send_option(OptionCode::List.wire(), &[]).unwrap();
    let closed = negotiation.stream().closed;
    assert_eq!(closed, Some(CloseReason::NotFixedNewstyle(OptionCode::List.wire())));
}

#[test]
fn a_server_that_shuts_down_refuses_all_but_abort() {
    let mut negotiation = negotiation();
    negotiation.stream().shut_down();
    assert_eq!(refusal(negotiation.list()), Some(ReplyCode::ErrShutdown));
    assert_eq!(refusal(negotiation.info("vol", &[])), Some(ReplyCode::ErrShutdown));
    negotiation.abort().unwrap();
}

#[test]
fn starttls_is_against_policy_where_tls_is_off() {
    let mut negotiation = negotiation();
    let result = negotiation.option(OptionCode::StartTls.wire(), &[]);
    assert_eq!(refusal(result), Some(ReplyCode::ErrPolicy));
}
