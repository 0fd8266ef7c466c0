//! NBD URIs of exports, as nbdinfo, qemu and fio take them.
//!
//! Source: the NBD URI specification (`nbd://HOST:PORT/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`,
//! and `nbds` for TLS); escapes as RFC 3986.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use crate::spec::{ExportSpec, Listener, TlsMode};

/// The URI of `export` at `listener`; a default export goes without its name.
pub fn nbd_uri(export: &ExportSpec, listener: &Listener) -> String {
    let scheme = if export.tls.mode == TlsMode::Required { "nbds" } else { "nbd" };
    let name = if export.default { "" } else { export.name.as_str() };
    let name = escape(name.as_bytes());
    match listener {
        Listener::Unix { path, .. } => {
            format!("{scheme}+unix:///{name}?socket={}", escape(path.as_os_str().as_bytes()))
        }
        Listener::Tcp { host, port } => format!("{scheme}://{}:{port}/{name}", reachable(host)),
    }
}

/// The host to connect to: the loopback address for a wildcard address.
fn reachable(host: &str) -> String {
    match host {
        "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        host if host.contains(':') => format!("[{host}]"),
        host => host.to_owned(),
    }
}

/// Percent-encodes all bytes that are neither unreserved nor `/`.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(byte) {
            out.push(char::from(*byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Source;
    use std::path::Path;

    fn export(more: &str) -> ExportSpec {
        let text = format!("[device.d]\ntype = \"null\"\n[export.v-1]\ndevice = \"d\"\n{more}\n");
        let source = Source { name: "t".to_owned(), text };
        crate::parse("t", source, Path::new("/a b")).unwrap().exports.remove(0)
    }

    #[test]
    fn unix_paths_are_escaped_and_the_default_goes_without_name() {
        let named = export("nbd = \"unix:ü&?.sock\"");
        let uri = "nbd+unix:///v-1?socket=/a%20b/%C3%BC%26%3F.sock";
        assert_eq!(nbd_uri(&named, &named.nbd[0]), uri);
        let default = export("nbd = \"unix:/x.sock\"\ndefault = true");
        assert_eq!(nbd_uri(&default, &default.nbd[0]), "nbd+unix:///?socket=/x.sock");
    }

    #[test]
    fn tcp_addresses_can_be_reached() {
        let hosts = [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]"), ("[fe80::1]", "[fe80::1]")];
        for (listen, connect) in hosts {
            let export = export(&format!("nbd = \"tcp:{listen}:10809\""));
            assert_eq!(nbd_uri(&export, &export.nbd[0]), format!("nbd://{connect}:10809/v-1"));
        }
    }

    #[test]
    fn required_tls_shows_in_the_scheme() {
        let export = export(
            "nbd = \"tcp:localhost:1\"\ntls = { mode = \"required\", cert = \"c\", key = \"k\" }",
        );
        assert_eq!(nbd_uri(&export, &export.nbd[0]), "nbds://localhost:1/v-1");
    }
}
