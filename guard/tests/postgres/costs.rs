use std::fs;

use tokio_postgres::Client;

use crate::database::{connect, guarded, refused};

/// A guard that looked at the whole row once failed beyond 256 MB, and took seconds for a few rows of some MB.
#[tokio::test]
#[ignore = "slow"]
async fn a_row_of_300_mb_is_written_under_the_triggers() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    // The text is stored compressed; reading it takes 300 MB.
    client
        .batch_execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total int, body text);
             INSERT INTO orders VALUES (42, 0, repeat('x', 300000000));
             SELECT ringfence.protect('orders', 'orders/', 'id')",
        )
        .await
        .unwrap();
    let write = "UPDATE orders SET total = 1";
    assert_eq!(refused(&client, write).await, "RF428");
    let moves = "UPDATE orders SET id = 43";
    let claims = "SELECT ringfence.claim('orders/42', 7); SELECT ringfence.claim('orders/43', 7)";
    client
        .batch_execute(&format!("BEGIN; {claims}; {write}; {moves}; DELETE FROM orders; COMMIT"))
        .await
        .unwrap();
}

/// Each claim once rewrote the list of those before it, and each row read all of it.
#[tokio::test]
async fn claims_and_rows_take_linear_time() {
    const FEW: i64 = 1_000;
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE TABLE t (id bigint PRIMARY KEY, n int)").await.unwrap();
    client.batch_execute("SELECT ringfence.protect('t', 't/', 'id')").await.unwrap();
    let work = async |first: i64, count: i64| {
        let before = cpu_ticks(&client).await;
        let series = format!("generate_series({first}, {}) AS id", first + count - 1);
        client
            .batch_execute(&format!(
                "BEGIN; SELECT count(ringfence.claim('t/' || id, 7)) FROM {series};
                 INSERT INTO t SELECT id, 0 FROM {series}; COMMIT"
            ))
            .await
            .unwrap();
        cpu_ticks(&client).await - before
    };
    work(1, FEW).await;
    let few = work(10_000, FEW).await.max(1);
    let many = work(20_000, 8 * FEW).await;
    assert!(many < 24 * few, "{FEW}: {few} ticks; {}: {many} ticks", 8 * FEW);
}

/// A claim once matched a pattern against the whole message that contained it: beyond 256 MB it failed.
#[tokio::test]
#[ignore = "slow"]
async fn a_claim_and_a_write_of_280_mb_in_one_string_are_accepted() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE TABLE t (id int PRIMARY KEY, size int)").await.unwrap();
    client.batch_execute("SELECT ringfence.protect('t', 't/', 'id')").await.unwrap();
    let body = "x".repeat(280_000_000);
    let sql = format!("SELECT ringfence.claim('t/1', 7); INSERT INTO t SELECT 1, octet_length('{body}')");
    client.batch_execute(&sql).await.unwrap();
    let size: i32 = client.query_one("SELECT size FROM t", &[]).await.unwrap().get(0);
    assert_eq!(size, 280_000_000);
}

/// The CPU time of the client's backend; on a busy machine, elapsed time says little.
async fn cpu_ticks(client: &Client) -> u64 {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // utime and stime are the 14th and the 15th; the second is the name, in parentheses.
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
