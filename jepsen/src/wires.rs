//! What carries words between nodes, and what can be wrong with it: as root a network of namespaces that drops packets,
//! without that proxies on loopback.

use ringfence_harness::{Network, Node};

use crate::proxy::Proxies;
pub(crate) use crate::proxy::Trouble;

/// Between all nodes of a cluster.
#[derive(Debug)]
pub(crate) enum Wires {
    /// Namespaces; packets are dropped.
    Network(Network),
    /// Loopback; bytes are held up.
    Proxies(Proxies),
}

impl Wires {
    /// For so many nodes.
    pub(crate) fn new(nodes: u16, root: bool) -> anyhow::Result<Self> {
        Ok(if root { Self::Network(Network::new(nodes)?) } else { Self::Proxies(Proxies::default()) })
    }

    /// How many packets were dropped, or how often bytes were held up.
    pub(crate) fn dropped(&self) -> anyhow::Result<u64> {
        match self {
            Self::Network(network) => Ok(network.dropped()?),
            Self::Proxies(proxies) => Ok(proxies.held()),
        }
    }

    /// To be called before a node is started, and where it has moved.
    pub(crate) async fn connect(&self, node: &Node) -> anyhow::Result<()> {
        match self {
            Self::Network(_) => Ok(()),
            Self::Proxies(proxies) => proxies.listen(node).await,
        }
    }

    /// From now on all of `links` have this trouble.
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

    /// From now on no link has this trouble.
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
