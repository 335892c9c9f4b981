//! TLS at the door: handshakes, and certificates that end or lose their authority while their clients are connected.

use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ringfence_tls::{Name, Server, expires, names};
use ringfence_wire::ProblemKind;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;

use super::connections::HEAD_TIMEOUT;
use super::paced::Paced;
use super::refusal::refuse;
use super::socket::Stream;
use crate::problems::Failed;

/// Encrypted bytes that wait for the client to read. The bodies of responses have a budget of their own.
const MAX_UNSENT: usize = 16 << 10;
/// How often connections with a certificate ask whether it ended, or the files changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The first byte of a connection with TLS, which no method of HTTP begins with.
pub(super) const HANDSHAKE: u8 = 0x16;

thread_local! {
    /// Whose handshake this thread computes.
    static TURN: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// TLS of a listener.
#[derive(Clone)]
pub struct Tls {
    /// Certificates.
    pub server: Arc<Server>,
    /// Whether connections may be plain, too.
    pub plain: bool,
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
) -> io::Result<Opened<impl Future<Output = ()>>> {
    let (stream, chain) = match tls {
        None => (Stream::Plain(stream), None),
        Some(tls) => {
            let opened = timeout(HEAD_TIMEOUT, opened(stream, tls)).await;
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

async fn opened(stream: TcpStream, tls: Tls) -> io::Result<(Stream, Option<Chain>)> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first != [HANDSHAKE] {
        if tls.plain {
            return Ok((Stream::Plain(stream), None));
        }
        let failed = Failed::new(ProblemKind::InvalidRequest, "this port requires TLS: use an https URL");
        refuse(stream, failed).await;
        return Err(io::Error::other("the connection is plain"));
    }
    let (stream, chain) = shake_hands(stream, tls.server).await?;
    Ok((Stream::Encrypted(Box::new(stream)), Some(chain)))
}

/// Shakes hands. Between the handshakes that a thread computes, it serves everything else that is ready.
async fn shake_hands(
    stream: TcpStream,
    server: Arc<Server>,
) -> io::Result<(TlsStream<Paced<TcpStream>>, Chain)> {
    let hello = LazyConfigAcceptor::new(Acceptor::default(), Paced(stream)).await?;
    let turn = TURN.with(Arc::clone).acquire_owned().await.expect("the semaphore is never closed");
    yield_now().await;
    let version = server.version();
    let mut accept = hello.into_stream(server.current());
    // This signs; what follows waits for the client.
    let first = std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut accept).poll(cx))).await;
    drop(turn);
    let mut stream = match first {
        Poll::Ready(accepted) => accepted?,
        Poll::Pending => accept.await?,
    };
    stream.get_mut().1.set_buffer_limit(Some(MAX_UNSENT));
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    Ok((stream, Chain { certificates, server, version }))
}

impl Chain {
    async fn until_distrusted(mut self) {
        let Some(expires) = expires(&self.certificates) else { return std::future::pending().await };
        loop {
            let newest = self.server.version();
            // Verifying costs far more than asking whether there is a reason to.
            if newest != self.version || UnixTime::now().as_secs() as i64 > expires {
                self.version = newest;
                if !self.server.trusts(&self.certificates) {
                    return;
                }
            }
            sleep(CHECK_INTERVAL).await;
        }
    }
}
