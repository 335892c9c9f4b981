//! Each nemesis runs once against a real cluster, and must have an effect; then the cluster heals, and all logs agree.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use ringfence_harness::{Answered, Client, Fate, Load, Node, clock_is_off, definite, try_once, until};
use ringfence_jepsen::clock::Clock;
use ringfence_jepsen::faults::carry_out;
use ringfence_jepsen::field::{Field, FieldOptions};
use ringfence_jepsen::nemesis::Nemesis;
use ringfence_jepsen::pauses::Pauses;
use ringfence_jepsen::plan::{Aim, Deed, Plan, Shape, Step};
use ringfence_laws::history::{End, Fault};
use ringfence_wire::{LeaseId, Token};

/// Far longer than anything here takes.
const SOON: Duration = Duration::from_secs(60);
/// The duration of a fault whose effect is observed meanwhile.
const LONG: Duration = Duration::from_secs(8);

fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let given = || std::env::var_os("RINGFENCE_UNDER_TEST").map(PathBuf::from);
    PROGRAM
        .get_or_init(|| given().unwrap_or_else(|| ringfence_patched::program::build(false).unwrap()))
        .clone()
}

/// A field for these nemeses, if this machine has what they need.
async fn field(nemeses: &[Nemesis], change: impl FnOnce(&mut FieldOptions)) -> Option<Field> {
    let mut options = FieldOptions { nemeses: nemeses.to_vec(), ..FieldOptions::new(program(), 3) };
    change(&mut options);
    if let Some(why) = nemeses.iter().find_map(|nemesis| nemesis.suits(options.redis).err()) {
        eprintln!("skipped: {why}");
        return None;
    }
    Some(Field::set_up(&options).await.unwrap())
}

/// Injects one fault for at least `lasts`, and runs `meanwhile` concurrently.
async fn during(
    field: &Field,
    deed: Deed,
    aim: Aim,
    lasts: Duration,
    meanwhile: impl Future<Output = ()>,
) -> Fault {
    let plan = Plan::of(vec![Step { at: Duration::ZERO, lasts, deed, aim }]);
    let (clock, pauses) = (Clock::start(), Pauses::new());
    let (carried, ()) = tokio::join!(carry_out(&plan, field, clock, &pauses), meanwhile);
    assert_eq!(carried.failed, Vec::<String>::new());
    let [fault] = carried.faults.try_into().unwrap();
    eprintln!("{:.1} s: {}", (fault.to_us - fault.from_us) as f64 / 1e6, fault.what);
    fault
}

async fn once(field: &Field, deed: Deed, aim: Aim, lasts: Duration) -> Fault {
    during(field, deed, aim, lasts, async {}).await
}

/// Heals the field, and checks that all nodes serve, have equal states, and did nothing wrong. Returns the final state.
async fn ends_well(field: Field) -> End {
    field.heal().await.unwrap();
    let (store, mut end) = (tempfile::tempdir().unwrap(), End::default());
    field.finish(&mut end, store.path()).await.unwrap();
    for node in &end.nodes {
        assert!(node.serves && node.panics.is_empty(), "{node:?}");
        assert!(store.path().join(format!("node-{}.log", node.id)).exists());
    }
    let last = |node: usize| end.nodes[node].states.last_key_value().unwrap();
    assert!(last(0) == last(1) && last(1) == last(2), "{:?}", end.nodes);
    assert!(end.nodes[0].states.len() > 1, "{:?}", end.nodes);
    assert_eq!(end.missing, [""; 0]);
    end
}

async fn leader(field: &Field) -> u64 {
    field.cluster().leader().await.unwrap().id()
}

/// Acquires a lease, however long that takes.
async fn grants(client: &Client) -> (LeaseId, Token) {
    let lease = LeaseId::random();
    (lease, token(client, lease).await)
}

/// The token of a lease, which is acquired unless it was before.
async fn token(client: &Client, lease: LeaseId) -> Token {
    let wish = try_once(&format!("asked/{lease}"));
    let reply = definite(SOON, || client.acquire(lease, &wish)).await.unwrap();
    Ok(reply).done().grant().unwrap().token
}

/// Checks that all leases are still granted, at every node.
async fn stand(field: &Field, granted: &[(LeaseId, Token)]) {
    for node in field.cluster().nodes() {
        for (lease, granted) in granted {
            assert_eq!(token(&node.client(), *lease).await, *granted);
        }
    }
}

