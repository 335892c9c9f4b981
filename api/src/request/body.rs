use std::time::Duration;

use axum::BoxError;
use axum::body::HttpBody;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use ringfence_wire::{FieldError, ProblemKind, from_json};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::door::access::Caller;
use crate::door::{Door, Request};
use crate::problems::Failed;
use crate::serve::{RequestBody, Shed};

/// The time for a body to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a body.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a too large body that are read before the refusal. A server that stops reading resets the connection, and a
/// client that is still writing would see the reset instead of the response.
const MAX_DISCARDED: usize = 16 << 20;

/// So many bytes of a body count as one request more: reading JSON is work, even to refuse it.
const BYTES_OF_A_REQUEST: usize = 4 << 10;

/// Reads the body of `request` as JSON, whatever its content type, and checks it.
pub(crate) async fn read<T: DeserializeOwned>(
    door: &Door,
    caller: &Caller,
    request: Request,
    check: impl FnOnce(&T) -> Result<(), FieldError>,
) -> Result<T, Failed> {
    read_counted(door, caller, request, check).await.map(|(body, _)| body)
}

/// The same, and for how many requests the body was counted.
pub(crate) async fn read_counted<T: DeserializeOwned>(
    door: &Door,
    caller: &Caller,
    request: Request,
    check: impl FnOnce(&T) -> Result<(), FieldError>,
) -> Result<(T, usize), Failed> {
    let mut size = 0;
    let body = timeout(TIMEOUT, bytes(request.into_body(), &mut size)).await;
    // Whatever was read, also of a body that is refused.
    let counted = size.min(MAX_BYTES) / BYTES_OF_A_REQUEST;
    door.count_more(caller, counted, 0)?;
    let body = body.map_err(|_| {
        let detail = format!("the body did not arrive within {} s", TIMEOUT.as_secs());
        Failed::from(FieldError { field: None, detail })
    })??;
    let body = from_json(&body)?;
    check(&body)?;
    Ok((body, counted))
}

/// Reads and drops the body of a request that is denied, if it is not too large for any. If the server stopped reading, the
/// connection would be reset, and a client that still sends the body might not see the response.
pub(crate) async fn discard(request: Request) {
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
}

/// The whole body. Counts in `size` what was read of it.
async fn bytes(mut body: RequestBody, size: &mut usize) -> Result<Bytes, Failed> {
    if body.size_hint().lower() > MAX_DISCARDED as u64 {
        return Err(too_large());
    }
    // Most bodies are a single frame, which needs no copy.
    let first = frame(&mut body).await?.unwrap_or_default();
    *size = first.len();
    if body.is_end_stream() && first.len() <= MAX_BYTES {
        return Ok(first);
    }
    let mut whole = BytesMut::from(first);
    while let Some(data) = frame(&mut body).await? {
        *size += data.len();
        if *size > MAX_DISCARDED {
            break;
        }
        if *size <= MAX_BYTES {
            whole.extend_from_slice(&data);
        }
    }
    if *size > MAX_BYTES { Err(too_large()) } else { Ok(whole.freeze()) }
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
        let detail =
            "this node is receiving too many large requests, and this one is the slowest: retry later";
        return Failed::new(ProblemKind::Unavailable, detail);
    }
    Failed::from(FieldError { field: None, detail: format!("cannot read the body: {error}") })
}

fn too_large() -> Failed {
    Failed::new(ProblemKind::TooLarge, "a body may have at most 1 MiB (1,048,576 bytes)")
}
