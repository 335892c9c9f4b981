use std::time::Duration;

use ringfence_wire::{Grant, Revision, Token};

use crate::service::Service;

impl Service {
    /// Waits until the mirror has the fences of `grants`, for at most `within`. Returns whether it does.
    pub(crate) async fn mirrored<'a>(
        &self,
        grants: impl Iterator<Item = &'a Grant>,
        within: Duration,
    ) -> bool {
        let (mut keys, mut newest) = (Vec::new(), Token(0));
        for grant in grants {
            keys.extend(grant.keys.iter().map(|granted| granted.key.clone()));
            newest = newest.max(grant.token);
        }
        keys.is_empty() || self.handle.mirror_has(keys, Revision(newest.0), within).await
    }
}
