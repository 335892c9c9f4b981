//! Watches: every change once and in order, at any node, across lists, kills and snapshots.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_harness::{
    Answered, Client, Consistency, Fate, Network, Node, Watch, Watched, Work, Workers, available, churn_past,
    definite, granted, key, queued, released, send_acquire, take, try_once, until, wait_for,
};
use ringfence_wire::WatchEventName::{Expired, Granted, Left, Queued, Released, Revoked};
use ringfence_wire::{
    AcquireRequest, CutOffReason, EndReason, Holder, Key, LeaseId, Mode, ProblemKind, Revision, Token, Ttl,
    WantedKey, WatchEvent, WatchEventName,
};
use tokio::time::timeout;

use crate::members::remove;
use crate::support::{SOON, cluster};

async fn watch(node: &Node, prefix: &str, after: Option<Revision>) -> Watch {
    // A node without a leader may refuse at first.
    let watch = definite(SOON, || async { node.client().watch(prefix, after).await }).await;
    Ok(watch.unwrap()).done()
}

/// The next change.
async fn next(watch: &mut Watch) -> (WatchEventName, WatchEvent) {
    match timeout(SOON, watch.next()).await.expect("something happens").unwrap() {
        Some(Watched::Change(name, event)) => (name, event),
        other => panic!("expected a change, not {other:?}"),
    }
}

/// The changes up to and including revision `last`.
async fn changes_up_to(watch: &mut Watch, last: Revision) -> Vec<(WatchEventName, WatchEvent)> {
    let mut changes = Vec::new();
    while changes.last().is_none_or(|(_, event): &(_, WatchEvent)| event.revision < last) {
        changes.push(next(watch).await);
    }
    changes
}

async fn revision(node: &Node) -> Revision {
    node.client().patient().keys("no such key", None, Consistency::Linearizable).await.done().revision
}

fn of(keys: &[&str]) -> AcquireRequest {
    let claims = keys.iter().map(|name| WantedKey { key: key(name), mode: Mode::Exclusive });
    AcquireRequest { keys: claims.collect(), ..try_once("replaced") }
}

/// Checks that the revisions of `changes` start at `first` and have no gap.
fn assert_from(first: Revision, changes: &[(WatchEventName, WatchEvent)]) {
    for (revision, (_, event)) in (first.0..).zip(changes) {
        assert_eq!(event.revision.0, revision);
    }
}

