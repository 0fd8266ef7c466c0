//! TLS: policies, the upgrade, certificates, bounds.

use std::sync::Arc;

use drystone_exports::nbd::proto::{ClientFlags, OptionCode, ReplyCode};
use drystone_exports::nbd::tls::SEND_BUFFER_BYTES;
use drystone_exports::nbd::{
    CloseReason, CommandFlags, Event, ExportInfo, Handshake, ReplyStyle, TlsConfig, TlsPolicy,
    TlsSession,
};
use drystone_testkit::nbd::{ClientError, Negotiation};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{Server, server};

/// A certificate authority, and certificates from it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        Self::of(CertificateParams::new(vec![]).unwrap())
    }

    fn of(mut params: CertificateParams) -> Self {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self, common_name: &str, dns_name: &str) -> Identity {
        let mut params = CertificateParams::new(vec![dns_name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names.push(SanType::URI("spiffe://host/job".try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

fn server_config(authority: &Authority, verify: bool) -> TlsConfig {
    let identity = authority.issue("server", "localhost");
    let ca = verify.then_some(authority.pem.as_bytes());
    TlsConfig::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes(), ca).unwrap()
}

fn client_config(authority: &Authority, identity: Option<&Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![chain], key).unwrap()
        }
    }
}

type TlsStream = StreamOwned<ClientConnection, Server>;

fn wrap(stream: Server, config: ClientConfig) -> TlsStream {
    let name = "localhost".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

fn exports() -> Vec<ExportInfo> {
    vec![ExportInfo::new("vol", 1 << 20), ExportInfo::new("secret", 4096)]
}

fn upgrade(policy: TlsPolicy, cut: usize) -> Negotiation<TlsStream> {
    upgrade_by(&Authority::new(), policy, cut)
}

fn upgrade_by(authority: &Authority, policy: TlsPolicy, cut: usize) -> Negotiation<TlsStream> {
    let identity = authority.issue("client-cn", "client.example");
    let config = server_config(authority, true);
    let server = server(exports()).with_tls(policy, config).with_cut(cut);
    let stream = Negotiation::new(server).unwrap().start_tls().unwrap();
    let stream = wrap(stream, client_config(authority, Some(&identity)));
    Negotiation::after_tls(stream, ClientFlags::all())
}

/// `drystone check` says of such a certificate that its user has to replace it.
#[test]
fn an_authority_that_has_expired_lets_its_clients_in() {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let authority = Authority::of(params);
    let mut negotiation = upgrade_by(&authority, TlsPolicy::Required, usize::MAX);
    negotiation.structured_replies().unwrap();
    let mut connection = negotiation.go("vol", &[]).unwrap();
    assert!(connection.stream().sock.negotiated().tls);
}

fn refusal<T>(result: Result<T, ClientError>) -> Option<ReplyCode> {
    result.err().expect("a refusal").refusal()
}

#[test]
fn a_session_under_tls_serves_and_knows_its_peer() {
    for cut in [1, 100, usize::MAX] {
        let mut negotiation = upgrade(TlsPolicy::Required, cut);
        negotiation.structured_replies().unwrap();
        let mut connection = negotiation.go("vol", &[]).unwrap();
        let data = vec![0x5a; 200_000];
        connection.write(0, &data, CommandFlags::empty()).unwrap();
        assert_eq!(connection.read(0, 200_000, CommandFlags::empty()).unwrap(), data);
        let server = &connection.stream().sock;
        assert!(server.negotiated().tls);
        let names = server.tls.as_ref().unwrap().peer_names().unwrap();
        assert_eq!(names.common_name.as_deref(), Some("client-cn"));
        assert_eq!(names.dns_names, ["client.example"]);
        let all: Vec<&str> = names.all().collect();
        assert_eq!(all, ["client-cn", "client.example", "spiffe://host/job"]);
        let stream = connection.disconnect().unwrap();
        assert_eq!(stream.sock.closed, Some(CloseReason::Disconnected));
    }
}

#[test]
fn a_listener_that_requires_tls_serves_nothing_without() {
    let authority = Authority::new();
    let server = server(exports()).with_tls(TlsPolicy::Required, server_config(&authority, false));
    let mut negotiation = Negotiation::new(server).unwrap();
    let options = [
        OptionCode::List,
        OptionCode::Info,
        OptionCode::Go,
        OptionCode::StructuredReply,
        OptionCode::ExtendedHeaders,
        OptionCode::ListMetaContext,
        OptionCode::SetMetaContext,
    ];
    for option in options.map(OptionCode::wire).into_iter().chain([99]) {
        let result = negotiation.option(option, b"\0\0\0\x03vol\0\0");
        assert_eq!(refusal(result), Some(ReplyCode::ErrTlsReqd), "option {option}");
    }
    let result = negotiation.option(99, &vec![0; 50_000]);
    assert_eq!(refusal(result), Some(ReplyCode::ErrTlsReqd), "too long as well");
    let with_data = negotiation.option(OptionCode::StartTls.wire(), b"x");
    assert_eq!(refusal(with_data), Some(ReplyCode::ErrInvalid));
    negotiation.send_option(OptionCode::ExportName.wire(), b"vol").unwrap();
    let closed = negotiation.stream().closed;
    assert!(matches!(closed, Some(CloseReason::ExportName(_))), "{closed:?}");
}

#[test]
fn optional_tls_serves_in_the_clear_except_what_needs_tls() {
    let authority = Authority::new();
    let mut server =
        server(exports()).with_tls(TlsPolicy::Optional, server_config(&authority, false));
    server.directory.tls_only = vec!["secret".into()];
    let mut negotiation = Negotiation::new(server).unwrap();
    negotiation.info("vol", &[]).unwrap();
    assert_eq!(refusal(negotiation.info("secret", &[])), Some(ReplyCode::ErrTlsReqd));
    negotiation.structured_replies().unwrap();
    let contexts = negotiation.list_contexts("secret", &[]);
    assert_eq!(refusal(contexts), Some(ReplyCode::ErrUnknown), "TLS_REQD is not for this option");
    let stream = negotiation.start_tls().unwrap();
    let stream = wrap(stream, client_config(&authority, None));
    let mut negotiation = Negotiation::after_tls(stream, ClientFlags::all());
    negotiation.info("secret", &[]).unwrap();
    assert!(negotiation.stream().sock.tls.as_ref().unwrap().peer_names().is_none());
}

#[test]
fn the_upgrade_forgets_what_was_negotiated_before() {
    let authority = Authority::new();
    let server = server(exports()).with_tls(TlsPolicy::Optional, server_config(&authority, false));
    let mut negotiation = Negotiation::new(server).unwrap();
    negotiation.extended_headers().unwrap();
    negotiation.set_contexts("vol", &["base:allocation"]).unwrap();
    let stream = wrap(negotiation.start_tls().unwrap(), client_config(&authority, None));
    let negotiation = Negotiation::after_tls(stream, ClientFlags::all());
    let mut connection = negotiation.go("vol", &[]).unwrap();
    let negotiated = connection.stream().sock.negotiated();
    assert_eq!(negotiated.style, ReplyStyle::Simple);
    assert!(negotiated.contexts.is_empty());
}

#[test]
fn a_second_upgrade_is_invalid() {
    let mut negotiation = upgrade(TlsPolicy::Required, usize::MAX);
    let again = negotiation.option(OptionCode::StartTls.wire(), &[]);
    assert_eq!(refusal(again), Some(ReplyCode::ErrInvalid));
    negotiation.list().unwrap();
}

/// Client flags and `STARTTLS`, as bytes.
fn starttls_bytes() -> Vec<u8> {
    [&[0, 0, 0, 3][..], b"IHAVEOPT", &5_u32.to_be_bytes(), &[0; 4]].concat()
}

#[test]
fn plain_bytes_behind_starttls_close_and_are_never_read() {
    let list = [&b"IHAVEOPT"[..], &3_u32.to_be_bytes(), &[0; 4]].concat();
    let exports = exports();
    let together = [starttls_bytes(), list.clone()].concat();
    let closed = Event::Close(CloseReason::PlaintextAfterStartTls);

    let mut handshake = Handshake::new(TlsPolicy::Optional);
    let mut out = Vec::new();
    let step = handshake.advance(&together, exports.as_slice(), &mut out);
    assert_eq!(step.event, closed);
    assert_eq!(out.len(), 20, "the acknowledgement, and no list");

    let mut handshake = Handshake::new(TlsPolicy::Optional);
    let step = handshake.advance(&starttls_bytes(), exports.as_slice(), &mut out);
    assert_eq!(step.event, Event::StartTls);
    assert_eq!(handshake.advance(&[], exports.as_slice(), &mut out).event, Event::NeedMore);
    out.clear();
    assert_eq!(handshake.advance(&list, exports.as_slice(), &mut out).event, closed);
    assert!(out.is_empty());
}

#[test]
fn plain_options_where_the_tls_handshake_belongs_fail_it() {
    let authority = Authority::new();
    let server = server(exports()).with_tls(TlsPolicy::Optional, server_config(&authority, false));
    let mut stream = Negotiation::new(server).unwrap().start_tls().unwrap();
    let list = [&b"IHAVEOPT"[..], &3_u32.to_be_bytes(), &[0; 4]].concat();
    std::io::Write::write_all(&mut stream, &list).unwrap();
    assert!(stream.tls_failed);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
    assert_eq!(rest.first(), Some(&0x15), "a TLS alert, nothing else");
}

#[test]
fn clients_without_an_accepted_certificate_are_refused() {
    let authority = Authority::new();
    let stranger = Authority::new().issue("stranger", "stranger.example");
    for identity in [None, Some(&stranger)] {
        let server =
            server(exports()).with_tls(TlsPolicy::Required, server_config(&authority, true));
        let stream = Negotiation::new(server).unwrap().start_tls().unwrap();
        let stream = wrap(stream, client_config(&authority, identity));
        let mut negotiation = Negotiation::after_tls(stream, ClientFlags::all());
        assert!(matches!(negotiation.list(), Err(ClientError::Io(_))));
        assert!(negotiation.stream().sock.tls_failed);
    }
}

#[test]
fn bad_configurations_are_explained() {
    let authority = Authority::new();
    let ours = authority.issue("a", "a.example");
    let other = authority.issue("b", "b.example");
    let (certificate, key) = (ours.certificate.as_bytes(), ours.key.as_bytes());
    let explain = |certificate: &[u8], key: &[u8], ca: Option<&[u8]>| {
        TlsConfig::from_pem(certificate, key, ca).unwrap_err().to_string()
    };
    assert!(explain(b"", key, None).contains("server certificate contains no certificate"));
    assert!(explain(key, key, None).contains("server certificate contains no certificate"));
    assert!(explain(certificate, b"junk", None).contains("server key cannot be read"));
    assert!(explain(certificate, other.key.as_bytes(), None).contains("server key cannot be used"));
    assert!(explain(certificate, key, Some(b"junk")).contains("client certificate authority"));
}

/// A client and a session that have shaken hands.
fn established() -> (ClientConnection, TlsSession) {
    let authority = Authority::new();
    let config = Arc::new(client_config(&authority, None));
    let mut client = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut session = TlsSession::new(&server_config(&authority, false)).unwrap();
    assert_eq!(session.write_plaintext(b"too early"), 0);
    while client.is_handshaking() || session.is_handshaking() {
        to_session(&mut client, &mut session);
        to_client(&mut session, &mut client);
    }
    (client, session)
}

fn to_session(client: &mut ClientConnection, session: &mut TlsSession) {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    assert_eq!(session.receive(&bytes).unwrap(), bytes.len());
}

fn to_client(session: &mut TlsSession, client: &mut ClientConnection) {
    let mut bytes = [0; 1000];
    while let count @ 1.. = session.take_ciphertext(&mut bytes) {
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
    }
}

#[test]
fn buffers_are_bounded_both_ways() {
    let (mut client, mut session) = established();
    let taken = session.write_plaintext(&vec![1; 1 << 20]);
    assert_eq!(taken, SEND_BUFFER_BYTES);
    let mut ciphertext = vec![0; 1 << 20];
    assert!(session.take_ciphertext(&mut ciphertext) <= SEND_BUFFER_BYTES * 9 / 8);
    assert!(!session.wants_send());

    client.set_buffer_limit(None);
    std::io::Write::write_all(&mut client.writer(), &vec![2; 1 << 20]).unwrap();
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    let (mut rest, mut plain) = (&bytes[..], vec![0; 100_000]);
    let mut total = 0;
    while !rest.is_empty() {
        let consumed = session.receive(rest).unwrap();
        rest = &rest[consumed..];
        let count = session.read_plaintext(&mut plain);
        assert!(count > 0 || consumed > 0, "no progress");
        assert!(count < 40_000, "{count} bytes were held");
        total += count;
    }
    assert_eq!(total, 1 << 20);
}

#[test]
fn close_notify_is_seen_both_ways() {
    let (mut client, mut session) = established();
    assert!(!session.peer_closed());
    client.send_close_notify();
    to_session(&mut client, &mut session);
    assert!(session.peer_closed());
    assert_eq!(session.read_plaintext(&mut [0; 9]), 0);
    session.close_notify();
    assert!(session.wants_send());
}
