//! Certificates of files that are in use, and when they end.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

use crate::names::{Name, names};

const DAY: i64 = 86_400;
/// How long before its end a certificate is warned of, in seconds.
const SOON: i64 = 30 * DAY;
/// The most characters of a subject that are repeated, and the most names.
const MAX_SUBJECT: usize = 80;
const MAX_NAMES: usize = 3;

/// A certificate of a file that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// The file.
    pub file: PathBuf,
    /// Whose certificate it is: see [`subject`].
    pub subject: String,
    /// Whether it is of an authority that this side trusts. Otherwise it is this side's own, or between that and an authority.
    pub is_authority: bool,
    /// When it ends, in seconds since the Unix epoch.
    pub ends: i64,
}

/// How near an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// More than 30 days away.
    Far,
    /// At most 30 days away.
    Soon,
    /// It has passed.
    Ended,
}

impl Nearness {
    /// That of an end at `ends`, at the time `now`, both in seconds since the Unix epoch.
    pub fn of(ends: i64, now: i64) -> Self {
        match ends.saturating_sub(now) {
            ..0 => Self::Ended,
            0..=SOON => Self::Soon,
            _ => Self::Far,
        }
    }
}

/// `ends on 2027-11-28 08:54 UTC, in 364 days`, or `ended on …, 2 days ago`. Both times are in seconds since the Unix epoch.
pub fn when(ends: i64, now: i64) -> String {
    let at = ASN1Time::from_timestamp(ends).map(|at| {
        let at = at.to_datetime();
        format!("on {} {:02}:{:02} UTC", at.date(), at.hour(), at.minute())
    });
    let at = at.unwrap_or_else(|_| format!("{ends} s after 1970"));
    let left = ends.saturating_sub(now);
    match Nearness::of(ends, now) {
        Nearness::Ended => format!("ended {at}, {} ago", span(left.saturating_neg())),
        _ => format!("ends {at}, in {}", span(left)),
    }
}

fn span(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / DAY, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// The time, in seconds since the Unix epoch.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The certificates of a file, one after the other.
pub(crate) fn in_use(file: &Path, certificates: &[CertificateDer<'_>], is_authority: bool) -> Vec<InUse> {
    let one = |certificate: &CertificateDer<'_>| {
        Some(InUse {
            file: file.to_owned(),
            subject: subject(certificate),
            is_authority,
            ends: end(certificate)?,
        })
    };
    certificates.iter().filter_map(one).collect()
}

/// When a certificate ends, in seconds since the Unix epoch. `None` if it is not valid X.509.
pub(crate) fn end(certificate: &CertificateDer<'_>) -> Option<i64> {
    Some(parse_x509_certificate(certificate).ok()?.1.validity().not_after.timestamp())
}

/// Whose certificate it says that it is: `CN=ringfence node 1 (ringfence:node:1)`. Short, and without control characters: a
/// stranger may have written it.
pub(crate) fn subject(certificate: &CertificateDer<'_>) -> String {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return "not valid X.509".to_owned() };
    let short = |text: &str| -> String {
        let visible = |c: char| if c.is_control() { '?' } else { c };
        text.chars().take(MAX_SUBJECT).map(visible).collect()
    };
    let names = names(certificate).into_iter().take(MAX_NAMES).map(|name| match name {
        Name::Dns(name) | Name::Uri(name) => short(&name),
        Name::Ip(address) => address.to_string(),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let subject = short(&parsed.subject().to_string());
    match (subject.is_empty(), names.is_empty()) {
        (false, true) => subject,
        (true, _) => names,
        (false, false) => format!("{subject} ({names})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_its_distance() {
        let ends = 1_795_942_473;
        for (before, expected) in [
            (400 * DAY, "ends on 2026-11-29 08:54 UTC, in 400 days"),
            (30 * DAY, "ends on 2026-11-29 08:54 UTC, in 30 days"),
            (90, "ends on 2026-11-29 08:54 UTC, in 90 seconds"),
            (-1, "ended on 2026-11-29 08:54 UTC, 1 second ago"),
            (-7_300, "ended on 2026-11-29 08:54 UTC, 2 hours ago"),
        ] {
            assert_eq!(when(ends, ends - before), expected);
        }
        assert_eq!(Nearness::of(ends, ends - SOON - 1), Nearness::Far);
        assert_eq!([SOON, 0, -1].map(|left| Nearness::of(ends, ends - left)), {
            use Nearness::{Ended, Soon};
            [Soon, Soon, Ended]
        });
        assert_eq!(when(i64::MAX, i64::MIN).matches("ends").count(), 1, "nothing overflows");
    }
}
