//! The calls of Ringfence's API, with as little work for clients as they can have: they share the cores with what they
//! measure. What is not answered as it should be is an error.

use std::fmt::{Display, Write as _};

use anyhow::{Context, Result, ensure};
use ringfence_wire::{LeaseId, Token};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::http::Connection;

/// What a lease is wanted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) ttl_ms: u64,
    pub(crate) wait_ms: u64,
}

/// Acquires a lease of these keys; its token.
pub(crate) async fn acquire<K: Display>(
    connection: &mut Connection,
    lease: LeaseId,
    keys: &[K],
    Wish { ttl_ms, wait_ms }: Wish,
) -> Result<Token> {
    #[derive(Deserialize)]
    struct Granted {
        token: Token,
    }
    let keys = list(keys, |body, key| write!(body, r#""{key}""#));
    let wish = format!(r#"{{"keys":{keys},"ttl_ms":{ttl_ms},"wait_ms":{wait_ms}}}"#);
    let granted: Granted = read(connection, "PUT", &format!("/v1/leases/{lease}"), &wish, 201).await?;
    Ok(granted.token)
}

/// Releases a lease.
pub(crate) async fn release(connection: &mut Connection, lease: LeaseId) -> Result<()> {
    let answer = connection.call("DELETE", &format!("/v1/leases/{lease}"), "").await?;
    ensure!(answer.status == 204, "release: {}", answer.status);
    Ok(())
}

/// Acquires leases of one key each, in one call.
pub(crate) async fn acquire_many<K: Display>(
    connection: &mut Connection,
    leases: &[(LeaseId, K)],
    ttl_ms: u64,
) -> Result<()> {
    let operations = list(leases, |body, (lease, key)| {
        write!(body, r#"{{"acquire":{{"lease_id":"{lease}","keys":["{key}"],"ttl_ms":{ttl_ms}}}}}"#)
    });
    batch(connection, &operations, leases.len(), 201).await
}

/// Releases leases in one call.
pub(crate) async fn release_many(connection: &mut Connection, leases: &[LeaseId]) -> Result<()> {
    let operations = list(leases, |body, lease| write!(body, r#"{{"release":{{"lease_id":"{lease}"}}}}"#));
    batch(connection, &operations, leases.len(), 204).await
}

async fn batch(connection: &mut Connection, operations: &str, count: usize, wanted: u16) -> Result<()> {
    let wish = format!(r#"{{"operations":{operations}}}"#);
    let statuses = statuses(connection, "/v1/batch", &wish, count).await?;
    let other = statuses.iter().find(|status| **status != wanted);
    ensure!(other.is_none(), "an operation of a batch was answered {other:?}, not {wanted}");
    Ok(())
}

/// The status of each of so many operations of one call.
pub(crate) async fn statuses(
    connection: &mut Connection,
    path: &str,
    wish: &str,
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
    let answer: Answer = read(connection, "POST", path, wish, 200).await?;
    ensure!(answer.results.len() == operations, "{operations} operations, {} results", answer.results.len());
    Ok(answer.results.into_iter().map(|of| of.status).collect())
}

async fn read<T: DeserializeOwned>(
    connection: &mut Connection,
    method: &str,
    path: &str,
    wish: &str,
    wanted: u16,
) -> Result<T> {
    let answer = connection.call(method, path, wish).await.with_context(|| format!("{method} {path}"))?;
    let told = || String::from_utf8_lossy(answer.body);
    ensure!(answer.status == wanted, "{method} {path}: {}: {}", answer.status, told());
    serde_json::from_slice(answer.body).with_context(|| format!("{method} {path}: {}", told()))
}

/// A list in JSON of what `write_one` writes of each.
fn list<T>(all: &[T], write_one: impl Fn(&mut String, &T) -> std::fmt::Result) -> String {
    let mut body = "[".to_owned();
    for (place, one) in all.iter().enumerate() {
        if place > 0 {
            body.push(',');
        }
        write_one(&mut body, one).expect("writing to a text does not fail");
    }
    body.push(']');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_commas_between() {
        let body = |all: &[u8]| list(all, |body, one| write!(body, "{one}"));
        assert_eq!(body(&[]), "[]");
        assert_eq!(body(&[1, 2]), "[1,2]");
    }
}
