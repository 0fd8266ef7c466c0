//! TLS with clients that bring their own TLS library.

#![forbid(unsafe_code)]

use std::fs;
use std::net::TcpListener;
use std::sync::Arc;

use system_tests::client::make_certificates;
use system_tests::{Server, new_folder, program, python, requires, run, shell, stack};
use tempfile::TempDir;

/// A folder with certificates and a server in it that demands TLS; `None` without the tools.
fn server() -> Option<Server> {
    if !requires("certtool") || !requires("nbdinfo") || !requires("qemu-img") {
        return None;
    }
    let folder: Arc<TempDir> = new_folder();
    make_certificates(folder.path());
    let device = "[device.d]\ntype = \"ram\"\nsize = \"16MiB\"\n";
    let text = format!("{device}{}", stack::export("vol", "d", stack::TLS_REQUIRED));
    Some(Server::start_in(&folder, &text, &[]))
}

/// QEMU's options for credentials in a folder and for the image with them.
fn qemu_options(server: &Server, pki: &str) -> (String, String) {
    let object = format!("tls-creds-x509,id=tls0,endpoint=client,verify-peer=yes,dir={pki}");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=vol,tls-creds=tls0,\
         tls-hostname=localhost",
        server.path("nbd.sock")
    );
    (object, image)
}

#[test]
fn nbdinfo_speaks_tls() {
    let Some(mut server) = server() else { return };
    let uri = server.uri("vol");
    assert!(uri.starts_with("nbds+unix://"), "{uri}");
    let uri = format!("{uri}&tls-certificates={}", server.path("pki"));
    let text = run(server.dir(), &["nbdinfo", "--json", &uri]).ok();
    let info: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(info["TLS"], true);
    assert_eq!(info["exports"][0]["export-size"], 16 << 20);
}

#[test]
fn the_command_to_try_says_where_certificates_go() {
    let Some(mut server) = server() else { return };
    server.uri("vol");
    server.await_line("Stop with Ctrl-C.");
    let said = server.said();
    let hint = said.iter().find(|line| line.trim().starts_with("nbdinfo")).expect("a command");
    let command = hint.trim().replace("FOLDER", &server.path("pki"));
    shell(server.dir(), &command, &[]).ok();
    assert!(!said.iter().any(|line| line.contains("fio") || line.contains("qemu-img")), "{said:?}");
}

#[test]
fn data_goes_through_tls_unchanged() {
    let Some(mut server) = server() else { return };
    let uri = format!("{}&tls-certificates={}", server.uri("vol"), server.path("pki"));
    let script = "
        data = os.urandom(3 * 1024 * 1024)
        h.pwrite(data, 4096)
        h.flush()
        assert h.pread(len(data), 4096) == data
        second = connect()
        assert second.pread(len(data), 4096) == data";
    python(server.dir(), &uri, script).ok();
}

#[test]
fn qemu_speaks_tls() {
    let Some(mut server) = server() else { return };
    server.uri("vol");
    let (object, image) = qemu_options(&server, &server.path("pki"));
    let qemu_io = ["qemu-io", "--object", &object, "--image-opts"];
    let commands =
        ["-c", "write -P 0x77 1M 1M", "-c", "read -P 0x77 1M 1M", "-c", "read -P 0 0 1M"];
    run(server.dir(), &[&qemu_io[..], &commands, &[&image]].concat()).ok();
    let info = ["qemu-img", "info", "--object", &object, "--image-opts", &image];
    assert!(run(server.dir(), &info).ok().contains("16 MiB"));
}

/// The block of shell in the documentation that makes certificates.
fn documented_certificates() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tls.md");
    let page = std::fs::read_to_string(page).expect("docs/tls.md");
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(""));
    let block = { blocks }.find(|block| block.contains("openssl req")).expect("the block");
    block.to_owned()
}

