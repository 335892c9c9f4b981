//! How much room the file system of the data directory has: a node whose disk is full stops.

use std::path::PathBuf;
use std::time::Duration;

use metrics::gauge;
use rustix::fs::statvfs;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(10);

/// Measures until the task is ended.
pub(crate) async fn measure(data: PathBuf) {
    let (size, available) = (gauge!("ringfence_disk_size_bytes"), gauge!("ringfence_disk_available_bytes"));
    loop {
        let path = data.clone();
        // A disk that does not answer must not hold up the node.
        match tokio::task::spawn_blocking(move || statvfs(path)).await {
            Ok(Ok(found)) => {
                size.set(found.f_blocks as f64 * found.f_frsize as f64);
                available.set(found.f_bavail as f64 * found.f_frsize as f64);
            }
            Ok(Err(error)) => tracing::debug!(%error, "the room on the disk is not known"),
            Err(error) => tracing::debug!(%error, "the room on the disk is not known"),
        }
        tokio::time::sleep(LOOK).await;
    }
}
