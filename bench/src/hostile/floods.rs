//! Floods of requests that are small, or few, but cost a node much. Renewals of other hosts must stay prompt beside them.

use anyhow::Result;
use futures_util::FutureExt;
use ringfence_wire::LeaseId;
use tokio::time::Instant;

use super::resp::command;
use super::shapes::{Shape, acquires, no_preparation, shape};
use super::stranger::Stranger;

/// How many requests a connection sends before it begins again.
const MANY: usize = 32;
/// Works for about as many steps as the scripts of a request may take.
const LONG: &str = "local t = {} local s = '' for i = 1, 9000 do s = ARGV[1]..i t[i % 50] = s end \
                    return redis.call('EXISTS', KEYS[1])";
/// Sets all keys to one value, so the request is small and its change is large.
const SET_ALL: &str = "for _, key in ipairs(KEYS) do redis.call('SET', key, ARGV[1], 'PX', 100) end return 1";

pub(super) const SHAPES: &[Shape] = &[
    Shape { is_paced: true, ..shape!("RESP: 1,000 connections of long scripts", scripts) },
    Shape { is_paced: true, ..shape!("RESP: 16 connections of small requests for large changes", amplified) },
    Shape { is_paced: true, ..shape!("1,500 connections that pipeline batches", batches) },
];

async fn scripts(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let one = |connection: usize| {
        let script = |number| command(&["EVAL", LONG, "1", &format!("{connection}.{number}"), "x"]);
        (0..MANY).map(script).collect::<String>().into_bytes()
    };
    let leader = stranger.resp[0];
    Ok(stranger.flood(leader, 1_000, one, end).await / ":0\r\n".len() as u64)
}

async fn amplified(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let value = "v".repeat(1_000);
    let one = |connection: usize| {
        let request = |number| {
            let keys: Vec<String> = (0..32).map(|key| format!("{connection}.{number}.{key}")).collect();
            let keys = keys.iter().map(String::as_str);
            let words: Vec<&str> = ["EVAL", SET_ALL, "32"].into_iter().chain(keys).chain([&*value]).collect();
            command(&words)
        };
        (0..64).map(request).collect::<String>().into_bytes()
    };
    let leader = stranger.resp[0];
    Ok(stranger.flood(leader, 16, one, end).await / ":1\r\n".len() as u64)
}

/// Each request is as large as it may be without taking memory that is for large ones.
async fn batches(stranger: &mut Stranger, end: Instant) -> Result<u64> {
    let leader = stranger.leader;
    let one = |connection: usize| {
        let batch = |number| {
            let ids: Vec<LeaseId> = (0..130).map(|_| LeaseId::random()).collect();
            let rest = |place| format!(r#""keys":["{connection}.{number}.{place}"],"ttl_ms":1000"#);
            let body = acquires(&ids, rest);
            let length = body.len();
            format!("POST /v1/batch HTTP/1.1\r\nhost: {leader}\r\ncontent-length: {length}\r\n\r\n{body}")
        };
        (0..2).map(batch).collect::<String>().into_bytes()
    };
    Ok(stranger.flood(leader, 1_500, one, end).await)
}
