//! Authorities that must have nothing in common.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;

use crate::Error;

/// Authorities that must have nothing in common, because whoever has a certificate of one must not pass for a holder of
/// the other. They are compared whenever one of them is loaded again.
///
/// Two have something in common if they share a key, or if a certificate of one signed a certificate of the other: its
/// leaves then have a chain to both.
#[derive(Clone, Default)]
pub struct Unrelated(Arc<Mutex<BTreeMap<&'static str, Vec<CertificateDer<'static>>>>>);

impl Unrelated {
    /// Takes `authorities`, which are those of `file`, as those of `whose`, unless they have something in common with another's.
    pub(crate) fn take(
        &self,
        whose: &'static str,
        file: &Path,
        authorities: &[CertificateDer<'static>],
    ) -> Result<(), Error> {
        let mut all = self.0.lock().expect("nothing panics while this is locked");
        let mine = parsed(authorities);
        let related = |theirs: &[X509Certificate<'_>]| {
            mine.iter().any(|mine| theirs.iter().any(|theirs| are_related(mine, theirs)))
        };
        for (other, theirs) in all.iter() {
            if *other != whose && related(&parsed(theirs)) {
                let why = format!("has something in common with the authority of {other}");
                return Err(Error::file(file, why));
            }
        }
        all.insert(whose, authorities.to_vec());
        Ok(())
    }
}

fn parsed<'a>(certificates: &'a [CertificateDer<'static>]) -> Vec<X509Certificate<'a>> {
    certificates.iter().filter_map(|certificate| Some(parse_x509_certificate(certificate).ok()?.1)).collect()
}

fn are_related(one: &X509Certificate<'_>, other: &X509Certificate<'_>) -> bool {
    one.public_key().raw == other.public_key().raw || signed(one, other) || signed(other, one)
}

/// Whether `certificate` was signed by `issuer`.
pub(crate) fn has_signed(issuer: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    let (Ok((_, issuer)), Ok((_, certificate))) =
        (parse_x509_certificate(issuer), parse_x509_certificate(certificate))
    else {
        return false;
    };
    signed(&issuer, &certificate)
}

fn signed(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    issuer.subject().as_raw() == certificate.issuer().as_raw()
        && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}
