use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::Error;
use crate::heard::Heard;
use crate::names::{Name, SYSTEM};
use crate::race::race;

/// A host and a port to connect to. Clones share what is known of the host.
#[derive(Clone, Debug)]
pub struct Target {
    host: Host,
    port: u16,
}

#[derive(Clone, Debug)]
enum Host {
    Ip(IpAddr),
    Name(Arc<Name>),
}

impl Target {
    /// The port at `host`, a name or an IP address without brackets.
    pub fn new(host: &str, port: u16) -> Self {
        let host = match host.parse() {
            Ok(ip) => Host::Ip(ip),
            Err(_) => Host::Name(SYSTEM.name(host)),
        };
        Self { host, port }
    }

    /// The target at `host:port`, where an IPv6 address is in brackets; `None` if `address` is not of that form.
    pub fn parse(address: &str) -> Option<Self> {
        let (host, port) = address.rsplit_once(':')?;
        Some(Self::new(host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?))
    }

    /// Whether it can be connected to without waiting for a lookup. If not, one goes on in the background.
    pub fn is_resolved(&self) -> bool {
        match &self.host {
            Host::Ip(_) => true,
            Host::Name(name) => name.is_resolved(),
        }
    }

    /// Waits until [`Target::is_resolved`], for at most `within`.
    pub async fn resolve(&self, within: Duration) -> Result<(), Error> {
        self.addresses(within).await.map(drop)
    }

    /// The addresses as far as they are known now; none before the first lookup has succeeded.
    pub fn known(&self) -> Vec<IpAddr> {
        match &self.host {
            Host::Ip(ip) => vec![*ip],
            Host::Name(name) => name.known(),
        }
    }

    /// Connects, within this time. Waiting for a lookup counts.
    pub async fn connect(&self, within: Duration) -> Result<Heard<TcpStream>, Error> {
        let deadline = Instant::now() + within;
        let addresses = self.addresses(within).await?;
        let (stream, address) = race(&addresses, deadline, within).await?;
        Ok(match &self.host {
            Host::Ip(_) => stream.into(),
            Host::Name(name) => Heard::not_yet(stream, Arc::clone(name), address.ip()),
        })
    }

    async fn addresses(&self, within: Duration) -> Result<Vec<SocketAddr>, Error> {
        let with_port = |ip: IpAddr| SocketAddr::new(ip, self.port);
        Ok(match &self.host {
            Host::Ip(ip) => vec![with_port(*ip)],
            Host::Name(name) => name.addresses(within).await?.into_iter().map(with_port).collect(),
        })
    }
}

/// By host and port.
impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        let is_same_host = match (&self.host, &other.host) {
            (Host::Ip(one), Host::Ip(other)) => one == other,
            (Host::Name(one), Host::Name(other)) => one.host() == other.host(),
            _ => false,
        };
        is_same_host && self.port == other.port
    }
}

impl Eq for Target {}

/// The host, without the port.
impl Display for Target {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => ip.fmt(f),
            Host::Name(name) => name.host().fmt(f),
        }
    }
}
