//! Transactions that lock rows and claim.

use super::*;

/// Claims in the order of the rows deadlock as the rows do.
#[tokio::test]
async fn writers_in_opposite_orders_do_not_deadlock() {
    never_deadlocks(125).await;
}

#[tokio::test]
#[ignore = "slow"]
async fn writers_in_opposite_orders_do_not_deadlock_in_10_000_transactions() {
    never_deadlocks(2_500).await;
}

/// Every pair of an order of the keys and an order of the rows.
async fn never_deadlocks(transactions: u32) {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let write = |id: u8| format!("UPDATE orders SET total = total + 1 WHERE id = {id}");
    let writes = async |keys: [&str; 2], [first, second]: [u8; 2]| {
        let writer = connect_with(&server, &setting(&keys, 7)).await;
        let program = format!("BEGIN; {}; {}; COMMIT", write(first), write(second));
        for _ in 0..transactions {
            writer.batch_execute(&program).await.unwrap();
        }
    };
    let [sorted, reversed] = [["orders/41", "orders/42"], ["orders/42", "orders/41"]];
    let (up, down) = ([41, 42], [42, 41]);
    tokio::join!(writes(sorted, up), writes(sorted, down), writes(reversed, up), writes(reversed, down));
    let sum: i64 = client.query_one("SELECT sum(total) FROM orders", &[]).await.unwrap().get(0);
    assert_eq!(sum, 8 * i64::from(transactions));
}

/// It has locked the row by a read, and then it may not wait for the live holder, who waits for that row: a deadlock could end either.
#[tokio::test]
async fn a_stale_transaction_that_has_locked_a_row_does_not_deadlock_with_the_live_holder() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let stale = connect_with(&server, &setting(&["orders/42"], 7)).await;
    let live = connect_with(&server, &setting(&["orders/42"], 8)).await;
    let lock = "BEGIN; SELECT total FROM orders WHERE id = 42 FOR UPDATE";
    let write = "UPDATE orders SET total = total + 1 WHERE id = 42";
    stale.batch_execute(lock).await.unwrap();
    live.batch_execute("CALL ringfence.touch_all()").await.unwrap();
    let waits = tokio::spawn(async move { live.batch_execute(write).await });
    waiting(&client, 1).await;
    assert_eq!(code(&stale.batch_execute(write).await.unwrap_err()), "RF412");
    stale.batch_execute("ROLLBACK").await.unwrap();
    ends(waits).await.unwrap();
}

/// Two connections of one lease are the only ones that can.
#[tokio::test]
async fn rows_that_are_locked_before_the_claim_can_deadlock_with_another_connection_of_the_lease() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let own = setting(&["orders/42"], 7);
    let [one, two] = [connect_with(&server, &own).await, connect_with(&server, &own).await];
    let write = "UPDATE orders SET total = total + 1 WHERE id = 42";
    one.batch_execute("BEGIN; SELECT total FROM orders WHERE id = 42 FOR UPDATE").await.unwrap();
    let waits = tokio::spawn(async move { two.batch_execute(write).await });
    waiting(&client, 1).await;
    let ended = [one.batch_execute(write).await, one.batch_execute("ROLLBACK").await, ends(waits).await];
    let ended: Vec<_> = ended.iter().filter_map(|done| done.as_ref().err()).map(code).collect();
    assert_eq!(ended, ["40P01"], "one of them, and the other goes on");
}
