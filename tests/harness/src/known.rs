//! What the clients of a load were told, and what follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_wire::{LeaseId, Token};
use tokio::time::Instant;

use crate::{Acquired, Answered, Cluster, Consistency, Reply, definite, try_once};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// What clients know for certain. What they could not learn is left out, whichever way it went.
#[derive(Debug, Default)]
pub struct Known {
    /// What the keys begin with.
    names: BTreeSet<String>,
    /// Acknowledged, and never asked to be released.
    held: BTreeMap<LeaseId, Held>,
    /// The keys of leases that were acknowledged as released.
    pub(crate) released: Vec<String>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) renewals: u64,
    /// Leases that ended although their keeper asked for their renewal all the time.
    pub(crate) lost: Vec<String>,
}

#[derive(Debug)]
struct Held {
    key: String,
    token: Token,
    /// `None` where a renewal has changed it, or not.
    ttl_ms: Option<u32>,
}

/// When a grant was asked for and answered, with which token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) token: Token,
}

impl Known {
    pub(crate) fn of(name: &str) -> Self {
        Self { names: BTreeSet::from([format!("{name}/")]), ..Self::default() }
    }

    pub(crate) fn hold(&mut self, lease: LeaseId, key: String, token: Token, ttl_ms: Option<u32>) {
        self.held.insert(lease, Held { key, token, ttl_ms });
    }

    /// Takes over what `other` knows.
    pub fn add(&mut self, other: Self) {
        self.names.extend(other.names);
        self.held.extend(other.held);
        self.released.extend(other.released);
        self.grants.extend(other.grants);
        self.renewals += other.renewals;
        self.lost.extend(other.lost);
    }

    /// How many grants were acknowledged to workers.
    pub fn grants(&self) -> usize {
        self.grants.len()
    }

    /// Checks, when all nodes are ready again, that nothing acknowledged is missing: every lease that nobody released is
    /// held, with its token and its time-to-live, and none that was released; that each grant has a larger token than
    /// all that had been answered when it was asked for; and that none ended that was renewed all the time.
    ///
    /// # Panics
    /// If one of that is not so.
    pub async fn check(&mut self, cluster: &Cluster) {
        assert_eq!(self.lost, [""; 0], "leases that were renewed all the time have ended");
        assert!(!self.grants.is_empty() && self.renewals > 0, "nothing was tested");
        self.check_held(cluster).await;
        self.check_repeats(cluster).await;
        for node in cluster.nodes() {
            let key = format!("new/{}/{}", node.id(), self.grants.len());
            let (client, lease, wish) = (node.client(), LeaseId::random(), try_once(&key));
            let asked = Instant::now();
            let granted =
                Ok(definite(SOON, || client.acquire(lease, &wish)).await.expect("a definite answer"))
                    .done()
                    .grant();
            let grant = granted.unwrap_or_else(|| panic!("{key} is not granted anew"));
            self.grants.push(Grant { asked, answered: Instant::now(), token: grant.token });
        }
        check_tokens(&self.grants);
    }

    async fn check_held(&self, cluster: &Cluster) {
        let client = cluster.node(1).client();
        let mut found = BTreeMap::new();
        for name in &self.names {
            let mut after = None;
            loop {
                let read = || client.keys(name, after.as_deref(), Consistency::Linearizable);
                let page = Ok(definite(SOON, read).await.expect("a definite answer")).done();
                found.extend(page.keys.into_iter().flat_map(|view| {
                    let key = view.key.as_str().to_owned();
                    view.holders.into_iter().map(move |holder| (key.clone(), (holder.token, holder.ttl_ms)))
                }));
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        for Held { key, token, ttl_ms } in self.held.values() {
            let Some((found, found_ttl_ms)) = found.get(key) else {
                panic!("{key} was acknowledged with {token}, and nobody holds it")
            };
            assert_eq!(found, token, "{key} was acknowledged with {token}");
            assert!(
                ttl_ms.is_none_or(|ttl_ms| ttl_ms == *found_ttl_ms),
                "{key}: {found_ttl_ms} ms, not {ttl_ms:?}"
            );
        }
        for key in &self.released {
            assert_eq!(found.get(key), None, "{key} was released");
        }
    }

    /// Its holder sees the same, through any node.
    async fn check_repeats(&self, cluster: &Cluster) {
        let nodes = cluster.nodes();
        let some = self.held.iter().step_by(self.held.len() / 100 + 1).zip(nodes.iter().cycle());
        let asked = some.map(|((&lease, Held { key, token, .. }), node)| async move {
            let (client, wish) = (node.client(), try_once(key));
            let repeat = definite(SOON, || client.acquire(lease, &wish)).await;
            let Ok(Reply::Done { status: 200, body: Acquired::Standing(repeat) }) = repeat else {
                panic!("{key} was acknowledged with {token}: {repeat:?}");
            };
            assert_eq!(repeat.token, *token);
        });
        join_all(asked).await;
    }
}

/// Each token is larger than all that had been answered when it was asked for.
fn check_tokens(grants: &[Grant]) {
    let (mut by_asked, mut by_answered) = (grants.to_vec(), grants.to_vec());
    by_asked.sort_by_key(|grant| grant.asked);
    by_answered.sort_by_key(|grant| grant.answered);
    let (mut answered, mut largest) = (by_answered.iter().peekable(), None);
    for grant in by_asked {
        while let Some(before) = answered.next_if(|before| before.answered < grant.asked) {
            largest = largest.max(Some(before.token));
        }
        assert!(Some(grant.token) > largest, "{} was granted after {largest:?}", grant.token);
    }
    let tokens: BTreeSet<Token> = grants.iter().map(|grant| grant.token).collect();
    assert_eq!(tokens.len(), grants.len(), "a token was given twice");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_may_cross_only_where_the_requests_did() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let grant =
            |asked, answered, token| Grant { asked: at(asked), answered: at(answered), token: Token(token) };
        check_tokens(&[grant(0, 10, 2), grant(5, 15, 1), grant(20, 30, 3)]);
        for wrong in [[grant(0, 10, 2), grant(11, 15, 1)], [grant(0, 10, 2), grant(5, 15, 2)]] {
            assert!(std::panic::catch_unwind(|| check_tokens(&wrong)).is_err());
        }
    }
}
