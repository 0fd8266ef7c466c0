//! TLS for a connection without I/O: ciphertext in and out as bytes, plain text in and out as
//! bytes.
//!
//! A wrapper of rustls with the ring provider; TLS 1.2 and 1.3, no session resumption, no early
//! data. rustls has no pre-shared keys, so certificates are the only credentials here. Unlike the
//! rest of this protocol code, a session allocates while it works, and certificates are checked
//! against the system's clock; both happen inside rustls.
//!
//! Bounds of one session: 64 KiB of handshake (rustls), one record more than 16 KiB of received
//! plain text, and [`SEND_BUFFER_BYTES`] of ciphertext to send.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

mod der;
mod names;
mod validity;

pub use names::PeerNames;
pub use validity::{Moment, Validity};

/// Ciphertext (and, before the handshake is done, plain text) that a session holds until it is
/// taken.
pub const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Received plain text at which a session takes no more ciphertext until it is read.
const PLAINTEXT_HIGH_BYTES: usize = 16 << 10;

/// Why a TLS configuration cannot be used. The text has no file names, since only bytes are known
/// here.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// Not PEM, or not of this kind.
    #[error("the {what} cannot be read as PEM: {source}")]
    Pem {
        /// The name of the input.
        what: &'static str,
        /// The PEM parser's words.
        source: pem::Error,
    },
    /// PEM without a certificate in it.
    #[error("the {0} contains no certificate (a \"BEGIN CERTIFICATE\" section)")]
    NoCertificate(&'static str),
    /// A certificate authority or key that rustls cannot use, or a key that is not the
    /// certificate's.
    #[error("the {what} cannot be used: {source}")]
    Unusable {
        /// The name of the input.
        what: &'static str,
        /// The words of rustls.
        source: rustls::Error,
    },
    /// The client certificate authorities cannot verify anything.
    #[error("the client certificate authority cannot be used: {0}")]
    Verifier(#[from] rustls::client::VerifierBuilderError),
}

/// The reason why a session failed. Before closing, the driver sends the rest of the ciphertext: it
/// holds the alert for the peer.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The peer broke the protocol or its certificate is not acceptable.
    #[error("TLS failed: {0}")]
    Protocol(#[from] rustls::Error),
    /// A handshake message longer than rustls accepts.
    #[error("TLS failed: {0}")]
    TooLong(std::io::Error),
}

/// A listener's certificate, key and client authorities; cheap to clone, shared by connections.
#[derive(Clone, Debug)]
pub struct TlsConfig(Arc<ServerConfig>);

fn certificates(
    what: &'static str,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let found = found.map_err(|source| TlsConfigError::Pem { what, source })?;
    if found.is_empty() { Err(TlsConfigError::NoCertificate(what)) } else { Ok(found) }
}

fn client_verifier(ca_pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, TlsConfigError> {
    let what = "client certificate authority";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, ca_pem)? {
        roots.add(certificate).map_err(|source| TlsConfigError::Unusable { what, source })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

#[cfg(test)]
impl TlsConfig {
    /// A certificate of its own.
    pub(crate) fn of_test() -> Self {
        let names = vec!["localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        Self::from_pem(certificate.as_bytes(), key.as_bytes(), None).expect("it fits")
    }
}

impl TlsConfig {
    /// Reads the server's certificate chain and key and, when clients must show a certificate, the
    /// authorities that vouch for them, all as the bytes of PEM files.
    ///
    /// # Errors
    /// [`TlsConfigError`] says which of the three is wrong and why.
    pub fn from_pem(
        certificate_pem: &[u8],
        key_pem: &[u8],
        client_ca_pem: Option<&[u8]>,
    ) -> Result<Self, TlsConfigError> {
        let chain = certificates("server certificate", certificate_pem)?;
        let what = "server key";
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|source| TlsConfigError::Pem { what, source })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the ring provider serves the default versions");
        let builder = match client_ca_pem {
            Some(ca) => builder.with_client_cert_verifier(client_verifier(ca)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|source| TlsConfigError::Unusable { what, source })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }
}

/// The server's end of TLS on one connection. Owned by the thread that serves the connection.
#[derive(Debug)]
pub struct TlsSession {
    connection: ServerConnection,
    peer_closed: bool,
}

impl TlsSession {
    /// A session that waits for the client's first message.
    ///
    /// # Errors
    /// [`TlsError`] when rustls cannot use the configuration.
    pub fn new(config: &TlsConfig) -> Result<Self, TlsError> {
        let mut connection = ServerConnection::new(config.0.clone())?;
        connection.set_buffer_limit(Some(SEND_BUFFER_BYTES));
        Ok(Self { connection, peer_closed: false })
    }

    /// Takes received ciphertext and returns how much of it. When that is not all, plain text waits
    /// to be read first. There may be ciphertext to send afterwards.
    ///
    /// # Errors
    /// [`TlsError`]: send what [`take_ciphertext`](Self::take_ciphertext) still gives, then close.
    pub fn receive(&mut self, ciphertext: &[u8]) -> Result<usize, TlsError> {
        let mut rest = ciphertext;
        while !rest.is_empty() {
            let state = self.connection.process_new_packets()?;
            self.peer_closed = state.peer_has_closed();
            if self.peer_closed {
                return Ok(ciphertext.len());
            }
            if state.plaintext_bytes_to_read() >= PLAINTEXT_HIGH_BYTES {
                return Ok(ciphertext.len() - rest.len());
            }
            self.connection.read_tls(&mut rest).map_err(TlsError::TooLong)?;
        }
        self.peer_closed = self.connection.process_new_packets()?.peer_has_closed();
        Ok(ciphertext.len())
    }

    /// Moves received plain text into `out` and returns how many bytes; 0 when there is none.
    pub fn read_plaintext(&mut self, out: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < out.len() {
            match self.connection.reader().read(&mut out[filled..]) {
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        filled
    }

    /// Encrypts plain text and returns how many bytes it took: fewer than all when
    /// [`SEND_BUFFER_BYTES`] of ciphertext wait to be taken, none during the handshake.
    pub fn write_plaintext(&mut self, plaintext: &[u8]) -> usize {
        if self.is_handshaking() {
            return 0;
        }
        self.connection.writer().write(plaintext).expect("rustls buffers without failing")
    }

    /// Moves ciphertext to send into `out` and returns how many bytes; 0 when there is none.
    pub fn take_ciphertext(&mut self, mut out: &mut [u8]) -> usize {
        let room = out.len();
        while !out.is_empty() && self.connection.wants_write() {
            self.connection.write_tls(&mut out).expect("writing to memory does not fail");
        }
        room - out.len()
    }

    /// True if there is ciphertext to send.
    pub fn wants_send(&self) -> bool {
        self.connection.wants_write()
    }

    /// True if the handshake is still under way.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// True if the peer announced its end (close_notify). A connection that ends without it was
    /// cut.
    pub fn peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Queues the message that ends the session; send it, then close the socket.
    pub fn close_notify(&mut self) {
        self.connection.send_close_notify();
    }

    /// The names in the client's certificate; `None` without one. They are verified once the
    /// handshake is done.
    pub fn peer_names(&self) -> Option<PeerNames> {
        let certificate = self.connection.peer_certificates()?.first()?;
        PeerNames::of(certificate)
    }
}

/// Takes any bytes as a certificate, and as the subject of one: see
/// [`super::fuzz::fuzz_certificate`].
pub(super) fn read_any_certificate(bytes: &[u8]) {
    let certificate = CertificateDer::from(bytes);
    if let Some(names) = PeerNames::of(&certificate) {
        assert!(names.all().all(|name| name.len() <= bytes.len()));
    }
    if let Some(name) = names::common_name(bytes) {
        assert!(name.len() <= bytes.len());
    }
    if let Some(validity) = Validity::of(bytes) {
        assert!(
            !validity.not_before.to_string().is_empty()
                && !validity.not_after.to_string().is_empty()
        );
    }
}
