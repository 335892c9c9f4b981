//! A key is its bytes, whatever the collation of the text that a caller passes.

use ringfence_guard::postgres::SQL;
use ringfence_harness::PostgresServer;
use tokio_postgres::Client;

use crate::database::{connect, guarded, refused};
use crate::upgrade::EARLIER;

/// A nondeterministic collation, the usual way to names without case, is the first.
const COLLATIONS: [&str; 4] = ["ci", "\"C\"", "\"en-x-icu\"", "\"default\""];
const CI: &str = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";

/// A server with a new guard, and one with an upgraded guard.
async fn servers() -> [PostgresServer; 2] {
    let upgraded = PostgresServer::start().await.unwrap();
    let client = connect(&upgraded.url()).await;
    for sql in [EARLIER, SQL] {
        client.batch_execute(sql).await.unwrap();
    }
    let servers = [guarded().await, upgraded];
    for server in &servers {
        connect(&server.url()).await.batch_execute(CI).await.unwrap();
    }
    servers
}

/// A table of users, with Bob, and no numbers.
async fn users(client: &Client, collation: &str) {
    client
        .batch_execute(&format!(
            "TRUNCATE ringfence.guard; DROP TABLE IF EXISTS users;
             CREATE TABLE users (name text COLLATE {collation} PRIMARY KEY, n int);
             INSERT INTO users VALUES ('Bob', 0)"
        ))
        .await
        .unwrap();
}

/// Once a claim was compared with the number of another key, which was equal by the caller's collation.
#[tokio::test]
#[ignore = "slow"]
async fn a_claim_is_compared_with_the_number_of_its_very_key() {
    for server in servers().await {
        let client = connect(&server.url()).await;
        for collation in COLLATIONS {
            users(&client, collation).await;
            let touch = "SELECT ringfence.touch('users/bob', 5); SELECT ringfence.touch('users/Bob', 20)";
            client.batch_execute(touch).await.unwrap();
            let claim = "SELECT ringfence.claim('users/' || name, 7) FROM users";
            assert_eq!(refused(&client, claim).await, "RF412", "{collation}");
            let admit = "SELECT accepted, high, ringfence.high('users/' || name)
                         FROM users, ringfence.admit('users/' || name, 7)";
            let row = client.query_one(admit, &[]).await.unwrap();
            assert_eq!((row.get(0), row.get(1), row.get(2)), (false, 20_i64, 20_i64), "{collation}");
            client.batch_execute("SELECT ringfence.reset('users/' || name, 30) FROM users").await.unwrap();
            let highs = "SELECT ringfence.high('users/bob'), ringfence.high('users/Bob')";
            let row = client.query_one(highs, &[]).await.unwrap();
            assert_eq!((row.get(0), row.get(1)), (5_i64, 30_i64), "{collation}");
        }
    }
}

/// Once the holder of users/bob could write the row Bob, and rename it.
#[tokio::test]
#[ignore = "slow"]
async fn a_row_is_written_by_claims_of_its_very_key() {
    let (by_bob, by_capital_bob) =
        ("SELECT ringfence.claim('users/bob', 5)", "SELECT ringfence.claim('users/Bob', 20)");
    for server in servers().await {
        let client = connect(&server.url()).await;
        for collation in COLLATIONS {
            users(&client, collation).await;
            client.batch_execute("SELECT ringfence.protect('users', 'users/', 'name')").await.unwrap();
            let renamed = "UPDATE users SET name = lower(name)";
            for write in ["UPDATE users SET n = 1", "DELETE FROM users", renamed] {
                assert_eq!(
                    refused(&client, &format!("{by_bob}; {write}")).await,
                    "RF428",
                    "{collation}: {write}"
                );
            }
            assert_eq!(
                refused(&client, &format!("{by_capital_bob}; {renamed}")).await,
                "RF428",
                "{collation}"
            );
            let both = format!("BEGIN; {by_bob}; {by_capital_bob}; {renamed}; COMMIT");
            client.batch_execute(&both).await.expect(collation);
        }
    }
}

/// Once each row of a table with another collation than the database's made a scan of all numbers.
#[tokio::test]
#[ignore = "slow"]
async fn numbers_are_found_by_the_index_whatever_the_collation() {
    for server in servers().await {
        let client = connect(&server.url()).await;
        // A scan, then, is one that no index can replace.
        client.batch_execute("SET enable_seqscan = off").await.unwrap();
        for collation in COLLATIONS {
            users(&client, collation).await;
            client.batch_execute("SELECT ringfence.protect('users', 'users/', 'name')").await.unwrap();
            client.batch_execute("SELECT ringfence.touch('users/Bob', 7); BEGIN").await.unwrap();
            let before = scans(&client).await;
            client
                .batch_execute(
                    "SELECT ringfence.claim('users/' || name, 7), ringfence.high('users/' || name),
                            ringfence.admit('users/' || name, 5) FROM users;
                     UPDATE users SET n = 1; UPDATE users SET name = name",
                )
                .await
                .unwrap();
            let after = scans(&client).await;
            client.batch_execute("COMMIT").await.unwrap();
            assert!(after.0 == before.0 && after.1 > before.1, "{collation}: {before:?}, {after:?}");
        }
    }
}

/// The scans of the table of numbers, and those of its index, in this transaction.
async fn scans(client: &Client) -> (i64, i64) {
    let sql =
        "SELECT seq_scan, idx_scan FROM pg_stat_xact_all_tables WHERE relid = 'ringfence.guard'::regclass";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}
