//! The mirror in Redis, kept by real nodes: it follows the leader, and what Redis does changes nothing for grants.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, HashMap};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use ringfence_harness::{
    Acquired, Answered, Builder, Client, Cluster, Consistency, Node, RedisServer, Reply, definite, key,
    try_once, until, wait_for,
};
use ringfence_wire::{AcquireRequest, BatchAnswer, BatchBody, KeyView, LeaseId, MirroredGrant, Ttl};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);
/// How long Redis stands still.
const STOPPED: Duration = Duration::from_secs(10);
/// How soon after that it has all again, as is promised.
const CONVERGED: Duration = Duration::from_secs(30);
/// How many clients take and leave leases.
const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_millis(600);

fn cluster(redis: &RedisServer) -> Builder {
    Cluster::builder(env!("CARGO_BIN_EXE_ringfence")).argument(format!("--redis={}", redis.url()))
}

async fn connect(redis: &RedisServer) -> MultiplexedConnection {
    redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// A key as Redis has it; empty where it has none.
async fn hash(reader: &mut MultiplexedConnection, key: &str) -> HashMap<String, String> {
    redis::cmd("HGETALL").arg(format!("ringfence:{{{key}}}")).query_async(reader).await.unwrap()
}

fn number(hash: &HashMap<String, String>, field: &str) -> u64 {
    hash.get(field).map_or(0, |text| text.parse().unwrap())
}

/// The keys that Redis calls held, with fence and token.
async fn held_in_redis(
    reader: &mut MultiplexedConnection,
) -> redis::RedisResult<BTreeMap<String, (u64, u64)>> {
    let names: Vec<String> = redis::cmd("KEYS").arg("ringfence:{*}").query_async(reader).await?;
    let mut held = BTreeMap::new();
    for name in names {
        let key = name.trim_start_matches("ringfence:{").trim_end_matches('}');
        let hash: HashMap<String, String> = redis::cmd("HGETALL").arg(&name).query_async(reader).await?;
        if hash.get("state").is_some_and(|state| state == "held") {
            held.insert(key.to_owned(), (number(&hash, "fence"), number(&hash, "token")));
        }
    }
    Ok(held)
}

/// The same of the cluster.
async fn held_in_table(client: &Client) -> BTreeMap<String, (u64, u64)> {
    let (mut held, mut after) = (BTreeMap::new(), None);
    loop {
        let page = client.keys("", after.as_deref(), Consistency::Linearizable).await.done();
        held.extend(page.keys.into_iter().filter_map(|view: KeyView| {
            let newest = view.holders.last()?.token.0;
            Some((view.key.to_string(), (view.fence.0, newest)))
        }));
        after = page.next;
        if after.is_none() {
            return held;
        }
    }
}

/// Waits until Redis calls those keys held that are, and no others. Leases may run out meanwhile.
async fn equal(cluster: &Cluster, redis: &RedisServer) {
    equal_within(SOON, cluster, redis).await;
}

async fn equal_within(time: Duration, cluster: &Cluster, redis: &RedisServer) {
    let client = cluster.leader().await.unwrap().client();
    let look = || async {
        let mut reader = connect(redis).await;
        let mirror = held_in_redis(&mut reader).await.ok()?;
        (mirror == held_in_table(&client).await).then_some(())
    };
    until(time, "Redis has what the table has", look).await.unwrap();
}

/// Clients that take and leave leases, some by letting them end, through all nodes; and look at each one's fence while
/// the lease lives.
struct Traffic {
    enough: Arc<AtomicBool>,
    grants: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Traffic {
    async fn start(cluster: &Cluster, redis: &RedisServer) -> Self {
        let (enough, grants) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let node = cluster.nodes()[number % cluster.nodes().len()].client();
            let (enough, grants) = (Arc::clone(&enough), Arc::clone(&grants));
            let reader = connect(redis).await;
            clients.push(tokio::spawn(async move {
                while !enough.load(Ordering::Relaxed) {
                    if take(&node, reader.clone(), number % 3).await {
                        grants.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }));
        }
        Self { enough, grants, clients }
    }

    /// Waits for so many more grants.
    async fn go_on(&self, more: u64) {
        let before = self.grants.load(Ordering::Relaxed);
        let look = || async { (self.grants.load(Ordering::Relaxed) >= before + more).then_some(()) };
        until(SOON, format!("{more} more grants"), look).await.unwrap();
    }

    async fn stop(self) {
        self.enough.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// Takes one lease, if its key is free, and leaves it. While it surely lives, Redis never calls its token dead.
async fn take(node: &Client, mut reader: MultiplexedConnection, contended: usize) -> bool {
    let name = format!("hot/{contended}");
    let (lease, sent) = (LeaseId::random(), Instant::now());
    let wish =
        AcquireRequest { ttl_ms: Ttl::from_ms(TTL.as_millis() as u32).unwrap(), ..wait_for(&name, 300) };
    let Ok(Reply::Done { body: Acquired::Granted(grant) | Acquired::Standing(grant), .. }) =
        node.within(Duration::from_secs(2)).acquire(lease, &wish).await
    else {
        return false;
    };
    for _ in 0..3 {
        let read: redis::RedisResult<Option<u64>> = redis::cmd("HGET")
            .arg(format!("ringfence:{{{name}}}"))
            .arg("fence")
            .query_async(&mut reader)
            .await;
        if let Ok(Some(fence)) = read
            && sent.elapsed() < TTL
        {
            assert!(fence <= grant.token.0, "{name}: {fence} is above the live token {}", grant.token);
        }
    }
    if lease.to_string().ends_with(['0', '1', '2', '3']) {
        tokio::time::sleep(TTL / 2).await;
    } else {
        let _ = node.release(lease).await;
    }
    true
}

/// Reads the fences all the time: none ever falls.
fn sample(mut reader: MultiplexedConnection) -> (Arc<AtomicBool>, JoinHandle<u64>) {
    let enough = Arc::<AtomicBool>::default();
    let is_enough = Arc::clone(&enough);
    let sampler = tokio::spawn(async move {
        let (mut highest, mut seen) = ([0; 3], 0);
        while !is_enough.load(Ordering::Relaxed) {
            for (number, highest) in highest.iter_mut().enumerate() {
                let fence = self::number(&hash(&mut reader, &format!("hot/{number}")).await, "fence");
                assert!(fence >= *highest, "hot/{number} fell from {highest} to {fence}");
                seen += u64::from(fence > *highest);
                *highest = fence;
            }
        }
        seen
    });
    (enough, sampler)
}

#[tokio::test]
async fn the_mirror_follows_the_leader_and_one_that_comes_back_changes_nothing() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let traffic = Traffic::start(&cluster, &redis).await;
    let (enough, sampler) = sample(connect(&redis).await);
    for round in 0..3 {
        traffic.go_on(20).await;
        let leader = cluster.leader().await.unwrap();
        if round == 1 {
            leader.kill().unwrap();
        } else {
            leader.stop().unwrap();
        }
        let follower = cluster.others(leader.id()).next().unwrap().client();
        let next = || async { (follower.cluster().await.done().leader? != leader.id()).then_some(()) };
        until(SOON, "another leads", next).await.unwrap();
        traffic.go_on(20).await;
        if round == 1 {
            leader.start().unwrap();
        } else {
            leader.resume().unwrap();
        }
        cluster.ready().await.unwrap();
    }
    traffic.stop().await;
    equal(&cluster, &redis).await;
    enough.store(true, Ordering::Relaxed);
    assert!(sampler.await.unwrap() > 20, "the sampler saw fences rise");
}

#[tokio::test]
async fn whatever_redis_does_grants_go_on_and_it_has_all_again_when_it_is_well() {
    let redis = RedisServer::builder().start().await.unwrap();
    redis.kill().unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let client = cluster.leader().await.unwrap().client();
    for number in 0..50 {
        acquire(&client, &format!("early/{number}")).await;
    }
    redis.start().await.unwrap();
    equal(&cluster, &redis).await;

    let traffic = Traffic::start(&cluster, &redis).await;
    redis.command(["flushall"]).await.unwrap();
    traffic.go_on(20).await;
    redis.stop().await.unwrap();
    let stopped = Instant::now();
    let mut meanwhile = 0;
    // Its clients wait for their reads; others do not.
    while stopped.elapsed() < STOPPED {
        acquire(&client, &format!("meanwhile/{meanwhile}")).await;
        meanwhile += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis.resume().unwrap();
    equal_within(CONVERGED, &cluster, &redis).await;
    traffic.go_on(20).await;
    traffic.stop().await;
    redis.restart_empty().await.unwrap();
    equal(&cluster, &redis).await;
    let held = held_in_redis(&mut connect(&redis).await).await.unwrap();
    assert!(held.len() >= 50 + meanwhile, "{meanwhile}, and {held:?}");
}

#[tokio::test]
async fn a_node_tells_how_its_mirror_does() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let becomes = async |wanted: &str| {
        let look = || async { (state(leader).await == wanted).then_some(()) };
        until(SOON, format!("the mirror is {wanted}"), look).await.unwrap();
    };
    becomes("published").await;
    for follower in cluster.others(leader.id()) {
        assert_eq!(state(follower).await, "standby");
    }
    redis.kill().unwrap();
    becomes("failing").await;
    redis.start().await.unwrap();
    becomes("published").await;
    assert!(leader.client().metrics().await.done().contains("ringfence_mirror_lag_seconds 0"));
}

/// Once the second one had the Redis, and readers rejected the live holders of the first.
#[tokio::test]
async fn a_second_cluster_at_the_same_redis_is_occupied_and_says_by_whom() {
    let redis = RedisServer::builder().start().await.unwrap();
    let first = cluster(&redis).nodes(1).start().await.unwrap();
    let first_node = first.leader().await.unwrap();
    acquire(&first_node.client(), "orders/42").await;
    equal(&first, &redis).await;
    let held = held_in_redis(&mut connect(&redis).await).await.unwrap();
    let id = first_node.client().cluster().await.done().cluster_id.to_string();

    let second = cluster(&redis).nodes(1).first_revision(Some(1 << 40)).start().await.unwrap();
    let second_node = second.leader().await.unwrap();
    let is_now = async |node: &Node, wanted: &str| {
        let look = || async { (state(node).await == wanted).then_some(()) };
        until(SOON, format!("the mirror is {wanted}"), look).await.unwrap();
    };
    is_now(second_node, "occupied").await;
    acquire(&second_node.client(), "orders/42").await;
    let mirror = second_node.client().cluster().await.done().mirror.unwrap();
    assert_eq!(mirror["masters"][0]["left_to"]["cluster_id"], id.as_str());
    let metrics = || async {
        let metrics = second_node.client().metrics().await.done();
        metrics.contains(r#"ringfence_mirror_state{state="occupied"} 1"#).then_some(())
    };
    until(SOON, "the metrics say so", metrics).await.unwrap();
    assert!(second_node.log().contains(&format!("--mirror-take-over {id}")), "{}", second_node.log());
    assert_eq!(held_in_redis(&mut connect(&redis).await).await.unwrap(), held);
    assert_eq!(state(first_node).await, "published");

    second_node.kill().unwrap();
    second_node
        .start_with(|command| {
            command.args(["--mirror-take-over", &id]);
        })
        .unwrap();
    second.ready().await.unwrap();
    is_now(second_node, "published").await;
    equal(&second, &redis).await;
    is_now(first_node, "occupied").await;
}

#[tokio::test]
async fn an_answer_that_says_mirrored_came_after_redis_had_its_fence() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=2s");
    let cluster = cluster.start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let published = || async { mirrored(&leader.client(), "probe", 0).await.mirrored.then_some(()) };
    until(SOON, "the mirror is published", published).await.unwrap();
    let mut reader = connect(&redis).await;
    for round in 0..20 {
        for node in cluster.nodes() {
            let name = format!("mirrored/{}/{round}", node.id());
            let told = mirrored(&node.client(), &name, 0).await;
            assert!(told.mirrored, "{name}");
            let token = told.grant.token.0;
            assert!(number(&hash(&mut reader, &name).await, "fence") >= token, "{name}");
            // A waiter is granted by the end of the lease before it, and told by its own node.
            let waits = tokio::spawn({
                let (client, name) = (node.client(), name.clone());
                async move { mirrored(&client, &name, 10_000).await }
            });
            let queued = || async {
                let view = node.client().key(&key(&name), Consistency::Linearizable).await.done();
                (!view.waiters.is_empty()).then_some(())
            };
            until(SOON, "one waits", queued).await.unwrap();
            node.client().release(told.grant.lease_id).await.done();
            let next = waits.await.unwrap();
            assert!(next.mirrored && next.grant.token.0 > token);
            assert!(number(&hash(&mut reader, &name).await, "fence") >= next.grant.token.0, "{name}");
        }
    }

    let follower = cluster.others(leader.id()).next().unwrap().client();
    let operations: Vec<Value> = (0..50)
        .map(
            |number| json!({"acquire": {"lease_id": LeaseId::random(), "keys": [format!("batch/{number}")]}}),
        )
        .collect();
    // The second time they stand already.
    for status in [201, 200] {
        let body = json!({ "operations": operations }).to_string();
        let answer = follower.raw("POST", "/v1/batch", body).await.unwrap();
        let answer: BatchAnswer = serde_json::from_slice(&answer.body).unwrap();
        for result in answer.results {
            let Some(BatchBody::Mirrored(told)) = result.body else { panic!("{result:?}") };
            assert!(told.mirrored && result.status == status, "{told:?}");
            let name = told.grant.keys[0].key.as_str();
            assert!(number(&hash(&mut reader, name).await, "fence") >= told.grant.token.0, "{name}");
        }
    }

    redis.kill().unwrap();
    for node in cluster.nodes() {
        assert!(!mirrored(&node.client(), &format!("without/{}", node.id()), 0).await.mirrored);
    }
    redis.start().await.unwrap();
    let again = || async { mirrored(&follower, "again", 0).await.mirrored.then_some(()) };
    until(SOON, "grants are mirrored again", again).await.unwrap();
    equal(&cluster, &redis).await;
}

async fn state(node: &Node) -> String {
    let answer = node.client().raw("GET", "/v1/cluster", "").await.unwrap();
    let view: Value = serde_json::from_slice(&answer.body).unwrap();
    view["mirror"]["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn grants_of_a_batch_that_stand_already_are_mirrored_by_each_leader_anew() {
    let redis = RedisServer::builder().start().await.unwrap();
    // So long that the answers wait for Redis, and not for their time.
    let cluster = cluster(&redis).argument("--mirror-mode=before-answer").argument("--mirror-timeout=20s");
    let cluster = cluster.start().await.unwrap();
    let operations: Vec<Value> = (0..1_000)
        .map(
            |number| json!({"acquire": {"lease_id": LeaseId::random(), "keys": [format!("batch/{number}")], "ttl_ms": 600_000}}),
        )
        .collect();
    let body = json!({ "operations": operations }).to_string();
    let mut reader = connect(&redis).await;
    for (round, status) in [201, 200, 200].into_iter().enumerate() {
        if round == 2 {
            // What the first leader knew to stand, the next one does not know.
            cluster.leader().await.unwrap().kill().unwrap();
        }
        let leader = cluster.leader().await.unwrap();
        let published = || async { (state(leader).await == "published").then_some(()) };
        until(SOON, "the mirror is published", published).await.unwrap();
        let answer = leader.client().within(2 * SOON).raw("POST", "/v1/batch", body.clone()).await.unwrap();
        let answer: BatchAnswer = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.results.len(), 1_000);
        for result in answer.results {
            let Some(BatchBody::Mirrored(told)) = result.body else { panic!("{result:?}") };
            assert!(told.mirrored && result.status == status, "round {round}: {told:?}");
            let name = told.grant.keys[0].key.as_str();
            assert!(number(&hash(&mut reader, name).await, "fence") >= told.grant.token.0, "{name}");
        }
    }
}

#[tokio::test]
async fn a_new_cluster_does_not_start_below_one_whose_marker_stands_in_redis() {
    let redis = RedisServer::builder().start().await.unwrap();
    let elder = cluster(&redis).first_revision(Some(5_000)).start().await.unwrap();
    let client = elder.leader().await.unwrap().client();
    for number in 0..50 {
        acquire(&client, &format!("elder/{number}")).await;
    }
    let id = client.cluster().await.done().cluster_id.to_string();
    let mut reader = connect(&redis).await;
    let came_far = || {
        let mut reader = reader.clone();
        async move {
            let ask = redis::cmd("HGET").arg("ringfence:marker:{0}").arg("revision").clone();
            let revision: Option<u64> = ask.query_async(&mut reader).await.ok()?;
            revision.filter(|revision| *revision >= 5_050)
        }
    };
    until(SOON, "it has left word of how far it has come", came_far).await.unwrap();
    elder.kill_all().unwrap();
    drop(elder);

    // It would start later than the other did, and with tokens that the other has given already.
    let next = cluster(&redis).first_revision(Some(5_010)).lay_out().await.unwrap();
    next.start_all().unwrap();
    let refused = || async {
        let log = next.nodes().iter().map(Node::log).find(|log| log.contains("does not start"))?;
        Some(log)
    };
    let log = until(SOON, "it says that it does not start", refused).await.unwrap();
    assert!(log.contains(&id) && log.contains("--first-revision") && log.contains("mirror purge"), "{log}");
    let try_it = next.node(1).client().acquire(LeaseId::random(), &try_once("elder/1")).await;
    assert!(!matches!(try_it, Ok(Reply::Done { .. })), "{try_it:?}");
    assert!(number(&hash(&mut reader, "elder/1").await, "fence") > 5_000, "the other's fences stand");

    // What was said helps.
    let purged = Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .args(["mirror", "purge", "--redis", &redis.url(), "--cluster", &id])
        .output()
        .unwrap();
    assert!(purged.status.success(), "{purged:?}");
    next.ready().await.unwrap();
    acquire(&next.leader().await.unwrap().client(), "next/1").await;
    equal(&next, &redis).await;
    assert!(number(&hash(&mut reader, "next/1").await, "token") > 5_010);
}

/// Acquires a key, waiting for up to `wait_ms`. A second time under the same name is another lease, of another key.
async fn mirrored(client: &Client, name: &str, wait_ms: u32) -> MirroredGrant {
    let lease = LeaseId::random();
    let unique =
        if wait_ms == 0 && !name.contains('/') { format!("{name}/{lease}") } else { name.to_owned() };
    let body = json!({"keys": [unique], "ttl_ms": 60_000, "wait_ms": wait_ms}).to_string();
    let answer = client.within(SOON).raw("PUT", &format!("/v1/leases/{lease}"), body).await.unwrap();
    assert_eq!(answer.status, 201, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

async fn acquire(client: &Client, name: &str) {
    let (lease, wish) = (LeaseId::random(), try_once(name));
    let reply = definite(SOON, || client.acquire(lease, &wish)).await;
    assert!(matches!(reply, Ok(Reply::Done { .. })), "{reply:?}");
}

#[tokio::test]
async fn the_keys_of_a_cluster_that_is_no_more_are_removed_by_its_id_only() {
    let redis = RedisServer::builder().start().await.unwrap();
    let cluster = cluster(&redis).start().await.unwrap();
    let client = cluster.leader().await.unwrap().client();
    acquire(&client, "left/behind").await;
    equal(&cluster, &redis).await;
    let id = client.cluster().await.done().cluster_id.to_string();
    cluster.kill_all().unwrap();
    redis.command(["set", "ringfences", "not ours"]).await.unwrap();
    let purge = |cluster: &str| {
        let arguments = ["mirror", "purge", "--redis", &redis.url(), "--cluster", cluster];
        Command::new(env!("CARGO_BIN_EXE_ringfence")).args(arguments).output().unwrap()
    };
    let refused = purge(&uuid::Uuid::new_v4().to_string());
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&id), "{refused:?}");
    assert!(hash(&mut connect(&redis).await, "left/behind").await.contains_key("fence"));
    let done = purge(&id);
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains("removed 1 "),
        "{done:?}"
    );
    assert_eq!(redis.command(["keys", "*"]).await.unwrap(), "ringfences");
}
