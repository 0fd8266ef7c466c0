//! The names in a peer's certificate.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::der::{element, elements};

/// The names of a certificate's holder.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PeerNames {
    /// The subject's common name (the last, when there are several), if it is text.
    pub common_name: Option<String>,
    /// DNS names among the subject's alternative names.
    pub dns_names: Vec<String>,
    /// URIs among the subject's alternative names.
    pub uri_names: Vec<String>,
}

impl PeerNames {
    /// Reads the names; `None` when the certificate cannot be parsed.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let dns_names = parsed.valid_dns_names().map(str::to_owned).collect();
        let uri_names = parsed.valid_uri_names().map(str::to_owned).collect();
        Some(Self { common_name: common_name(parsed.subject()), dns_names, uri_names })
    }

    /// All names: the common name, DNS names, URIs.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        let others = self.dns_names.iter().chain(&self.uri_names);
        self.common_name.iter().chain(others).map(String::as_str)
    }
}

/// The object identifier of the common name, 2.5.4.3.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const TAG_UTF8_STRING: u8 = 0x0c;
const TAG_PRINTABLE_STRING: u8 = 0x13;
const TAG_IA5_STRING: u8 = 0x16;

/// The common name in a subject: a list of sets of (identifier, text).
pub(super) fn common_name(subject: &[u8]) -> Option<String> {
    let attributes = elements(subject).flat_map(|(_, set)| elements(set));
    let texts = attributes.filter_map(|(_, attribute)| {
        let (_, identifier, rest) = element(attribute)?;
        let (tag, text, _) = element(rest)?;
        let is_text = matches!(tag, TAG_UTF8_STRING | TAG_PRINTABLE_STRING | TAG_IA5_STRING);
        (identifier == COMMON_NAME && is_text).then_some(text)
    });
    texts.last().and_then(|text| std::str::from_utf8(text).ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8][..], content].concat()
    }

    fn attribute(identifier: &[u8], text: &[u8]) -> Vec<u8> {
        let pair = [der(6, identifier), der(TAG_UTF8_STRING, text)].concat();
        der(0x31, &der(0x30, &pair))
    }

    #[test]
    fn the_last_common_name_counts() {
        let subject = [
            attribute(&[0x55, 4, 10], b"organisation"),
            attribute(&COMMON_NAME, b"first"),
            attribute(&COMMON_NAME, "zwölf".as_bytes()),
        ]
        .concat();
        assert_eq!(common_name(&subject).as_deref(), Some("zwölf"));
        assert_eq!(common_name(&attribute(&[0x55, 4, 10], b"x")), None);
    }

    #[test]
    fn broken_subjects_have_no_name_and_do_no_harm() {
        let subject = attribute(&COMMON_NAME, b"name");
        for end in 0..subject.len() {
            assert_eq!(common_name(&subject[..end]), None, "cut at {end}");
        }
        assert_eq!(common_name(&[0x31, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(common_name(&[0x31, 0xff]), None);
        assert_eq!(common_name(&attribute(&COMMON_NAME, b"\xff")), None);
    }
}
