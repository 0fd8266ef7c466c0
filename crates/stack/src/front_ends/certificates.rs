//! Checks of the server's certificates: errors of unusable ones, and warnings of those that clients
//! will refuse today.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use drystone_exports::nbd::TlsPolicy;
use drystone_exports::nbd::server::ListenerTls;
use drystone_exports::nbd::tls::{Moment, TlsConfig, TlsConfigError, Validity};

use crate::diagnostic::{Diagnostic, Findings};
use crate::spec::{ExportSpec, StackSpec, TlsMode};

/// Warnings of certificates in the stack's server certificate files, and of those of its clients'
/// authorities, that are not valid at `now_s`, in seconds since 1970. Reads the files; one that
/// cannot be read has been reported by [`crate::load`].
pub fn certificate_warnings(stack: &StackSpec, now_s: u64) -> Vec<Diagnostic> {
    let mut findings = Findings::default();
    let mut seen: BTreeSet<(&str, &Path)> = BTreeSet::new();
    let now = Moment::of_unix_time(now_s);
    for export in &stack.exports {
        let tls = &export.tls;
        for (key, path) in [("cert", &tls.cert), ("client_ca", &tls.client_ca)] {
            let Some(path) = path.as_deref().filter(|path| seen.insert((key, path))) else {
                continue;
            };
            if let Some((message, hint)) = out_of_date(key, path, now) {
                let span = stack.places.export(&export.name, &format!("tls/{key}"));
                findings.warning(&span, message, hint);
            }
        }
    }
    findings.into_report(stack.source.clone()).diagnostics
}

/// A warning of the first certificate in a file that is not valid.
fn out_of_date(key: &str, path: &Path, now: Moment) -> Option<(String, String)> {
    let pem = fs::read(path).unwrap_or_default();
    let chain = Validity::of_pem(&pem);
    let wrong = |(n, validity): (usize, &Validity)| Some((n, why_not(validity, now)?));
    let (n, (why, hint)) = chain.iter().enumerate().find_map(wrong)?;
    // The first is the server's own; intermediate authorities follow.
    let which = match (key, n) {
        ("cert", 0) => "the certificate".to_owned(),
        (_, 0) if chain.len() == 1 => "the certificate of the clients' authority".to_owned(),
        ("cert", n) => format!("the certificate of an authority, number {} in", n + 1),
        (_, n) => format!("the certificate of an authority of clients, number {} in", n + 1),
    };
    let effect = match key {
        "cert" => "clients that verify it will not connect",
        // rustls trusts a named authority whatever its dates are.
        _ => "clients whose certificates it signed are let in all the same",
    };
    Some((format!("{which} {} {why}", path.display()), format!("{effect}: {hint}")))
}

/// The reason why it is not valid at `now`, and the remedy.
fn why_not(validity: &Validity, now: Moment) -> Option<(String, &'static str)> {
    if now > validity.not_after {
        return Some((format!("expired on {}", validity.not_after), "renew it"));
    }
    (now < validity.not_before).then(|| {
        let why = format!("is valid only from {}", validity.not_before);
        (why, "wait until then, or set the clock of this machine if it is wrong")
    })
}

/// How connections of an export's listeners treat TLS, by the files that it names; `None` after an
/// error.
pub(crate) fn tls(
    stack: &StackSpec,
    spec: &ExportSpec,
    findings: &mut Findings,
) -> Option<ListenerTls> {
    let policy = match spec.tls.mode {
        TlsMode::Off => return Some(ListenerTls::off()),
        TlsMode::Optional => TlsPolicy::Optional,
        TlsMode::Required => TlsPolicy::Required,
    };
    let mut wrong = |key: &str, message: String| {
        let span = stack.places.export(&spec.name, &format!("tls/{key}"));
        findings.error(&span, message, "name PEM files that belong together");
    };
    let mut read = |key: &str, path: Option<&Path>| {
        let path = path?;
        let bytes = fs::read(path);
        bytes.map_err(|error| wrong(key, format!("{}: {error}", path.display()))).ok()
    };
    let cert = read("cert", spec.tls.cert.as_deref())?;
    let key = read("key", spec.tls.key.as_deref())?;
    let client_ca = match &spec.tls.client_ca {
        Some(path) => Some(read("client_ca", Some(path))?),
        None => None,
    };
    match TlsConfig::from_pem(&cert, &key, client_ca.as_deref()) {
        Ok(config) => Some(ListenerTls { policy, config: Some(config) }),
        Err(error) => {
            wrong(key_of(&error), error.to_string());
            None
        }
    }
}

/// The key of the `tls` table that an error is about.
fn key_of(error: &TlsConfigError) -> &'static str {
    let what = match error {
        TlsConfigError::Pem { what, .. } | TlsConfigError::Unusable { what, .. } => what,
        TlsConfigError::NoCertificate(what) => what,
        TlsConfigError::Verifier(_) => "client",
    };
    match what {
        what if what.starts_with("client") => "client_ca",
        what if what.ends_with("key") => "key",
        _ => "cert",
    }
}
