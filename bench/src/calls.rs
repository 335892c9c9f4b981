//! Calls of Ringfence's API that cost their clients little: they share the cores with what they measure. Any answer but
//! the expected one is an error.

use std::fmt::{Display, Write as _};

use anyhow::{Context, Result, ensure};
use ringfence_harness::HttpConnection;
use ringfence_wire::{LeaseId, Token};
use serde::Deserialize;

/// Time to live of a lease, and longest wait for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) ttl_ms: u64,
    pub(crate) wait_ms: u64,
}

/// Acquires a lease of `keys` and returns its token.
pub(crate) async fn acquire<K: Display>(
    connection: &mut HttpConnection,
    lease: LeaseId,
    keys: &[K],
    Times { ttl_ms, wait_ms }: Times,
) -> Result<Token> {
    #[derive(Deserialize)]
    struct Granted {
        token: Token,
    }
    let keys = list(keys, |body, key| write!(body, r#""{key}""#));
    let request = format!(r#"{{"keys":{keys},"ttl_ms":{ttl_ms},"wait_ms":{wait_ms}}}"#);
    let body = connection.expect(201, "PUT", &format!("/v1/leases/{lease}"), &request).await?;
    Ok(serde_json::from_slice::<Granted>(body)?.token)
}

/// Releases a lease.
pub(crate) async fn release(connection: &mut HttpConnection, lease: LeaseId) -> Result<()> {
    connection.expect(204, "DELETE", &format!("/v1/leases/{lease}"), "").await?;
    Ok(())
}

/// Acquires leases of one key each, in one call.
pub(crate) async fn acquire_many<K: Display>(
    connection: &mut HttpConnection,
    leases: &[(LeaseId, K)],
    ttl_ms: u64,
) -> Result<()> {
    let operations = list(leases, |body, (lease, key)| {
        write!(body, r#"{{"acquire":{{"lease_id":"{lease}","keys":["{key}"],"ttl_ms":{ttl_ms}}}}}"#)
    });
    batch(connection, &operations, leases.len(), 201).await
}

/// Releases leases in one call.
pub(crate) async fn release_many(connection: &mut HttpConnection, leases: &[LeaseId]) -> Result<()> {
    let operations = list(leases, |body, lease| write!(body, r#"{{"release":{{"lease_id":"{lease}"}}}}"#));
    batch(connection, &operations, leases.len(), 204).await
}

async fn batch(connection: &mut HttpConnection, operations: &str, count: usize, wanted: u16) -> Result<()> {
    let request = format!(r#"{{"operations":{operations}}}"#);
    let statuses = statuses(connection, "/v1/batch", &request, count).await?;
    let other = statuses.iter().find(|status| **status != wanted);
    ensure!(other.is_none(), "an operation of a batch was answered {other:?}, not {wanted}");
    Ok(())
}

/// The status of each operation of one call.
pub(crate) async fn statuses(
    connection: &mut HttpConnection,
    path: &str,
    request: &str,
    operations: usize,
) -> Result<Vec<u16>> {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Operation>,
    }
    #[derive(Deserialize)]
    struct Operation {
        status: u16,
    }
    let body = connection.expect(200, "POST", path, request).await?;
    let results = serde_json::from_slice::<Answer>(body).context("not a batch answer")?.results;
    ensure!(results.len() == operations, "{operations} operations, {} results", results.len());
    Ok(results.into_iter().map(|operation| operation.status).collect())
}

/// A JSON list of what `write_one` writes for each item.
fn list<T>(items: &[T], write_one: impl Fn(&mut String, &T) -> std::fmt::Result) -> String {
    let mut body = "[".to_owned();
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            body.push(',');
        }
        write_one(&mut body, item).expect("writing to a string does not fail");
    }
    body.push(']');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_commas_between_items() {
        let body = |items: &[u8]| list(items, |body, item| write!(body, "{item}"));
        assert_eq!(body(&[]), "[]");
        assert_eq!(body(&[1, 2]), "[1,2]");
    }
}
