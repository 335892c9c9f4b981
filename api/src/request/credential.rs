use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use ringfence_access::{Digest, Proof};
use ringfence_http::Remote;
use ringfence_wire::ProblemKind;

use crate::problems::Failed;

/// What a request with `headers` over a connection from `remote` shows of its sender.
pub(crate) fn proof(headers: &HeaderMap, remote: &Remote) -> Result<Proof, Failed> {
    Ok(Proof { credential: credential(headers, remote)?, certificate: Arc::clone(&remote.names) })
}

/// The digest of the credential in `headers`.
fn credential(headers: &HeaderMap, remote: &Remote) -> Result<Option<Digest>, Failed> {
    let mut all = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let credential = match (all.next(), all.next()) {
        (None, _) => return Ok(None),
        (Some(header), None) => {
            header.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
        }
        (Some(_), Some(_)) => None,
    };
    let Some((_, credential)) = credential else {
        return Err(unauthenticated("the header Authorization must be `Bearer` and a credential"));
    };
    if !remote.is_encrypted {
        return Err(unauthenticated(
            "a credential over a plain connection is not accepted, and may have been read by others: use https, and replace it",
        ));
    }
    Ok(Some(Digest::of(credential)))
}

fn unauthenticated(detail: &str) -> Failed {
    Failed::new(ProblemKind::Unauthenticated, detail)
}
