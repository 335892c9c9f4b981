//! TLS between nodes.
//!
//! Each side has a certificate that the nodes' authority signed, and shows with it which node it is: by a URI
//! `ringfence:node:ID`, or by the host at which the other side reaches that node. [`Certificate`] is asked for that once the id
//! is known. No name is looked up: an address proves nothing.
//!
//! A handshake takes about half a millisecond of CPU, and anybody can ask for one. So handshakes run on another runtime than
//! Raft, and at most [`MAX_HANDSHAKES`] at once: one more ends the oldest of the host that has most. So one host keeps no others out.
//!
//! A certificate may end, or its authority be removed, while a connection is open. So the reader of a connection verifies the other side's
//! certificate again every [`RECHECK`]. A caller does so at once when its own files have changed: it goes on with another connection, or
//! with none ([`successor`](super::successor)).

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use ringfence_dial::{Heard, tune};
use ringfence_tls::{Peer, Refused};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, ReadBuf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::certificate::Certificate;
use super::transport::{Connection, GONE_AFTER, Transport, connected};
use crate::lines::{Lines, warn_closed};

/// The most handshakes of callers at one time, and how long each may take.
const MAX_HANDSHAKES: usize = 64;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a connection verifies the certificate of the other side again.
const RECHECK: Duration = Duration::from_secs(5);
/// The first byte of TLS. A caller without TLS begins with another.
const TLS_HANDSHAKE: u8 = 22;

/// TLS over TCP, with the listener of this node.
pub struct Tls {
    listener: TcpListener,
    peer: Arc<Peer>,
    plain: bool,
    handshakes: Arc<dyn Fn() -> Handle + Send + Sync>,
    accepting: Mutex<Accepting>,
    /// Lines about handshakes that failed.
    lines: Arc<Lines>,
}

/// Handshakes of callers.
#[derive(Default)]
struct Accepting {
    tasks: JoinSet<io::Result<Connection>>,
    /// The oldest first, with the hosts that they are from.
    running: VecDeque<(IpAddr, AbortHandle)>,
}

impl Accepting {
    /// Ends a handshake if there is no room for one more from `host`.
    fn make_room(&mut self, host: IpAddr) {
        if self.running.len() < MAX_HANDSHAKES {
            return;
        }
        let count = |of: IpAddr| {
            self.running.iter().filter(|(from, _)| *from == of).count() + usize::from(of == host)
        };
        let crowd = self.running.iter().map(|(from, _)| *from).max_by_key(|from| count(*from));
        let oldest = self.running.iter().position(|(from, _)| Some(*from) == crowd);
        if let Some((_, task)) = oldest.and_then(|place| self.running.remove(place)) {
            task.abort();
        }
    }
}

impl Tls {
    /// Uses the certificates of `peer`. Each handshake runs on the runtime that `handshakes` gives then. With `plain`, it takes connections without TLS, too, and
    /// falls back to them, so that a cluster can change to TLS node by node.
    pub fn new(
        listener: TcpListener,
        peer: Arc<Peer>,
        plain: bool,
        handshakes: impl Fn() -> Handle + Send + Sync + 'static,
    ) -> Self {
        let handshakes = Arc::new(handshakes);
        Self { listener, peer, plain, handshakes, accepting: Mutex::default(), lines: Arc::default() }
    }
}

