//! Many operations in one call.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringfence_wire::{LeaseId, MAX_BATCH};
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::http::Connection;

/// How many connections leases are taken by.
const FILLERS: u64 = 4;
/// How long each key is, in bytes.
const KEY_BYTES: usize = 32;

/// One key of many.
pub(super) fn key(name: &str, number: u64) -> String {
    let width = KEY_BYTES - 1 - name.len();
    format!("{name}/{number:0width$}")
}

/// Takes so many leases, with one key each; `ttl` is asked anew for each batch.
pub(super) async fn fill(
    address: SocketAddr,
    name: &'static str,
    leases: u64,
    ttl: impl Fn() -> Duration + Copy + Send + 'static,
) -> Result<Vec<LeaseId>> {
    let batch = MAX_BATCH as u64;
    let mut fillers = JoinSet::new();
    for filler in 0..FILLERS {
        fillers.spawn(async move {
            let mut connection = Connection::open(address).await?;
            let mut ids = Vec::new();
            for first in (filler * batch..leases).step_by((FILLERS * batch) as usize) {
                let own: Vec<_> =
                    (first..(first + batch).min(leases)).map(|number| (LeaseId::random(), number)).collect();
                let ttl_ms = ttl().as_millis();
                let body = operations(&own, |body, (id, number)| {
                    let key = key(name, *number);
                    let _ = write!(
                        body,
                        r#"{{"acquire":{{"lease_id":"{id}","keys":["{key}"],"ttl_ms":{ttl_ms}}}}}"#
                    );
                });
                all_are(201, &statuses(&mut connection, "/v1/batch", &body, own.len()).await?)?;
                ids.extend(own.into_iter().map(|(id, _)| id));
            }
            anyhow::Ok(ids)
        });
    }
    let mut ids = Vec::new();
    while let Some(done) = fillers.join_next().await {
        ids.extend(done??);
    }
    Ok(ids)
}

/// Releases them all.
pub(super) async fn release(address: SocketAddr, ids: &[LeaseId]) -> Result<()> {
    let mut connection = Connection::open(address).await?;
    for ids in ids.chunks(MAX_BATCH) {
        let body = operations(ids, |body, id| {
            let _ = write!(body, r#"{{"release":{{"lease_id":"{id}"}}}}"#);
        });
        all_are(204, &statuses(&mut connection, "/v1/batch", &body, ids.len()).await?)?;
    }
    Ok(())
}

/// The status of each of so many operations: that of the whole call, where it was refused as a whole.
pub(super) async fn statuses(
    connection: &mut Connection,
    path: &str,
    body: &str,
    operations: usize,
) -> Result<Vec<u16>> {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Of>,
    }
    #[derive(Deserialize)]
    struct Of {
        status: u16,
    }
    let answer = connection.call("POST", path, body).await.with_context(|| format!("POST {path}"))?;
    if answer.status != 200 {
        return Ok(vec![answer.status; operations]);
    }
    let answer: Answer = serde_json::from_slice(answer.body)?;
    ensure!(answer.results.len() == operations, "{operations} operations, {} results", answer.results.len());
    Ok(answer.results.into_iter().map(|of| of.status).collect())
}

fn operations<T>(all: &[T], write_one: impl Fn(&mut String, &T)) -> String {
    let mut body = r#"{"operations":["#.to_owned();
    for (place, one) in all.iter().enumerate() {
        if place > 0 {
            body.push(',');
        }
        write_one(&mut body, one);
    }
    body + "]}"
}

fn all_are(wanted: u16, statuses: &[u16]) -> Result<()> {
    let other = statuses.iter().find(|status| **status != wanted);
    ensure!(other.is_none(), "an operation of a batch was answered {other:?}, not {wanted}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_32_bytes_long() {
        assert_eq!(key("live", 7), "live/000000000000000000000000007");
        assert_eq!(key("expiring", 999_999).len(), KEY_BYTES);
    }

    #[test]
    fn operations_stand_in_one_list() {
        let body = |all: &[u8]| operations(all, |body, one| *body += &one.to_string());
        assert_eq!(body(&[]), r#"{"operations":[]}"#);
        assert_eq!(body(&[1, 2]), r#"{"operations":[1,2]}"#);
    }
}
