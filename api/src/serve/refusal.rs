//! Answers to plain connections that are not served.

use std::time::Duration;

use axum::http::StatusCode;
use ringfence_wire::ProblemKind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::encryption::HANDSHAKE;
use crate::problems::Failed;

/// How long the other side may take to read.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Says why a connection is not served, for at most a second.
pub(super) async fn refuse(stream: TcpStream, failed: Failed) {
    let _ = timeout(REFUSAL_TIMEOUT, answer(stream, failed)).await;
}

/// What a connection that is refused for want of room is told.
pub(super) fn no_room() -> Failed {
    let detail = "this node has the maximum number of connections, and all are in use: use another node, or retry later";
    Failed::new(ProblemKind::Unavailable, detail)
}

/// Answers a plain request without reading it, then drains what the client sends: closing a socket with unread bytes resets
/// the connection, and the client would lose the answer.
async fn answer(mut stream: TcpStream, failed: Failed) -> std::io::Result<()> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    // Over TLS, saying why would take a handshake.
    if first == [HANDSHAKE] {
        return Ok(());
    }
    let problem = failed.into_problem();
    let status = StatusCode::from_u16(problem.status).expect("problems have valid statuses");
    let body = serde_json::to_vec(&problem).expect("a problem is valid JSON");
    let retry = if status == StatusCode::SERVICE_UNAVAILABLE { "retry-after: 1\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\n{retry}connection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}
