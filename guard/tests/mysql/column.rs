use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Value};
use ringfence_harness::MariaDbServer;

use crate::database::{BOTH, Counts, bound, connect, ends, state, waiting};
use crate::pairs::{BAD, GOOD, Pair, raised};
use crate::shown::shown;

const FORM: &str = "**MySQL and MariaDB, by a column**";

/// A server with account 1, which has 100.
async fn accounts() -> MariaDbServer {
    let server = MariaDbServer::start().await.unwrap();
    let mut client = connect(&server, Counts::Changed).await;
    client.query_drop("CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint)").await.unwrap();
    client.query_drop(shown(FORM, "add")).await.unwrap();
    client.query_drop("INSERT INTO accounts (id, balance) VALUES (1, 100)").await.unwrap();
    server
}

/// Returns the number of rows that the driver counts.
async fn run(client: &mut Conn, sql: &str, token: impl Into<Value>, fence: impl Into<Value>) -> u64 {
    let named = [("id", 1.into()), ("balance", 5.into()), ("token", token.into()), ("fence", fence.into())];
    bound(client, sql, &named).await.unwrap()
}

/// The balance and the number.
async fn row(client: &mut Conn) -> (i64, i64) {
    client.query_first("SELECT balance, high FROM accounts").await.unwrap().unwrap()
}

#[tokio::test]
async fn the_count_is_0_for_a_stale_token_alone_whatever_the_driver_counts() {
    let server = accounts().await;
    for counts in BOTH {
        let client = &mut connect(&server, counts).await;
        for statement in ["touch", "write"] {
            let sql = &shown(FORM, statement);
            client.query_drop("UPDATE accounts SET high = 0, balance = 100").await.unwrap();
            for (token, fence, rows) in [(9, 5, 1), (9, 5, 1), (7, 5, 1), (4, 3, 0), (6, 2, 1), (6, 2, 1)] {
                assert_eq!(run(client, sql, token, fence).await, rows, "{counts:?}: {statement} {token}");
            }
            assert_eq!(row(client).await, (if statement == "write" { 5 } else { 100 }, 5), "{counts:?}");
            assert_eq!(run(client, sql, 12, Value::NULL).await, 1);
            assert_eq!(run(client, sql, Value::NULL, 12).await, 0);
            assert_eq!(run(client, sql, 11, Value::NULL).await, 0);
            assert_eq!(row(client).await.1, 12);
        }
    }
}

/// Why `writes` is there.
#[tokio::test]
async fn without_its_counter_a_repeated_write_looks_stale_where_changed_rows_are_counted() {
    let server = accounts().await;
    for (counts, repeated) in [(Counts::Matched, 1), (Counts::Changed, 0)] {
        let client = &mut connect(&server, counts).await;
        client.query_drop("UPDATE accounts SET high = 0, balance = 100").await.unwrap();
        let sql = &shown(FORM, "write").replace("writes = writes + 1, ", "");
        assert_eq!(run(client, sql, 9, 9).await, 1);
        assert_eq!(run(client, sql, 9, 9).await, repeated, "{counts:?}");
    }
}

/// Many drivers send a large number as a string.
#[tokio::test]
async fn strings_are_compared_as_numbers() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    let sql = &shown(FORM, "write");
    assert_eq!(run(client, sql, "9", "9").await, 1);
    assert_eq!(run(client, sql, "10", "10").await, 1);
    assert_eq!((row(client).await, run(client, sql, "9", "9").await), ((5, 10), 0));
}

#[tokio::test]
async fn an_operator_cannot_set_a_timestamp_in_nanoseconds() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    let error = client.query_drop("UPDATE accounts SET high = 1790000000000000000").await.unwrap_err();
    assert_eq!(state(&error), "23000", "{error}");
    assert_eq!(row(client).await, (100, 0));
}

/// Token 0, as an unset variable, once passed on every row that nobody had touched.
#[tokio::test]
async fn each_statement_contains_the_whole_rule() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    for mode in ["STRICT_ALL_TABLES", ""] {
        client.query_drop(format!("SET sql_mode = '{mode}'")).await.unwrap();
        for (statement, high) in [("touch", 0), ("touch", 5), ("write", 0), ("write", 5)] {
            let (sql, renew) =
                (&shown(FORM, statement), format!("UPDATE accounts SET balance = 100, high = {high}"));
            client.query_drop(&renew).await.unwrap();
            for named in BAD.into_iter().flat_map(spelled) {
                assert_eq!(bound(client, sql, &named).await.unwrap_or(0), 0, "{mode:?} {high}: {named:?}");
                assert_eq!(row(client).await, (100, high), "{mode:?} {high}: {named:?}");
            }
            for (pair, named) in GOOD.into_iter().flat_map(|pair| spelled(pair).map(|named| (pair, named))) {
                client.query_drop(&renew).await.unwrap();
                assert_eq!(bound(client, sql, &named).await.unwrap(), 1, "{mode:?} {high}: {named:?}");
                assert_eq!(row(client).await.1, raised(high, pair), "{mode:?} {high}: {named:?}");
            }
        }
    }
}

/// The parameters with the pair as numbers, if it is one of numbers, and as texts.
fn spelled((token, fence): Pair) -> [[(&'static str, Value); 4]; 2] {
    let plain = |text: &str| text.parse::<i64>().map_or_else(|_| text.into(), Value::from);
    let with = |spell: &dyn Fn(&str) -> Value| {
        let spell = |text: Option<&str>| text.map_or(Value::NULL, spell);
        [("id", 1.into()), ("balance", 5.into()), ("token", spell(token)), ("fence", spell(fence))]
    };
    [with(&plain), with(&|text| text.into())]
}

#[tokio::test]
async fn a_write_that_waited_sees_the_new_number() {
    let server = accounts().await;
    let mut new = connect(&server, Counts::Changed).await;
    for counts in BOTH {
        new.query_drop("UPDATE accounts SET high = 0").await.unwrap();
        new.query_drop("BEGIN; UPDATE accounts SET high = 7").await.unwrap();
        let mut old = connect(&server, counts).await;
        let late = tokio::spawn(async move { run(&mut old, &shown(FORM, "write"), 5, 5).await });
        waiting(&server, 1).await;
        new.query_drop("COMMIT").await.unwrap();
        assert_eq!(ends(late).await, 0, "{counts:?}");
    }
}
