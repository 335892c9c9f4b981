//! Authorities that must have nothing in common.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::parse_x509_certificate;

/// Authorities that must have nothing in common, because whoever has a certificate of one must not pass for a holder of
/// the other. They are compared whenever one of them is loaded again.
///
/// Two have something in common if they share a key, or if a certificate of one signed a certificate of the other: its
/// leaves then have a chain to both.
#[derive(Clone, Default)]
pub struct Unrelated(Arc<Mutex<BTreeMap<&'static str, Vec<CertificateDer<'static>>>>>);

impl Unrelated {
    /// Takes `authorities` as those of `whose`, unless they have something in common with another's: then returns whose.
    pub(crate) fn take(
        &self,
        whose: &'static str,
        authorities: &[CertificateDer<'static>],
    ) -> Result<(), &'static str> {
        let mut all = self.0.lock().expect("nothing panics while this is locked");
        let mine = parsed(authorities);
        let related = |theirs: &[X509Certificate<'_>]| {
            mine.iter().any(|mine| theirs.iter().any(|theirs| are_related(mine, theirs)))
        };
        for (other, theirs) in all.iter() {
            if *other != whose && related(&parsed(theirs)) {
                return Err(other);
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
    one.public_key().raw == other.public_key().raw || has_signed(one, other) || has_signed(other, one)
}

fn has_signed(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    issuer.subject().as_raw() == certificate.issuer().as_raw()
        && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}
