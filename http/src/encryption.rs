//! TLS: handshakes, and certificates that end or lose their authority while their clients are connected.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringfence_tls::{Name, Server, expires, expires_after, names};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

use crate::connections::{Connection, HEAD_TIMEOUT};
use crate::paced::Paced;
use crate::socket::{END_TIMEOUT, Stream, end};
use crate::turns::{PER_TURN, Turns};

/// Encrypted bytes that wait for the client to read: a piece of a response, in one record, and messages of TLS itself. The bodies of
/// responses have a budget of their own.
const MAX_UNSENT: usize = PER_TURN + (4 << 10);
/// How often connections with a certificate ask whether it ended, or the files changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The first byte of a connection with TLS, which no method of HTTP begins with.
const HANDSHAKE: u8 = 0x16;

/// TLS of a listener.
#[derive(Clone)]
pub struct Tls {
    /// Certificates.
    pub server: Arc<Server>,
    /// What the client of a plain connection is told: a whole response. `None`: it is served, too.
    pub refusal: Option<Bytes>,
}

/// The client's certificate, followed by others.
struct Chain {
    certificates: Vec<CertificateDer<'static>>,
    server: Arc<Server>,
    /// Of the files that the handshake used, or older.
    version: u64,
}

/// A connection that is open.
pub(super) struct Opened<D> {
    pub(super) stream: Stream,
    /// Ends when its client would no longer be let in.
    pub(super) distrusted: D,
    pub(super) is_encrypted: bool,
    /// The names in the client's certificate.
    pub(super) names: Arc<[Name]>,
}

/// Opens a new connection.
pub(super) async fn open(
    stream: TcpStream,
    tls: Option<Tls>,
    turns: &Arc<Turns>,
    connection: &Arc<Connection>,
) -> io::Result<Opened<impl Future<Output = ()> + use<>>> {
    let (stream, chain) = match tls {
        None => (Stream::Plain(Paced::plain(stream, turns, connection)), None),
        Some(tls) => {
            let opened = timeout(HEAD_TIMEOUT, opened(stream, tls, turns, connection)).await;
            opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?
        }
    };
    let own = chain.as_ref().and_then(|chain| chain.certificates.first());
    let (is_encrypted, names) = (chain.is_some(), own.map(names).unwrap_or_default().into());
    let distrusted = async {
        match chain {
            Some(chain) => chain.until_distrusted().await,
            None => std::future::pending().await,
        }
    };
    Ok(Opened { stream, distrusted, is_encrypted, names })
}

async fn opened(
    stream: TcpStream,
    tls: Tls,
    turns: &Arc<Turns>,
    connection: &Arc<Connection>,
) -> io::Result<(Stream, Option<Chain>)> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first != [HANDSHAKE] {
        let Some(refusal) = tls.refusal else {
            return Ok((Stream::Plain(Paced::plain(stream, turns, connection)), None));
        };
        let _ = timeout(END_TIMEOUT, refuse(stream, &refusal)).await;
        return Err(io::Error::other("the connection is plain"));
    }
    let stream = Paced::encrypted(stream, turns, connection);
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    // What follows signs.
    turns.take(connection.tenant()).await;
    let version = tls.server.version();
    let mut accept = hello.into_stream(tls.server.current());
    if let Some(stream) = accept.get_mut() {
        stream.has_hello();
    }
    let mut stream: TlsStream<_> = accept.await?;
    let (socket, session) = stream.get_mut();
    socket.has_shaken_hands();
    session.set_buffer_limit(Some(MAX_UNSENT));
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let chain = Chain { certificates, server: tls.server, version };
    Ok((Stream::Encrypted(Box::new(stream)), Some(chain)))
}

/// Answers a plain request without reading it.
async fn refuse(mut stream: TcpStream, refusal: &[u8]) -> io::Result<()> {
    stream.write_all(refusal).await?;
    end(&mut stream).await
}

impl Chain {
    async fn until_distrusted(mut self) {
        if self.certificates.is_empty() {
            return std::future::pending().await;
        }
        let mut expires = expires(&self.certificates);
        loop {
            let (newest, now) = (self.server.version(), UnixTime::now().as_secs() as i64);
            // Verifying costs far more than asking whether there is a reason to.
            if newest != self.version || expires.is_some_and(|end| now > end) {
                self.version = newest;
                if !self.server.trusts(&self.certificates) {
                    return;
                }
                // Of those that are not needed, some may have ended.
                expires = expires_after(&self.certificates, now);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }
}
