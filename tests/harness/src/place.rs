use std::net::SocketAddr;
use std::sync::Arc;

use crate::loopback::Loopback;
use crate::namespace::Namespace;
use crate::{Client, Error, Network};

/// Where the nodes of a cluster are, and how they are reached.
#[derive(Debug)]
pub(crate) enum Place {
    /// An address of this machine.
    Loopback(Loopback),
    /// Namespaces of their own.
    Network(Network),
}

impl Place {
    /// Where clients reach node `id`.
    pub(crate) fn http(&self, id: u16) -> SocketAddr {
        match self {
            Self::Loopback(loopback) => loopback.http(id),
            Self::Network(network) => network.http(id),
        }
    }

    /// Where its peers reach node `id`.
    pub(crate) fn peer(&self, id: u16) -> SocketAddr {
        match self {
            Self::Loopback(loopback) => loopback.peer(id),
            Self::Network(network) => network.peer(id),
        }
    }

    /// Where its peers are told that node `id` is, if something stands between them.
    pub(crate) fn relay(&self, id: u16) -> SocketAddr {
        match self {
            Self::Loopback(loopback) => loopback.relay(id),
            Self::Network(network) => network.peer(id),
        }
    }

    pub(crate) fn client(&self, id: u16) -> Client {
        match self {
            Self::Loopback(_) => Client::new(self.http(id)),
            Self::Network(network) => network.client(self.http(id)),
        }
    }

    /// Where node `id` runs, if not where this process does.
    pub(crate) fn namespace(&self, id: u16) -> Result<Option<Arc<Namespace>>, Error> {
        match self {
            Self::Loopback(_) => Ok(None),
            Self::Network(network) => network.node(id.into()).cloned().map(Some),
        }
    }
}
