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
    /// Whether something is refused once this one ends: it is this side's own, or that authority of its file which ends last. The
    /// others may be left over.
    pub is_needed: bool,
    /// When it begins, in seconds since the Unix epoch.
    pub begins: i64,
    /// When it ends, in the same way. Of a node's own for other nodes: when the authorities that the node itself trusts refuse
    /// it, which may be earlier than it says.
    pub ends: i64,
}

impl InUse {
    /// How near its end is at the time `now`, in seconds since the Unix epoch.
    pub fn nearness(&self, now: i64) -> Nearness {
        Nearness::of(self.begins, self.ends, now)
    }

    /// Whether it has begun, and not ended.
    pub fn is_live(&self, now: i64) -> bool {
        (self.begins..=self.ends).contains(&now)
    }

    /// See [`when`].
    pub fn when(&self, now: i64) -> String {
        when(self.begins, self.ends, now)
    }
}

/// How near an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// More than 30 days away.
    Far,
    /// At most 30 days away.
    Soon,
    /// What ends has not begun.
    NotYet,
    /// It has passed.
    Ended,
}

impl Nearness {
    /// That of an end at `ends` of what begins at `begins`, at the time `now`, all in seconds since the Unix epoch.
    pub fn of(begins: i64, ends: i64, now: i64) -> Self {
        match ends.saturating_sub(now) {
            ..0 => Self::Ended,
            _ if now < begins => Self::NotYet,
            0..=SOON => Self::Soon,
            _ => Self::Far,
        }
    }
}

/// `ends on 2027-11-28 08:54 UTC, in 364 days`, `ended on …, 2 days ago`, or `begins on …, in 3 hours`. The times are in seconds since
/// the Unix epoch.
pub fn when(begins: i64, ends: i64, now: i64) -> String {
    let nearness = Nearness::of(begins, ends, now);
    let (word, at) = match nearness {
        Nearness::Ended => ("ended", ends),
        Nearness::NotYet => ("begins", begins),
        Nearness::Far | Nearness::Soon => ("ends", ends),
    };
    let date = ASN1Time::from_timestamp(at).map(|at| {
        let at = at.to_datetime();
        format!("on {} {:02}:{:02} UTC", at.date(), at.hour(), at.minute())
    });
    let date = date.unwrap_or_else(|_| format!("{at} s after 1970"));
    match nearness {
        Nearness::Ended => format!("{word} {date}, {} ago", span(now.saturating_sub(at))),
        _ => format!("{word} {date}, in {}", span(at.saturating_sub(now))),
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

/// The chain of this side, of which nobody accepts the first after `refused`, if that is known.
pub(crate) fn of_own(file: &Path, chain: &[CertificateDer<'_>], refused: Option<i64>) -> Vec<InUse> {
    let mut all = list(file, chain, false);
    if let Some(own) = all.first_mut() {
        own.is_needed = true;
        own.ends = refused.unwrap_or(i64::MAX).min(own.ends);
    }
    all
}

/// Authorities, as they are at the time `now`.
pub(crate) fn of_authorities(file: &Path, authorities: &[CertificateDer<'_>], now: i64) -> Vec<InUse> {
    let mut all = list(file, authorities, true);
    if let Some(last) = all.iter_mut().max_by_key(|one| (one.is_live(now), one.ends)) {
        last.is_needed = true;
    }
    all
}

fn list(file: &Path, certificates: &[CertificateDer<'_>], is_authority: bool) -> Vec<InUse> {
    let one = |certificate: &CertificateDer<'_>| {
        let (begins, ends) = validity(certificate)?;
        let (file, subject) = (file.to_owned(), subject(certificate));
        Some(InUse { file, subject, is_authority, is_needed: false, begins, ends })
    };
    certificates.iter().filter_map(one).collect()
}

/// When a certificate begins and ends, in seconds since the Unix epoch. `None` if it is not valid X.509.
pub(crate) fn validity(certificate: &CertificateDer<'_>) -> Option<(i64, i64)> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    let validity = parsed.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Whether a certificate has begun at the time `now`, and not ended.
pub(crate) fn is_live(certificate: &CertificateDer<'_>, now: i64) -> bool {
    validity(certificate).is_some_and(|(begins, ends)| (begins..=ends).contains(&now))
}

/// When a certificate ends, in seconds since the Unix epoch. `None` if it is not valid X.509.
pub(crate) fn end(certificate: &CertificateDer<'_>) -> Option<i64> {
    validity(certificate).map(|(_, ends)| ends)
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
            assert_eq!(when(ends - 500 * DAY, ends, ends - before), expected);
        }
        let at = |left| Nearness::of(ends - 100 * DAY, ends, ends - left);
        assert_eq!([100 * DAY, SOON + 1, SOON, 0, -1].map(at), {
            use Nearness::{Ended, Far, Soon};
            [Far, Far, Soon, Soon, Ended]
        });
        assert_eq!(at(100 * DAY + 1), Nearness::NotYet);
        assert_eq!(when(ends, ends + DAY, ends - 7_200), "begins on 2026-11-29 08:54 UTC, in 2 hours");
        assert_eq!(when(i64::MIN, i64::MAX, i64::MIN).matches("ends").count(), 1, "nothing overflows");
    }
}
