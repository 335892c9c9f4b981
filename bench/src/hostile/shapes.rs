//! The shapes of load: what few connections and few bytes can make a node do.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::HttpConnection;
use ringfence_wire::{LeaseId, MAX_BATCH, MAX_KEYS};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::stranger::{PATIENCE, Stranger};

/// The largest body that the API accepts, in bytes.
const MAX_BODY: usize = 1 << 20;
/// The longest queue of a key.
const MAX_QUEUE: usize = 10_000;

/// One shape.
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Whether renewals must be prompt, and not only in time.
    pub(super) is_paced: bool,
    /// Runs before the measurement.
    pub(super) prepare: for<'a> fn(&'a mut Stranger) -> BoxFuture<'a, Result<()>>,
    /// Runs until then, and returns how much it did.
    pub(super) attack: for<'a> fn(&'a mut Stranger, Instant) -> BoxFuture<'a, Result<u64>>,
}

/// Boxes the futures of the functions.
macro_rules! shape {
    ($name:literal, $attack:ident) => {
        shape!($name, no_preparation, $attack)
    };
    ($name:literal, $prepare:ident, $attack:ident) => {
        shape!($name, $prepare, |stranger, end| $attack(stranger, end))
    };
    ($name:literal, |$stranger:ident, $end:ident| $attack:expr) => {
        shape!($name, no_preparation, |$stranger, $end| $attack)
    };
    ($name:literal, $prepare:ident, |$stranger:ident, $end:ident| $attack:expr) => {
        Shape {
            name: $name,
            is_paced: false,
            prepare: |stranger| $prepare(stranger).boxed(),
            attack: |$stranger, $end| $attack.boxed(),
        }
    };
}

pub(super) use shape;

pub(super) const SHAPES: &[Shape] = &[
    shape!("nothing", wait),
    shape!("repeats of 1,000 waiters in 64 full queues", repeats_in_full_queues),
    shape!("a release that lets 9,000 in on 64 keys each", release_of_many),
    shape!("9,000 waiters on 64 keys each that time out at once", waits_that_end),
    shape!("20,000 leases that expire at once", expiry),
    shape!("the largest batches of acquires", largest_batches),
    shape!("batches of 1,000 tries on one key", one_lease, tries),
    shape!("17,000 parameters in a GET", parameters),
    shape!("validations of 1,000 long keys", checks),
    shape!("wrong bodies of 1 MiB", wrong_bodies),
    shape!("wrong bodies with 100,000 names of metadata", wrong_metadata),
    shape!("deeply nested bodies of 1 MiB", nested_bodies),
    shape!("300 unfinished bodies", unfinished_bodies),
    shape!("1,100 silent connections a node", silent),
    shape!("1,100 unfinished heads", unfinished_heads),
    shape!("2,000 silent connections to the peer port", silent_peers),
    shape!("rubbish at the peer port", rubbish_for_peers),
    shape!("10,000 pipelined requests a connection", pipelined),
    shape!("64 connections that pipeline GET /livez", |it, end| it.pipeline(64, "/livez", end)),
    shape!("64 connections that pipeline GET /openapi.json", |it, end| it.pipeline(64, "/openapi.json", end)),
    shape!("1,000 connections that pipeline GET /livez", |it, end| it.pipeline(1_000, "/livez", end)),
    shape!("1,000 connections that pipeline GET /openapi.json", |it, end| it.pipeline(
        1_000,
        "/openapi.json",
        end
    )),
    shape!("connections that come and go", churn),
    shape!("a key of 10,000 holders, answers unread", ten_thousand_holders, |it, end| it
        .ask_unread("/v1/keys/crowd?consistency=local", end)),
    shape!("pages of 1,000 keys, answers unread", a_thousand_keys, |it, end| it
        .ask_unread("/v1/keys?prefix=page&limit=1000&consistency=local", end)),
    shape!("backups of 50,000 leases, answers unread", fifty_thousand_leases, |it, end| it
        .ask_unread("/v1/cluster/backup", end)),
    shape!("512 watches of other prefixes, 14,720 keys freed at once", watches_of_every_length, free_watched),
    shape!("700 watches that nobody reads", unread_watches, change_watched),
    shape!("metrics asked by 20 at once", |it, end| it.repeat(20, "GET", "/metrics", "", end)),
];

pub(super) async fn no_preparation(_: &mut Stranger) -> Result<()> {
    Ok(())
}

