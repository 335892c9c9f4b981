use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Value};
use ringfence_harness::MariaDbServer;

use crate::database::{BOTH, Counts, bound, connect, ends, guarded, state, waiting};
use crate::shown::shown;

const FORM: &str = "**MySQL and MariaDB, by triggers.**";

/// A server with a protected table of accounts, in which a newer holder than 6 has touched account 1, with 100.
async fn accounts() -> MariaDbServer {
    let server = guarded().await;
    let mut client = connect(&server, Counts::Changed).await;
    client.query_drop("CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint)").await.unwrap();
    for statement in shown(FORM, "protect").split_inclusive(";\n").filter(|text| !text.trim().is_empty()) {
        client.query_drop(statement).await.expect(statement);
    }
    client.query_drop("INSERT INTO accounts (id, balance, token) VALUES (1, 100, 7)").await.unwrap();
    server
}

/// Returns the number of rows that the driver counts, or the SQLSTATE.
async fn run(
    client: &mut Conn,
    label: &str,
    token: impl Into<Value>,
    fence: impl Into<Value>,
) -> Result<u64, String> {
    let named = [("id", 1.into()), ("balance", 5.into()), ("token", token.into()), ("fence", fence.into())];
    bound(client, &shown(FORM, label), &named).await.map_err(|error| state(&error).to_owned())
}

/// The balance, the number, and whether the row is a tombstone. What was shown is not kept.
async fn row(client: &mut Conn) -> (Option<i64>, i64, bool) {
    let shown = "SELECT count(*) FROM accounts WHERE token IS NOT NULL OR fence IS NOT NULL";
    assert_eq!(client.query_first(shown).await.unwrap(), Some(0));
    client.query_first("SELECT balance, high, deleted FROM accounts WHERE id = 1").await.unwrap().unwrap()
}

fn refused(by: &str) -> Result<u64, String> {
    Err(by.to_owned())
}

/// The driver's count says nothing: a repeated write is no row of those that changed.
#[tokio::test]
async fn a_stale_holder_is_rejected_and_no_live_peer_whatever_the_driver_counts() {
    let server = accounts().await;
    for counts in BOTH {
        let client = &mut connect(&server, counts).await;
        client.query_drop("SET @ringfence_reset = 1").await.unwrap();
        client.query_drop("UPDATE accounts SET balance = 100, high = 1").await.unwrap();
        assert_eq!(run(client, "write", 9, 5).await, Ok(1));
        assert_eq!(run(client, "write", 9, 5).await, Ok(u64::from(counts == Counts::Matched)), "{counts:?}");
        assert_eq!(run(client, "touch", 9, 5).await, Ok(u64::from(counts == Counts::Matched)), "{counts:?}");
        assert_eq!(run(client, "write", 7, 5).await, Ok(u64::from(counts == Counts::Matched)), "a live peer");
        assert_eq!(run(client, "write", 6, 2).await, Ok(u64::from(counts == Counts::Matched)), "a live peer");
        for statement in ["touch", "write", "delete"] {
            assert_eq!(run(client, statement, 4, 3).await, refused("RF412"), "{statement}");
        }
        assert_eq!(row(client).await, (Some(5), 5, false));
        assert_eq!(run(client, "touch", 12, 12).await.map(|_| ()), Ok(()));
        assert_eq!(run(client, "write", 9, 5).await, refused("RF412"));
        assert_eq!(row(client).await, (Some(5), 12, false));
    }
}

#[tokio::test]
async fn a_fence_of_null_is_the_token_and_no_other_number_passes() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    for mode in ["STRICT_ALL_TABLES", ""] {
        client.query_drop(format!("SET sql_mode = '{mode}'")).await.unwrap();
        let before = row(client).await;
        for statement in ["touch", "write", "delete"] {
            assert_eq!(run(client, statement, Value::NULL, 9).await, refused("RF428"), "{statement}");
            for (token, fence) in [(0, 0), (-4, -4), (1 << 53, 4), (9, 0), (9, 10), (i64::MAX, i64::MAX)] {
                assert_eq!(run(client, statement, token, fence).await, refused("22023"), "{token} {fence}");
            }
            for no_number in ["", "NaN"] {
                assert!(run(client, statement, no_number, Value::NULL).await.is_err(), "{no_number}");
            }
            assert_eq!(row(client).await, before, "{statement}");
        }
    }
    assert_eq!(run(client, "write", 8, Value::NULL).await, Ok(1));
    assert_eq!(row(client).await, (Some(5), 8, false));
    // Strings are compared as numbers.
    assert_eq!(run(client, "write", "10", "10").await, Ok(1));
    assert_eq!(run(client, "write", "9", "9").await, refused("RF412"));
    assert_eq!(row(client).await, (Some(5), 10, false));
}

#[tokio::test]
async fn a_write_that_shows_no_token_is_an_error() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Matched).await;
    for sql in [
        "UPDATE accounts SET balance = 1",
        "UPDATE IGNORE accounts SET balance = 1",
        // As programs do that save all columns as they read them.
        "UPDATE accounts SET balance = 1, high = 6, token = NULL, fence = NULL, deleted = false",
        "INSERT INTO accounts (id, balance) VALUES (2, 1)",
        "INSERT IGNORE INTO accounts (id, balance, high) VALUES (2, 1, 9)",
        "INSERT INTO accounts (id, token) VALUES (1, 9) ON DUPLICATE KEY UPDATE balance = 1",
        "INSERT INTO accounts (id, token) VALUES (1, 9) ON DUPLICATE KEY UPDATE balance = 1, token = VALUES(token)",
        "REPLACE INTO accounts (id, balance, token) VALUES (1, 1, 9)",
        "DELETE FROM accounts",
    ] {
        let error = client.query_drop(sql).await.expect_err(sql);
        assert_eq!(state(&error), "RF428", "{sql}: {error}");
    }
    assert_eq!(row(client).await, (Some(100), 7, false));
    client.query_drop("UPDATE accounts SET balance = 1, high = 2, token = 9").await.unwrap();
    assert_eq!(row(client).await, (Some(1), 9, false), "nobody writes the number");
}

