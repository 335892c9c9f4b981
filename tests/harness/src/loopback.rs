//! A loopback address for each cluster.
//!
//! All of 127.0.0.0/8 is this machine. Each cluster has its own address, so all use the same ports: none has to be searched for,
//! and none can be taken between two starts of a node. A port found by binding to port 0 could be: meanwhile it may become
//! the source port of any connection.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use crate::Error;

/// The process that listens on this port owns the address. All these ports are below the ephemeral range.
const CLAIM: u16 = 7399;
/// Node `id` has these ports, plus its id.
pub(crate) const HTTP: u16 = 7400;
/// The port for the Redis protocol. It keeps its distance from the HTTP port, wherever that moves.
const RESP: u16 = 7450;
pub(crate) const PEER: u16 = 7500;
pub(crate) const RELAY: u16 = 7600;
/// The first Redis server; a Redis Cluster takes the same ports 10,000 higher as well.
pub(crate) const REDIS: u16 = 6379;
const ATTEMPTS: usize = 100;

/// The address for the Redis protocol of the node with this HTTP address.
pub(crate) fn resp(http: SocketAddr) -> SocketAddr {
    SocketAddr::new(http.ip(), http.port() - HTTP + RESP)
}

/// An address that no other cluster has, in any process.
#[derive(Debug)]
pub(crate) struct Loopback {
    address: Ipv4Addr,
    _claim: TcpListener,
}

impl Loopback {
    pub(crate) fn claim() -> Result<Self, Error> {
        let mut last = None;
        for attempt in 0..ATTEMPTS {
            let [a, b, c, ..] = RandomState::new().hash_one(attempt).to_le_bytes();
            // 127.0.0.0/16 is for manual use; .0 and .255 look like broadcasts.
            let address = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
            match TcpListener::bind((address, CLAIM)) {
                Ok(claim) => return Ok(Self { address, _claim: claim }),
                Err(error) => last = Some(error),
            }
        }
        let error = last.unwrap_or_else(|| std::io::Error::other("no attempt was made"));
        Err(Error::Io { what: "no loopback address is free".to_owned(), error })
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.into()
    }

    /// A port of it.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        (self.address, port).into()
    }
}