/// The baseline of the other rows.
async fn wait(_: &mut Stranger, end: Instant) -> Result<u64> {
    sleep_until(end).await;
    Ok(1)
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// 64 keys that begin with `name`, as a JSON list.
fn keys(name: &str, shared: bool) -> String {
    list((0..MAX_KEYS).map(|number| match shared {
        true => format!(r#"{{"key":"{name}{number}","mode":"shared"}}"#),
        false => format!(r#""{name}{number}""#),
    }))
}

/// A batch that acquires a lease for each id; `rest` returns the rest of each request.
pub(super) fn acquires(ids: &[LeaseId], rest: impl Fn(usize) -> String) -> String {
    let operations = ids.iter().enumerate();
    let operations =
        operations.map(|(place, id)| format!(r#"{{"acquire":{{"lease_id":"{id}",{}}}}}"#, rest(place)));
    format!(r#"{{"operations":{}}}"#, list(operations))
}

fn releases(ids: &[LeaseId]) -> String {
    let operations = ids.iter().map(|id| format!(r#"{{"release":{{"lease_id":"{id}"}}}}"#));
    format!(r#"{{"operations":{}}}"#, list(operations))
}

fn random_ids(count: usize) -> Vec<LeaseId> {
    (0..count).map(|_| LeaseId::random()).collect()
}

/// Acquires one lease of these keys, a JSON list.
async fn acquire(stranger: &mut Stranger, lease: LeaseId, keys: &str) -> Result<()> {
    let request = format!(r#"{{"keys":{keys},"ttl_ms":600000}}"#);
    stranger.call(201, "PUT", &format!("/v1/leases/{lease}"), &request).await.map(drop)
}

/// Queues `count` waiters of 64 keys each behind one lease of all 64 keys. They keep their places for 5 s.
async fn fill_queues(stranger: &mut Stranger, count: usize, shared: bool) -> Result<(LeaseId, Vec<LeaseId>)> {
    let (holder, waiters) = (LeaseId::random(), random_ids(count));
    acquire(stranger, holder, &keys("q", false)).await?;
    let rest = format!(r#""keys":{},"keep_place":true,"ttl_ms":600000"#, keys("q", shared));
    for waiters in waiters.chunks(MAX_BATCH / 4) {
        stranger.batch(&acquires(waiters, |_| rest.clone())).await?;
    }
    Ok((holder, waiters))
}

/// Releases the holder, then all waiters. A node that is stalled does not answer in time: that is what is measured.
async fn empty_queues(stranger: &mut Stranger, holder: LeaseId, waiters: &[LeaseId]) {
    let _ = stranger.release(holder).await;
    for waiters in waiters.chunks(MAX_BATCH) {
        let _ = stranger.batch(&releases(waiters)).await;
    }
}

async fn repeats_in_full_queues(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let (holder, waiters) = fill_queues(stranger, MAX_QUEUE - 100, false).await?;
        let rest = format!(r#""keys":{},"keep_place":true,"ttl_ms":600000"#, keys("q", false));
        let again = acquires(&waiters[waiters.len() - MAX_BATCH..], |_| rest.clone());
        done += u64::from(stranger.batch(&again).await.is_ok());
        empty_queues(stranger, holder, &waiters).await;
    }
    Ok(done + 1)
}

async fn release_of_many(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let (holder, waiters) = fill_queues(stranger, 9_000, true).await?;
        empty_queues(stranger, holder, &waiters).await;
        done += 1;
    }
    Ok(done)
}

async fn waits_that_end(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let (holder, _) = fill_queues(stranger, 9_000, false).await?;
    sleep_until(end).await;
    stranger.release(holder).await?;
    Ok(9_000)
}

async fn expiry(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    const LEASES: usize = 20_000;
    let begun = Instant::now();
    for (turn, ids) in random_ids(LEASES).chunks(MAX_BATCH).enumerate() {
        let left = Duration::from_secs(4).saturating_sub(begun.elapsed()).as_millis().max(100);
        let rest = |place| format!(r#""keys":["expiring/{turn}/{place}"],"ttl_ms":{left}"#);
        stranger.batch(&acquires(ids, rest)).await?;
    }
    sleep_until(end).await;
    Ok(LEASES as u64)
}

async fn largest_batches(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let ids = random_ids(MAX_BATCH);
        // New keys in each turn, so that all are granted.
        let rest = |place: usize| {
            let keys = list((0..MAX_KEYS).map(|key| format!(r#""{done}.{place}.{key}""#)));
            format!(r#""keys":{keys},"ttl_ms":2000"#)
        };
        let one = rest(MAX_BATCH).len() + 90;
        let ids = &ids[..(MAX_BODY / one).min(MAX_BATCH)];
        stranger.batch(&acquires(ids, rest)).await?;
        stranger.batch(&releases(ids)).await?;
        done += 1;
    }
    Ok(done)
}

async fn one_lease(stranger: &mut Stranger) -> Result<()> {
    acquire(stranger, LeaseId::random(), &keys("t", false)).await
}

async fn tries(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let rest = format!(r#""keys":{}"#, keys("t", false));
    let body = acquires(&random_ids(MAX_BATCH), |_| rest.clone());
    stranger.repeat(4, "POST", "/v1/batch", &body, end).await
}

async fn parameters(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut path = "/v1/keys?".to_owned();
    for number in 0.. {
        let _ = write!(path, "{number:x}&");
        if path.len() > 63_000 {
            break;
        }
    }
    stranger.repeat(4, "GET", &path, "", end).await
}

async fn checks(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let key = "k".repeat(500);
    let checks = (0..MAX_BATCH).map(|number| format!(r#"{{"key":"{number:04}{key}","token":7}}"#));
    let body = format!(r#"{{"checks":{}}}"#, list(checks));
    stranger.repeat(4, "POST", "/v1/validate", &body, end).await
}

async fn wrong_bodies(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let ids = random_ids(MAX_BATCH);
    let mut body = acquires(&ids, |place| format!(r#""keys":["{place}{}"]"#, "k".repeat(400)));
    let filling = MAX_BODY - 100 - body.len();
    body.truncate(body.len() - 2);
    // The error is at the very end.
    let _ = write!(body, r#",{{"release":{{"lease_id":"{}"}}}}]}}"#, "x".repeat(filling));
    stranger.repeat(20, "POST", "/v1/batch", &body, end).await
}

/// What takes longest to read, byte for byte.
async fn wrong_metadata(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let names: Vec<String> = (0..100).map(|name| format!(r#""{name}":"""#)).collect();
    let names = names.join(",");
    let ids = random_ids(MAX_BATCH);
    let mut body = acquires(&ids, |place| format!(r#""keys":["{place}"],"metadata":{{{names}}}"#));
    body.truncate(body.len() - 2);
    body.push_str("]!");
    stranger.repeat(20, "POST", "/v1/batch", &body, end).await
}

async fn nested_bodies(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let body = format!(r#"{{"keys":{}"#, "[".repeat(MAX_BODY - 100));
    stranger.repeat(20, "POST", "/v1/leases", &body, end).await
}

async fn unfinished_bodies(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.leader;
    let body = "x".repeat(MAX_BODY - 1);
    let request =
        format!("POST /v1/batch HTTP/1.1\r\nhost: {leader}\r\ncontent-length: {MAX_BODY}\r\n\r\n{body}");
    stranger.keep(&[leader], 300, request.as_bytes(), end).await
}

async fn silent(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    // Meanwhile the log grows and needs descriptors.
    let mut writer = HttpConnection::open(stranger.leader).await?;
    for node in stranger.nodes.clone() {
        for _ in 0..1_100 {
            stranger.send(node, b"").await;
        }
    }
    while Instant::now() < end {
        let rest = |place| format!(r#""keys":["{place}{}"],"ttl_ms":1000"#, "s".repeat(500));
        // Nodes that have ended do not answer.
        let request = acquires(&random_ids(MAX_BATCH), rest);
        if !matches!(timeout(PATIENCE, writer.call("POST", "/v1/batch", &request)).await, Ok(Ok(_))) {
            break;
        }
    }
    Ok(stranger.open.len() as u64)
}

async fn unfinished_heads(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.leader;
    for _ in 0..1_100 {
        stranger.send(leader, b"GET /v1/keys HTTP/1.1\r\nhost: x\r\n").await;
    }
    while Instant::now() < end {
        for stream in &mut stranger.open {
            // It may have been closed.
            let _ = stream.write_all(b"a: b\r\n").await;
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok(1_100)
}

async fn silent_peers(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    stranger.keep(&stranger.peers.clone(), 2_000 / 3, b"", end).await
}

async fn rubbish_for_peers(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    let rubbish = [b"RINGPEER\x01\x00".as_slice(), &[0xff; 60_000]].concat();
    while Instant::now() < end {
        for peer in stranger.peers.clone() {
            stranger.send(peer, &rubbish).await;
        }
        stranger.open.clear();
        done += 3;
        sleep(Duration::from_millis(5)).await;
    }
    Ok(done)
}

async fn pipelined(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.leader;
    let requests = format!("GET /v1/cluster HTTP/1.1\r\nhost: {leader}\r\n\r\n").repeat(10_000);
    let mut done = 0;
    while Instant::now() < end && done < 20 {
        stranger.send(leader, requests.as_bytes()).await;
        done += 1;
    }
    sleep_until(end).await;
    Ok(done)
}

async fn churn(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        for node in stranger.nodes.clone() {
            for _ in 0..30 {
                stranger.send(node, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
                done += 1;
            }
        }
        stranger.open.clear();
    }
    Ok(done)
}

async fn ten_thousand_holders(stranger: &mut Stranger) -> Result<()> {
    let metadata = "m".repeat(3_900);
    for ids in random_ids(10_000).chunks(200) {
        let rest = |_| {
            format!(
                r#""keys":[{{"key":"crowd","mode":"shared"}}],"ttl_ms":600000,"metadata":{{"m":"{metadata}"}}"#
            )
        };
        stranger.batch(&acquires(ids, rest)).await?;
    }
    Ok(())
}

async fn a_thousand_keys(stranger: &mut Stranger) -> Result<()> {
    let metadata = "m".repeat(3_900);
    for (turn, ids) in random_ids(1_000).chunks(200).enumerate() {
        let rest = |place| {
            let keys = list((0..4).map(|key| format!(r#""page/{turn}/{place}/{key}""#)));
            format!(r#""keys":{keys},"ttl_ms":600000,"metadata":{{"m":"{metadata}"}}"#)
        };
        stranger.batch(&acquires(ids, rest)).await?;
    }
    let page = stranger.call(200, "GET", "/v1/keys?prefix=page&limit=1000", "").await?;
    let page: Value = serde_json::from_slice(&page)?;
    ensure!(page["keys"].as_array().is_some_and(|keys| !keys.is_empty()), "the page is empty");
    Ok(())
}

async fn fifty_thousand_leases(stranger: &mut Stranger) -> Result<()> {
    for (turn, ids) in random_ids(50_000).chunks(MAX_BATCH).enumerate() {
        let rest = |place| format!(r#""keys":["backed-up/{turn}/{place}"],"ttl_ms":600000"#);
        stranger.batch(&acquires(ids, rest)).await?;
    }
    Ok(())
}

/// A key that is longer than each prefix.
fn long_key(place: usize, number: usize) -> String {
    format!("{}{place}.{number}", "w".repeat(490))
}

/// No prefix matches a key, but each has another length.
async fn watches_of_every_length(stranger: &mut Stranger) -> Result<()> {
    for length in 0..512 {
        stranger.watch(&format!("{}x", "w".repeat(length % 490))).await?;
    }
    Ok(())
}

/// One batch releases leases of 64 keys and 30 KB each.
async fn free_watched(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let ids = random_ids(230);
        for (turn, ids) in ids.chunks(30).enumerate() {
            let rest = |place| {
                let keys = (0..MAX_KEYS).map(|key| format!(r#""{}""#, long_key(turn * 30 + place, key)));
                format!(r#""keys":{},"ttl_ms":60000"#, list(keys))
            };
            stranger.batch(&acquires(ids, rest)).await?;
        }
        stranger.batch(&releases(&ids)).await?;
        done += 230;
        sleep(Duration::from_millis(500)).await;
    }
    Ok(done)
}

async fn unread_watches(stranger: &mut Stranger) -> Result<()> {
    for number in 0..700 {
        stranger.watch(&"u".repeat(1 + number % 400)).await?;
    }
    Ok(())
}

async fn change_watched(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let mut done = 0;
    while Instant::now() < end {
        let ids = random_ids(MAX_BATCH);
        let rest = |place| format!(r#""keys":["{}{place}"],"ttl_ms":60000"#, "u".repeat(450));
        stranger.batch(&acquires(&ids, rest)).await?;
        stranger.batch(&releases(&ids)).await?;
        done += MAX_BATCH as u64;
    }
    Ok(done)
}
