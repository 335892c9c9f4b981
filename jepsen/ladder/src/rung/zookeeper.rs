//! Locks in ZooKeeper, on three servers.

mod ensemble;
mod recipe;

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use crate::rung::{Family, PLAIN, Rung, printed};

pub(super) use ensemble::Ensemble;
pub(super) use recipe::Mutex;

/// Where Debian's `libzookeeper-java` puts it; its manifest names what else it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// The parent of all locks.
const LOCKS: &str = "/ladder";

const RECIPE: Rung = Rung {
    number: 14,
    name: "ZooKeeper, Curator's recipe",
    plays: "As InterProcessMutex of Apache Curator 5.9.1-SNAPSHOT (commit 88dee99): an ephemeral sequential node with a \
            GUID in its name; the lowest one has the lock, each other one watches the one before it. It ends with its \
            session. The storage is shown nothing.",
    family: Family::ZooKeeper,
    // A session ends up to a tick late, half a second: that is not to count as stuck.
    ttl: Duration::from_secs(3),
    renewed: true,
    ..PLAIN
};

pub(super) const RUNGS: [Rung; 2] = [
    RECIPE,
    Rung {
        number: 15,
        name: "ZooKeeper + czxid",
        plays: "The same; the storage is shown the czxid of the node, and rejects one smaller than one it has seen.",
        ..RECIPE
    },
];

/// The class path of the servers, or an error that says what is missing.
fn class_path() -> anyhow::Result<&'static str> {
    ensure!(
        printed("java", &["-version"]).is_some() && Path::new(JAR).exists(),
        "needs ZooKeeper: java and {JAR} (Debian: default-jre-headless and libzookeeper-java)"
    );
    Ok(JAR)
}

/// As in "ZooKeeper 3.8.0", without the number if the name of the file does not tell it.
pub(super) fn version() -> Option<String> {
    // zookeeper.jar leads to zookeeper-3.8.0.jar.
    let file = Path::new(class_path().ok()?).canonicalize().ok()?;
    let version = file.file_stem()?.to_str()?.strip_prefix("zookeeper-").unwrap_or_default();
    Some(format!("ZooKeeper {version}").trim_end().to_owned())
}
