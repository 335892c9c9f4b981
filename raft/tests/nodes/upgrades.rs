//! Clusters whose nodes run programs of different versions, and raising the rules.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_lease::{Attachment, Command, Conditional, KeyChange, NAMES, Outcome, Value};
use ringfence_raft::{Handle, MembersError, Node, NodeId, Settings, StartError};
use ringfence_wire::{Key, RulesRange, Token, Ttl, Upgraded};
use tempfile::TempDir;

use crate::support::network::Network;
use crate::support::stranger::{self, Name, Stranger};
use crate::support::{Cluster, acquire, address, grant, id, one, settings, until};

const OLD: RulesRange = RulesRange { oldest: 1, newest: 1 };
const NEW: RulesRange = RulesRange { oldest: 1, newest: 2 };

/// Founds a cluster of three nodes with these programs.
async fn found(rules: [RulesRange; 3]) -> Cluster {
    let (network, dir) = (Network::new(Duration::ZERO), TempDir::new().unwrap());
    let starts = (1..).zip(rules).map(|(id, rules)| {
        let given = settings(id, dir.path().join(id.to_string()), network.port(&address(id)), 3);
        async move { (id, Node::start(Settings { rules, ..given }).await.unwrap()) }
    });
    let nodes: BTreeMap<NodeId, Node> = join_all(starts).await.into_iter().collect();
    let cluster = Cluster { dir, nodes, network };
    for id in 1..=3 {
        let handle = cluster.handle(id);
        until("the cluster has started", || handle.view(|table| table.started())).await;
    }
    cluster
}

async fn start(cluster: &Cluster, id: NodeId, rules: RulesRange) -> Result<Node, StartError> {
    let data = cluster.dir.path().join(id.to_string());
    Node::start(Settings { rules, ..settings(id, data, cluster.network.port(&address(id)), 3) }).await
}

async fn restart(cluster: &mut Cluster, id: NodeId, rules: RulesRange) {
    cluster.nodes.remove(&id).unwrap().stop().await;
    let node = start(cluster, id, rules).await.unwrap();
    cluster.nodes.insert(id, node);
}

