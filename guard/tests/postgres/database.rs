use std::time::Duration;

use ringfence_guard::{Claim, postgres};
use ringfence_harness::{PostgresServer, until};
use ringfence_wire::{Key, Token};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, NoTls};

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// A server with the guard installed.
pub(crate) async fn guarded() -> PostgresServer {
    let server = PostgresServer::start().await.unwrap();
    connect(&server.url()).await.batch_execute(postgres::SQL).await.unwrap();
    server
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // The driver ends with the client or the server.
    tokio::spawn(connection);
    client
}

/// Waits until this many transactions wait for another one.
pub(crate) async fn waiting(client: &Client, transactions: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let look = || async {
        let waiting: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
        (waiting == transactions).then_some(())
    };
    until(SOON, "transactions wait for others", look).await.unwrap();
}

/// The result of a task that is about to end.
pub(crate) async fn ends<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(SOON, task).await.unwrap().unwrap()
}

/// The error of a transaction; it is rolled back.
pub(crate) async fn refused(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(&format!("BEGIN; {sql}; COMMIT")).await.expect_err(sql);
    client.batch_execute("ROLLBACK").await.unwrap();
    code(&error).to_owned()
}

/// The SQLSTATE of an error.
pub(crate) fn code(error: &Error) -> &str {
    error.code().unwrap().code()
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

pub(crate) fn exclusive(token: u64) -> Claim {
    Claim::exclusive(Token(token)).unwrap()
}

pub(crate) fn shared(token: u64, fence: u64) -> Claim {
    Claim::new(Token(token), Token(fence)).unwrap()
}
