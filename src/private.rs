//! What a node writes is for its own user: the ids of leases, by which they are renewed and ended, stand in it.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;

/// The rights of others and of the group.
const OTHERS: u32 = 0o077;

/// Takes from others the right to what this process makes from now on, and to `data`, if it is there.
pub(crate) fn keep(data: &Path) {
    umask(Mode::from_raw_mode(OTHERS));
    if let Err(error) = close(data) {
        tracing::warn!(%error, data = %data.display(), "others may read this node's data: its rights could not be changed");
    }
}

fn close(data: &Path) -> io::Result<()> {
    let mode = match fs::metadata(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?.permissions().mode(),
    };
    match mode & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(data, Permissions::from_mode(mode & !OTHERS)),
    }
}
