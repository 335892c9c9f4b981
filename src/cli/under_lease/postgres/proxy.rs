//! `--postgres-proxy`: for programs that take no options for their connections. It listens on 127.0.0.1, adds the claims to the first message of each
//! connection, and then copies bytes: no SQL is read. Programs connect without TLS; to the server goes what `psql` needed, TLS or none.
//!
//! It serves this user's processes alone: others would write under this lease. It has threads of its own: no amount of data delays a renewal, and
//! no number of strangers what is copied, though they can delay that a connection begins. Its connections end with the lease, by the clock of
//! that, and with COMMAND.

mod first_message;

use std::io::{self, Error};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use percent_encoding::percent_decode_str;
use ringfence_client::Lease;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use first_message::{Sent, first_answer, first_message, refusal};

/// As many connections at a time, each of which costs two descriptors; further ones wait.
const MAX_CONNECTIONS: usize = 200;
/// As many others at a time are told why they are not served.
const MAX_STRANGERS: usize = 16;
/// How long a program may take for its first message, and the server to be connected.
const SOON: Duration = Duration::from_secs(10);
/// How long a stranger may take to listen.
const BRIEFLY: Duration = Duration::from_secs(1);
/// When a server whose host is silent has gone: without that, COMMAND would wait for it as long as the lease is renewed.
const GONE_AFTER: Duration = Duration::from_secs(120);
/// Parameters of libpq that say where it connects and what it trusts there. psql follows them; the proxy does not.
const NOT_FOLLOWED: [(&str, &str); 6] = [
    ("hostaddr", "PGHOSTADDR"),
    ("service", "PGSERVICE"),
    ("requirepeer", "PGREQUIREPEER"),
    ("require_auth", "PGREQUIREAUTH"),
    ("sslcrl", "PGSSLCRL"),
    ("sslcrldir", "PGSSLCRLDIR"),
];

/// The state of an open connection in the kernel's table, and the inode of a socket that its owner has closed.
const ESTABLISHED: &str = "01";
const NONE: &str = "0";

/// While this exists, programs are served.
pub(crate) struct Proxy {
    _ends: oneshot::Sender<()>,
}

/// Where the server is, and how it is spoken to.
pub(super) struct Server {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
}

struct Serving {
    server: Server,
    /// The claims, as options.
    claims: String,
    lease: Lease,
    port: u16,
}

