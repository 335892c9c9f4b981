//! Backups: how far a cluster came, for the one that takes its place.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use anyhow::Context;
use ringfence_raft::Elders;
use ringfence_wire::{Backup, Revision, from_json};

use crate::duties::mirror::Found;

/// Reads a backup.
pub(crate) fn read(path: &Path) -> anyhow::Result<Backup> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let of = || format!("{} is no backup of a cluster", path.display());
    let backup: Backup = from_json(&text).with_context(of)?;
    backup.check().with_context(of)?;
    Ok(backup)
}

/// Writes a backup. Whoever finds it at `path` finds all of it.
pub(crate) fn write(backup: &Backup, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let written = || -> anyhow::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(serde_json::to_string(backup)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(File::open(folder)?.sync_all()?)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}

/// Whoever may know of earlier clusters, when a new one starts.
pub(crate) struct Earlier {
    /// What it takes the place of, and the file that says so.
    pub(crate) restored: Option<(Backup, PathBuf)>,
    pub(crate) mirror: Option<Found>,
}

impl Elders for Earlier {
    fn objection(
        &self,
        first_revision: Revision,
    ) -> Pin<Box<dyn Future<Output = Option<String>> + Send + '_>> {
        if let Some((Backup { cluster_id, revision, .. }, path)) = &self.restored
            && *revision >= first_revision
        {
            let objection = format!(
                "it would count from {first_revision}, and cluster {cluster_id} had come to {revision} when {} was made: \
                 guards that know its tokens would reject those of this one. Set the clock of this machine right, or start \
                 all nodes with a --first-revision well above that",
                path.display()
            );
            return Box::pin(async { Some(objection) });
        }
        match &self.mirror {
            Some(mirror) => mirror.objection(first_revision),
            None => Box::pin(async { None }),
        }
    }
}
