//! The certificates of a node.

use std::sync::Arc;

use ringfence_raft::is_of_node;
use ringfence_tls::{Certificates, Files, Peer, Server, Unrelated};

use crate::config::Config;

/// Loads the files for TLS with clients, if there are any.
pub(crate) fn clients(config: &Config, unrelated: &Unrelated) -> anyhow::Result<Option<ringfence_http::Tls>> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let (certificate, key) = (tls.certificate.clone(), tls.key.clone());
    let files = Files { certificate, key, authority: tls.client_authority.clone() };
    // With rules, who has no certificate may have a credential, or is anonymous.
    let of_clients = if config.access.is_some() { Certificates::Optional } else { Certificates::Required };
    let server = Arc::new(Server::load(files, of_clients, unrelated)?);
    let refusal = (!tls.plain).then(ringfence_api::requires_tls);
    Ok(Some(ringfence_http::Tls { server, refusal }))
}

/// Loads the files for TLS between nodes, if there are any. Each may be replaced by another of the same node.
pub(crate) fn peer(config: &Config, unrelated: &Unrelated) -> anyhow::Result<Option<Arc<Peer>>> {
    let Some(tls) = &config.peer_tls else { return Ok(None) };
    let (id, address) = (config.id, config.peers[&config.id].clone());
    let (certificate, key, authority) = (tls.certificate.clone(), tls.key.clone(), tls.authority.clone());
    let peer = Peer::load(certificate, key, authority, unrelated, move |certificate| {
        is_of_node(certificate, id, Some(&address))
    });
    Ok(Some(Arc::new(peer?)))
}
