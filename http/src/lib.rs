//! The server: accepts connections, bounds what they take, and drains on shutdown. A listener speaks HTTP/1.1 ([`serve`]) or another protocol
//! ([`Dialog`]). The server knows nothing about leases.
//!
//! Clients are not trusted. All connections together are bounded: descriptors by the number of connections, which the tenants of
//! connections share ([`Connections`]), memory by rooms ([`ringfence_room`]), and time by turns, which tenants take one after the other, too
//! (`turns`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use ringfence_tls::Name;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::coop::unconstrained;
use tokio::time::{sleep, timeout};

mod bodies;
mod connections;
mod dialog;
mod encryption;
mod measure;
mod paced;
mod requests;
mod socket;
mod tenant;
mod threads;
mod turns;

pub use bodies::{RequestBody, Shed, takes_no_memory};
pub use connections::{Connection, Connections, Portion, Room};
pub use dialog::{Answer, Begun, Dialog, Response, serve_dialogs};
pub use encryption::Tls;
pub use measure::METRICS;
pub use requests::serve;
pub use tenant::Tenant;
pub use threads::Threads;

use connections::Admitted;
use encryption::Opened;
use measure::HANDSHAKES_FAILED;
use socket::Socket;
use turns::Turns;

/// Bytes that the kernel keeps of a connection in each direction: those not sent yet, and those not read.
const MAX_KERNEL: usize = 64 << 10;

/// The other side of a connection.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_encrypted: bool,
    /// The names in its certificate, which is verified; empty if it has none.
    pub names: Arc<[Name]>,
}

impl Remote {
    /// The host that counts as one, whichever of its addresses it uses.
    pub fn host(&self) -> IpAddr {
        tenant::host(self.address)
    }
}

/// The protocol of a listener's connections.
trait Protocol: Clone + Send + Sync + 'static {
    /// Whether a request is dropped when its client hangs up.
    const ENDS_WITH_CLIENT: bool;

    /// Serves a connection until it ends.
    fn serve(self, open: Open) -> impl Future<Output = ()> + Send;
}

/// A connection that is open.
struct Open {
    socket: Socket,
    remote: Arc<Remote>,
    /// The turns of its thread.
    turns: Arc<Turns>,
    /// A stop waits until this is dropped.
    watcher: Watcher,
    /// Turns true at a stop.
    draining: watch::Receiver<bool>,
}

/// Serves the connections of `listener` until `draining` turns true. Then waits up to `within` for open requests to end. With `tls`,
/// connections are encrypted. Runs on the first of `threads`, which accepts.
async fn serve_all<P: Protocol>(
    listener: TcpListener,
    tls: Option<Tls>,
    threads: Arc<Threads>,
    connections: Arc<Connections>,
    protocol: P,
    mut draining: watch::Receiver<bool>,
    within: Duration,
) {
    let open = GracefulShutdown::new();
    loop {
        let (stream, from) = tokio::select! {
            accepted = accept(&listener) => accepted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        let admitted = tokio::select! {
            admitted = connections.admit(from) => admitted,
            _ = draining.wait_for(|draining| *draining) => break,
        };
        // Moves the socket to the reactor of the thread that will serve it.
        let Ok(stream) = stream.into_std() else { continue };
        let (protocol, watcher, tls) = (protocol.clone(), open.watcher(), tls.clone());
        let ending = draining.clone();
        threads.serve(|turns| async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_connection(stream, tls, admitted, turns, protocol, watcher, ending).await;
            }
        });
    }
    drop(listener);
    if timeout(within, open.shutdown()).await.is_err() {
        tracing::warn!("stopped although some requests had no response yet");
    }
}

/// Serves one connection until it closes.
async fn serve_connection<P: Protocol>(
    stream: TcpStream,
    tls: Option<Tls>,
    admitted: Admitted,
    turns: Arc<Turns>,
    protocol: P,
    watcher: Watcher,
    mut draining: watch::Receiver<bool>,
) {
    let from = admitted.0.from;
    admitted.0.is_served_in(&turns);
    let opened = tokio::select! {
        // Whatever has arrived before a stop is answered.
        biased;
        opened = encryption::open(stream, tls, &turns, &admitted.0) => opened,
        reason = admitted.0.until_closed() => return admitted.log_close(reason),
        // It has sent no request, and a stop does not wait for it.
        _ = draining.wait_for(|draining| *draining) => return,
    };
    let Opened { stream, distrusted, is_encrypted, names } = match opened {
        Ok(opened) => opened,
        Err(error) => {
            HANDSHAKES_FAILED.get().increment(1);
            return tracing::debug!(%from, %error, "a TLS handshake failed");
        }
    };
    let remote = Arc::new(Remote { address: from, is_encrypted, names });
    let socket = Socket::new(stream, Arc::clone(&admitted.0));
    let reader = socket.reader();
    let served = protocol.serve(Open { socket, remote, turns, watcher, draining });
    // However much the connection does in a poll, they look at the clock.
    let (closed, distrusted) = (unconstrained(admitted.0.until_closed()), unconstrained(distrusted));
    tokio::select! {
        // First: `poll_hangup` takes only what was not read.
        biased;
        () = served => {}
        () = std::future::poll_fn(|cx| reader.poll_hangup(cx)), if P::ENDS_WITH_CLIENT => tracing::debug!("a client closed its connection"),
        reason = closed => admitted.log_close(reason),
        () = distrusted => tracing::info!(%from, "closed a connection whose certificate is no longer trusted"),
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Without it, a small response waits for the ACK of the one before (Nagle's algorithm).
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "cannot set TCP_NODELAY");
                }
                // The kernel keeps megabytes by default, and that memory is the node's, too.
                let socket = SockRef::from(&stream);
                let bounded = socket
                    .set_tcp_notsent_lowat(MAX_KERNEL as u32)
                    .and(socket.set_recv_buffer_size(MAX_KERNEL));
                if let Err(error) = bounded {
                    tracing::debug!(%error, "cannot bound the buffers of a socket");
                }
                return (stream, from);
            }
            // Most likely too many open files: others may close theirs.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
