//! The authorities of a file.
//!
//! rustls trusts an authority in its store for ever, because a trust anchor has no validity there. Other TLS libraries refuse what an
//! ended authority has signed. So a store has only those that are live, and is made anew whenever one begins or ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use rustls::server::ParsedCertificate;

use crate::files::Content;
use crate::in_use::{end, of_authorities};
use crate::unrelated::has_signed;
use crate::{Error, InUse, now, provider};

/// The authorities of a file, some of which are live.
#[derive(Debug)]
pub struct Trusted {
    pub(crate) file: Arc<Path>,
    pub(crate) all: Vec<CertificateDer<'static>>,
    /// Of each one.
    anchors: Vec<TrustAnchor<'static>>,
    /// Those that were live when the file was loaded.
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) in_use: Vec<InUse>,
}

impl Trusted {
    /// `all`, which are the certificates of `content`.
    pub(crate) fn new(content: &Content, all: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let mut store = RootCertStore::empty();
        for (number, authority) in (1..).zip(&all) {
            store.add(authority.clone()).map_err(|_| {
                Error::file(&content.file, format!("certificate {number} cannot be used as an authority"))
            })?;
        }
        let now = now();
        let in_use = of_authorities(&content.file, &all, now);
        let anchors = store.roots;
        let mut trusted = Self {
            file: content.file.as_path().into(),
            all,
            anchors,
            roots: Arc::new(RootCertStore::empty()),
            in_use,
        };
        trusted.roots = Arc::new(trusted.roots_at(now));
        Ok(trusted)
    }

    /// Those that are live, or all if none is: rustls verifies nothing with an empty store. Then trust nobody.
    pub(crate) fn roots_or_all(&self) -> Arc<RootCertStore> {
        match self.roots.is_empty() {
            true => Arc::new(self.anchors.iter().cloned().collect()),
            false => Arc::clone(&self.roots),
        }
    }

    /// When a node with this chain, its own certificate first, begins to be refused, or began, in seconds since the Unix epoch.
    /// `None` if it is never accepted.
    pub(crate) fn refuses_after(&self, chain: &[CertificateDer<'_>]) -> Option<i64> {
        let mut ends: Vec<i64> = self.all.iter().chain(chain).filter_map(end).collect();
        ends.sort_unstable();
        let accepts = |at: i64| self.accepts(chain, at);
        let (past, future): (Vec<_>, Vec<_>) = ends.into_iter().partition(|end| *end < now());
        match accepts(now()) {
            true => future.into_iter().find(|end| !accepts(end.saturating_add(1))),
            false => past.into_iter().rfind(|end| accepts(*end)),
        }
    }

    /// An authority that has ended, or has not begun, and has signed a certificate of `chain`.
    pub(crate) fn issuer_that_is_not_live(&self, chain: &[&CertificateDer<'_>], now: i64) -> Option<&InUse> {
        let has_signed_one =
            |authority: &CertificateDer<'_>| chain.iter().any(|one| has_signed(authority, one));
        let mut all = self.in_use.iter().zip(&self.all);
        all.find(|(one, authority)| !one.is_live(now) && has_signed_one(authority)).map(|(one, _)| one)
    }

    fn accepts(&self, chain: &[CertificateDer<'_>], at: i64) -> bool {
        let Some((own, others)) = chain.split_first() else { return false };
        let Ok(own) = ParsedCertificate::try_from(own) else { return false };
        let time = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(at).unwrap_or_default()));
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&own, &self.roots_at(at), others, time, algorithms).is_ok()
    }

    fn roots_at(&self, at: i64) -> RootCertStore {
        let all = self.in_use.iter().zip(&self.anchors);
        all.filter(|(one, _)| one.is_live(at)).map(|(_, anchor)| anchor.clone()).collect()
    }
}
