//! Commands that only newer rules have, in clusters whose nodes run programs of two versions.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use ringfence_lease::{Command, Condition, Conditional, Outcome, Refusal};
use ringfence_raft::{DirError, Handle, InspectError, Node, NodeId, Says, Settings, StartError, StoppedNode};
use ringfence_wire::{Key, RulesRange, Upgraded};
use tempfile::TempDir;
use tokio::task::yield_now;

use crate::support::network::{FORWARDS, Network, Way};
use crate::support::{Cluster, acquire, address, grant, id, lead, one, settings, until};

const OLD: RulesRange = RulesRange { oldest: 1, newest: 3 };
const NEW: RulesRange = RulesRange { oldest: 1, newest: 4 };
/// How often each node is asked while the rules are raised.
const ASKED: u64 = 200;

/// A command of the newest rules. It changes nothing.
fn change() -> Command {
    let conditions = vec![(Key::new("free").unwrap(), Condition::Free)];
    Command::Conditional(Box::new(Conditional::new(conditions, Vec::new()).unwrap()))
}

fn done() -> Outcome {
    Outcome::Changed(Vec::new())
}

fn not_yet() -> Outcome {
    Outcome::Refused(Refusal::NotYet { rules: OLD.newest, since: NEW.newest })
}

/// The settings of a node that runs the old program, or the new one.
fn of(dir: &TempDir, network: &Network, node: NodeId, is_new: bool) -> Settings {
    let given = settings(node, dir.path().join(node.to_string()), network.port(&address(node)), 3);
    match is_new {
        true => Settings { rules: NEW, ..given },
        // An old program knows no newer commands, so it withholds none that it gets.
        false => Settings { rules: OLD, since: |_| OLD.oldest, ..given },
    }
}

/// Founds a cluster of three nodes, under the newest rules of the old program. The first two run the new one.
async fn found() -> Cluster {
    let (network, dir) = (Network::new(Duration::ZERO), TempDir::new().unwrap());
    let starts = (1..=3).map(|node| {
        let settings = of(&dir, &network, node, node < 3);
        async move { (node, Node::start(settings).await.unwrap()) }
    });
    let nodes: BTreeMap<NodeId, Node> = join_all(starts).await.into_iter().collect();
    let cluster = Cluster { dir, nodes, network };
    for node in 1..=3 {
        let handle = cluster.handle(node);
        until("the cluster has started", || handle.view(|table| table.started())).await;
        assert_eq!(handle.view(|table| table.rules()), OLD.newest);
    }
    cluster
}

async fn restart(cluster: &mut Cluster, node: NodeId, is_new: bool) {
    cluster.nodes.remove(&node).unwrap().stop().await;
    let started = loop {
        match Node::start(of(&cluster.dir, &cluster.network, node, is_new)).await {
            // Until a snapshot is read or written.
            Err(StartError::Dir(DirError::InUse(_))) => yield_now().await,
            started => break started.unwrap(),
        }
    };
    cluster.nodes.insert(node, started);
}

/// Stops all nodes. Returns how many changes each of their logs has. None may be in an entry whose rules do not have it.
async fn changes(cluster: Cluster) -> Vec<usize> {
    let mut changes = Vec::new();
    for (node, running) in cluster.nodes {
        running.stop().await;
        let stopped = loop {
            match StoppedNode::open(&cluster.dir.path().join(node.to_string())) {
                // Until a snapshot is read or written.
                Err(InspectError::Dir(DirError::InUse(_))) => yield_now().await,
                opened => break opened.unwrap(),
            }
        };
        let mut count = 0;
        for entry in stopped.log().unwrap().entries {
            let Says::Commands { rules, requests, .. } = entry.says else { continue };
            for command in requests.iter().flat_map(|request| &request.commands) {
                assert!(command.since() <= rules, "node {node} has it under rules {rules}: {command:?}");
                count += usize::from(matches!(command, Command::Conditional(_)));
            }
        }
        changes.push(count);
    }
    changes
}