#[tokio::test]
async fn every_node_sends_the_same_changes_in_order() {
    let cluster = cluster().start().await.unwrap();
    let [one, two, three] = [1, 2, 3].map(|id| cluster.node(id).client().patient());
    let begun = revision(cluster.node(1)).await;
    let mut early = watch(cluster.node(3), "", None).await;

    let first = LeaseId::random();
    let request = AcquireRequest { holder: Holder::new("first"), ..of(&["jobs/a", "jobs/b", "other"]) };
    let grant = granted(&one, first, &request).await;
    let gone = send_acquire(cluster.node(2).http(), LeaseId::random(), &wait_for("jobs/a", 60_000));
    queued(&three, "jobs/a", 1).await;
    let (patient, client) = (LeaseId::random(), two.clone());
    let waits = tokio::spawn(async move { granted(&client, patient, &wait_for("jobs/b", 60_000)).await });
    queued(&three, "jobs/b", 1).await;
    three.acquire(LeaseId::random(), &wait_for("jobs/b", 1)).await.refused(ProblemKind::WaitTimeout);
    drop(gone);
    queued(&three, "jobs/a", 0).await;
    one.release(first).await.done();
    let second = waits.await.unwrap();
    one.revoke(&key("jobs/b"), second.token).await.done();
    let short = AcquireRequest { ttl_ms: Ttl::from_ms(100).unwrap(), ..try_once("jobs/c") };
    granted(&three, LeaseId::random(), &short).await;
    let at = |number: u64| Token(begun.0 + number);
    let expected = [
        (Granted, None, Some(at(1)), vec![("jobs/a", at(1)), ("jobs/b", at(1)), ("other", at(1))]),
        (Queued, None, None, vec![("jobs/a", at(1))]),
        (Queued, None, None, vec![("jobs/b", at(1))]),
        (Queued, None, None, vec![("jobs/b", at(1))]),
        (Left, None, None, vec![("jobs/b", at(1))]),
        (Left, Some(EndReason::Abandoned), None, vec![("jobs/a", at(1))]),
        (
            Released,
            Some(EndReason::Released),
            Some(at(1)),
            vec![("jobs/a", at(8)), ("jobs/b", at(8)), ("other", at(8))],
        ),
        (Granted, None, Some(at(8)), vec![("jobs/b", at(8))]),
        (Revoked, Some(EndReason::Revoked), Some(at(8)), vec![("jobs/b", at(10))]),
        (Granted, None, Some(at(10)), vec![("jobs/c", at(10))]),
        (Expired, Some(EndReason::Expired), Some(at(10)), vec![("jobs/c", at(12))]),
    ];
    let last = Revision(begun.0 + expected.len() as u64);
    let told = changes_up_to(&mut early, last).await;
    let summary = |(name, event): &(WatchEventName, WatchEvent), prefix: &str| {
        let keys = event.keys.iter().filter(|it| it.key.as_str().starts_with(prefix));
        (*name, event.reason, event.token, keys.map(|it| (it.key.to_string(), it.fence)).collect::<Vec<_>>())
    };
    for (change, (name, reason, token, keys)) in told.iter().zip(expected) {
        let keys: Vec<_> = keys.into_iter().map(|(name, fence)| (name.to_owned(), fence)).collect();
        assert_eq!(summary(change, ""), (name, reason, token, keys));
    }
    assert_eq!((grant.token, &told[0].1.holder), (at(1), &request.holder));
    assert_from(begun.next(), &told);
    for node in cluster.nodes() {
        let mut late = watch(node, "", Some(begun)).await;
        assert_eq!(changes_up_to(&mut late, last).await, told, "node {}", node.id());
        // Of a lease with several keys, only those under the prefix.
        let mut jobs = watch(node, "jobs/", Some(begun)).await;
        let of_jobs = changes_up_to(&mut jobs, last).await;
        let expected: Vec<_> = told.iter().map(|change| summary(change, "jobs/")).collect();
        assert_eq!(of_jobs.iter().map(|change| summary(change, "")).collect::<Vec<_>>(), expected);
    }
}

/// Clients that acquire and release keys of their own, some two in a lease, until they are stopped: `each` of each node.
fn races<'a>(nodes: impl Iterator<Item = &'a Node>, each: usize) -> Workers {
    let clients: Vec<_> = nodes.map(Node::client).collect();
    Workers::start(clients.len() * each, |number, work| {
        race(clients[number % clients.len()].own_connections(), format!("race/{number}"), work)
    })
}

async fn race(client: Client, name: String, work: Work) {
    let mut slots = [None; 40];
    for turn in 0.. {
        if !work.goes_on() {
            return;
        }
        let place = (turn * 7 + turn / 40) % slots.len();
        match slots[place].take() {
            Some(lease) => released(&client, lease).await,
            None => {
                let names = [format!("{name}/{place}"), format!("{name}/{place}/more")];
                let names: Vec<_> = names.iter().map(String::as_str).take(1 + turn % 2).collect();
                let lease = LeaseId::random();
                granted(&client, lease, &of(&names)).await;
                slots[place] = Some(lease);
            }
        }
    }
}

/// The tokens of the holders by key.
type Held = BTreeMap<Key, BTreeSet<Token>>;

