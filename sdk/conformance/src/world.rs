//! The clusters that scenarios share: one of a single node, which nothing happens to, and one of three that may be hurt.

use std::path::PathBuf;
use std::sync::Arc;

use ringfence_harness::{Client, Cluster, Error};
use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard};

use crate::pulse::Pulse;

/// The clusters of one run.
pub struct World {
    program: PathBuf,
    /// Of the single node.
    pub pulse: Pulse,
    calm: Cluster,
    live: OnceCell<Arc<Mutex<Live>>>,
}

/// Three nodes, for one scenario at a time.
pub struct Live {
    /// They run, and agree on a leader.
    pub cluster: Cluster,
}

impl World {
    /// Starts the single node.
    pub async fn start(program: PathBuf) -> Result<Self, Error> {
        let calm = Cluster::builder(&program).nodes(1).start().await?;
        let pulse = Pulse::start(calm.node(1).client().own_connections());
        Ok(Self { program, pulse, calm, live: OnceCell::new() })
    }

    /// A client of the single node.
    pub fn node(&self) -> Client {
        self.calm.node(1).client()
    }

    /// The three nodes, once nobody else has them. They are started when they are first asked for.
    pub async fn live(&self) -> Result<OwnedMutexGuard<Live>, Error> {
        let start = async || {
            let cluster = Cluster::builder(&self.program).start().await?;
            Ok::<_, Error>(Arc::new(Mutex::new(Live { cluster })))
        };
        let live = Arc::clone(self.live.get_or_try_init(start).await?).lock_owned().await;
        // A holder may have failed halfway.
        for node in live.cluster.nodes() {
            if node.pid().is_some() {
                node.resume()?;
            }
        }
        live.cluster.start_all()?;
        live.cluster.ready().await?;
        Ok(live)
    }
}
