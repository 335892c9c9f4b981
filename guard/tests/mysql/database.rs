use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, OptsBuilder, Params, Value};
use ringfence_harness::{MariaDbServer, until};
use tokio::task::JoinHandle;

use crate::installation::installation;

/// Bounds what should take far less.
const SOON: Duration = Duration::from_secs(60);

/// What a driver counts as changed by an UPDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// The rows that it matched: `CLIENT_FOUND_ROWS`.
    Matched,
    /// The rows whose values changed.
    Changed,
}

pub(crate) const BOTH: [Counts; 2] = [Counts::Matched, Counts::Changed];

/// A server with the guard installed.
pub(crate) async fn guarded() -> MariaDbServer {
    let server = MariaDbServer::start().await.unwrap();
    let mut client = connect(&server, Counts::Changed).await;
    for statements in installation() {
        client.query_drop(statements).await.expect(statements);
    }
    server
}

pub(crate) async fn connect(server: &MariaDbServer, counts: Counts) -> Conn {
    let options = OptsBuilder::default()
        .ip_or_hostname(server.address().ip().to_string())
        .tcp_port(server.address().port())
        .db_name(Some("test"))
        .client_found_rows(counts == Counts::Matched);
    Conn::new(options).await.unwrap()
}

/// Runs one statement with named parameters. Returns the number of rows that the driver counts.
pub(crate) async fn bound(client: &mut Conn, sql: &str, named: &[(&str, Value)]) -> Result<u64, Error> {
    let used = named.iter().filter(|(name, _)| sql.contains(&format!(":{name}")));
    let used: Vec<_> = used.map(|(name, value)| (name.as_bytes().to_vec(), value.clone())).collect();
    let parameters = if used.is_empty() { Params::Empty } else { Params::from(used) };
    client.exec_drop(sql, parameters).await.map(|()| client.affected_rows())
}

/// The SQLSTATE of an error.
pub(crate) fn state(error: &Error) -> &str {
    let Error::Server(error) = error else { panic!("{error}") };
    &error.state
}

/// Waits until so many transactions wait for others.
pub(crate) async fn waiting(server: &MariaDbServer, number: u64) {
    let sql = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    let look = || async {
        // The server refreshes that table only if it was not read for 0.1 s: time is the condition here.
        tokio::time::sleep(Duration::from_millis(120)).await;
        let waiting: Option<u64> = connect(server, Counts::Changed).await.query_first(sql).await.unwrap();
        (waiting == Some(number)).then_some(())
    };
    until(SOON, "transactions wait for others", look).await.unwrap();
}

/// The result of a task that is about to end.
pub(crate) async fn ends<T>(task: JoinHandle<T>) -> T {
    tokio::time::timeout(SOON, task).await.unwrap().unwrap()
}
