//! `by_connection` with one mistake each, which a check of its own must find.

use ringfence_guard::postgres::SQL;
use ringfence_harness::PostgresServer;

use crate::by_connection::{KEYS, TABLES, connect_with, setting};
use crate::database::{code, connect, ends, waiting};

const WRITE: &str = "UPDATE orders SET total = total + 1 WHERE id = 42";

/// The check that finds it, and what it has instead of what.
const MUTANTS: [(Check, &[[&str; 2]]); 3] = [
    (Check::Touch, &[["    PERFORM ringfence.touch(mine.key, mine.token);\n    COMMIT;", "    COMMIT;"]]),
    (
        Check::Order,
        &[
            [
                "BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT '",
                "BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '",
            ],
            [
                "  END LOOP;\n  RETURN NULL;\nEND $$;\n\n-- With three",
                "  END LOOP;\n  RETURN coalesce(NEW, OLD);\nEND $$;\n\n-- With three",
            ],
        ],
    ),
    (
        Check::Setting,
        &[[
            "coalesce(current_setting('ringfence.may_claim', true), '');",
            "coalesce(nullif(current_setting('mutant.seen', true), ''),
               set_config('mutant.seen', current_setting('ringfence.may_claim', true), false), '');",
        ]],
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// What a newer holder has touched, no older one writes to.
    Touch,
    /// A statement claims before it locks rows.
    Order,
    /// The setting counts as it is now.
    Setting,
}

/// The checks that fail.
async fn failing(sql: &str) -> Vec<Check> {
    let server = PostgresServer::start().await.unwrap();
    let client = connect(&server.url()).await;
    client.batch_execute(sql).await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    let [older, newer] =
        [connect_with(&server, &setting(&KEYS, 7)).await, connect_with(&server, &setting(&KEYS, 8)).await];
    let mut failing = Vec::new();

    older.batch_execute(WRITE).await.unwrap();
    older.batch_execute("SET ringfence.may_claim = ''").await.unwrap();
    if older.batch_execute(WRITE).await.as_ref().err().map(code) != Some("RF428") {
        failing.push(Check::Setting);
    }
    older.batch_execute("DISCARD ALL").await.unwrap();

    // Who waits for a claim keeps no row from its holder.
    client.batch_execute("BEGIN; SELECT ringfence.claim('orders/42', 7)").await.unwrap();
    let waits = tokio::spawn(async move { (older.batch_execute(WRITE).await, older) });
    waiting(&client, 1).await;
    if client.batch_execute("SELECT FROM orders WHERE id = 42 FOR UPDATE NOWAIT").await.is_err() {
        failing.push(Check::Order);
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    let (written, older) = ends(waits).await;
    written.unwrap();

    newer.batch_execute("CALL ringfence.touch_all()").await.unwrap();
    if older.batch_execute(WRITE).await.as_ref().err().map(code) != Some("RF412") {
        failing.push(Check::Touch);
    }
    failing
}

#[tokio::test]
#[ignore = "slow"]
async fn each_mistake_is_found_by_its_check() {
    assert_eq!(failing(SQL).await, []);
    for (check, changes) in MUTANTS {
        let mutant = changes.iter().fold(SQL.to_owned(), |sql, [text, instead]| {
            assert_eq!(sql.matches(text).count(), 1, "{check:?}: {text}");
            sql.replace(text, instead)
        });
        assert_eq!(failing(&mutant).await, [check]);
    }
}
