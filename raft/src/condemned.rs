//! A node that must not go on with its data directory: it records why there, and stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::peer::Directory;
use crate::storage::aside::aside;
use crate::storage::identity::DataDir;

/// How long it may take to record that this node must not start again.
const CONDEMN: Duration = Duration::from_secs(3);

/// Waits until another node refuses this process as a copy; then stops it, with the reason as its `fault`.
pub(crate) async fn watch(
    directory: Arc<Directory>,
    dir: Arc<DataDir>,
    fault: watch::Sender<Option<String>>,
) {
    let mut condemned = directory.condemned();
    let why = match condemned.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        Err(_) => return,
    };
    stop(why, &dir, &fault).await;
}

/// Records that this node must not start again, and stops it: also if the disk hangs.
pub(crate) async fn stop(why: String, dir: &Arc<DataDir>, fault: &watch::Sender<Option<String>>) {
    let (held, text) = (Arc::clone(dir), why.clone());
    match timeout(CONDEMN, aside(dir, move || held.condemn(&text))).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "cannot record that this node must not start again"),
        Err(_) => tracing::error!("the disk hangs: it is not recorded that this node must not start again"),
    }
    fault.send_replace(Some(why));
}
