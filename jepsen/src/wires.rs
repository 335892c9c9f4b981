//! The network between nodes and its faults: as root, network namespaces that drop packets; otherwise proxies on loopback.

use ringfence_harness::{Network, Node};

use crate::proxy::Proxies;
pub(crate) use crate::proxy::Trouble;

/// The links between all nodes of a cluster.
#[derive(Debug)]
pub(crate) enum Wires {
    /// Namespaces, which drop packets.
    Network(Network),
    /// Loopback, with proxies that delay bytes.
    Proxies(Proxies),
}

impl Wires {
    /// The links of this many nodes.
    pub(crate) fn new(nodes: u16, root: bool) -> anyhow::Result<Self> {
        Ok(if root { Self::Network(Network::new(nodes)?) } else { Self::Proxies(Proxies::default()) })
    }

    /// The number of dropped packets, or of delays.
    pub(crate) fn dropped(&self) -> anyhow::Result<u64> {
        match self {
            Self::Network(network) => Ok(network.dropped()?),
            Self::Proxies(proxies) => Ok(proxies.held()),
        }
    }

    /// Connects a node, before it is started and after it has moved.
    pub(crate) async fn connect(&self, node: &Node) -> anyhow::Result<()> {
        match self {
            Self::Network(_) => Ok(()),
            Self::Proxies(proxies) => proxies.listen(node).await,
        }
    }

    /// Starts this trouble on `links`.
    pub(crate) fn trouble(&self, trouble: Trouble, links: &[(u64, u64)]) -> anyhow::Result<()> {
        match self {
            Self::Network(network) => match trouble {
                Trouble::Cut => network.cut(links)?,
                Trouble::Slow => network.lose(links)?,
                Trouble::HalfOpen => network.narrow(links)?,
            },
            Self::Proxies(proxies) => proxies.trouble(trouble, links),
        }
        Ok(())
    }

    /// Ends this trouble on all links.
    pub(crate) fn ease(&self, trouble: Trouble) -> anyhow::Result<()> {
        match self {
            Self::Network(network) => match trouble {
                Trouble::Cut => network.mend()?,
                Trouble::Slow => network.lose_nothing()?,
                Trouble::HalfOpen => network.widen()?,
            },
            Self::Proxies(proxies) => proxies.ease(trouble),
        }
        Ok(())
    }
}
