//! File permissions: only the node's own user may read its data. It contains lease ids, with which anyone can end a lease. Files
//! that others gave the node are looked at, too.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::Mode;
use rustix::process::umask;

/// The permission bits of the group and others.
const OTHERS: u32 = 0o077;

/// Denies others access to files created from now on, and to `data` if it exists.
pub(crate) fn restrict(data: &Path) {
    umask(Mode::from_raw_mode(OTHERS));
    if let Err(error) = restrict_existing(data) {
        tracing::warn!(%error, data = %data.display(), "cannot change the permissions of the data directory: other users may read it");
    }
}

/// Warns if every user of this machine may write the file, or read it although it is secret. A group is given access on purpose.
pub(crate) fn warn_of_others(file: &Path, is_secret: bool) {
    // Whether it can be used at all is told elsewhere.
    let Ok(metadata) = fs::metadata(file) else { return };
    let may = |access: u32| metadata.is_file() && metadata.permissions().mode() & access != 0;
    let file = file.display();
    if may(0o002) {
        tracing::warn!(%file, "every user of this machine may write this file: chmod o-w");
    }
    if is_secret && may(0o004) {
        tracing::warn!(%file, "every user of this machine may read this file, which is secret: chmod o-r");
    }
}

fn restrict_existing(data: &Path) -> io::Result<()> {
    let mode = match fs::metadata(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?.permissions().mode(),
    };
    match mode & OTHERS {
        0 => Ok(()),
        _ => fs::set_permissions(data, Permissions::from_mode(mode & !OTHERS)),
    }
}
