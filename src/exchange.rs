//! One HTTP request to a node, on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::body::{Body, Bytes, to_bytes};
use hyper::client::conn::http1::handshake;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest answer that is read: no question here has one nearly as long.
const MAX_ANSWER: usize = 1 << 20;

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Sends a request to `node` and reads the whole answer. An error says nothing of whether the request was done.
pub(crate) async fn exchange(
    node: SocketAddr,
    method: Method,
    path: &str,
    body: Bytes,
    within: Duration,
) -> anyhow::Result<Answer> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", node.to_string())
        .body(Body::from(body))?;
    let exchange = async {
        let stream = TokioIo::new(TcpStream::connect(node).await?);
        let (mut sender, connection) = handshake(stream).await?;
        let answer = async move {
            let (head, body) = sender.send_request(request).await?.into_parts();
            Ok(Answer { status: head.status, body: to_bytes(Body::new(body), MAX_ANSWER).await? })
        };
        // The connection ends when its sender is dropped, with the answer; or all of it when this is given up.
        let ends = async { connection.await.map_err(anyhow::Error::from) };
        let (answer, ()) = tokio::try_join!(answer, ends)?;
        anyhow::Ok(answer)
    };
    timeout(within, exchange).await.context("no answer in time")?
}
