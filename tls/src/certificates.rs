//! Certificates and keys in PEM.

use std::path::PathBuf;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::parse_x509_certificate;

use crate::files::Content;
use crate::in_use::end;
use crate::{Error, provider};

/// A certificate with its key.
pub(crate) struct Identity {
    pub(crate) certified: CertifiedKey,
    /// Of the certificate.
    pub(crate) file: PathBuf,
}

impl Identity {
    pub(crate) fn parse(certificate: &Content, key: &Content) -> Result<Self, Error> {
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_slice(key.bytes()?).map_err(|error| match error {
            PemError::NoItemsFound => {
                Error::file(&key.file, "has no private key in PEM without a passphrase")
            }
            error => not_pem(key, &error),
        })?;
        let private = provider()
            .key_provider
            .load_private_key(private)
            .map_err(|_| Error::file(&key.file, "has a private key of a kind that is not supported"))?;
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
                Err(Error::file(&key.file, format!("is not the key of {}", certificate.file.display())))
            }
            _ => Ok(Self { certified, file: certificate.file.clone() }),
        }
    }
}

/// When the first certificate of `chain` ends, in seconds since the Unix epoch. `None` if none is valid X.509.
pub fn expires(chain: &[CertificateDer<'_>]) -> Option<i64> {
    expires_after(chain, i64::MIN)
}

/// The same, of those that end later than `after`.
pub fn expires_after(chain: &[CertificateDer<'_>], after: i64) -> Option<i64> {
    chain.iter().filter_map(end).filter(|end| *end > after).min()
}

/// The certificates of authorities in a file. At least one; all of them may sign.
pub(crate) fn authorities(content: &Content) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = certificates(content)?;
    for (number, certificate) in (1..).zip(&all) {
        let may_sign = parse_x509_certificate(certificate).is_ok_and(|(_, parsed)| parsed.is_ca());
        if !may_sign {
            let why = format!("certificate {number} is not the certificate of an authority (CA:TRUE)");
            return Err(Error::file(&content.file, why));
        }
    }
    Ok(all)
}

/// The certificates of a file, at least one.
pub(crate) fn certificates(content: &Content) -> Result<Vec<CertificateDer<'static>>, Error> {
    let mut all = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(content.bytes()?) {
        let certificate = certificate.map_err(|error| not_pem(content, &error))?;
        if !parse_x509_certificate(&certificate).is_ok_and(|(rest, _)| rest.is_empty()) {
            let why = format!("certificate {} is not a valid X.509 certificate", all.len() + 1);
            return Err(Error::file(&content.file, why));
        }
        all.push(certificate);
    }
    if all.is_empty() {
        return Err(Error::file(&content.file, "has no certificate in PEM"));
    }
    Ok(all)
}

/// rustls's own texts quote the line that they cannot read.
fn not_pem(content: &Content, error: &PemError) -> Error {
    Error::file(
        &content.file,
        match error {
            PemError::MissingSectionEnd { .. } => "is not whole: a section of its PEM has no end",
            _ => "is not valid PEM",
        },
    )
}
