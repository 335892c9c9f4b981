//! Waiters at a node that is neither dead nor alive: a process that hangs, or a machine that vanishes without a word. Each
//! notices in time, and keeps its place.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ringfence_client::{Client, Consistency, Lease, Token};
use ringfence_harness::{
    Answered, Builder, Cluster, Frozen, Network, Node, Proxy, Watched, available, granted, try_once, until,
};
use ringfence_wire::LeaseId;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{PROGRAM, SOON};

/// A time-to-live longer than any test.
const LONG: Duration = Duration::from_secs(86_400);
/// How many keys there are. Each has a holder, a `lock` that waits, and one that comes later.
const KEYS: usize = 8;
/// Time is the subject: a waiter that notices nothing gets its lease when its PUT has waited for 30 s. About two seconds are
/// usual.
const UNNOTICED: Duration = Duration::from_secs(20);

fn builder() -> Builder {
    Cluster::builder(PROGRAM)
}

fn urls<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<String> {
    nodes.into_iter().map(Node::url).collect()
}

fn key(number: usize) -> String {
    format!("silent/{number}")
}

/// `ringfence lock` of one key, which prints its token.
fn lock(program: &mut Command, nodes: &[String], number: usize) -> Child {
    program.env("RINGFENCE_URLS", nodes.join(",")).args(["lock", &key(number), "--ttl", "60s"]);
    program.args(["--", "sh", "-c", "echo $RINGFENCE_TOKEN"]);
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    program.spawn().unwrap()
}

/// Waits until so many wait for each key.
async fn wait_for(client: &Client, waiters: usize) {
    for number in 0..KEYS {
        let look = async || {
            let view = client.key(key(number), Consistency::Linearizable).await.ok()?;
            (view.waiters.len() == waiters).then_some(())
        };
        until(SOON, format!("{waiters} wait for {}", key(number)), look).await.unwrap();
    }
}

async fn release(lease: Lease) {
    // After an error it goes on in the background.
    let _ = lease.release().await;
}

/// A holds, B waits by `ringfence lock`, and C queues up behind. Then `fall_silent` ends one node, for which the others elect a new
/// leader if need be, and A releases. Every B must be granted, soon, and before C. `program` makes the command of a B.
async fn go_on(
    cluster: &Cluster,
    others: &Client,
    program: impl Fn() -> Command,
    fall_silent: impl FnOnce(),
) {
    let acquire = |number| others.lock(key(number)).ttl(LONG).no_renew().acquire();
    let mut held = Vec::new();
    for number in 0..KEYS {
        held.push(acquire(number).await.unwrap());
    }
    let all = urls(cluster.nodes());
    // A client begins at its first URL: some wait at each node.
    let from = |number: usize| {
        let mut urls = all.clone();
        urls.rotate_left(number % all.len());
        urls
    };
    let locked: Vec<Child> = (0..KEYS).map(|number| lock(&mut program(), &from(number), number)).collect();
    wait_for(others, 1).await;
    let mut later = JoinSet::new();
    for number in 0..KEYS {
        let acquired = acquire(number);
        later.spawn(async move { (number, acquired.await.unwrap().token()) });
    }
    wait_for(others, 2).await;

    fall_silent();
    let silent = Instant::now();
    for lease in held {
        release(lease).await;
    }
    let released = Instant::now();
    let mut tokens = BTreeMap::new();
    for (number, child) in locked.into_iter().enumerate() {
        let output = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        let token: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        tokens.insert(number, Token(token));
    }
    let took = released.elapsed();
    eprintln!("released {:?} after the silence, all waiters done {took:?} after that", released - silent);
    assert!(took < UNNOTICED, "{took:?}");
    while let Some(granted) = timeout(SOON, later.join_next()).await.unwrap() {
        let (number, token) = granted.unwrap();
        assert!(token > tokens[&number], "{} was overtaken", key(number));
    }
}

async fn go_on_while_one_hangs(choose: impl AsyncFnOnce(&Cluster) -> u64) {
    let cluster = builder().start().await.unwrap();
    let hangs = choose(&cluster).await;
    let others = Client::connect(urls(cluster.others(hangs))).unwrap();
    go_on(&cluster, &others, || Command::new(PROGRAM), || cluster.node(hangs).stop().unwrap()).await;
    cluster.node(hangs).resume().unwrap();
}

#[tokio::test]
async fn waiters_go_on_when_the_leader_hangs() {
    go_on_while_one_hangs(async |cluster| cluster.leader().await.unwrap().id()).await;
}

#[tokio::test]
async fn waiters_go_on_when_a_follower_hangs() {
    go_on_while_one_hangs(async |cluster| {
        let leader = cluster.leader().await.unwrap().id();
        cluster.others(leader).next().unwrap().id()
    })
    .await;
}

/// The others once answered for it: who waited at that thread learned of nothing for 30 s, and was overtaken.
async fn go_on_while_one_thread_hangs(name: Option<&str>) {
    let cluster = builder().argument("--http-threads").argument("2").start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let others = Client::connect(urls(cluster.others(leader.id()))).unwrap();
    let Some(first) = available(Frozen::thread(leader, name)) else { return };
    drop(first);
    let frozen = Cell::new(None);
    let freeze = || frozen.set(Some(Frozen::thread(leader, name).unwrap()));
    go_on(&cluster, &others, || Command::new(PROGRAM), freeze).await;
}

