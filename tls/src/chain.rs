//! A bound on the chains that strangers send.
//!
//! Verifying a chain tries all orders in which its certificates may lead to an authority, and parses them each time. 50 KB
//! that were made up for it take a second, and need no authority's signature.

use std::iter;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};

use crate::certificates::Identity;
use crate::trusted::Trusted;
use crate::{Error, Refused, provider};

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

/// Refuses an `identity` that a node would refuse, which does not say why.
pub(crate) fn check_own(identity: &Identity) -> Result<(), Error> {
    let Some((own, others)) = identity.certified.cert.split_first() else { return Ok(()) };
    check(own, others).map_err(|long| Error::file(&identity.file, format!("nodes refuse it: {long}")))
}

/// Refuses chains that may take long to verify.
pub(crate) fn check(
    certificate: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), TooLong> {
    let bytes: usize = intermediates.iter().chain([certificate]).map(|certificate| certificate.len()).sum();
    if intermediates.len() <= MAX_INTERMEDIATES && bytes <= MAX_BYTES { Ok(()) } else { Err(TooLong) }
}

/// Where a verifier notes why it has refused the other side.
#[derive(Clone, Debug)]
pub(crate) struct Noting {
    pub(crate) refused: Refused,
    pub(crate) trusted: Arc<Trusted>,
}

impl Noting {
    /// What `verify` says of a chain at the time `now`.
    pub(crate) fn note<T>(
        &self,
        verify: impl Fn(UnixTime) -> Result<T, rustls::Error>,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<T, rustls::Error> {
        verify(now).inspect_err(|error| {
            // What is too long is not parsed.
            let others = intermediates.iter().take(MAX_INTERMEDIATES);
            let chain: Vec<_> = iter::once(certificate).chain(others).collect();
            self.refused.note(error, &chain, &self.trusted, |at| verify(at).is_ok());
        })
    }
}

/// Verifies clients whose chains are not too long.
#[derive(Clone, Debug)]
pub(crate) struct Bounded {
    verifier: Arc<dyn ClientCertVerifier>,
    /// No authority is live.
    trusts_nobody: bool,
    noting: Option<Noting>,
}

impl Bounded {
    /// Verifies by the authorities `trusted`.
    pub(crate) fn new(trusted: &Trusted, allow_unauthenticated: bool) -> Result<Self, Error> {
        let builder = WebPkiClientVerifier::builder_with_provider(trusted.roots_or_all(), provider());
        let builder = if allow_unauthenticated { builder.allow_unauthenticated() } else { builder };
        let verifier = builder.build().map_err(|error| Error::file(&trusted.file, error.to_string()))?;
        Ok(Self { verifier, trusts_nobody: trusted.roots.is_empty(), noting: None })
    }

    /// The same, which notes why it refuses.
    pub(crate) fn noting(&self, noting: Noting) -> Self {
        Self { noting: Some(noting), ..self.clone() }
    }
}

impl ClientCertVerifier for Bounded {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verify = |at| {
            check(certificate, intermediates)?;
            if self.trusts_nobody {
                return Err(CertificateError::UnknownIssuer.into());
            }
            self.verifier.verify_client_cert(certificate, intermediates, at)
        };
        match &self.noting {
            Some(noting) => noting.note(verify, certificate, intermediates, now),
            None => verify(now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.verifier.requires_raw_public_keys()
    }
}
