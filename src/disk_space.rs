//! Free space on the file system of the data directory. A node whose disk is full stops.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::statvfs;

use crate::measure::{DISK_AVAILABLE_BYTES, DISK_SIZE_BYTES};

const INTERVAL: Duration = Duration::from_secs(10);

/// Runs until its task is aborted.
pub(crate) async fn measure(data: PathBuf) {
    let (size, available) = (DISK_SIZE_BYTES.get(), DISK_AVAILABLE_BYTES.get());
    loop {
        let path = data.clone();
        // On a thread of its own: a hung disk must not block the node.
        match ringfence_aside::run("disk-space", move || statvfs(path)).await {
            Ok(Ok(found)) => {
                size.set(found.f_blocks as f64 * found.f_frsize as f64);
                available.set(found.f_bavail as f64 * found.f_frsize as f64);
            }
            Ok(Err(error)) => tracing::debug!(%error, "cannot read the free disk space"),
            Err(error) => tracing::debug!(%error, "cannot read the free disk space"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
