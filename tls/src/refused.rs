//! Why the other side of a handshake was refused, or refuses this one.
//!
//! rustls's errors do not tell whose certificate it was. A verifier knows, so that of each connection notes it. What the other side
//! is told stays the same.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::in_use::{InUse, end, now, subject, when};

/// Why the certificate of the other side of one connection was refused, once it was.
#[derive(Clone, Debug, Default)]
pub struct Refused(Arc<OnceLock<String>>);

impl Refused {
    /// Notes that `chain` is refused with `error` by the authorities of the file `authority`.
    pub(crate) fn note(&self, error: &TlsError, chain: &[&CertificateDer<'_>], authority: &Path) {
        self.0.get_or_init(|| reason(error, chain, authority));
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
        let says = match alert {
            AlertDescription::CertificateExpired => "that it has ended, or not begun",
            AlertDescription::UnknownCA => "that no authority which it trusts has signed it",
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied => "no more",
            _ => return error,
        };
        let mut why = format!("the other side refuses this side's certificate, and says {says}");
        if let Some(first) = own.iter().filter(|own| !own.is_authority).min_by_key(|own| own.ends) {
            let _ = write!(why, ": {}, {}, {}", first.file.display(), first.subject, when(first.ends, now()));
        }
        io::Error::new(ErrorKind::PermissionDenied, why)
    }
}

/// Why `chain`, of which the first is the other side's own, is refused.
fn reason(error: &TlsError, chain: &[&CertificateDer<'_>], authority: &Path) -> String {
    let Some(own) = chain.first() else { return "it has shown no certificate".to_owned() };
    let own_subject = subject(own);
    match error {
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            let now = now();
            let of_chain =
                chain.iter().find_map(|one| Some((subject(one), end(one).filter(|end| *end < now)?)));
            match of_chain {
                Some((subject, ends)) => format!("the certificate of {subject} {}", when(ends, now)),
                None => format!(
                    "the certificate of {own_subject} is signed by an authority of {} that has ended",
                    authority.display()
                ),
            }
        }
        // The latter if another authority has the same name.
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("no authority of {} has signed the certificate of {own_subject}", authority.display())
        }
        error => format!("the certificate of {own_subject} is refused: {error}"),
    }
}
