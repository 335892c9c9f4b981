//! A server that answers with what it is sent, in a process of its own, on the stack that Ringfence is built on: what a
//! pair of HTTP requests costs when nothing is done for them.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::put;
use axum::serve::ListenerExt;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::http::Connection;
use crate::service::{Locker, Service};

/// Answers until its standard input ends; prints where.
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
    let mut child = Command::new(std::env::current_exe()?)
        .arg("echo")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("its output is piped")?).read_line(&mut line).await?;
    Ok(Echo { child, address: line.trim().parse().context("it did not tell where it listens")? })
}

impl Service for Echo {
    fn pids(&self) -> Vec<u32> {
        self.child.id().into_iter().collect()
    }

    fn flushes(&self) -> BoxFuture<'_, Option<u64>> {
        std::future::ready(None).boxed()
    }

    fn locker(&self) -> BoxFuture<'_, Result<Box<dyn Locker>>> {
        async move { Ok(Box::new(Pair(Connection::open(self.address).await?)) as Box<dyn Locker>) }.boxed()
    }
}

struct Pair(Connection);

impl Locker for Pair {
    fn acquire<'a>(&'a mut self, key: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            let body = format!(r#"{{"keys":["{key}"],"ttl_ms":60000,"wait_ms":60000}}"#);
            let answer = self.0.call("PUT", "/v1/leases/00000000-0000-4000-8000-000000000000", &body).await?;
            ensure!(answer.status == 201, "echo: {}", answer.status);
            Ok(())
        }
        .boxed()
    }

    fn release(&mut self) -> BoxFuture<'_, Result<()>> {
        async move {
            let path = "/v1/leases/00000000-0000-4000-8000-000000000000";
            let answer = self.0.call("DELETE", path, "").await?;
            ensure!(answer.status == 204, "echo: {}", answer.status);
            Ok(())
        }
        .boxed()
    }
}