fn refusal<T: std::fmt::Debug>(result: Result<T, MembersError>) -> String {
    match result {
        Err(MembersError::Refused(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

async fn uses(cluster: &Cluster, rules: u8) {
    for node in cluster.nodes.values() {
        let handle = node.handle();
        until("the rules are in use", || handle.view(|table| table.rules()) == rules).await;
    }
}

#[tokio::test]
async fn a_new_cluster_has_the_newest_rules_that_all_its_members_support() {
    uses(&found([NEW, OLD, NEW]).await, 1).await;
    let cluster = found([NEW, NEW, NEW]).await;
    uses(&cluster, 2).await;
    grant(&cluster.handle(3), 1, "a").await;
}

#[tokio::test]
async fn the_rules_are_raised_once_all_members_support_them_and_no_older_program_starts_then() {
    let mut cluster = found([NEW, NEW, OLD]).await;
    let handle = cluster.handle(2);
    for check in [true, false] {
        let reason = refusal(handle.upgrade(None, check).await);
        assert!(reason.starts_with("node 3 runs ringfence ") && reason.contains("rules 1 to 1"), "{reason}");
    }
    assert_eq!(handle.upgrade(Some(1), false).await, Ok(Upgraded { from: 1, to: 1 }));
    cluster.nodes.remove(&3).unwrap().stop().await;
    let reason = refusal(handle.upgrade(None, false).await);
    assert!(reason.starts_with("no answer from node 3"), "{reason}");

    // Until the rules are raised, going back is free.
    let node = start(&cluster, 3, NEW).await.unwrap();
    cluster.nodes.insert(3, node);
    until("node 3 is known", || handle.status().rules_supported == Some(2)).await;
    for rules in [OLD, NEW] {
        restart(&mut cluster, 3, rules).await;
        grant(&cluster.handle(3), rules.newest.into(), &format!("key-{}", rules.newest)).await;
    }
    until("node 3 is known", || handle.status().rules_supported == Some(2)).await;
    assert_eq!(handle.upgrade(None, true).await, Ok(Upgraded { from: 1, to: 2 }));
    uses(&cluster, 1).await;

    // What is proposed at the same time is decided by the one rules or the other, and alike everywhere.
    let busy = (1..=3).flat_map(|node| {
        let handle = cluster.handle(node);
        (0..200u64).map(move |n| {
            let (handle, lease) = (handle.clone(), node * 1_000 + n);
            async move { one(&handle, acquire(lease.into(), &format!("busy-{lease}"), 0)).await }
        })
    });
    let (upgraded, outcomes) = tokio::join!(handle.upgrade(None, false), join_all(busy));
    assert_eq!(upgraded, Ok(Upgraded { from: 1, to: 2 }));
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Granted(_))));
    uses(&cluster, 2).await;
    assert_eq!(handle.upgrade(None, false).await, Ok(Upgraded { from: 2, to: 2 }));
    assert!(refusal(handle.upgrade(Some(1), false).await).contains("never lowered"));

    cluster.nodes.remove(&3).unwrap().stop().await;
    // Wherever the entry stands by now, a restart finds it committed after the next.
    grant(&handle, 9, "next").await;
    let Err(error) = start(&cluster, 3, OLD).await else { panic!("it starts") };
    assert!(matches!(error, StartError::Rules(_)), "{error}");
    assert_eq!(
        error.to_string(),
        "this cluster uses rules 2, and this program supports rules 1 to 1: start the version of ringfence that the other \
         members run, or a newer one"
    );
    let node = start(&cluster, 3, NEW).await.unwrap();
    let back = node.handle();
    until("it catches up", || back.view(|table| table.lease(None, id(9), None).is_ok())).await;
}

/// Sets the lock `name`, as a node does for a client of the Redis protocol.
async fn set(handle: &Handle, lease: u128, name: &str) -> Token {
    let change = KeyChange::Acquire {
        key: Key::new(name).unwrap(),
        lease_id: id(lease),
        ttl: Ttl::default(),
        value: Value::new(b"v").unwrap(),
        holder: None,
        attachment: Attachment(1),
    };
    let set = Conditional::new(Vec::new(), vec![change]).unwrap();
    match one(handle, Command::Conditional(Box::new(set))).await {
        Outcome::Changed(grants) => grants[0].token,
        other => panic!("{other:?}"),
    }
}

/// An older program made the key `50%25off` of `50%off`. Under the new rules, that name would be another key, and could be granted twice.
#[tokio::test]
async fn the_rules_are_not_raised_while_a_lock_has_a_key_that_its_name_would_not_be() {
    let (before, after) =
        (RulesRange { oldest: 1, newest: NAMES - 1 }, RulesRange { oldest: 1, newest: NAMES });
    let mut cluster = found([before, before, before]).await;
    // Keys as over HTTP, or of a name that means the same.
    grant(&cluster.handle(1), 1, "db1/http").await;
    set(&cluster.handle(1), 2, "same").await;
    let token = set(&cluster.handle(1), 3, "50%25off").await;
    for id in 1..=3 {
        restart(&mut cluster, id, after).await;
    }
    let handle = cluster.handle(2);
    until("all programs are known", || handle.status().rules_supported == Some(NAMES)).await;
    for check in [true, false] {
        let reason = refusal(handle.upgrade(None, check).await);
        assert!(
            reason.contains("50%25off") && reason.contains("wait until they end, or revoke them"),
            "{reason}"
        );
    }
    let revoke = Command::Revoke { key: Key::new("50%25off").unwrap(), token };
    assert_eq!(one(&handle, revoke).await, Outcome::Done);
    assert_eq!(handle.upgrade(None, false).await, Ok(Upgraded { from: NAMES - 1, to: NAMES }));
    uses(&cluster, NAMES).await;
}

/// A caller with a member's name once could say that the member is another program, and so keep the rules from being raised, or
/// have them raised too early.
#[tokio::test]
async fn only_a_member_at_its_address_says_which_program_it_is() {
    let cluster = found([NEW, NEW, NEW]).await;
    let first = cluster.handle(1);
    until("all programs are known", || first.status().rules_supported == Some(2)).await;
    let name = Name::of(&cluster.dir.path().join("2"), 2);
    // It says nothing of its program, as those do that support rules 1 only.
    assert!(Stranger::call(&cluster.network, 1, stranger::VOTES, &name).await.is_some());
    assert_eq!(first.status().rules_supported, Some(2));
}

#[tokio::test]
async fn a_node_that_does_not_support_the_rules_is_not_added() {
    let cluster = found([NEW, NEW, NEW]).await;
    let join = |rules| {
        let given = settings(4, cluster.dir.path().join("4"), cluster.network.port(&address(4)), 4);
        tokio::spawn(Node::start(Settings { rules, join: true, ..given }))
    };
    let old = join(OLD);
    let added = async || {
        loop {
            let added = cluster.handle(1).add_member(4, address(4)).await;
            if !added.as_ref().is_err_and(|error| error.to_string().contains("does not answer")) {
                return added;
            }
        }
    };
    let reason = refusal(added().await);
    assert!(reason.contains("supports rules 1 to 1, and this cluster uses rules 2"), "{reason}");
    old.abort();
    assert!(old.await.is_err());

    let new = join(NEW);
    added().await.unwrap();
    let node = new.await.unwrap().unwrap();
    let handle = node.handle();
    until("it has caught up", || handle.view(|table| table.rules()) == 2).await;
}