impl Server {
    /// Of what `psql` said of its connection: what encrypts it, and port and host.
    pub(super) fn of([encrypted, place]: [String; 2], url: &str) -> anyhow::Result<Self> {
        let (port, host) = place.split_once(' ').context("psql does not say where it is connected")?;
        if let Some((name, _)) =
            NOT_FOLLOWED.iter().find(|(name, variable)| parameter(url, name, variable).is_some())
        {
            bail!("--postgres-proxy: psql follows {name}, and the proxy would not: leave it out");
        }
        let tls = match encrypted.as_str() {
            "nothing" => None,
            "TLS" => Some(verifying(url)?),
            other => bail!(
                "--postgres-proxy: the connection is encrypted by {other}, which the proxy does not speak"
            ),
        };
        Ok(Self { host: host.to_owned(), port: port.parse().context("psql does not say its port")?, tls })
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        if self.host.starts_with('/') {
            return Ok(Box::new(UnixStream::connect(format!("{}/.s.PGSQL.{}", self.host, self.port)).await?));
        }
        let mut stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        ringfence_dial::tune(&stream, GONE_AFTER)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        stream.write_all(&first_message::ASK_FOR_TLS).await?;
        if stream.read_u8().await? != b'S' {
            return Err(Error::other("it does not speak TLS"));
        }
        let name = ServerName::try_from(self.host.clone()).map_err(Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

/// A parameter of libpq, of the URL or else of a variable.
fn parameter(url: &str, name: &str, variable: &str) -> Option<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let value = value.map(|value| percent_decode_str(value).decode_utf8_lossy().into_owned());
    value.or_else(|| std::env::var(variable).ok()).filter(|value| !value.is_empty())
}

/// TLS by the parameters that libpq has for it. Nothing less than what verifies the server: with less, libpq goes on.
fn verifying(url: &str) -> anyhow::Result<TlsConnector> {
    let mode = parameter(url, "sslmode", "PGSSLMODE");
    if mode.as_deref() != Some("verify-full") {
        bail!(
            "--postgres-proxy: the connection is encrypted, with sslmode={}: the proxy does that with verify-full alone, and a connection that is \
             not encrypted with disable",
            mode.as_deref().unwrap_or("prefer")
        );
    }
    let authority = match parameter(url, "sslrootcert", "PGSSLROOTCERT") {
        Some(system) if system == "system" => None,
        Some(file) => Some(PathBuf::from(file)),
        None => Some(std::env::home_dir().unwrap_or_default().join(".postgresql/root.crt")),
    };
    let client = ringfence_tls::Client::with_authority(authority).context("--postgres-proxy: sslrootcert")?;
    let mut config = ClientConfig::clone(&client.current());
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Whatever bytes come and go through.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Proxy {
    pub(super) fn start(port: u16, server: Server, claims: String, lease: &Lease) -> anyhow::Result<Self> {
        knows_users().context("--postgres-proxy: it cannot tell who connects")?;
        let address = (Ipv4Addr::LOCALHOST, port);
        let listener = std::net::TcpListener::bind(address)
            .with_context(|| format!("--postgres-proxy: cannot listen on 127.0.0.1:{port}"))?;
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let serving = Arc::new(Serving { server, claims, lease: lease.copy(), port });
        let (ends, ended) = oneshot::channel();
        ringfence_aside::start("postgres-proxy", move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    result = serve(listener, serving) => {
                        tracing::warn!(?result, "--postgres-proxy has ended");
                    }
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { _ends: ends })
    }
}

async fn serve(listener: std::net::TcpListener, serving: Arc<Serving>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let [room, strangers] = [MAX_CONNECTIONS, MAX_STRANGERS].map(|most| Arc::new(Semaphore::new(most)));
    loop {
        let Ok((program, from)) = listener.accept().await else {
            // Most likely too many open files: others may close theirs.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        if !is_own(&program, from, serving.port) {
            if let Ok(place) = Arc::clone(&strangers).try_acquire_owned() {
                tokio::spawn(async move { timeout(BRIEFLY, refuse(program)).await.map(|_| drop(place)) });
            }
            continue;
        }
        let place = Arc::clone(&room).acquire_owned().await.map_err(Error::other)?;
        let serving = Arc::clone(&serving);
        tokio::spawn(async move {
            let _place = place;
            // Either side closing it, and the loss of the lease, are how it ends.
            let _ = serving.lease.run(serving.pass(program)).await;
        });
    }
}

impl Serving {
    /// Passes a connection on, until either side closes it. Before that, the program is told what is wrong.
    async fn pass(&self, mut program: TcpStream) -> io::Result<()> {
        match self.begin(&mut program).await {
            Ok(mut server) => copy_bidirectional(&mut program, &mut server).await.map(drop),
            Err(why) => program.write_all(&refusal(&format!("ringfence: {why:#}"))).await,
        }
    }

    async fn begin(&self, program: &mut TcpStream) -> anyhow::Result<Box<dyn Stream>> {
        program.set_nodelay(true)?;
        let sent = timeout(SOON, first_message(program)).await.context("there is no first message")??;
        let (first, starts) = match sent {
            Sent::Start(start) => (start.with_claims(&self.claims)?, true),
            Sent::Other(message) => (message, false),
        };
        let begins = async {
            let mut server = self.server.connect().await?;
            server.write_all(&first).await?;
            let offers_binding = starts && self.server.tls.is_some();
            let answer = if offers_binding { first_answer(&mut server).await? } else { Vec::new() };
            Ok::<_, anyhow::Error>((server, answer))
        };
        let begun = timeout(SOON, begins).await.context("the server does not answer")?;
        let (server, answer) = begun.context("the server cannot be connected")?;
        program.write_all(&answer).await?;
        Ok(server)
    }
}

/// Tells a stranger why it is not served, once that listens: a close before that would take the reason along.
async fn refuse(mut stranger: TcpStream) -> io::Result<()> {
    let _ = first_message(&mut stranger).await;
    let why = "ringfence: --postgres-proxy serves processes of the user alone who runs `ringfence lock`";
    stranger.write_all(&refusal(why)).await
}

/// The kernel's tables of connections, in the network namespace of this process. A program may use IPv6's form of the same address.
const TABLES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// An error if the kernel does not tell this process users apart.
fn knows_users() -> anyhow::Result<()> {
    std::fs::read_to_string(TABLES[0]).context(TABLES[0])?;
    let map = std::fs::read_to_string("/proc/self/uid_map").context("/proc/self/uid_map")?;
    let other = std::fs::read_to_string("/proc/sys/kernel/overflowuid").context("overflowuid")?;
    let knows_all = map.split_whitespace().eq(["0", "0", "4294967295"]);
    if !knows_all && other.trim() == rustix::process::geteuid().as_raw().to_string() {
        bail!("in this user namespace, all users of others look like this one");
    }
    Ok(())
}

/// Whether the other end of a connection, at `from`, is an open socket of this user. The kernel takes it for root's once it is closed.
fn is_own(program: &TcpStream, from: SocketAddr, port: u16) -> bool {
    let SocketAddr::V4(from) = from else { return false };
    let hex =
        |address: Ipv4Addr, port: u16| format!("{:08X}:{port:04X}", u32::from_ne_bytes(address.octets()));
    let (theirs, ours) = (hex(*from.ip(), from.port()), hex(Ipv4Addr::LOCALHOST, port));
    let own = rustix::process::geteuid().as_raw().to_string();
    for table in TABLES {
        // A system without IPv6 has no table of it.
        let sockets = std::fs::read_to_string(table).unwrap_or_default();
        for socket in sockets.lines() {
            let fields: Vec<_> = socket.split_whitespace().collect();
            if let [_, local, remote, ESTABLISHED, _, _, _, user, _, inode, ..] = fields[..]
                && local.ends_with(&theirs)
                && remote.ends_with(&ours)
            {
                // If the other end has reset it, the row is that of a later connection from there.
                return user == own && inode != NONE && program.peer_addr().is_ok();
            }
        }
    }
    false
}
