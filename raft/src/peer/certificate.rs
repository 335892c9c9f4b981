//! Which node a certificate is of.

use std::io;
use std::sync::Arc;

use ringfence_tls::{Name, Peer, covers, expires, names};
use rustls::pki_types::CertificateDer;

use crate::consensus::NodeId;

/// The certificate that the other end of a connection has shown, followed by the intermediate ones.
pub struct Certificate {
    chain: Arc<[CertificateDer<'static>]>,
    peer: Arc<Peer>,
    version: u64,
    ends: Option<i64>,
}

impl Certificate {
    /// The certificate in `chain`, which the files of `peer` in their `version` verified.
    pub(super) fn new(chain: Arc<[CertificateDer<'static>]>, peer: Arc<Peer>, version: u64) -> Self {
        let ends = expires(&chain);
        Self { chain, peer, version, ends }
    }

    /// Whether this node's own files have changed since.
    pub(super) fn is_stale(&self) -> bool {
        self.peer.version() != self.version
    }

    /// Whether the node `id`, of which this is, has shown another one since.
    pub(super) fn is_replaced(&self, id: NodeId) -> bool {
        self.peer.met(id).is_some_and(|met| Some(met) != self.ends)
    }

    /// # Errors
    /// The files of this node no longer verify it.
    pub(super) fn check(&self) -> io::Result<()> {
        self.peer.verify(&self.chain).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// As [`is_of_node`].
    pub(super) fn is_of(&self, id: NodeId, address: Option<&str>) -> bool {
        self.chain.first().is_some_and(|own| is_of_node(own, id, address))
    }

    /// Notes it as the newest of the node `id`, which is no copy: until another is noted, connections with others are replaced.
    pub(super) fn note_newest(&self, id: NodeId) {
        self.peer.meet(id, &self.chain);
    }
}

/// Whether `certificate` is of the node `id`, which is reached at `address`, `host:port`: it has the URI `ringfence:node:ID`, or
/// is for that host.
pub fn is_of_node(certificate: &CertificateDer<'_>, id: NodeId, address: Option<&str>) -> bool {
    let uri = Name::Uri(format!("ringfence:node:{id}"));
    let host = address.and_then(|address| address.rsplit_once(':')).map(|(host, _)| host);
    let host = host.map(|host| host.trim_start_matches('[').trim_end_matches(']'));
    names(certificate).contains(&uri) || host.is_some_and(|host| covers(certificate, host))
}
