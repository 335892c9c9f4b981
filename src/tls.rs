//! The certificates of a node, and the looks at their files.

use std::sync::Arc;
use std::time::Duration;

use ringfence_raft::is_of_node;
use ringfence_tls::{Apart, Files, Look, Peer, Reload, Server};
use tokio::signal::unix::Signal;
use tokio::time::interval;

use crate::config::Config;

/// How often the files are looked at. A change counts at the second look that finds it, or at a SIGHUP.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What certificates are for, in logs and metrics.
pub(crate) const CLIENTS: &str = "clients";
pub(crate) const PEERS: &str = "peers";

/// Loads the files for TLS with clients, if there are any.
pub(crate) fn door(config: &Config, apart: &Apart) -> anyhow::Result<Option<ringfence_api::Tls>> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let (certificate, key) = (tls.certificate.clone(), tls.key.clone());
    let files = Files { certificate, key, authority: tls.client_authority.clone() };
    Ok(Some(ringfence_api::Tls { server: Arc::new(Server::load(files, apart)?), plain: tls.plain }))
}

/// Loads the files for TLS between nodes, if there are any. Each may be replaced by another of the same node.
pub(crate) fn peer(config: &Config, apart: &Apart) -> anyhow::Result<Option<Arc<Peer>>> {
    let Some(tls) = &config.peer_tls else { return Ok(None) };
    let (id, address) = (config.id, config.peers[&config.id].clone());
    let (certificate, key, authority) = (tls.certificate.clone(), tls.key.clone(), tls.authority.clone());
    let peer = Peer::load(certificate, key, authority, apart, move |certificate| {
        is_of_node(certificate, id, Some(&address))
    });
    Ok(Some(Arc::new(peer?)))
}

/// Looks at files again and again, each for the use that is named.
pub(crate) async fn watch(files: Vec<(&'static str, Arc<dyn Reload>)>, mut hangup: Signal) {
    let mut looks = interval(LOOK_EVERY);
    loop {
        let at_once = tokio::select! {
            _ = hangup.recv() => true,
            _ = looks.tick() => false,
        };
        for (r#use, files) in &files {
            let of_use = Arc::clone(files);
            // A file may be on a disk that hangs.
            let looked = tokio::task::spawn_blocking(move || of_use.look(at_once)).await;
            match looked {
                Ok(Look::Same | Look::Changing) | Err(_) => {}
                Ok(Look::Loaded) => tracing::info!(r#use, "the certificates were loaded again"),
                Ok(Look::Refused(error)) => {
                    tracing::error!(r#use, %error, "the certificates cannot be loaded again: the old ones stay in use");
                }
            }
            let refused = files.refusal().is_some();
            metrics::gauge!("ringfence_tls_files_refused", "use" => *r#use).set(u8::from(refused));
            if let Some(expires) = files.expires() {
                metrics::gauge!("ringfence_tls_certificate_expires_seconds", "use" => *r#use)
                    .set(expires as f64);
            }
        }
    }
}
