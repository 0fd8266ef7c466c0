//! The view of `nbdinfo`: names, sizes, abilities and the map of data and holes.

#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use serde_json::Value;
use system_tests::{Server, requires, run, stack};

fn json(server: &Server, words: &[&str]) -> Value {
    let text = run(server.dir(), words).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn fields_of_an_export() {
    if !requires("nbdinfo") {
        return;
    }
    let mut server = Server::start(&stack::ram("64MiB"));
    let uri = server.uri("vol");
    let info = json(&server, &["nbdinfo", "--json", &uri]);
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["TLS"], false);
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "vol");
    assert_eq!(export["export-size"], 64 << 20);
    assert_eq!(export["is_read_only"], false);
    for ability in ["flush", "fua", "trim", "zero", "df", "multi_conn", "cache"] {
        assert_eq!(export[format!("can_{ability}")], true, "{ability}: {export:#}");
    }
    assert!(
        export["contexts"].as_array().is_some_and(|all| all.contains(&"base:allocation".into())),
        "{export:#}"
    );
}

#[test]
fn list_names_every_export_with_its_size() {
    if !requires("nbdinfo") {
        return;
    }
    let text = "[device.a]\ntype = \"ram\"\nsize = \"1MiB\"\n\
                [device.b]\ntype = \"ram\"\nsize = \"2MiB\"\n";
    let exports = stack::export("one", "a", "") + &stack::export("two", "b", stack::READ_ONLY);
    let mut server = Server::start(&format!("{text}{exports}"));
    let uri = server.uri("one").replace("/one?", "/?");
    let info = json(&server, &["nbdinfo", "--list", "--json", &uri]);
    let mut seen: Vec<(&str, u64, bool)> = info["exports"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|export| {
            (
                export["export-name"].as_str().expect("a name"),
                export["export-size"].as_u64().expect("a size"),
                export["is_read_only"].as_bool().expect("a boolean"),
            )
        })
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, [("one", 1 << 20, false), ("two", 2 << 20, true)]);
}

#[test]
fn an_unknown_export_is_refused() {
    if !requires("nbdinfo") {
        return;
    }
    let mut server = Server::start(&stack::ram("1MiB"));
    let uri = server.uri("vol");
    run(server.dir(), &["nbdinfo", &uri.replace("/vol?", "/nowhere?")]).refused();
    run(server.dir(), &["nbdinfo", &uri]).ok();
}

#[test]
fn the_map_shows_where_a_sparse_file_holds_data() {
    if !requires("nbdinfo") {
        return;
    }
    let folder = system_tests::new_folder();
    let image = File::create(folder.path().join("disk.img")).expect("an image");
    image.set_len(8 << 20).expect("its size");
    image.write_all_at(&[0xAB; 1 << 20], 2 << 20).expect("its data");
    image.sync_all().expect("on disk");
    let mut server = Server::start_in(&folder, &stack::file("8MiB"), &[]);
    let uri = server.uri("vol");
    let map = json(&server, &["nbdinfo", "--map", "--json", &uri]);
    assert_eq!(merged(&map), [(0, 2 << 20, 3), (2 << 20, 1 << 20, 0), (3 << 20, 5 << 20, 3)]);
}

#[test]
fn the_map_of_a_ram_device_starts_empty() {
    if !requires("nbdinfo") {
        return;
    }
    let mut server = Server::start(&stack::ram("16MiB"));
    let uri = server.uri("vol");
    let map = json(&server, &["nbdinfo", "--map", "--json", &uri]);
    assert_eq!(merged(&map), [(0, 16 << 20, 3)]);
}

#[test]
fn a_file_that_exists_keeps_its_content() {
    if !requires("nbdinfo") {
        return;
    }
    let mut server = Server::start(&stack::file("4MiB"));
    let uri = server.uri("vol");
    assert_eq!(run(server.dir(), &["nbdinfo", "--size", &uri]).ok().trim(), "4194304");
    assert!(server.sigterm().success());
    let image = OpenOptions::new().write(true).open(server.path("disk.img")).expect("an image");
    image.write_all_at(b"kept", 4096).expect("its data");
    let mut next = Server::start_in(&server.folder(), &stack::file("4MiB"), &[]);
    let uri = next.uri("vol");
    system_tests::python(next.dir(), &uri, "assert h.pread(512, 4096)[:4] == b'kept'").ok();
}

/// Extents as (offset, length, type), neighbours of one type put together.
fn merged(map: &Value) -> Vec<(u64, u64, u64)> {
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for extent in map.as_array().expect("a list") {
        let number = |key: &str| extent[key].as_u64().expect("a number");
        let (offset, length, kind) = (number("offset"), number("length"), number("type"));
        match out.last_mut() {
            Some(last) if last.2 == kind && last.0 + last.1 == offset => last.1 += length,
            _ => out.push((offset, length, kind)),
        }
    }
    out
}
