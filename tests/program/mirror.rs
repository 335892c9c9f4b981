//! The mirror in Redis, published by a real cluster.

mod authority;
mod before_answer;
mod markers;
mod outages;
mod traffic;

use std::collections::{BTreeMap, HashMap};

use redis::aio::MultiplexedConnection;
use ringfence_harness::{Answered, Builder, Client, Cluster, Consistency, Error, Node, RedisServer, until};
use ringfence_wire::KeyView;
use serde_json::Value;

use crate::support::{PROGRAM, SOON};

fn cluster(redis: &RedisServer) -> Builder {
    Cluster::builder(PROGRAM).argument(format!("--redis={}", redis.url()))
}

async fn connect(redis: &RedisServer) -> MultiplexedConnection {
    redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

/// The hash of a key; empty if there is none.
async fn hash(reader: &mut MultiplexedConnection, key: &str) -> HashMap<String, String> {
    redis::cmd("HGETALL").arg(format!("ringfence:{{{key}}}")).query_async(reader).await.unwrap()
}

fn number(hash: &HashMap<String, String>, field: &str) -> u64 {
    hash.get(field).map_or(0, |text| text.parse().unwrap())
}

/// The fence and token of each key that is held according to Redis.
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

/// The fence and token of each held key.
async fn held_in_table(client: &Client) -> Result<BTreeMap<String, (u64, u64)>, Error> {
    let (mut held, mut after) = (BTreeMap::new(), None);
    loop {
        let page = client.keys("", after.as_deref(), Consistency::Linearizable).await.success()?;
        held.extend(page.keys.into_iter().filter_map(|view: KeyView| {
            let newest = view.holders.last()?.token.0;
            Some((view.key.to_string(), (view.fence.0, newest)))
        }));
        after = page.next;
        if after.is_none() {
            return Ok(held);
        }
    }
}

/// Waits until Redis shows exactly the held keys. Leases may expire meanwhile.
async fn equal(cluster: &Cluster, redis: &RedisServer) {
    let client = cluster.leader().await.unwrap().client();
    let look = || async {
        let mut reader = connect(redis).await;
        let mirror = held_in_redis(&mut reader).await.ok()?;
        (mirror == held_in_table(&client).await.ok()?).then_some(())
    };
    // Some tests hold tens of thousands of keys.
    until(5 * SOON, "Redis has what the table has", look).await.unwrap();
}

/// The state of a node's mirror.
async fn state(node: &Node) -> String {
    let answer = node.client().raw("GET", "/v1/cluster", "").await.unwrap();
    let view: Value = serde_json::from_slice(&answer.body).unwrap();
    view["mirror"]["state"].as_str().unwrap().to_owned()
}

async fn becomes(node: &Node, wanted: &str) {
    let look = || async { (state(node).await == wanted).then_some(()) };
    until(SOON, format!("the mirror is {wanted}"), look).await.unwrap();
}

async fn id(client: &Client) -> String {
    client.cluster().await.done().cluster_id.to_string()
}