/// The certificates of docs/tls.md admit the right clients, and lists say what each may do.
#[test]
fn the_documented_certificates_and_lists_work() {
    if !requires("openssl") || !requires("nbdinfo") {
        return;
    }
    let folder: Arc<TempDir> = new_folder();
    let lines = documented_certificates();
    shell(folder.path(), &lines, &[]).ok();
    // Another client, made by the last lines again.
    let mallory = lines
        .lines()
        .filter(|line| !line.contains("-out ca.pem") && !line.contains("-out server.pem"));
    let mallory = mallory.collect::<Vec<_>>().join("\n").replace("alice", "mallory");
    shell(folder.path(), &mallory, &[]).ok();
    let tls = "tls = { mode = \"required\", cert = \"DIR/server.pem\", key = \"DIR/server.key\", \
               client_ca = \"DIR/ca.pem\" }";
    let export = |name, allow| {
        stack::export(name, "d", &format!("{tls}\nallow = {{ \"tls:alice\" = \"{allow}\" }}"))
    };
    let device = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let text = format!("{device}{}{}", export("vol", "read-write"), export("seen", "read-only"));
    let mut server = Server::start_in(&folder, &text, &[]);
    let (vol, seen) = (server.uri("vol"), server.uri("seen"));
    let with = |uri: &str, who: &str| {
        format!("{uri}&tls-certificates={}", folder.path().join(who).display())
    };
    for (uri, read_only) in [(&vol, false), (&seen, true)] {
        let told = run(server.dir(), &["nbdinfo", "--json", &with(uri, "alice")]).ok();
        let info: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(info["exports"][0]["is_read_only"], read_only, "{told}");
        run(server.dir(), &["nbdinfo", &with(uri, "mallory")]).refused();
        run(server.dir(), &["nbdinfo", uri]).refused();
    }
    assert!(!server.messages().contains("warning"), "{}", server.messages());
}

#[test]
fn plain_clients_are_refused_once_tls_is_required() {
    let Some(mut server) = server() else { return };
    let plain = server.uri("vol").replace("nbds+unix", "nbd+unix");
    run(server.dir(), &["nbdinfo", &plain]).refused();
    run(server.dir(), &["nbdinfo", "--list", &plain]).refused();
    run(server.dir(), &["qemu-img", "info", &plain]).refused();
    assert!(server.is_running());
}

