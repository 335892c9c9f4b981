//! The port for clients that speak the Redis protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use ringfence_http::{Connections, Threads, Tls};
use ringfence_resp::Resp;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

/// Connections that the system completes before they are accepted.
const BACKLOG: u32 = 1024;
/// The answer to a client without TLS if the port requires it.
const REQUIRES_TLS: &[u8] = b"-ERR ringfence: this port requires TLS\r\n";

/// Reserves the port. It refuses connections until it is served, so that clients go to a node that has started.
pub(crate) fn reserve(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let reserved = || {
        let port = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        port.set_reuseaddr(true)?;
        port.bind(address)?;
        Ok::<_, std::io::Error>(port)
    };
    reserved().with_context(|| format!("cannot listen on {address} (--resp)"))
}

/// Serves `port` on `threads`, with the certificates `tls` of the HTTP port, until `draining` turns true.
pub(crate) fn serve(
    port: TcpSocket,
    tls: Option<Tls>,
    threads: &Arc<Threads>,
    connections: &Arc<Connections>,
    resp: Resp,
    draining: watch::Receiver<bool>,
    within: Duration,
) -> JoinHandle<()> {
    let tls = tls.map(|Tls { server, refusal }| {
        let refusal = refusal.map(|_| Bytes::from_static(REQUIRES_TLS));
        Tls { server, refusal }
    });
    let (http_threads, connections) = (Arc::clone(threads), Arc::clone(connections));
    threads.spawn(async move {
        let listening = port.listen(BACKLOG).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = match listening {
            Ok(listening) => listening,
            Err(error) => return tracing::error!(%error, "cannot use the RESP listener"),
        };
        tracing::info!(%address, "the Redis protocol is spoken");
        let begin = move |remote| resp.dialog(remote);
        ringfence_http::serve_dialogs(listener, tls, http_threads, connections, begin, draining, within)
            .await;
    })
}

/// Waits until the port is no longer served. Without such a port, waits for ever.
pub(crate) async fn ended(serving: &mut Option<JoinHandle<()>>) -> Result<(), JoinError> {
    match serving {
        Some(serving) => serving.await,
        None => std::future::pending().await,
    }
}
