//! The node in between: it passes requests on to a real node, unless a script wants otherwise, and records all that it sees.
//!
//! ```text
//!  client ──▶ Front ──▶ node       pass, hold back, answer in its place, lose or cut the node's answer
//!               └─▶ Log            what was asked, on which connection, and what the client was told
//! ```
//! What a client is told comes from the real node wherever it can: a grant whose answer is lost was made.

pub mod act;
mod connection;
pub mod log;
mod message;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use ringfence_harness::Certificates;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::front::act::Act;
use crate::front::log::{Asked, Log};

const BACKLOG: u32 = 1_024;

/// Decides about each request, in the order of their arrival at any front.
pub type Script = Box<dyn FnMut(&Asked) -> Act + Send>;

/// The fronts of one scenario share their script and their log.
pub struct Shared {
    script: Mutex<Script>,
    /// What they have seen.
    pub log: Log,
}

impl Shared {
    /// Fronts that pass everything on.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { script: Mutex::new(Box::new(|_| Act::pass())), log: Log::default() })
    }

    /// Decides by `script` from now on.
    pub fn play(&self, script: impl FnMut(&Asked) -> Act + Send + 'static) {
        *self.script() = Box::new(script);
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("a script does not panic")
    }
}

/// A listener before one node. It ends, with its connections, when this is dropped.
pub struct Front {
    address: SocketAddr,
    /// Never listens. While the front refuses connections, it keeps the port from others, who would get what is sent to the front.
    _place: TcpSocket,
    tls: Option<TlsAcceptor>,
    inner: Inner,
    serving: Option<JoinSet<()>>,
    ills: watch::Sender<Ills>,
}

/// What is wrong with a front.
#[derive(Clone, Copy, Default)]
struct Ills {
    vanished: bool,
    hushed: bool,
    blocked: bool,
}

/// What connections know of their front.
#[derive(Clone)]
struct Inner {
    number: usize,
    node: SocketAddr,
    shared: Arc<Shared>,
    ills: watch::Receiver<Ills>,
    is_encrypted: bool,
}

impl Front {
    /// One on a free port of loopback, before `node`.
    pub fn start(
        number: usize,
        node: SocketAddr,
        shared: &Arc<Shared>,
        certificates: Option<&Certificates>,
    ) -> anyhow::Result<Self> {
        let place = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = place.local_addr()?;
        let (ills, seen) = watch::channel(Ills::default());
        let (shared, is_encrypted) = (Arc::clone(shared), certificates.is_some());
        let inner = Inner { number, node, shared, ills: seen, is_encrypted };
        let tls = certificates.map(acceptor).transpose()?;
        let mut front = Self { address, _place: place, tls, inner, serving: None, ills };
        front.accept()?;
        Ok(front)
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.address)
    }

    /// From now on it refuses connections, and has closed those that it had.
    pub async fn refuse(&mut self) {
        if let Some(mut serving) = self.serving.take() {
            serving.shutdown().await;
        }
    }

    /// Ends [`Front::refuse`].
    pub fn accept(&mut self) -> anyhow::Result<()> {
        self.serve(socket(self.address)?.listen(BACKLOG)?);
        Ok(())
    }

    /// Whether it is as a machine without power: what is sent there is neither read nor answered, not even a probe, and
    /// is gone when it is back.
    pub fn vanish(&self, is_gone: bool) {
        self.ills.send_modify(|ills| ills.vanished = is_gone);
    }

    /// Whether probes there get no answer. All else does.
    pub fn hush(&self, is_hushed: bool) {
        self.ills.send_modify(|ills| ills.hushed = is_hushed);
    }

    /// Whether it is as a node of which one thread hangs: it says so to probes that ask. All else is answered.
    pub fn block(&self, is_blocked: bool) {
        self.ills.send_modify(|ills| ills.blocked = is_blocked);
    }

    fn serve(&mut self, listener: TcpListener) {
        let (inner, tls) = (self.inner.clone(), self.tls.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                        let number = inner.shared.log.connected();
                        connections.spawn(connection::serve(stream, tls.clone(), number, inner.clone()));
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        self.serving = Some(serving);
    }
}

/// A socket that shares its port with others that are made here.
fn socket(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn acceptor(certificates: &Certificates) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificates.certificate())?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(certificates.key())?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn front() -> (Front, Arc<Shared>) {
        let shared = Shared::new();
        // Nothing is sent to this node.
        (Front::start(0, SocketAddr::from((Ipv4Addr::LOCALHOST, 9)), &shared, None).unwrap(), shared)
    }

    #[tokio::test]
    async fn a_front_that_refuses_connections_keeps_its_port() {
        let (mut front, _) = front();
        front.refuse().await;
        assert_eq!(TcpListener::bind(front.address).unwrap_err().kind(), ErrorKind::AddrInUse);
        assert_eq!(TcpStream::connect(front.address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        front.accept().unwrap();
        TcpStream::connect(front.address).unwrap();
    }

    #[tokio::test]
    async fn what_is_sent_to_a_machine_without_power_is_not_there_when_it_is_back() {
        let (front, shared) = front();
        front.vanish(true);
        let mut stream = TcpStream::connect(front.address).unwrap();
        stream.write_all(b"PUT /v1/leases/1 HTTP/1.1\r\n\r\n").unwrap();
        while shared.log.connections() == 0 {
            tokio::task::yield_now().await;
        }
        front.vanish(false);
        let end = ringfence_aside::run("reader", move || stream.read(&mut [0]));
        // The end may be a reset: what was sent was not read.
        assert!(matches!(end.await.unwrap(), Ok(0) | Err(_)));
        assert_eq!(shared.log.count(), 0);
    }
}
