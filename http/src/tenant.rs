//! Who shares what a server has.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Who is counted as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tenant {
    /// Connections of no principal: an IPv4 address, or the 2^64 IPv6 addresses that a host can choose from.
    Host(IpAddr),
    /// By its name.
    Principal(Arc<str>),
}

impl Tenant {
    /// The tenant of a new connection.
    pub(crate) fn host(from: SocketAddr) -> Self {
        Self::Host(host(from))
    }
}

/// The host at an address. For IPv6, where a host can choose from many addresses, it is the first of them.
pub(crate) fn host(at: SocketAddr) -> IpAddr {
    match at.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip => ip,
    }
}
