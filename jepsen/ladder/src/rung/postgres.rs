//! A row that is locked by `SELECT … FOR UPDATE` in an open transaction: the lock is held until that ends, and ends with the
//! connection. There is no time to live.

mod database;

use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use futures_util::future::BoxFuture;
use ringfence_harness::PostgresServer;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use crate::register::STOCK;
use crate::rung::{Family, GRANTED, Lock, PLAIN, Rung, Setting, printed};
use crate::step::Answer;

pub(super) use database::Database;

/// How long a client waits for an answer that is not the first one of an acquire.
const PATIENT: Duration = Duration::from_secs(10);

const ELSEWHERE: Rung = Rung {
    number: 12,
    name: "FOR UPDATE, data elsewhere",
    plays: "SELECT … FOR UPDATE locks a row in an open transaction, and the work is done elsewhere, as in xxl-job 3.4.0's scheduler; with \
            SKIP LOCKED, as a holder here tries once. COMMIT.",
    family: Family::Postgres,
    expires: false,
    ..PLAIN
};

pub(super) const RUNGS: [Rung; 2] = [
    ELSEWHERE,
    Rung {
        number: 13,
        name: "FOR UPDATE, same transaction",
        plays: "The same; the stock count is in the locked row, and the transaction that locks it reads and writes it.",
        ..ELSEWHERE
    },
];

/// As in "PostgreSQL 15.9".
pub(super) fn version() -> Option<String> {
    let printed = printed(PostgresServer::program().ok()?.to_str()?, &["--version"])?;
    Some(format!("PostgreSQL {}", printed.split_whitespace().nth(2)?))
}

/// A holder's client. It makes its connection again after an error or a lost answer.
pub(super) struct RowLock {
    server: Config,
    session: Option<Session>,
    /// The lock's name, quoted.
    name: String,
    is_in_transaction: bool,
    has_data: bool,
}

/// A connection; it is closed when this is dropped.
pub(super) struct Session {
    client: Client,
    _driver: JoinSet<()>,
}

impl Session {
    async fn open(server: &Config) -> anyhow::Result<Self> {
        let (client, connection) = server.connect(NoTls).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move { drop(connection.await) });
        Ok(Self { client, _driver: driver })
    }

    /// The first value of the first row, if there is one.
    async fn ask(&self, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
        let rows = self.client.simple_query(sql).await?;
        Ok(rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }
}

pub(super) fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\'', "''"))
}

/// Makes the row of the lock with this quoted name, unless it is there.
pub(super) async fn add_row(url: &str, before: &str, name: &str) -> anyhow::Result<Session> {
    let session = Session::open(&url.parse()?).await?;
    session
        .ask(&format!("{before}INSERT INTO locks VALUES ({name}, {STOCK}) ON CONFLICT DO NOTHING"))
        .await?;
    Ok(session)
}

impl RowLock {
    /// A client, when the row is there.
    pub(super) async fn new(setting: &Setting) -> anyhow::Result<Self> {
        let name = quoted(&setting.key);
        let session = add_row(&setting.servers, "", &name).await?;
        let server: Config = setting.servers.parse()?;
        let has_data = setting.rung == 13;
        Ok(Self { server, session: Some(session), name, is_in_transaction: false, has_data })
    }

    /// Sends it all at once. After an error, or without an answer in time, the connection is closed, and with it the
    /// transaction ends.
    async fn call(&mut self, sql: &str, within: Duration) -> anyhow::Result<Option<String>> {
        let session = self.session.as_ref().context("the transaction has ended with its connection")?;
        let answer = timeout(within, session.ask(sql)).await;
        let answer = answer.map_err(|_| anyhow!("no answer within {within:?}")).and_then(|it| Ok(it?));
        if answer.is_err() {
            (self.session, self.is_in_transaction) = (None, false);
        }
        answer
    }

    async fn try_acquire(&mut self, within: Duration) -> anyhow::Result<Answer> {
        if self.session.is_none() {
            self.session = Some(Session::open(&self.server).await?);
        }
        let lock = format!("BEGIN; SELECT 1 FROM locks WHERE name = {} FOR UPDATE SKIP LOCKED", self.name);
        self.is_in_transaction = self.call(&lock, within).await?.is_some();
        if self.is_in_transaction {
            return Ok(GRANTED);
        }
        self.call("ROLLBACK", PATIENT).await?;
        Ok(Answer::Held)
    }
}

impl Lock for RowLock {
    fn acquire(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(self.try_acquire(within))
    }

    fn touch(&mut self) -> BoxFuture<'_, anyhow::Result<Answer>> {
        let answer = if self.is_in_transaction { Answer::Alive } else { Answer::Lost };
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn release(&mut self, within: Duration) -> BoxFuture<'_, anyhow::Result<Answer>> {
        Box::pin(async move {
            if !std::mem::take(&mut self.is_in_transaction) {
                return Ok(Answer::Lost);
            }
            self.call("COMMIT", within).await?;
            Ok(Answer::Released)
        })
    }

    fn access(&mut self, write: Option<i64>) -> Option<BoxFuture<'_, anyhow::Result<Answer>>> {
        if !self.has_data {
            return None;
        }
        Some(Box::pin(async move {
            ensure!(self.is_in_transaction, "the transaction is over");
            let name = &self.name;
            let sql = match write {
                None => format!("SELECT count FROM locks WHERE name = {name}"),
                Some(count) => {
                    format!("UPDATE locks SET count = {count} WHERE name = {name} RETURNING count")
                }
            };
            let count = self.call(&sql, PATIENT).await?.context("the row is gone")?.parse()?;
            Ok(if write.is_some() { Answer::Written { count } } else { Answer::Read { count } })
        }))
    }
}