/// Commands of old rules beside new ones, alone and together.
async fn asks_for_both(handle: &Handle, first: u128) {
    let key = |lease: u128| format!("key-{lease}");
    let commands = vec![
        change(),
        acquire(first, &key(first), 0),
        change(),
        change(),
        acquire(first + 1, &key(first + 1), 0),
    ];
    let outcomes = handle.propose(commands).await.unwrap();
    let is_granted = |outcome: &Outcome| matches!(outcome, Outcome::Granted(_));
    assert_eq!([0, 2, 3].map(|place| outcomes[place].clone()), [not_yet(), not_yet(), not_yet()]);
    assert!(outcomes.len() == 5 && [1, 4].iter().all(|place| is_granted(&outcomes[*place])), "{outcomes:?}");
    assert_eq!(handle.propose(vec![change()]).await, Ok(vec![not_yet()]));
}

/// Followers of the old program once stopped at it, and a leader of the old program closed the connection on which it came.
#[tokio::test]
async fn only_the_new_command_of_a_request_is_refused_until_the_rules_are_raised() {
    let mut cluster = found().await;
    let first = cluster.handle(1);
    for leader in [1, 3, 2] {
        lead(&first, leader).await;
        for through in [1, 2] {
            asks_for_both(&cluster.handle(through), u128::from(100 * leader + 10 * through)).await;
        }
        grant(&cluster.handle(3), u128::from(leader), &format!("old-{leader}")).await;
    }
    // It was known as the old program. So was the leader that it becomes.
    lead(&first, 3).await;
    restart(&mut cluster, 3, true).await;
    lead(&first, 3).await;
    asks_for_both(&first, 900).await;
    until("all are known as new", || cluster.handle(3).status().rules_supported == Some(NEW.newest)).await;
    assert_eq!(first.upgrade(None, false).await, Ok(Upgraded { from: 3, to: 4 }));
    for through in 1..=3 {
        assert_eq!(one(&cluster.handle(through), change()).await, done());
    }
    // Wherever the last of them stands by now, this entry shows it committed.
    grant(&first, 999, "last").await;
    let applied = |node| cluster.handle(node).view(|table| table.lease(None, id(999), None).is_ok());
    until("all have applied it", || (1..=3).all(applied)).await;
    assert_eq!(changes(cluster).await, [3, 3, 3]);
}

#[tokio::test]
async fn a_new_command_that_is_under_way_while_the_rules_are_raised_is_done() {
    let mut cluster = found().await;
    restart(&mut cluster, 3, true).await;
    let leader = cluster.handle(1);
    lead(&leader, 1).await;
    let follower = cluster.handle(2);
    until("it follows", || follower.status().leader == Some(1)).await;
    // Its connection is open, so the command waits in the network.
    assert_eq!(one(&follower, change()).await, not_yet());
    cluster.network.hold(&address(2), &address(1), [FORWARDS], Way::There);
    let raised = async {
        let upgraded = async || leader.upgrade(None, false).await;
        while upgraded().await.is_err() {
            tokio::task::yield_now().await;
        }
        cluster.network.heal();
    };
    let (outcome, ()) = tokio::join!(one(&follower, change()), raised);
    assert_eq!(outcome, done());
}

#[tokio::test]
async fn a_new_command_is_refused_or_done_while_the_rules_are_raised_and_done_from_then_on() {
    let mut cluster = found().await;
    restart(&mut cluster, 3, true).await;
    let first = cluster.handle(1);
    until("all are known as new", || first.status().rules_supported == Some(NEW.newest)).await;
    let asking = (1..=3).map(|node| {
        let handle = cluster.handle(node);
        async move {
            let mut count = 0;
            for _ in 0..ASKED {
                let outcome = one(&handle, change()).await;
                assert!(outcome == done() || outcome == not_yet() && count == 0, "{outcome:?} after {count}");
                count += u64::from(outcome == done());
            }
            // The raise may have come last.
            while count == 0 {
                count += u64::from(one(&handle, change()).await == done());
            }
            count
        }
    });
    let (upgraded, counts) = tokio::join!(first.upgrade(None, false), join_all(asking));
    assert_eq!(upgraded, Ok(Upgraded { from: 3, to: 4 }));
    grant(&first, 999, "last").await;
    let applied = |node| cluster.handle(node).view(|table| table.lease(None, id(999), None).is_ok());
    until("all have applied it", || (1..=3).all(applied)).await;
    assert_eq!(changes(cluster).await, [counts.iter().sum::<u64>() as usize; 3]);
}
