//! The cost of connections before they have chosen an export, and the clients that may choose one.

use std::io::{ErrorKind, Read, Write};

use drystone_exports::nbd::CommandFlags;
use drystone_exports::nbd::proto::{ErrorCode, OptionCode, ReplyCode, TransmissionFlags};
use drystone_exports::nbd::server::{HANDSHAKES_MAX, Settings};
use drystone_testkit::nbd::Negotiation;

use drystone_exports::server::{Access, AllowList};

use crate::disk::Disk;
use crate::served::{Served, export};

/// Bytes of a listing of `many_exports`.
const LISTING: usize = 300 * (20 + 4 + 4096);

fn many_exports(settings: Settings) -> Served {
    let disk = Disk::new(1 << 20, 512);
    let described = |number: usize| {
        let mut export = export(&format!("{number:03}"), disk.clone());
        export.description = "d".repeat(4093);
        export
    };
    Served::new((0..300).map(described).collect(), 1, settings)
}

#[test]
fn a_client_that_takes_no_replies_is_asked_for_no_more_options() {
    let served = many_exports(Settings::default());
    let mut stream = served.connect(0);
    let list = [&b"IHAVEOPT"[..], &OptionCode::List.wire().to_be_bytes(), &[0; 4]].concat();
    stream.write_all(&[&[0, 0, 0, 3][..], &list.repeat(4)].concat()).unwrap();
    // Bytes that the server does not take stay in the sockets: they are soon full.
    stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let patience = std::time::Instant::now();
    let refused = loop {
        match stream.write(&list.repeat(64)) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
            Err(_) => break false,
        }
        assert!(sent < 8 << 20 && patience.elapsed().as_secs() < 60, "{sent} bytes are taken in");
    };
    assert!(refused, "the server closed");
    stream.set_nonblocking(false).unwrap();
    let mut listing = vec![0; 18 + LISTING];
    stream.read_exact(&mut listing).unwrap();
    let last = &listing[listing.len() - 4096..];
    assert!(last.starts_with(b"299d"), "what was asked for comes to the end");
}

#[test]
fn a_long_listing_comes_whole_and_others_are_served_meanwhile() {
    let served = many_exports(Settings::default());
    let mut waiting = served.connect(0);
    let list = [&b"IHAVEOPT"[..], &OptionCode::List.wire().to_be_bytes(), &[0; 4]].concat();
    waiting.write_all(&[&[0, 0, 0, 3][..], &list].concat()).unwrap();
    let mut other = served.negotiate(0);
    let listed = other.list().unwrap();
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    assert_eq!(listed.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    other.go("299", &[]).unwrap();
}

#[test]
fn whoever_only_connects_keeps_nobody_out() {
    let settings = Settings { max_connections: 2, ..Settings::default() };
    let served = Served::new(vec![export("vol", Disk::new(1 << 20, 512))], 1, settings);
    let mut good = served.negotiate(0);
    assert_eq!(good.list().unwrap().len(), 1);
    let mut silent: Vec<_> = (0..3 * HANDSHAKES_MAX).map(|_| served.connect(0)).collect();
    // It has spoken, so others go first.
    assert_eq!(good.list().unwrap().len(), 1);
    let mut connection = good.go("vol", &[]).unwrap();
    connection.read(0, 512, Default::default()).unwrap();
    served.client(0);
    silent[0].read_to_end(&mut Vec::new()).expect("the oldest is closed");
    silent.last_mut().unwrap().read_exact(&mut [0; 18]).expect("the newest is greeted");
}

#[test]
fn those_too_many_are_told() {
    let settings =
        Settings { max_connections: 3, max_connections_per_client: 2, ..Settings::default() };
    let served = Served::new(vec![export("vol", Disk::new(1 << 20, 512))], 1, settings);
    let (first, _second) = (served.client(0), served.client(0));
    let refused = |negotiation: Negotiation<_>| negotiation.go("vol", &[]).expect_err("a refusal");
    let why = refused(served.negotiate(0));
    assert_eq!(why.refusal(), Some(ReplyCode::ErrPolicy));
    assert!(why.to_string().contains("max_connections_per_client"), "{why}");
    let mut asks = served.negotiate(0);
    asks.info("vol", &[]).expect("it may look");
    drop(first);
    // The place is free once the server has seen it go.
    let patience = std::time::Instant::now();
    while let Err(why) = asks.go("vol", &[]) {
        assert!(why.refusal() == Some(ReplyCode::ErrPolicy) && patience.elapsed().as_secs() < 60);
        asks = served.negotiate(0);
    }
}

/// An export that a list keeps from a client does not exist for it; one that it may only read takes
/// no writes.
#[test]
fn a_list_says_who_may_use_an_export() {
    let own = rustix::process::geteuid().as_raw();
    let disk = Disk::new(1 << 20, 512);
    let listed = |name: &str, uid: u32, access| {
        let mut list = AllowList::default();
        list.allow_uid(uid, access);
        list.allow_name("alice", Access::ReadWrite);
        let mut export = export(name, disk.clone());
        export.allow = Some(list);
        export
    };
    let exports = vec![
        listed("others", own + 1, Access::ReadWrite),
        listed("read", own, Access::ReadOnly),
        listed("write", own, Access::ReadWrite),
        export("all", disk.clone()),
    ];
    let served = Served::new(exports, 1, Settings::default());
    let names = served.negotiate(0).list().unwrap().into_iter().map(|(name, _)| name);
    assert_eq!(names.collect::<Vec<_>>(), ["read", "write", "all"]);
    // The first is the default one.
    for name in ["others", ""] {
        let refused = served.negotiate(0).info(name, &[]).unwrap_err().refusal();
        assert_eq!(refused, Some(ReplyCode::ErrUnknown), "{name}");
        let refused = served.negotiate(0).go(name, &[]).map(|_| ()).unwrap_err().refusal();
        assert_eq!(refused, Some(ReplyCode::ErrUnknown), "{name}");
        let mut structured = served.negotiate(0);
        structured.structured_replies().unwrap();
        let refused = structured.set_contexts(name, &["base:allocation"]).unwrap_err();
        assert_eq!(refused.refusal(), Some(ReplyCode::ErrUnknown), "{name}");
        assert!(served.negotiate(0).export_name(name).is_err(), "the connection is closed");
    }
    for (name, writes) in [("read", false), ("write", true), ("all", true)] {
        let mut client = served.negotiate(0).go(name, &[]).unwrap();
        let flags = client.description().flags;
        assert_eq!(flags.contains(TransmissionFlags::READ_ONLY), !writes, "{name}");
        assert_eq!(client.read(0, 512, CommandFlags::empty()).unwrap().len(), 512);
        let written = client.write(0, &[1; 512], CommandFlags::empty());
        match writes {
            true => written.unwrap(),
            false => assert_eq!(written.unwrap_err().failure(), Some(ErrorCode::Eperm)),
        }
    }
}
