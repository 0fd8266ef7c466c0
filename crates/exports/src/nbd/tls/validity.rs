//! The validity periods of certificates (RFC 5280, section 4.1.2.5).

use std::fmt;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::der::{element, elements};

/// The period in which a certificate is valid: both moments included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub not_before: Moment,
    /// The last moment.
    pub not_after: Moment,
}

/// A second of the calendar, in UTC. `Display` writes `2021-03-04 05:06:07 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    year: u32,
    month: u32,
    day: u32,
    /// Hour, minute, second.
    time: [u32; 3],
}

impl Validity {
    /// The validity of each certificate in the bytes of a PEM file, in order. Unreadable ones are
    /// left out: [`TlsConfig::from_pem`](super::TlsConfig::from_pem) reports their faults.
    pub fn of_pem(certificates: &[u8]) -> Vec<Self> {
        let found = CertificateDer::pem_slice_iter(certificates);
        found.filter_map(|certificate| Self::of(&certificate.ok()?)).collect()
    }

    /// Reads the validity; `None` when the certificate cannot be parsed.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        const TAG_VERSION: u8 = 0xa0;
        let (_, certificate, _) = element(certificate)?;
        let (_, signed, _) = element(certificate)?;
        // Version (which may be absent), serial number, algorithm, issuer, validity.
        let (_, validity) = elements(signed).filter(|(tag, _)| *tag != TAG_VERSION).nth(3)?;
        let mut moments = elements(validity).map(|(tag, text)| Moment::of(tag, text));
        Some(Self { not_before: moments.next()??, not_after: moments.next()?? })
    }
}

impl Moment {
    /// The moment `seconds` after the beginning of 1970.
    pub fn of_unix_time(seconds: u64) -> Self {
        let (mut days, second) = (seconds / 86_400, (seconds % 86_400) as u32);
        let mut year = 1970;
        while days >= days_of_year(year) {
            days -= days_of_year(year);
            year += 1;
        }
        let mut month = 1;
        while days >= days_of_month(year, month) {
            days -= days_of_month(year, month);
            month += 1;
        }
        let time = [second / 3600, second / 60 % 60, second % 60];
        Self { year, month, day: days as u32 + 1, time }
    }

    /// Reads UTCTime (`YYMMDDHHMMSSZ`, from 1950 on) or GeneralizedTime (`YYYYMMDDHHMMSSZ`).
    fn of(tag: u8, text: &[u8]) -> Option<Self> {
        const TAG_UTC_TIME: u8 = 0x17;
        const TAG_GENERALIZED_TIME: u8 = 0x18;
        let digits = text.strip_suffix(b"Z")?;
        let (year, rest) = match (tag, digits.len()) {
            (TAG_UTC_TIME, 12) => {
                let year = number(&digits[..2])?;
                (if year >= 50 { 1900 + year } else { 2000 + year }, &digits[2..])
            }
            (TAG_GENERALIZED_TIME, 14) => (number(&digits[..4])?, &digits[4..]),
            _ => return None,
        };
        let mut pairs = rest.chunks(2).map(number);
        let mut next = || pairs.next()?;
        Some(Self { year, month: next()?, day: next()?, time: [next()?, next()?, next()?] })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, time: [hour, minute, second] } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

/// A number of decimal digits only.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + u32::from(digit - b'0'))
    })
}

fn is_leap(year: u32) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u32) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: u32, month: u32) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_a_time_are_read() {
        let text = |tag, text: &[u8]| Moment::of(tag, text).map(|moment| moment.to_string());
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(text(0x17, b"210304050607Z"), is("2021-03-04 05:06:07 UTC"));
        assert_eq!(text(0x17, b"500101000000Z"), is("1950-01-01 00:00:00 UTC"));
        assert_eq!(text(0x18, b"99991231235959Z"), is("9999-12-31 23:59:59 UTC"));
        for broken in [&b"210304050607"[..], b"2103040506Z", b"21030405060xZ", b"", b"Z"] {
            assert_eq!(text(0x17, broken), None, "{broken:?}");
            assert_eq!(text(0x18, broken), None, "{broken:?}");
        }
    }

    /// Compared with date(1): `date -u -d @SECONDS`.
    #[test]
    fn seconds_since_1970_are_moments() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_614_834_367, "2021-03-04 05:06:07 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(Moment::of_unix_time(seconds).to_string(), text);
        }
    }

    #[test]
    fn certificates_say_when_they_are_valid() {
        use rcgen::{CertificateParams, KeyPair, date_time_ymd};
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 2, 29);
        params.not_after = date_time_ymd(2051, 1, 2);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = Validity::of_pem(certificate.pem().repeat(2).as_bytes());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].not_before.to_string(), "2020-02-29 00:00:00 UTC");
        assert_eq!(found[1].not_after.to_string(), "2051-01-02 00:00:00 UTC");
        for end in 0..certificate.der().len() {
            assert_eq!(Validity::of(&certificate.der()[..end]), None, "cut at {end}");
        }
        assert_eq!(Validity::of_pem(b"no certificate"), []);
    }
}
