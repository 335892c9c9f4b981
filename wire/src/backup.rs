use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{FieldError, Revision};

/// How far a cluster came, which is all that a cluster needs to replace it. It contains no leases: after a restore holders
/// acquire again, and get larger tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backup {
    /// [`Backup::FORMAT`].
    pub format: u32,
    /// The cluster's id.
    pub cluster_id: Uuid,
    /// The revision at which it started.
    pub first_revision: Revision,
    /// Its latest change when the backup was taken, or a number above that. No token was larger.
    pub revision: Revision,
}

impl Backup {
    /// The only format there is.
    pub const FORMAT: u32 = 1;

    /// Checks what the types do not.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.format != Self::FORMAT {
            let detail = format!("this version reads format {}, not {}", Self::FORMAT, self.format);
            return Err(FieldError::new("format", detail));
        }
        if self.revision == Revision(0) {
            return Err(FieldError::new("revision", "must not be 0: that cluster had not started"));
        }
        if self.revision < self.first_revision {
            return Err(FieldError::new("revision", "must not be below first_revision"));
        }
        Ok(())
    }
}
