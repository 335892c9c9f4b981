//! The answers to the clients of a load, and checks of the cluster against them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_wire::{LeaseId, ProblemKind, Token};
use tokio::time::Instant;

use crate::{Acquired, Answered, Called, Cluster, Consistency, Node, Reply, definite, try_once};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// At most this many leases of a kind are checked one by one.
const SAMPLE: usize = 100;

/// What clients know for certain; calls without a definite answer are left out.
#[derive(Debug, Default)]
pub struct Record {
    /// The prefixes of all keys.
    pub(crate) names: BTreeSet<String>,
    /// Granted, and never released.
    pub(crate) held: BTreeMap<LeaseId, Held>,
    /// The keys of released leases.
    pub(crate) released: Vec<String>,
    /// Leases of acquires that were certainly not done.
    pub(crate) not_done: Vec<LeaseId>,
    pub(crate) grants: Vec<Granted>,
    pub(crate) keepers: usize,
    pub(crate) renewals: u64,
    /// Leases that ended although their keeper renewed them in time.
    pub(crate) lost: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) key: String,
    pub(crate) token: Token,
    /// `None` after a renewal without a definite answer.
    pub(crate) ttl_ms: Option<u32>,
}

/// A grant, as its client saw it.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// The node that answered.
    pub node: u64,
    /// The token.
    pub token: Token,
    /// When the lease was first asked for.
    pub asked: Instant,
    /// When the answer came.
    pub answered: Instant,
}

impl Record {
    /// Adds what `other` knows.
    pub fn add(&mut self, other: Self) {
        self.names.extend(other.names);
        self.held.extend(other.held);
        self.released.extend(other.released);
        self.not_done.extend(other.not_done);
        self.grants.extend(other.grants);
        self.keepers += other.keepers;
        self.renewals += other.renewals;
        self.lost.extend(other.lost);
    }

    /// All grants.
    pub fn grants(&self) -> &[Granted] {
        &self.grants
    }

    /// Checks, when all nodes are ready again, that every answer is still true: at each node every lease that was not
    /// released is held, with its token and TTL, and none that was released or not granted; each grant has a larger token
    /// than all that were answered before it was asked for; and no lease ended that was renewed all the time.
    ///
    /// # Panics
    /// If that is not so.
    pub async fn check(&mut self, cluster: &Cluster) {
        assert_eq!(self.lost, [""; 0], "leases that were renewed all the time have ended");
        assert!(!self.grants.is_empty() && (self.renewals > 0 || self.keepers == 0), "nothing was tested");
        for node in cluster.nodes() {
            self.check_keys(node).await;
        }
        self.check_repeats(cluster).await;
        self.check_not_done(cluster).await;
        for node in cluster.nodes() {
            let key = format!("new/{}/{}", node.id(), self.grants.len());
            let (client, lease, request) = (node.client(), LeaseId::random(), try_once(&key));
            let asked = Instant::now();
            let grant = answer(definite(SOON, || client.acquire(lease, &request)).await).done().grant();
            let token = grant.unwrap_or_else(|| panic!("{key} is not granted anew")).token;
            self.grants.push(Granted { node: node.id(), token, asked, answered: Instant::now() });
        }
        if let Some((earlier, later)) = out_of_order(&self.grants) {
            panic!("tokens do not rise: first {earlier:?}, then {later:?}");
        }
    }