#[tokio::test]
async fn a_tombstone_rejects_a_stale_insert() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    let seen = async |client: &mut Conn| {
        let rows: Vec<i64> = client.query(shown(FORM, "read").replace(":id", "1")).await.unwrap();
        rows.len()
    };
    assert_eq!(run(client, "delete", 9, 9).await, Ok(1));
    assert_eq!((row(client).await, seen(client).await), ((Some(100), 9, true), 0));
    for late in [
        "INSERT INTO accounts (id, balance, token) VALUES (1, 5, 8)",
        "INSERT INTO accounts (id, balance, token) VALUES (1, 5, 8) ON DUPLICATE KEY UPDATE balance = 5, token = 8",
        "INSERT IGNORE INTO accounts (id, balance, token) VALUES (1, 5, 8)",
    ] {
        let _ = client.query_drop(late).await;
        assert_eq!((row(client).await, seen(client).await), ((Some(100), 9, true), 0), "{late}");
    }
    assert_eq!(run(client, "touch", 10, 10).await, Ok(2));
    assert_eq!(run(client, "write", 10, 10).await, Ok(1));
    assert_eq!((row(client).await, seen(client).await), ((Some(5), 10, false), 1));
}

#[tokio::test]
#[ignore = "slow"]
async fn a_write_waits_for_the_transaction_before_it_and_sees_its_outcome() {
    let server = accounts().await;
    let mut new = connect(&server, Counts::Changed).await;
    for (ended, outcome) in [("ROLLBACK", Ok(1)), ("COMMIT", refused("RF412"))] {
        new.query_drop("BEGIN").await.unwrap();
        assert_eq!(run(&mut new, "touch", 9, 9).await, Ok(2));
        let mut old = connect(&server, Counts::Changed).await;
        let late = tokio::spawn(async move {
            // It sees the rows from before, and writes to those of now.
            old.query_drop("BEGIN; SELECT * FROM accounts").await.unwrap();
            let outcome = run(&mut old, "write", 8, 8).await;
            old.query_drop("COMMIT").await.unwrap();
            outcome
        });
        waiting(&server).await;
        new.query_drop(ended).await.unwrap();
        assert_eq!(ends(late).await, outcome, "{ended}");
    }
    assert_eq!(row(&mut new).await, (Some(5), 9, false));
}

/// An error does not end the transaction: its caller does.
#[tokio::test]
async fn a_row_for_claims_guards_what_its_transaction_writes_elsewhere() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    client.query_drop("CREATE TABLE orders (id int PRIMARY KEY)").await.unwrap();
    for (token, accepted) in [(6, false), (8, true), (7, false), (8, true)] {
        let written: Result<(), Error> = async {
            client.query_drop("BEGIN").await?;
            let named = [("id", 1.into()), ("token", token.into()), ("fence", token.into())];
            bound(client, &shown(FORM, "touch"), &named).await?;
            client.query_drop("INSERT INTO orders SELECT count(*) FROM orders").await?;
            client.query_drop("COMMIT").await
        }
        .await;
        assert_eq!(written.is_ok(), accepted, "{token}: {written:?}");
        if let Err(error) = written {
            assert_eq!(state(&error), "RF412");
            client.query_drop("ROLLBACK").await.unwrap();
        }
    }
    let orders: Option<u64> = client.query_first("SELECT count(*) FROM orders").await.unwrap();
    assert_eq!(orders, Some(2));
}

#[tokio::test]
async fn an_operator_resets_one_row() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    assert_eq!(run(client, "touch", 1_790_000_000_000_000_i64, Value::NULL).await, Ok(2));
    assert_eq!(run(client, "write", 8, 8).await, refused("RF412"));
    client.query_drop("SET @ringfence_reset = 8").await.unwrap();
    client.query_drop("UPDATE accounts SET high = 8 WHERE id = 1").await.unwrap();
    assert_eq!(run(client, "write", 7, 7).await, refused("RF412"));
    assert_eq!(run(client, "write", 8, 8).await, Ok(1));
    let again = client.query_drop("UPDATE accounts SET high = 6 WHERE id = 1").await;
    assert_eq!(state(&again.unwrap_err()), "RF428", "once");
    // A reset that met no row lets no other write through, not even one of a whole row as it was read.
    client.query_drop("SET @ringfence_reset = 6").await.unwrap();
    client.query_drop("UPDATE accounts SET high = 6 WHERE id = 77").await.unwrap();
    for write in ["balance = 1", "balance = 1, high = 7, token = NULL, fence = NULL, deleted = false"] {
        let unguarded = client.query_drop(format!("UPDATE accounts SET {write} WHERE id = 1")).await;
        assert_eq!(state(&unguarded.expect_err(write)), "RF428", "{write}");
    }
    assert_eq!(run(client, "write", 7, 7).await, refused("RF412"));
    assert_eq!(row(client).await, (Some(5), 8, false));
}