/// Waits until a client's acquire fails within a second.
async fn does_not_grant(client: &Client) {
    // Too much for a half-open link.
    let name = format!("refused/{}", "x".repeat(400));
    let client = client.within(Duration::from_secs(1));
    let fails = async || {
        let lease = LeaseId::random();
        let came = client.acquire(lease, &try_once(&format!("{name}/{lease}"))).await;
        came.err().map(|failure| assert_ne!(failure.fate, Fate::Malformed))
    };
    until(SOON, "it does not grant", fails).await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn nodes_are_killed_and_stopped_and_the_leadership_is_transferred() {
    let Some(field) = field(&[Nemesis::Kill, Nemesis::Pause, Nemesis::Transfer], |_| {}).await else {
        return;
    };
    let pids = || field.cluster().nodes().iter().map(Node::pid).collect::<Vec<_>>();
    let before = pids();
    let is_dead = || std::future::ready((field.cluster().node(2).pid().is_none()).then_some(()));
    let meanwhile = async { until(SOON, "node 2 is dead", is_dead).await.unwrap() };
    during(&field, Deed::Plain(Nemesis::Kill), Aim::Nodes(vec![2]), LONG / 2, meanwhile).await;
    let after = pids();
    assert!(after[0] == before[0] && after[1] != before[1] && after[1].is_some() && after[2] == before[2]);
    field.heal().await.unwrap();

    let first = leader(&field).await;
    let meanwhile = async {
        does_not_grant(&field.client(first)).await;
        grants(&field.client(first % 3 + 1)).await;
    };
    let fault = during(&field, Deed::Plain(Nemesis::Pause), Aim::Leader(vec![first]), LONG, meanwhile).await;
    assert_eq!(fault.nodes, [first]);
    field.heal().await.unwrap();

    let first = leader(&field).await;
    let meanwhile = async {
        grants(&field.client(first % 3 + 1)).await;
    };
    let fault =
        during(&field, Deed::Plain(Nemesis::LeaderPause), Aim::Leader(vec![first]), LONG, meanwhile).await;
    assert_eq!(fault.nodes, [first]);
    assert_ne!(leader(&field).await, first);
    field.heal().await.unwrap();

    let first = leader(&field).await;
    let order = vec![first, first % 3 + 1, (first + 1) % 3 + 1];
    let meanwhile = async {
        does_not_grant(&field.client(first)).await;
        field.client(first).cluster().await.unwrap();
    };
    let fault =
        during(&field, Deed::Plain(Nemesis::LoneLeader), Aim::Leader(order.clone()), LONG, meanwhile).await;
    assert_eq!(fault.nodes, order[1..]);
    field.heal().await.unwrap();

    let first = leader(&field).await;
    let fault = once(&field, Deed::Plain(Nemesis::Transfer), Aim::Nodes(vec![first]), Duration::ZERO).await;
    assert!(fault.what.ends_with("204"), "{fault:?}");
    assert_eq!(fault.nodes, [leader(&field).await]);
    assert_ne!(fault.nodes, [first]);
    ends_well(field).await;
}

/// Regression: its old process voted as if it were the new one, and a grant was lost.
#[tokio::test]
#[ignore = "slow"]
async fn a_node_that_is_replaced_while_it_is_frozen_has_no_vote_when_it_wakes_up() {
    let Some(field) = field(&[Nemesis::Replace], |_| {}).await else { return };
    let load = Load::start(field.cluster(), "load");
    load.more(50).await.unwrap();
    let mut granted = vec![grants(&field.client(1)).await];
    let (node, at) = (field.cluster().node(1), field.cluster().node(1).http());
    let fault = once(&field, Deed::Plain(Nemesis::Replace), Aim::Nodes(vec![1]), LONG).await;
    assert!(fault.what.contains("elections from term"), "{fault:?}");
    assert_ne!(node.http(), at);
    granted.push(grants(&field.client(1)).await);
    // The old process still runs; the new one is restarted.
    once(&field, Deed::Plain(Nemesis::Kill), Aim::Nodes(vec![1]), Duration::ZERO).await;
    field.heal().await.unwrap();
    drop(load.end().await);
    stand(&field, &granted).await;
    ends_well(field).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn nodes_that_lose_their_data_are_refused_and_rejoin_as_new_members() {
    let Some(field) = field(&[Nemesis::Wipe, Nemesis::BitFlip], |_| {}).await else { return };
    let load = Load::start(field.cluster(), "load");
    load.more(50).await.unwrap();
    let mut granted = vec![grants(&field.client(1)).await];
    once(&field, Deed::Plain(Nemesis::Wipe), Aim::Nodes(vec![1]), LONG).await;
    let log = field.cluster().node(1).log();
    assert!(log.contains("was emptied or exchanged"), "{log}");
    granted.push(grants(&field.client(1)).await);
    let fault = once(&field, Deed::FlipBit { draw: 7 }, Aim::Nodes(vec![2]), Duration::ZERO).await;
    let log = field.cluster().node(2).log();
    assert!(log.lines().any(|line| line.starts_with("ringfence: ") && line.contains(" at byte ")), "{log}");
    assert!(fault.what.contains("byte"), "{fault:?}");
    granted.push(grants(&field.client(2)).await);
    field.heal().await.unwrap();
    drop(load.end().await);
    stand(&field, &granted).await;
    let changes = ends_well(field).await.changes;
    for (lease, token) in granted {
        assert!(changes.iter().any(|change| (change.lease_id, change.token) == (lease, Some(token))));
    }
}

async fn links(root: bool) {
    if root && !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let nemeses = [Nemesis::Partition, Nemesis::SlowLinks, Nemesis::HalfOpen];
    let Some(field) = field(&nemeses, |options| options.root = root).await else { return };
    for shape in [Shape::Isolated, Shape::Deaf] {
        let first = leader(&field).await;
        let order = vec![first, first % 3 + 1, (first + 1) % 3 + 1];
        let meanwhile = async {
            does_not_grant(&field.client(first)).await;
            grants(&field.client(first % 3 + 1)).await;
        };
        during(&field, Deed::Partition(shape), Aim::Leader(order), LONG, meanwhile).await;
        field.heal().await.unwrap();
    }
    let (client, dropped) = (field.client(1), || field.dropped().unwrap());
    let before = dropped();
    let meanwhile = async {
        for _ in 0..10 {
            grants(&client).await;
        }
    };
    during(&field, Deed::Plain(Nemesis::SlowLinks), Aim::Nodes(vec![1, 2, 3]), LONG, meanwhile).await;
    assert!(dropped() > before);
    field.heal().await.unwrap();
    let first = leader(&field).await;
    let meanwhile = async { does_not_grant(&field.client(first)).await };
    during(&field, Deed::Plain(Nemesis::HalfOpen), Aim::Nodes(vec![first]), LONG, meanwhile).await;
    ends_well(field).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn links_are_cut_and_slow_and_half_open_between_namespaces() {
    links(true).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn links_are_cut_and_slow_and_half_open_on_loopback() {
    links(false).await;
}

async fn sees(node: &Node, by_s: i64) {
    clock_is_off(node, by_s, SOON).await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn the_wall_clock_jumps_and_returns() {
    let Some(field) = field(&[Nemesis::WallClock], |options| options.root = false).await else { return };
    let node = field.cluster().node(1);
    let jump = Deed::JumpWallClock { by_s: 36_000 };
    during(&field, jump, Aim::Nodes(vec![1]), LONG, sees(node, 36_000)).await;
    sees(node, 0).await;
    let strobe = Deed::StrobeWallClock { by_s: -36_000 };
    let both = async {
        sees(node, -36_000).await;
        sees(node, 0).await;
        sees(node, -36_000).await;
    };
    during(&field, strobe, Aim::Nodes(vec![1]), LONG, both).await;
    ends_well(field).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn the_monotonic_clock_of_a_leader_jumps_by_an_hour() {
    let Some(field) = field(&[Nemesis::MonotonicClock], |_| {}).await else { return };
    let first = leader(&field).await;
    let jump = Deed::JumpMonotonicClock { by_s: 3_600 };
    once(&field, jump, Aim::Leader(vec![first]), Duration::ZERO).await;
    // Some event was an hour late.
    let is_late = async || {
        let longest = field.client(first).metric("ringfence_loop_lag_longest_seconds").await.unwrap();
        (longest? > 3_000.0).then_some(())
    };
    until(SOON, "the node measures a delay of an hour", is_late).await.unwrap();
    grants(&field.client(first)).await;
    ends_well(field).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn disks_are_full_fail_and_are_slow_and_crashes_lose_unsynced_data() {
    let nemeses =
        [Nemesis::FullDisk, Nemesis::FailingFlush, Nemesis::SlowFlush, Nemesis::PowerCut, Nemesis::TornTail];
    let Some(field) = field(&nemeses, |_| {}).await else { return };
    let mut granted = vec![grants(&field.client(1)).await];
    let fault = once(&field, Deed::Plain(Nemesis::FullDisk), Aim::Nodes(vec![1]), LONG).await;
    assert!(fault.what.ends_with("node 1 stopped of itself"), "{fault:?}");
    let log = field.cluster().node(1).log();
    assert!(log.contains("No space left on device"), "{log}");
    field.heal().await.unwrap();

    let load = Load::start(field.cluster(), "load");
    load.more(50).await.unwrap();
    let fault = once(&field, Deed::Plain(Nemesis::FailingFlush), Aim::Leader(vec![2]), SOON / 4).await;
    let log = field.cluster().node(fault.nodes[0]).log();
    assert!(log.contains("Input/output error"), "{log}");
    field.heal().await.unwrap();

    let fault = once(&field, Deed::SlowFlush { by_ms: 200 }, Aim::Nodes(vec![3]), LONG).await;
    assert!(!fault.what.ends_with(": 0 of them"), "{fault:?}");

    let unsynced = field.cluster().node(2).data().join("unsynced");
    granted.push(grants(&field.client(2)).await);
    std::fs::write(&unsynced, "this was never synced").unwrap();
    once(&field, Deed::Plain(Nemesis::PowerCut), Aim::Nodes(vec![1, 2, 3]), Duration::ZERO).await;
    assert!(!unsynced.exists());
    field.heal().await.unwrap();

    // A tear that removes all sectors of a flush leaves no trace.
    for draw in 0.. {
        granted.push(grants(&field.client(1)).await);
        let fault = once(&field, Deed::TearTail { draw }, Aim::Nodes(vec![1]), Duration::ZERO).await;
        field.heal().await.unwrap();
        let words: Vec<&str> = fault.what.split(' ').collect();
        let [gone, of] = [words[6], words[9]].map(|word| word.parse::<u64>().unwrap());
        if gone < of {
            let log = field.cluster().node(1).log();
            assert!(log.contains("torn"), "{}\n{log}", fault.what);
            break;
        }
    }
    load.more(50).await.unwrap();
    drop(load.end().await);
    stand(&field, &granted).await;
    ends_well(field).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn redis_is_killed_emptied_stopped_and_rolled_back() {
    let nemeses = [Nemesis::RedisKill, Nemesis::RedisEmpty, Nemesis::RedisStop, Nemesis::RedisRollback];
    let Some(field) = field(&nemeses, |options| options.redis = true).await else { return };
    let redis = field.redis().unwrap();
    let get = async || redis.command(["get", "mark"]).await.unwrap();
    redis.command(["set", "mark", "old"]).await.unwrap();
    let meanwhile = async {
        until(SOON, "Redis is dead", async || redis.command(["ping"]).await.err()).await.map(drop).unwrap()
    };
    during(&field, Deed::Plain(Nemesis::RedisKill), Aim::Elsewhere, LONG / 2, meanwhile).await;
    assert_eq!(get().await, "old");
    // Counts until Redis goes back to an earlier count.
    let counted = Cell::new(0);
    let is_back = async || {
        let count = redis.command(["incr", "count"]).await.ok().and_then(|count| count.parse::<u64>().ok());
        counted.set(counted.get() + 1);
        (count != Some(counted.get())).then_some(())
    };
    let meanwhile = async { until(SOON, "Redis is rolled back", is_back).await.map(drop).unwrap() };
    during(&field, Deed::Plain(Nemesis::RedisRollback), Aim::Elsewhere, LONG / 2, meanwhile).await;
    let count: u64 = redis.command(["incr", "count"]).await.unwrap().parse().unwrap();
    assert!(count < counted.get(), "{count} is not before {}", counted.get());
    assert_eq!(get().await, "old");
    let stopped = async {
        let ping = async || tokio::time::timeout(LONG / 8, redis.command(["ping"])).await.err();
        until(SOON, "Redis does not answer", ping).await.map(drop).unwrap();
    };
    during(&field, Deed::Plain(Nemesis::RedisStop), Aim::Elsewhere, LONG, stopped).await;
    assert_eq!(get().await, "old");
    once(&field, Deed::Plain(Nemesis::RedisEmpty), Aim::Elsewhere, Duration::ZERO).await;
    assert_eq!(get().await, "");
    ends_well(field).await;
}
