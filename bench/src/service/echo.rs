//! A server that answers with what it is sent, in a process of its own, on the HTTP stack that Ringfence is built on: the
//! cost of a pair of HTTP requests that do nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::put;
use axum::serve::ListenerExt;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ringfence_harness::HttpConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::job::{Assignment, Locker};
use crate::load::Worker;
use crate::service::Service;

const PATH: &str = "/v1/leases/00000000-0000-4000-8000-000000000000";

/// Prints its address and serves until its standard input ends.
pub(crate) async fn serve_echo() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    let route = put(async |body: Bytes| (StatusCode::CREATED, body)).delete(async || StatusCode::NO_CONTENT);
    let app = Router::new().route("/v1/leases/{lease}", route);
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let mut input = BufReader::new(tokio::io::stdin());
    let over = async move { drop(input.read_line(&mut String::new()).await) };
    Ok(axum::serve(listener, app).with_graceful_shutdown(over).await?)
}

pub(crate) struct Echo {
    child: Child,
    address: SocketAddr,
}

pub(super) async fn start() -> Result<Echo> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("echo").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output is piped")?).read_line(&mut line).await?;
    Ok(Echo { child, address: line.trim().parse().context("it printed no address")? })
}

impl Service for Echo {
    fn pids(&self) -> Vec<u32> {
        self.child.id().into_iter().collect()
    }

    fn worker<'a>(&'a self, client: &'a Assignment) -> BoxFuture<'a, Result<Worker>> {
        async move { Ok(client.lock(Pair(HttpConnection::open(self.address).await?))) }.boxed()
    }
}

struct Pair(HttpConnection);

impl Locker for Pair {
    type Held = ();

    async fn acquire(&mut self, key: &str) -> Result<()> {
        let body = format!(r#"{{"keys":["{key}"],"ttl_ms":60000,"wait_ms":60000}}"#);
        self.0.expect(201, "PUT", PATH, &body).await?;
        Ok(())
    }

    async fn release(&mut self, (): ()) -> Result<()> {
        self.0.expect(204, "DELETE", PATH, "").await?;
        Ok(())
    }
}
