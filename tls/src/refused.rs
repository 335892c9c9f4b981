//! Why the other side of a handshake was refused, or refuses this one.
//!
//! rustls's errors do not tell whose certificate it was. A verifier knows, so that of each connection notes it. What the other side
//! is told stays the same.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::in_use::{InUse, end, now, subject, validity, when};
use crate::trusted::Trusted;

/// Why the certificate of the other side of one connection was refused, once it was.
#[derive(Clone, Debug, Default)]
pub struct Refused(Arc<OnceLock<String>>);

impl Refused {
    /// Notes that `chain` is refused with `error` by the authorities `trusted`. `is_valid_at` verifies it at another time.
    pub(crate) fn note(
        &self,
        error: &TlsError,
        chain: &[&CertificateDer<'_>],
        trusted: &Trusted,
        is_valid_at: impl Fn(UnixTime) -> bool,
    ) {
        self.0.get_or_init(|| cut(reason(error, chain, trusted, is_valid_at)));
    }

    /// Why the other side was refused.
    pub(crate) fn why(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// `error`, with the reason in place of rustls's words. `own` are the certificates that this side shows.
    pub(crate) fn explain(&self, error: io::Error, own: &[InUse]) -> io::Error {
        if let Some(why) = self.why() {
            return io::Error::new(ErrorKind::PermissionDenied, why);
        }
        let Some(TlsError::AlertReceived(alert)) = error.get_ref().and_then(|inner| inner.downcast_ref())
        else {
            return error;
        };
        if !refuses_certificate(*alert) {
            return error;
        }
        let says = match alert {
            AlertDescription::CertificateExpired => "that it has ended, or not begun",
            AlertDescription::UnknownCA => "that no authority which it trusts has signed it",
            // It knows another authority of the same name.
            AlertDescription::DecryptError => "that its signature is wrong",
            _ => "no more",
        };
        let mut why = format!("the other side refuses this side's certificate, and says {says}");
        if let Some(first) = own.iter().find(|own| !own.is_authority) {
            let _ = write!(why, ": {}, {}, {}", first.file.display(), first.subject, first.when(now()));
        }
        io::Error::new(ErrorKind::PermissionDenied, why)
    }
}

/// Whether this alert tells that the other side refuses the certificate which it was shown.
pub fn refuses_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    )
}

/// Why `chain`, of which the first is the other side's own, is refused. `is_valid_at` verifies it at another time.
fn reason(
    error: &TlsError,
    chain: &[&CertificateDer<'_>],
    trusted: &Trusted,
    is_valid_at: impl Fn(UnixTime) -> bool,
) -> String {
    let Some(own) = chain.first() else { return "it has shown no certificate".to_owned() };
    let (own, now, file) = (subject(own), now(), trusted.file.display());
    let TlsError::InvalidCertificate(why) = error else {
        return format!("the certificate of {own} is refused: {error}");
    };
    let of_validity = matches!(
        why,
        CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }
    );
    // The latter if another authority has the same name.
    if !of_validity && !matches!(why, CertificateError::UnknownIssuer | CertificateError::BadSignature) {
        return format!("the certificate of {own} is refused: {why}");
    }
    if let Some(authority) = trusted.issuer_that_is_not_live(chain, now) {
        let (subject, when) = (&authority.subject, authority.when(now));
        return format!(
            "the certificate of {own} is signed by an authority of {file}, {subject}, that {when}"
        );
    }
    // rustls looks at the validity before it looks for an authority: who wrote what the certificate says?
    let then =
        |at: i64| UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at).unwrap_or_default()));
    let of_own = chain.first().and_then(|own| end(own));
    let first = chain.iter().filter_map(|one| end(one)).min();
    if !of_validity || !of_own.into_iter().chain(first).any(|at| is_valid_at(then(at))) {
        return format!(
            "it shows a certificate that says it is of {own}, and that no authority of {file} has signed"
        );
    }
    let not_live = chain.iter().find_map(|one| {
        let (begins, ends) = validity(one)?;
        (!(begins..=ends).contains(&now)).then(|| (subject(one), when(begins, ends, now)))
    });
    match not_live {
        Some((subject, when)) => format!("the certificate of {subject} {when}"),
        None => format!("the certificate of {own} is refused: {why}"),
    }
}

const MAX_TEXT: usize = 300;

/// At most 300 characters of `text`, of which a stranger has written a part.
pub fn cut(text: String) -> String {
    cut_to(text, MAX_TEXT)
}

/// At most so many characters of `text`, of which a stranger has written a part: without control characters, which a terminal obeys.
pub fn cut_to(text: String, most: usize) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let cut = text.chars().take(most).map(visible);
    let mark = text.chars().nth(most).map(|_| '…');
    cut.chain(mark).collect()
}
