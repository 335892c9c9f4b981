//! The certificates and access rules of a node, and the mirror, which trusts authorities.

use std::sync::Arc;

use ringfence_mirror::Mirror;
use ringfence_raft::is_of_node;
use ringfence_tls::{Certificates, Peer, Reload, Server, Unrelated};

use crate::config::Config;
use crate::ends::{CLIENTS, Files, PEERS, REDIS};
use crate::watched_files::ACCESS;

/// What a node reads from files that may change while it runs.
pub(crate) struct Loaded {
    pub(crate) clients: Option<ringfence_http::Tls>,
    pub(crate) peer: Option<Arc<Peer>>,
    pub(crate) access: Option<Arc<ringfence_access::Watched>>,
    pub(crate) mirror: Option<Mirror>,
}

impl Loaded {
    /// Loads the files, if there are any.
    pub(crate) fn new(config: &Config) -> anyhow::Result<Self> {
        let unrelated = Unrelated::default();
        let (clients, peer) = (clients(config, &unrelated)?, peer(config, &unrelated)?);
        let access = config.access.clone().map(ringfence_access::watch).transpose()?.map(Arc::new);
        let mirror = config.mirror.clone().map(Mirror::new).transpose()?;
        Ok(Self { clients, peer, access, mirror })
    }

    /// The files, each with its use.
    pub(crate) fn files(&self) -> Files {
        let clients = self.clients.as_ref().map(|tls| (CLIENTS, Arc::clone(&tls.server) as Arc<dyn Reload>));
        let peers = self.peer.clone().map(|peer| (PEERS, peer as Arc<dyn Reload>));
        let access = self.access.clone().map(|rules| (ACCESS, rules as Arc<dyn Reload>));
        let redis = self.mirror.as_ref().and_then(Mirror::authorities);
        let redis = redis.map(|authorities| (REDIS, authorities as Arc<dyn Reload>));
        [clients, peers, redis, access].into_iter().flatten().collect()
    }
}

/// Loads the files for TLS with clients, if there are any.
fn clients(config: &Config, unrelated: &Unrelated) -> anyhow::Result<Option<ringfence_http::Tls>> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let (certificate, key) = (tls.certificate.clone(), tls.key.clone());
    let files = ringfence_tls::Files { certificate, key, authority: tls.client_authority.clone() };
    // With rules, who has no certificate may have a credential, or is anonymous.
    let of_clients = if config.access.is_some() { Certificates::Optional } else { Certificates::Required };
    let server = Arc::new(Server::load(files, of_clients, unrelated)?);
    let refusal = (!tls.plain).then(ringfence_api::requires_tls);
    Ok(Some(ringfence_http::Tls { server, refusal }))
}

/// Loads the files for TLS between nodes, if there are any. Each may be replaced by another of the same node.
fn peer(config: &Config, unrelated: &Unrelated) -> anyhow::Result<Option<Arc<Peer>>> {
    let Some(tls) = &config.peer_tls else { return Ok(None) };
    let (id, address) = (config.id, config.peers[&config.id].clone());
    let (certificate, key, authority) = (tls.certificate.clone(), tls.key.clone(), tls.authority.clone());
    let peer = Peer::load(certificate, key, authority, unrelated, move |certificate| {
        is_of_node(certificate, id, Some(&address))
    });
    Ok(Some(Arc::new(peer?)))
}
