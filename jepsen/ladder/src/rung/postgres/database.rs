//! The PostgreSQL server of a round, behind a proxy.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, bail, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::PostgresServer;
use tempfile::TempDir;

use super::{Session, quoted};
use crate::clock::Clock;
use crate::fault::Fault;
use crate::front::Front;
use crate::rung::{Rung, Stage};

/// One server, behind a proxy.
pub(in crate::rung) struct Database {
    server: PostgresServer,
    front: Front,
    clock: Option<Clock>,
    /// The files of the clock.
    _folder: TempDir,
    has_data: bool,
}

impl Database {
    pub(in crate::rung) async fn start(rung: &Rung, fault: Fault) -> anyhow::Result<Self> {
        // As root the server runs as another user, who has to read it.
        let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?;
        let clock = Clock::of_servers(fault, folder.path())?;
        let variables: Vec<_> = clock.iter().flat_map(Clock::variables).collect();
        let server = PostgresServer::start_in(&[], &variables).await?;
        let front = Front::open(server.address()).await?;
        let database = Self { server, front, clock, _folder: folder, has_data: rung.number != 12 };
        database.ask("CREATE TABLE locks (name text PRIMARY KEY, count bigint NOT NULL)").await?;
        Ok(database)
    }

    pub(in crate::rung) async fn ask(&self, sql: &str) -> anyhow::Result<Option<String>> {
        Ok(Session::open(&self.server.url().parse()?).await?.ask(sql).await?)
    }

    async fn number(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(self.ask(sql).await?.context("there is no row")?.parse()?)
    }

    async fn restart(&self) -> anyhow::Result<String> {
        let started = async || self.ask("SELECT pg_postmaster_start_time()").await;
        let before = started().await?;
        self.server.restart().await?;
        ensure!(started().await? != before, "it was not restarted");
        Ok("the server was killed, and restarted with its data".to_owned())
    }

    async fn throw(&self, hours: i64) -> anyhow::Result<String> {
        let time = || self.number("SELECT extract(epoch FROM clock_timestamp())::bigint");
        Clock::moves(self.clock.as_ref(), hours, "clock_timestamp()", time).await
    }
}

impl Stage for Database {
    fn fronts(&self) -> Vec<&Front> {
        vec![&self.front]
    }

    fn servers(&self) -> String {
        format!("postgresql://postgres@{}/postgres", self.front.address())
    }

    fn inflict(&self, fault: Fault) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async move {
            match fault.server_clock_h() {
                Some(hours) => self.throw(hours).await,
                None if fault == Fault::Failover => self.restart().await,
                None => bail!("{} does not apply", fault.name()),
            }
        })
    }

    fn state(&self, _: &str) -> BoxFuture<'_, anyhow::Result<String>> {
        Box::pin(async {
            let idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
            match self.number(idle).await? {
                0 => bail!("it is stuck although no transaction is open"),
                _ => Ok("a transaction is open and idle".to_owned()),
            }
        })
    }

    fn count(&self, key: &str) -> BoxFuture<'_, anyhow::Result<Option<i64>>> {
        let sql = format!("SELECT count FROM locks WHERE name = {}", quoted(key));
        Box::pin(async move { if self.has_data { self.number(&sql).await.map(Some) } else { Ok(None) } })
    }
}
