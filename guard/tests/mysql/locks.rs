use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Value};
use tokio::task::JoinHandle;

use crate::database::{Counts, connect, ends, waiting};
use crate::triggers::{WRITE, accounts, holder, refused, run, touch};

const ROW_41: &str = "SELECT * FROM accounts WHERE id = 41 FOR UPDATE";

/// Runs a statement that waits.
fn begin(mut client: Conn, sql: &'static str) -> JoinHandle<(Conn, Result<(), String>)> {
    tokio::spawn(async move {
        let result = run(&mut client, sql).await;
        (client, result)
    })
}

/// The server locks the row before it runs a trigger, BEFORE or AFTER.
#[tokio::test]
async fn a_refused_writer_keeps_its_rows_until_it_rolls_back() {
    let server = accounts().await;
    let [mut late, live] = [holder(&server, 7).await, holder(&server, 8).await];
    run(&mut late, "BEGIN").await.unwrap();
    assert_eq!(run(&mut late, WRITE).await, refused("RF412"));
    let write = begin(live, WRITE);
    waiting(&server, 1).await;
    run(&mut late, "ROLLBACK").await.unwrap();
    ends(write).await.1.unwrap();
}

/// One has written. The other has locked a row, and waits behind the touch for the number. Then the one asks for that row.
#[tokio::test]
async fn a_touch_between_two_stale_connections_is_a_victim_and_passes_when_tried_again() {
    let server = accounts().await;
    let [mut one, mut other] = [holder(&server, 7).await, holder(&server, 7).await];
    run(&mut one, &format!("BEGIN; {WRITE}")).await.unwrap();
    run(&mut other, &format!("BEGIN; {ROW_41}")).await.unwrap();
    let live = connect(&server, Counts::Changed).await;
    let live = begin(live, "SET @ringfence_may_claim = ringfence_touch('accounts/42', 8, NULL)");
    waiting(&server, 1).await;
    let other = begin(other, "CALL ringfence_demand('accounts/42')");
    waiting(&server, 2).await;
    let one = begin(one, ROW_41);
    let (mut live, result) = ends(live).await;
    assert_eq!(result, refused("40001"));
    for late in [other, one] {
        let (mut late, result) = ends(late).await;
        result.unwrap();
        run(&mut late, "ROLLBACK").await.unwrap();
    }
    touch(&mut live, 8, Value::NULL).await.unwrap();
    run(&mut live, WRITE).await.unwrap();
}

/// MariaDB 11.6 and later do so by default.
#[tokio::test]
async fn with_isolated_snapshots_an_old_one_ends_its_transaction() {
    const ISOLATED: &str = "SET innodb_snapshot_isolation = ON";
    let server = accounts().await;
    let [mut late, mut live] = [holder(&server, 7).await, connect(&server, Counts::Changed).await];
    run(&mut late, &format!("{ISOLATED}; BEGIN; SELECT * FROM accounts")).await.unwrap();
    touch(&mut live, 8, 8).await.unwrap();
    assert_eq!(run(&mut late, WRITE).await, refused("HY000"));
    assert_eq!(late.query_first("SELECT @@in_transaction").await.unwrap(), Some(0));
    assert_eq!(run(&mut late, WRITE).await, refused("RF412"));
    // A touch that waits for another one.
    run(&mut late, "BEGIN; UPDATE ringfence_guard SET high = 9").await.unwrap();
    run(&mut live, ISOLATED).await.unwrap();
    let again = begin(live, "SET @ringfence_may_claim = ringfence_touch('accounts/42', 10, NULL)");
    waiting(&server, 1).await;
    run(&mut late, "COMMIT").await.unwrap();
    let (mut live, result) = ends(again).await;
    assert_eq!(result, refused("HY000"));
    touch(&mut live, 10, 10).await.unwrap();
}