/// The server answers no option in plain text except the demand for TLS and the abort. A request
/// right after a refusal reaches no device.
#[test]
fn nothing_is_told_in_plain_text() {
    let Some(mut server) = server() else { return };
    let uri = format!("{}&tls-certificates={}", server.uri("vol"), server.path("pki"));
    let script = "
        def answer(option, data=b''):
            plain = unix_socket()
            exactly(plain, 18)
            plain.sendall(struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>II', option, \
            len(data)) + data)
            magic, echoed, kind, length = struct.unpack('>QIII', exactly(plain, 20))
            assert magic == 0x3E889045565A9 and echoed == option
            said = exactly(plain, length)
            assert b'vol' not in said, said
            plain.close()
            return kind
        tls_required = 2**31 + 5
        name = struct.pack('>I', 3) + b'vol' + struct.pack('>H', 0)
        assert answer(3) == tls_required
        assert answer(6, name) == tls_required
        assert answer(7, name) == tls_required
        assert answer(8) == tls_required
        assert h.get_size() == 16 * 1024 * 1024";
    python(server.dir(), &uri, script).ok();
}

#[test]
fn a_client_that_distrusts_the_certificate_goes_away_and_harms_nobody() {
    let Some(mut server) = server() else { return };
    let strangers = new_folder();
    make_certificates(strangers.path());
    let uri = server.uri("vol");
    let pki = format!("{}/pki", strangers.path().display());
    // libnbd verifies no certificate on Unix sockets, so QEMU does it.
    let (object, image) = qemu_options(&server, &pki);
    let info = ["qemu-img", "info", "--object", &object, "--image-opts", &image];
    let message = run(server.dir(), &info).refused();
    assert!(message.contains("certificate"), "{message}");
    let right = format!("{uri}&tls-certificates={}", server.path("pki"));
    run(server.dir(), &["nbdinfo", &right]).ok();
}

/// Tests more ciphertext than the parts of one send can hold.
#[test]
fn the_largest_reads_go_through_tls() {
    if !requires("certtool") || !requires("nbdinfo") {
        return;
    }
    let folder: Arc<TempDir> = new_folder();
    make_certificates(folder.path());
    let device = "[device.d]\ntype = \"ram\"\nsize = \"96MiB\"\n";
    let text = format!("{device}{}", stack::export("vol", "d", stack::TLS_REQUIRED));
    let mut server = Server::start_in(&folder, &text, &[]);
    let uri = format!("{}&tls-certificates={}", server.uri("vol"), server.path("pki"));
    let script = "
        most = 32 * 1024 * 1024
        data = os.urandom(most)
        h.pwrite(data, most)
        buffers = [nbd.Buffer(most) for _ in range(3)]
        reads = [h.aio_pread(b, n * most) for n, b in enumerate(buffers)]
        while reads:
            h.poll(-1)
            reads = [c for c in reads if not h.aio_command_completed(c)]
        assert bytes(buffers[1].to_bytearray()) == data";
    python(server.dir(), &uri, script).ok();
}

/// `check`, for people and as JSON, and `serve` give one warning, with these words.
fn are_warned_of(folder: &Arc<TempDir>, text: &str, words: &str) {
    let program = program().to_str().expect("a UTF-8 path");
    let file = text.replace("DIR", folder.path().to_str().expect("a UTF-8 path"));
    fs::write(folder.path().join("s.toml"), file).expect("a stack file");
    let checked = run(folder.path(), &[program, "check", "s.toml"]);
    let drawn = checked.stderr.clone();
    checked.ok();
    let told = run(folder.path(), &[program, "check", "--json", "s.toml"]).ok();
    let found: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let found = found["diagnostics"].as_array().expect("a list").clone();
    assert_eq!((found.len(), &found[0]["severity"]), (1, &"warning".into()), "{told}");
    assert!(found[0]["message"].as_str().is_some_and(|said| said.contains(words)), "{told}");
    let mut server = Server::start_in(folder, text, &[]);
    for messages in [drawn, server.messages()] {
        let warnings: Vec<_> =
            messages.lines().filter(|line| line.starts_with("warning:")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(words), "{words}: {messages}");
    }
    assert!(server.sigterm().success(), "{}", server.messages());
}

#[test]
fn a_certificate_that_has_expired_is_warned_of() {
    if !requires("certtool") {
        return;
    }
    let folder: Arc<TempDir> = new_folder();
    make_certificates(folder.path());
    let script = "
        { echo 'cn = localhost'; echo 'dns_name = localhost'; echo tls_www_server; echo signing_key
          echo 'activation_date = \"2020-01-01 00:00:00 UTC\"'
          echo 'expiration_date = \"2021-01-01 00:00:00 UTC\"'; } > old.info
        certtool --generate-certificate --load-ca-certificate ca-cert.pem --load-ca-privkey \
        ca-key.pem \
            --load-privkey server-key.pem --template old.info --outfile old-cert.pem";
    shell(&folder.path().join("pki"), script, &[]).ok();
    let tls = stack::TLS_REQUIRED.replace("server-cert", "old-cert");
    let device = "[device.d]\ntype = \"ram\"\nsize = \"1MiB\"\n";
    let text = format!("{device}{}", stack::export("vol", "d", &tls));
    are_warned_of(&folder, &text, "expired on 2021-01-01");
}

#[test]
fn what_lets_everybody_in_is_warned_of() {
    if !requires("certtool") {
        return;
    }
    let folder: Arc<TempDir> = new_folder();
    make_certificates(folder.path());
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let network = format!("tcp:0.0.0.0:{}", free.expect("a port").port());
    let text = stack::ram("1MiB");
    let with_tls = |mode: &str, more: &str| {
        let keys = stack::TLS_REQUIRED.replace("required", mode).replace(" }", more);
        format!("{text}{keys}\n")
    };
    let client_ca = ", client_ca = \"DIR/pki/ca-cert.pem\" }";
    let at = |text: &str, listener: &str| text.replace("unix:DIR/nbd.sock", listener);
    are_warned_of(&folder, &at(&text, &network), "does not require TLS");
    let for_all = at(&text, "unix:DIR/nbd.sock,mode=0666");
    are_warned_of(&folder, &for_all, "every user of this machine");
    are_warned_of(&folder, &with_tls("optional", client_ca), "`client_ca` protects nothing");
    let encrypted = at(&with_tls("required", " }"), &network);
    are_warned_of(&folder, &encrypted, "does not ask who a client is");
    shell(folder.path(), "chmod 644 pki/server-key.pem", &[]).ok();
    are_warned_of(&folder, &with_tls("required", client_ca), "server-key.pem");
}