impl Transport for Tls {
    fn connect(&self, address: &str) -> BoxFuture<'static, io::Result<Connection>> {
        let (address, peer, plain) = (address.to_owned(), Arc::clone(&self.peer), self.plain);
        let handshakes = (self.handshakes)();
        Box::pin(async move {
            let stream = connected(&address).await?;
            // Aborted when this is dropped.
            let mut task = JoinSet::new();
            task.spawn_on(call(stream, address.clone(), peer), &handshakes);
            match task.join_next().await.expect("one task was spawned").map_err(io::Error::other)? {
                Err(error) if plain => {
                    tracing::debug!(peer = address, %error, "falls back to a connection without TLS");
                    Ok(Connection::plain(connected(&address).await?, address))
                }
                connection => connection,
            }
        })
    }

    fn accept(&self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            let mut accepting = self.accepting.lock().await;
            loop {
                tokio::select! {
                    biased;
                    Some(ended) = accepting.tasks.join_next() => {
                        accepting.running.retain(|(_, task)| !task.is_finished());
                        // An error: there were too many.
                        if let Ok(Ok(connection)) = ended {
                            return Ok(connection);
                        }
                    }
                    accepted = self.listener.accept() => {
                        let (stream, from) = accepted?;
                        let Ok(()) = tune(&stream, GONE_AFTER) else { continue };
                        let (host, from) = (from.ip(), from.to_string());
                        accepting.make_room(host);
                        let (peer, plain, lines) = (Arc::clone(&self.peer), self.plain, Arc::clone(&self.lines));
                        let answer = async move {
                            let answered = timeout(HANDSHAKE_TIMEOUT, answer(stream, from.clone(), peer, plain)).await;
                            let answered = answered.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
                            answered.inspect_err(|error| warn_closed(&lines, &from, error))
                        };
                        let task = accepting.tasks.spawn_on(answer, &(self.handshakes)());
                        accepting.running.push_back((host, task));
                    }
                }
            }
        })
    }
}

/// The caller's handshake.
async fn call(stream: Heard<TcpStream>, address: String, peer: Arc<Peer>) -> io::Result<Connection> {
    let (version, refused) = (peer.version(), Refused::default());
    let connector = TlsConnector::from(peer.client(&refused));
    // It is neither sent nor verified.
    let name = ServerName::try_from("node.invalid").expect("this is a DNS name");
    let connect = async |stream| connector.connect(name, stream).await.map(TlsStream::from);
    let stream = stream.through(connect).await.map_err(|error| peer.explain(&refused, error))?;
    encrypted(stream, address, peer, version)
}

/// The other side's.
async fn answer(stream: TcpStream, from: String, peer: Arc<Peer>, plain: bool) -> io::Result<Connection> {
    let mut first = [0];
    if plain && stream.peek(&mut first).await? == 1 && first != [TLS_HANDSHAKE] {
        return Ok(Connection::plain(stream.into(), from));
    }
    let (version, refused) = (peer.version(), Refused::default());
    let acceptor = TlsAcceptor::from(peer.server(&refused));
    let accept = async |stream| acceptor.accept(stream).await.map(TlsStream::from);
    let stream = Heard::from(stream).through(accept).await.map_err(|error| peer.explain(&refused, error))?;
    encrypted(stream, from, peer, version)
}

fn encrypted(
    stream: Heard<TlsStream<TcpStream>>,
    other: String,
    peer: Arc<Peer>,
    version: u64,
) -> io::Result<Connection> {
    let chain = stream.get_ref().get_ref().1.peer_certificates().unwrap_or_default();
    let chain: Arc<[_]> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let certificate = Certificate::new(Arc::clone(&chain), Arc::clone(&peer), version);
    let (reader, writer) = split(stream);
    let reader = Trusted { reader, chain, peer, at: Instant::now() };
    Ok(Connection {
        peer: other,
        reader: Box::new(reader),
        writer: Box::new(writer),
        certificate: Some(certificate),
    })
}

/// Bytes from the other side, as long as its certificate is trusted.
struct Trusted<R> {
    reader: R,
    chain: Arc<[CertificateDer<'static>]>,
    peer: Arc<Peer>,
    /// When it was verified.
    at: Instant,
}

impl<R> Trusted<R> {
    fn check(&mut self) -> io::Result<()> {
        if self.at.elapsed() < RECHECK {
            return Ok(());
        }
        self.peer.verify(&self.chain).map_err(|why| io::Error::new(ErrorKind::PermissionDenied, why))?;
        self.at = Instant::now();
        Ok(())
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Trusted<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buffer.filled().len());
        let read = ready!(Pin::new(&mut this.reader).poll_read(cx, buffer));
        // After the wait: what has arrived meanwhile is not used, either. An end brings nothing that could be.
        if buffer.filled().len() > before {
            this.check()?;
        }
        Poll::Ready(match read {
            // A node that is killed closes without a word. Frames show whether one was cut short.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            // The other side verifies this side's certificate after the caller's handshake has ended.
            read => read.map_err(|error| this.peer.explain(&Refused::default(), error)),
        })
    }
}
