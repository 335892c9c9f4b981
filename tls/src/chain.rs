//! A bound on the chains that strangers send.
//!
//! Verifying a chain tries all orders in which its certificates may lead to an authority, and parses them each time. 50 KB
//! that were made up for it take a second, and need no authority's signature.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use crate::Error;
use crate::certificates::Identity;

/// The most certificates between that of the other side and the authority.
const MAX_INTERMEDIATES: usize = 3;
/// The most bytes of a chain. A certificate with an RSA key of 4,096 bits has about 2 KB.
const MAX_BYTES: usize = 16 << 10;

/// Why a chain is refused unread.
#[derive(Debug, thiserror::Error)]
#[error("a chain has at most {MAX_INTERMEDIATES} intermediate certificates, and {} KiB in all", MAX_BYTES >> 10)]
pub(crate) struct TooLong;

impl From<TooLong> for rustls::Error {
    fn from(why: TooLong) -> Self {
        CertificateError::Other(OtherError(Arc::new(why))).into()
    }
}

/// Refuses an `identity` of `file` that a node would refuse, which does not say why.
pub(crate) fn check_own(file: &Path, identity: &Identity) -> Result<(), Error> {
    let Some((own, others)) = identity.certified.cert.split_first() else { return Ok(()) };
    check(own, others).map_err(|long| Error::file(file, format!("nodes refuse it: {long}")))
}

/// Refuses chains that may take long to verify.
pub(crate) fn check(
    certificate: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), TooLong> {
    let bytes: usize = intermediates.iter().chain([certificate]).map(|certificate| certificate.len()).sum();
    if intermediates.len() <= MAX_INTERMEDIATES && bytes <= MAX_BYTES { Ok(()) } else { Err(TooLong) }
}

/// Verifies clients whose chains are not too long.
#[derive(Debug)]
pub(crate) struct Bounded(pub(crate) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Bounded {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check(certificate, intermediates)?;
        self.0.verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}