/// All pages of a list: the holders, the revision at which each key was read, and that of the first page.
async fn list(client: &Client, prefix: &str) -> (Held, BTreeMap<Key, Revision>, Revision) {
    let (mut held, mut read_at, mut after) = (Held::new(), BTreeMap::new(), None);
    loop {
        let page = client.keys(prefix, after.as_deref(), Consistency::Linearizable).await.done();
        for view in page.keys {
            let tokens: BTreeSet<_> = view.holders.iter().map(|holder| holder.token).collect();
            read_at.insert(view.key.clone(), view.revision);
            if !tokens.is_empty() {
                held.insert(view.key, tokens);
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return (held, read_at, page.revision),
        }
    }
}

#[tokio::test]
async fn a_list_and_then_a_watch_leave_no_gap() {
    let cluster = cluster().start().await.unwrap();
    let races = races(cluster.nodes().iter(), 3);
    let client = cluster.node(1).client().patient();
    let many = || async { (list(&client, "race/").await.0.len() > 150).then_some(()) };
    until(SOON, "a list has several pages", many).await.unwrap();
    // At each node, list and then watch, while the clients go on.
    let mut watched = Vec::new();
    for node in cluster.nodes() {
        let (held, read_at, listed) = list(&node.client().patient(), "race/").await;
        watched.push((node.id(), held, read_at, watch(node, "race/", Some(listed)).await));
    }
    let much = Revision(revision(cluster.node(1)).await.0 + 200);
    let happened = || async { (revision(cluster.node(1)).await >= much).then_some(()) };
    until(SOON, "many changes happen meanwhile", happened).await.unwrap();
    races.end().await;
    let (now, ..) = list(&client, "race/").await;
    let last = revision(cluster.node(1)).await;
    for (id, mut held, read_at, mut watch) in watched {
        for (name, event) in changes_up_to(&mut watch, last).await {
            for changed in event.keys {
                if read_at.get(&changed.key).is_some_and(|read_at| event.revision <= *read_at) {
                    continue;
                }
                let tokens = held.entry(changed.key.clone()).or_default();
                let token = event.token.expect("nobody waits here");
                match name {
                    Granted => tokens.insert(token),
                    _ => tokens.remove(&token),
                };
                if tokens.is_empty() {
                    held.remove(&changed.key);
                }
            }
        }
        assert_eq!(held, now, "node {id}");
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_watch_goes_on_at_another_node_when_its_own_is_killed() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let begun = revision(cluster.node(leader)).await;
    let races = races(cluster.others(leader), 4);
    let (mut changes, mut at) = (Vec::new(), leader);
    let mut current = watch(cluster.node(leader), "", Some(begun)).await;
    for _ in 0..3 {
        for _ in 0..200 {
            changes.push(next(&mut current).await);
        }
        // While some changes are in flight.
        cluster.node(at).kill().unwrap();
        loop {
            match timeout(SOON, current.next()).await.expect("the stream breaks off") {
                Ok(Some(Watched::Change(name, event))) => changes.push((name, event)),
                Err(failure) if failure.fate == Fate::Unknown => break,
                other => panic!("{other:?}"),
            }
        }
        let other = cluster.others(at).find(|node| node.pid().is_some()).unwrap();
        assert_eq!(current.last(), changes.last().map(|(_, event)| event.revision));
        current = watch(other, "", current.last()).await;
        // After a restart, its history is what its log contains.
        cluster.node(at).start().unwrap();
        cluster.ready().await.unwrap();
        at = other.id();
    }
    races.end().await;
    let last = revision(cluster.node(at)).await;
    changes.extend(changes_up_to(&mut current, last).await);
    assert_from(begun.next(), &changes);
    assert_eq!(changes.last().unwrap().1.revision, last);
    for node in cluster.nodes() {
        let mut all = watch(node, "", Some(begun)).await;
        assert_eq!(changes_up_to(&mut all, last).await, changes, "node {}", node.id());
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn changes_that_no_node_has_are_history_gone_and_later_ones_are_sent() {
    const AFTER: u64 = 1 << 20;
    let Some(network) = available(Network::new(3)) else { return };
    let cluster = cluster().network(&network).argument(format!("--snapshot-after-bytes={AFTER}"));
    let cluster = cluster.start().await.unwrap();
    let begun = revision(cluster.node(1)).await;
    let leads = cluster.leader().await.unwrap();
    let leader = leads.id();
    let behind = cluster.others(leader).next().unwrap();
    let mut passed_over = watch(behind, "", None).await;
    take(&behind.client(), "seen").await;
    assert_eq!(next(&mut passed_over).await.0, Granted);
    let seen = passed_over.last();
    behind.stop().unwrap();
    // Otherwise its kernel would buffer as much as it needs to catch up.
    network.isolate(behind.id()).unwrap();
    // While entries are in flight to it, the leader keeps all later ones.
    let lost = format!("peer cannot be reached peer={}", behind.id());
    let lost = || async { leads.log().contains(&lost).then_some(()) };
    until(SOON, "the leader gives up the connection", lost).await.unwrap();
    churn_past(&cluster, "without").await;
    network.heal().unwrap();
    behind.resume().unwrap();
    cluster.caught_up(SOON).await.unwrap();
    behind.tells("snapshot installed").await.unwrap();
    // Changes that were sent before it was stopped may still arrive.
    let cut_off = loop {
        match timeout(SOON, passed_over.next()).await.expect("the watch goes on").unwrap() {
            Some(Watched::Change(..)) => {}
            Some(Watched::CutOff(cut_off)) => break cut_off,
            None => panic!("it ends without a reason"),
        }
    };
    assert_eq!((Some(cut_off.revision), cut_off.reason), (passed_over.last(), CutOffReason::StateReplaced));
    assert_eq!(passed_over.next().await.unwrap(), None);
    behind.client().watch("", passed_over.last()).await.refused(ProblemKind::HistoryGone);
    // The others still have it, until they restart from their snapshots.
    let other = cluster.others(leader).find(|node| node.id() != behind.id()).unwrap();
    let mut rest = watch(other, "", seen).await;
    assert_eq!(next(&mut rest).await.1.revision, seen.unwrap().next());
    other.restart().unwrap();
    other.ready().await.unwrap();
    other.tells("snapshot read").await.unwrap();
    for node in [behind, other] {
        let last = revision(node).await;
        for gone in [Revision(0), begun, last.next(), Revision(u64::MAX)] {
            node.client().watch("", Some(gone)).await.refused(ProblemKind::HistoryGone);
        }
        let mut latest = watch(node, "", Some(last)).await;
        let token = take(&node.client(), &format!("next/{}", node.id())).await.token;
        assert_eq!((next(&mut latest).await.1.token, token.0), (Some(token), last.next().0));
    }
}

#[tokio::test]
async fn without_a_quorum_a_watch_stays_open_and_no_new_one_starts() {
    let cluster = cluster().start().await.unwrap();
    let node = cluster.node(1);
    let mut stays = watch(node, "", None).await;
    let first = take(&node.client(), "before").await;
    let mut changes = vec![next(&mut stays).await];
    cluster.others(1).for_each(|other| other.kill().unwrap());
    let refused = node.client().watch("", None).await.failed();
    assert_eq!((refused.fate, refused.status()), (Fate::NotDone, Some(503)));
    cluster.all_ready().await.unwrap();
    let last = take(&node.client(), "after").await;
    changes.extend(changes_up_to(&mut stays, Revision(last.token.0)).await);
    assert_from(Revision(first.token.0), &changes);
}

/// It does not know that it was removed. Its signs of life once went on for ever.
#[tokio::test]
#[ignore = "slow"]
async fn a_watch_at_a_node_that_was_removed_ends_and_says_why() {
    let cluster = cluster().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let removed = cluster.others(leader.id()).next().unwrap();
    let begun = revision(removed).await;
    let mut unaware = watch(removed, "", Some(begun)).await;
    remove(leader, removed.id()).await;
    let change = take(&leader.client(), "after").await;
    match timeout(SOON, unaware.next()).await.expect("it ends").unwrap() {
        Some(Watched::CutOff(cut_off)) => {
            assert_eq!((cut_off.reason, cut_off.revision), (CutOffReason::NoContact, begun));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(unaware.next().await.unwrap(), None);
    let mut goes_on = watch(leader, "", Some(begun)).await;
    assert_eq!(next(&mut goes_on).await.1.token, Some(change.token));
}

#[tokio::test]
async fn a_node_that_stops_ends_its_watches_in_order() {
    let cluster = cluster().start().await.unwrap();
    let node = cluster.node(2);
    let mut watches = Vec::new();
    for number in 0..50 {
        watches.push(watch(node, &format!("watched/{number}"), None).await);
    }
    take(&node.client(), "watched/7").await;
    assert_eq!(next(&mut watches[7]).await.0, Granted);
    let status = node.terminate().await.unwrap();
    assert!(status.success(), "{status}");
    for mut watch in watches {
        assert_eq!(watch.next().await.unwrap(), None);
    }
    assert!(!node.log().contains("stopped although some requests had no response yet"), "{}", node.log());
}
