use std::time::Duration;

use ringfence_wire::{Grant, Key, Revision, Token};

use crate::service::Service;

impl Service {
    /// Waits until the mirror has the fences of leases with these tokens on these keys, for at most `within`. Returns whether it does.
    pub(crate) async fn mirrored(&self, leases: Vec<(Key, Token)>, within: Duration) -> bool {
        let newest = leases.iter().map(|(_, token)| *token).max().unwrap_or(Token(0));
        let keys: Vec<Key> = leases.into_iter().map(|(key, _)| key).collect();
        keys.is_empty() || self.handle.mirror_has(keys, Revision(newest.0), within).await
    }
}

/// The keys of grants, with their tokens.
pub(crate) fn tokens<'a>(grants: impl IntoIterator<Item = &'a Grant>) -> Vec<(Key, Token)> {
    let keys = |grant: &'a Grant| grant.keys.iter().map(|granted| (granted.key.clone(), grant.token));
    grants.into_iter().flat_map(keys).collect()
}
