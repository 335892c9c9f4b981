//! A storage backend that rejects stale writers: files over HTTP, each guarded by the key in its path.
//!
//! `ringfence dev --storage` serves one beside its cluster.

use std::path::PathBuf;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Extension, Router};
use percent_encoding::percent_decode_str;
use ringfence_client::{Client, Consistency};
use ringfence_guard::Claim;
use ringfence_guard::http::{GuardLayer, Target};
use ringfence_wire::Key;

/// Serves the files in `folder`, which nobody else writes.
pub fn storage(cluster: Client, folder: PathBuf) -> Router {
    // Called for a key that was not used recently: every token below its fence is stale.
    let fence = move |key: Key| {
        let cluster = cluster.clone();
        async move { cluster.key(&key, Consistency::Linearizable).await.map(|view| view.fence) }
    };
    Router::new()
        .route("/files/{name}", get(read).put(write))
        .layer(GuardLayer::new(target_of, fence, 10_000, 1 << 20))
        .with_state(folder)
}

/// The key of `/files/report` is `files/report`. It is the key of `/files/%72eport`, too, which is the same file.
fn target_of(request: &Parts) -> Target {
    let path = percent_decode_str(request.uri.path()).decode_utf8().ok();
    let key = path.and_then(|path| path.strip_prefix('/')?.parse().ok());
    key.map_or(Target::Refused, Target::Guarded)
}

async fn read(State(folder): State<PathBuf>, Path(name): Path<String>) -> Result<Vec<u8>, StatusCode> {
    let path = folder.join(plain(&name)?);
    std::fs::read(path).map_err(|_| StatusCode::NOT_FOUND)
}

/// The layer admits one request for a key at a time, and none with a stale token. It also adds the claim: without the layer, axum
/// answers 500, and nothing is written.
async fn write(
    State(folder): State<PathBuf>,
    Path(name): Path<String>,
    Extension(_admitted): Extension<Claim>,
    body: Bytes,
) -> Result<StatusCode, StatusCode> {
    let path = folder.join(plain(&name)?);
    std::fs::write(path, body).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A name within the folder.
fn plain(name: &str) -> Result<&str, StatusCode> {
    let is_plain = !name.starts_with('.') && !name.contains(['/', '\0']);
    is_plain.then_some(name).ok_or(StatusCode::BAD_REQUEST)
}
