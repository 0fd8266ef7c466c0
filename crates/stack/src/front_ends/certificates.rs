//! Warnings of server certificates that clients will not accept today.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use drystone_exports::nbd::tls::{Moment, Validity};

use crate::diagnostic::{Diagnostic, Findings};
use crate::spec::StackSpec;

/// Warnings of certificates in the stack's server certificate files that are not valid at `now_s`, in seconds since
/// 1970. Reads the files; one that cannot be read has been reported by [`crate::load`].
pub fn certificate_warnings(stack: &StackSpec, now_s: u64) -> Vec<Diagnostic> {
    let mut findings = Findings::default();
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    let now = Moment::of_unix_time(now_s);
    for export in &stack.exports {
        let Some(path) = export.tls.cert.as_deref().filter(|path| seen.insert(path)) else {
            continue;
        };
        let pem = fs::read(path).unwrap_or_default();
        let wrong = Validity::of_pem(&pem).into_iter().find_map(|validity| why_not(&validity, now));
        if let Some(why) = wrong {
            let span = stack.places.export(&export.name, "tls/cert");
            let message = format!("the certificate {} {why}", path.display());
            findings.warning(&span, message, "clients that verify it will not connect: renew it");
        }
    }
    findings.into_report(stack.source.clone()).diagnostics
}

fn why_not(validity: &Validity, now: Moment) -> Option<String> {
    if now > validity.not_after {
        return Some(format!("expired on {}", validity.not_after));
    }
    (now < validity.not_before).then(|| format!("is valid only from {}", validity.not_before))
}
