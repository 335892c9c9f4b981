//! Backup files: a cluster's revision, for the cluster that replaces it.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use ringfence_wire::{Backup, from_json};

/// The path that stands for standard output, and for standard input.
pub(crate) const STANDARD: &str = "-";

/// Reads and checks a backup.
pub(crate) fn read(path: &Path) -> anyhow::Result<Backup> {
    let mut text = Vec::new();
    let read = if path == Path::new(STANDARD) {
        std::io::stdin().read_to_end(&mut text)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut text))
    };
    read.with_context(|| format!("cannot read {}", path.display()))?;
    let invalid = || format!("{} is not a valid backup", path.display());
    let backup: Backup = from_json(&text).with_context(invalid)?;
    backup.check().with_context(invalid)?;
    Ok(backup)
}

/// What a backup file contains.
pub(crate) fn text(backup: &Backup) -> anyhow::Result<String> {
    Ok(serde_json::to_string(backup)? + "\n")
}

/// Writes a backup durably and atomically: `path` never has a part of it.
pub(crate) fn write(backup: &Backup, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> anyhow::Result<()> {
        // The umask decides who can read it. It holds no secret, and the user that runs a node has to read it.
        let permissions = Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder)?;
        file.write_all(text(backup)?.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(File::open(folder)?.sync_all()?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