#[tokio::test]
async fn waiters_go_on_when_the_raft_thread_of_the_leader_hangs() {
    go_on_while_one_thread_hangs(None).await;
}

#[tokio::test]
async fn waiters_go_on_when_another_http_thread_hangs() {
    go_on_while_one_thread_hangs(Some("http-1")).await;
}

/// One task drives all watches: those of other threads once looked well, and got nothing for as long as its thread hung.
#[tokio::test]
async fn watches_go_on_when_the_thread_hangs_that_drives_them() {
    const WATCHES: usize = 4;
    let cluster = builder().argument("--http-threads").argument("2").start().await.unwrap();
    let node = cluster.node(2);
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        watches.push(node.client().patient().watch("", None).await.done());
    }
    // The thread that drives them is one of the two.
    for (number, name) in ["http-0", "http-1"].into_iter().enumerate() {
        let Some(frozen) = available(Frozen::thread(node, Some(name))) else { return };
        node.tells(&format!("the thread {name} is blocked")).await.unwrap();
        granted(&cluster.node(1).client(), LeaseId::random(), &try_once(&key(number))).await;
        let mut reads = JoinSet::new();
        for mut watch in std::mem::take(&mut watches) {
            reads.spawn(async move {
                let read = watch.next().await;
                (watch, read)
            });
        }
        let (watch, first) =
            timeout(SOON, reads.join_next()).await.expect("a watch goes on").unwrap().unwrap();
        watches.push(watch);
        assert!(matches!(first, Ok(Some(Watched::Change(..)))), "{first:?}");
        drop(frozen);
        while let Some(read) = timeout(SOON, reads.join_next()).await.expect("all go on") {
            let (watch, read) = read.unwrap();
            watches.push(watch);
            assert!(matches!(read, Ok(Some(Watched::Change(..)))), "{read:?}");
        }
        node.tells(&format!("the thread {name} runs again")).await.unwrap();
    }
    node.tells("the thread that drives the watches is blocked").await.unwrap();
}

/// The Raft thread waits for the others at its end, and was called blocked.
#[tokio::test]
async fn a_stop_calls_no_thread_blocked_that_only_stops() {
    let cluster = builder().nodes(1).argument("--http-threads").argument("2").start().await.unwrap();
    let node = cluster.node(1);
    let Some(frozen) = available(Frozen::thread(node, Some("http-1"))) else { return };
    node.tells("the thread http-1 is blocked").await.unwrap();
    kill(Pid::from_raw(node.pid().unwrap().cast_signed()), Signal::SIGTERM).unwrap();
    node.tells("a thread that serves clients did not end in time").await.unwrap();
    drop(frozen);
    let log = node.log();
    assert!(
        !log.contains("the Raft thread is blocked") && !log.contains("the thread http-0 is blocked"),
        "{log}"
    );
}

/// No packet says that it is gone.
#[tokio::test]
async fn waiters_go_on_when_the_machine_of_the_leader_vanishes() {
    // The waiters are at the fourth, where the leader can be cut off from them.
    let Some(network) = available(Network::new(4)) else { return };
    let cluster = builder().network(&network).start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let program = || {
        let command = network.command_at(4, OsStr::new(PROGRAM)).unwrap();
        Command::from(command)
    };
    // This process is outside of all networks: it reaches the nodes through a relay of each.
    let relays = join_all(cluster.others(leader).map(|node| relay(&network, node))).await;
    let others = Client::connect(relays.iter().map(Proxy::url)).unwrap();
    go_on(&cluster, &others, program, || network.isolate(leader).unwrap()).await;
}

/// A relay from this machine to a node of a network.
async fn relay(network: &Network, node: &Node) -> Proxy {
    let (network, to) = (network.clone(), node.http());
    let serve = move |mut near| {
        let network = network.clone();
        async move {
            let mut far = network.connect_from(4, to).await?;
            tokio::io::copy_bidirectional(&mut near, &mut far).await.map(drop)
        }
    };
    Proxy::open(serve).await.unwrap()
}

/// A node that hangs once cost a `lock` of a free key 32 s, if its URL came first.
#[tokio::test]
#[ignore = "slow"]
async fn a_free_key_is_locked_although_a_node_hangs() {
    let cluster = builder().start().await.unwrap();
    let leader = cluster.leader().await.unwrap().id();
    let hangs = cluster.others(leader).next().unwrap();
    hangs.stop().unwrap();
    for words in [&["--try"][..], &["--wait", "1s"], &["--wait", "10s"], &[]] {
        let begun = Instant::now();
        let mut program = Command::new(PROGRAM);
        program.env("RINGFENCE_URLS", urls([hangs, cluster.node(leader)]).join(",")).arg("lock").args(words);
        program.args(["free", "--", "true"]).kill_on_drop(true);
        let output = timeout(SOON, program.output()).await.unwrap().unwrap();
        // After a second elsewhere, 1 s may be over.
        let may_be_late = words.contains(&"1s") && output.status.code() == Some(75);
        assert!(output.status.success() || may_be_late, "{words:?}: {output:?}");
        eprintln!("{words:?}: {:?}", begun.elapsed());
        assert!(begun.elapsed() < UNNOTICED);
    }
    hangs.resume().unwrap();
}
