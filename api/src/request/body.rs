use std::time::Duration;

use axum::BoxError;
use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use ringfence_http::{RequestBody, Shed};
use ringfence_wire::{FieldError, ProblemKind, from_json};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::door::{Request, Visit};
use crate::problems::Failed;

/// The time for a body to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a body.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a too large body that are read before the refusal. A server that stops reading resets the connection, and a
/// client that is still writing would see the reset instead of the response.
const MAX_DISCARDED: usize = 16 << 20;

/// Reads the body of `request` as JSON, whatever its content type, and checks it.
pub(crate) async fn read<T: DeserializeOwned>(
    visit: &mut Visit<'_>,
    request: Request,
    check: impl FnOnce(&T) -> Result<(), FieldError>,
) -> Result<T, Failed> {
    let mut arriving = request.into_body();
    let (body, size) = timeout(TIMEOUT, bytes(&mut arriving)).await.map_err(|_| {
        let detail = format!("the body did not arrive within {} s", TIMEOUT.as_secs());
        Failed::from(FieldError { field: None, detail })
    })??;
    let is_allowed = visit.arrived(size);
    let body = body.ok_or_else(too_large)?;
    is_allowed?;
    timeout(TIMEOUT, arriving.handled(size)).await.unwrap_or(Err(Shed)).map_err(|_| too_many())?;
    drop(arriving);
    visit.check_again()?;
    let body = from_json(&body)?;
    check(&body)?;
    Ok(body)
}

/// Reads and drops the body of a request that is denied, if it is not too large for any. If the server stopped reading, the
/// connection would be reset, and a client that still sends the body might not see the response. Returns `why` it is denied.
pub(crate) async fn discard(request: Request, why: Failed) -> Failed {
    let mut body = request.into_body().dropped();
    let all = async {
        let mut size = 0;
        while size <= MAX_BYTES
            && let Ok(Some(data)) = frame(&mut body).await
        {
            size += data.len();
        }
    };
    // Whoever is slower is not waited for.
    let _ = timeout(TIMEOUT, all).await;
    why
}

/// The whole body, if it is not too large, and how many bytes were read.
async fn bytes(body: &mut RequestBody) -> Result<(Option<Bytes>, usize), Failed> {
    if body.size_hint().lower() > MAX_DISCARDED as u64 {
        return Ok((None, 0));
    }
    // Most bodies are a single frame, which needs no copy.
    let first = frame(body).await?.unwrap_or_default();
    let mut size = first.len();
    if body.is_end_stream() && size <= MAX_BYTES {
        return Ok((Some(first), size));
    }
    let mut whole = BytesMut::from(first);
    while let Some(data) = frame(body).await? {
        size += data.len();
        if size > MAX_DISCARDED {
            break;
        }
        if size <= MAX_BYTES {
            whole.extend_from_slice(&data);
        }
    }
    Ok(((size <= MAX_BYTES).then(|| whole.freeze()), size))
}

/// The next piece of the body; empty for trailers.
async fn frame(body: &mut RequestBody) -> Result<Option<Bytes>, Failed> {
    match body.frame().await {
        None => Ok(None),
        Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
        Some(Err(error)) => Err(unread(&error)),
    }
}

fn unread(error: &BoxError) -> Failed {
    if error.is::<Shed>() {
        return too_many();
    }
    Failed::from(FieldError { field: None, detail: format!("cannot read the body: {error}") })
}

fn too_many() -> Failed {
    let detail = "this node has too many large requests, and others go first: retry later";
    Failed::new(ProblemKind::Unavailable, detail)
}

fn too_large() -> Failed {
    Failed::new(ProblemKind::TooLarge, "a body may have at most 1 MiB (1,048,576 bytes)")
}