    /// The keys that `node` lists are those held.
    async fn check_keys(&self, node: &Node) {
        let (id, client) = (node.id(), node.client());
        let mut found = BTreeMap::new();
        for name in &self.names {
            let mut after = None;
            loop {
                let read = || client.keys(name, after.as_deref(), Consistency::Linearizable);
                let page = answer(definite(SOON, read).await).done();
                for view in page.keys {
                    let holders = view.holders.iter().map(|holder| (holder.token, holder.ttl_ms)).collect();
                    found.insert(view.key.as_str().to_owned(), holders);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        for Held { key, token, ttl_ms } in self.held.values() {
            let holders: &Vec<(Token, u32)> =
                found.get(key).unwrap_or_else(|| panic!("node {id} has lost {key}, granted with {token}"));
            let is_held = matches!(holders.as_slice(), [(found, found_ms)]
                if found == token && ttl_ms.is_none_or(|ttl_ms| ttl_ms == *found_ms));
            assert!(is_held, "{key} was granted with {token} and {ttl_ms:?} ms; at node {id}: {holders:?}");
        }
        for key in &self.released {
            let is_held = found.get(key).is_some_and(|holders| !holders.is_empty());
            assert!(!is_held, "{key} was released, but not at node {id}");
        }
    }

    /// A repeated acquire returns the same grant, through any node.
    async fn check_repeats(&self, cluster: &Cluster) {
        let some = self.held.iter().step_by(self.held.len() / SAMPLE + 1);
        let asked = some.zip(cluster.nodes().iter().cycle());
        let asked = asked.map(|((&lease, Held { key, token, .. }), node)| async move {
            let (client, request) = (node.client(), try_once(key));
            let repeat = definite(SOON, || client.acquire(lease, &request)).await;
            let Ok(Reply::Done { status: 200, body: Acquired::Standing(repeat) }) = repeat else {
                panic!("{key} was granted with {token}: {repeat:?}");
            };
            assert_eq!(repeat.token, *token);
        });
        join_all(asked).await;
    }

    /// No node knows a lease that was not granted.
    async fn check_not_done(&self, cluster: &Cluster) {
        for node in cluster.nodes() {
            let client = node.client();
            for &lease in self.not_done.iter().step_by(self.not_done.len() / SAMPLE + 1) {
                let read = definite(SOON, || client.lease(lease, Consistency::Linearizable)).await;
                answer(read).refused(ProblemKind::UnknownLease);
            }
        }
    }
}

fn answer<T>(reply: Result<Reply<T>, crate::Error>) -> Called<T> {
    Ok(reply.unwrap_or_else(|error| panic!("{error}")))
}

/// Two grants of which the later was asked for after the earlier was answered, but has no larger token; or two with the
/// same token.
fn out_of_order(grants: &[Granted]) -> Option<(&Granted, &Granted)> {
    let mut by_token = BTreeMap::new();
    for grant in grants {
        if let Some(same) = by_token.insert(grant.token, grant) {
            return Some((same, grant));
        }
    }
    let (mut asked, mut answered): (Vec<&Granted>, Vec<&Granted>) =
        grants.iter().map(|grant| (grant, grant)).unzip();
    asked.sort_by_key(|grant| grant.asked);
    answered.sort_by_key(|grant| grant.answered);
    let (mut answered, mut highest) = (answered.into_iter().peekable(), None::<&Granted>);
    for later in asked {
        while let Some(earlier) = answered.next_if(|grant| grant.answered < later.asked) {
            highest = highest.into_iter().chain([earlier]).max_by_key(|grant| grant.token);
        }
        if let Some(earlier) = highest.filter(|earlier| earlier.token > later.token) {
            return Some((earlier, later));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants as (token, asked, answered).
    fn order(grants: &[(u64, u64, u64)]) -> Option<(u64, u64)> {
        let began = Instant::now();
        let grants: Vec<Granted> = grants
            .iter()
            .map(|&(token, asked, answered)| Granted {
                node: 1,
                token: Token(token),
                asked: began + Duration::from_millis(asked),
                answered: began + Duration::from_millis(answered),
            })
            .collect();
        out_of_order(&grants).map(|(earlier, later)| (earlier.token.0, later.token.0))
    }

    #[test]
    fn tokens_may_fall_only_between_overlapping_requests() {
        assert_eq!(order(&[(1, 0, 2), (2, 3, 4), (3, 4, 9)]), None);
        assert_eq!(order(&[(2, 0, 10), (1, 5, 15), (3, 20, 30)]), None);
        assert_eq!(order(&[(2, 0, 5), (1, 4, 6)]), None);
        assert_eq!(order(&[(2, 0, 3), (1, 4, 6)]), Some((2, 1)));
        assert_eq!(order(&[(1, 4, 6), (7, 0, 3), (3, 0, 1)]), Some((7, 1)));
        assert_eq!(order(&[(5, 0, 9), (5, 1, 2)]), Some((5, 5)));
    }
}
