use std::collections::HashMap;
use std::sync::Arc;

use ringfence_tls::Name;

use crate::credential::Digest;
use crate::principal::Principal;

/// Who the principals of a cluster are.
#[derive(Debug)]
pub struct Rules {
    pub(crate) by_credential: HashMap<Digest, Arc<Principal>>,
    pub(crate) by_certificate: HashMap<Name, Arc<Principal>>,
    pub(crate) anonymous: Arc<Principal>,
}

/// What a request shows of its sender.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The digest of its credential.
    pub credential: Option<Digest>,
    /// The names in the certificate of its connection, which an authority of clients signed.
    pub certificate: Arc<[Name]>,
}

/// Why a request is of no principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unidentified {
    /// No principal has this credential.
    #[error("the credential is not valid")]
    UnknownCredential,
    /// The request shows two principals, and may be meant as one or the other.
    #[error("the credential and the names in the certificate belong to different principals")]
    TwoPrincipals,
}

impl Rules {
    /// The principal that `proof` shows. Certificates that name nobody are ignored, credentials are not: whoever sends one
    /// means to be somebody.
    ///
    /// # Errors
    /// There is no such principal, or there are two.
    pub fn identify(&self, proof: &Proof) -> Result<&Arc<Principal>, Unidentified> {
        let mut found = None;
        if let Some(digest) = &proof.credential {
            // The time of the lookup depends on a digest, which nobody can choose a credential for.
            found = Some(self.by_credential.get(digest).ok_or(Unidentified::UnknownCredential)?);
        }
        for principal in proof.certificate.iter().filter_map(|name| self.by_certificate.get(name)) {
            if found.is_some_and(|other| !Arc::ptr_eq(other, principal)) {
                return Err(Unidentified::TwoPrincipals);
            }
            found = Some(principal);
        }
        Ok(found.unwrap_or(&self.anonymous))
    }
}
