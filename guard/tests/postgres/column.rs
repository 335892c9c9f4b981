use tokio_postgres::Client;

use crate::database::{connect, ends, guarded, waiting};

const COLUMN: &str = "UPDATE t SET n = $2, high = GREATEST(high, $1) WHERE id = 1 AND high <= $1";
/// What the file warns of: the number is looked up elsewhere.
const ELSEWHERE: &str = "UPDATE t SET n = $2 WHERE id = 1 AND (SELECT high FROM numbers) <= $1";

async fn write(client: &Client, sql: &str, token: i64, n: i32) -> u64 {
    client.execute(sql, &[&token, &n]).await.unwrap()
}

#[tokio::test]
async fn an_update_that_waited_is_judged_by_the_number_that_stands_then_if_that_is_in_its_own_row() {
    let server = guarded().await;
    let (watcher, new) = (connect(&server.url()).await, connect(&server.url()).await);
    watcher.batch_execute("CREATE TABLE t (id int, n int, high bigint NOT NULL DEFAULT 0)").await.unwrap();
    watcher.batch_execute("CREATE TABLE numbers AS SELECT 0::bigint AS high").await.unwrap();
    for (sql, raise, landed) in [
        (COLUMN, "UPDATE t SET high = 7", 0),
        (ELSEWHERE, "UPDATE numbers SET high = 7; UPDATE t SET n = 1", 1),
    ] {
        watcher.batch_execute("TRUNCATE t; INSERT INTO t (id, n) VALUES (1, 0)").await.unwrap();
        assert_eq!(write(&watcher, sql, 5, 4).await, 1);
        new.batch_execute(&format!("BEGIN; {raise}")).await.unwrap();
        let old = connect(&server.url()).await;
        let late = tokio::spawn(async move { write(&old, sql, 5, 5).await });
        waiting(&watcher, 1).await;
        new.batch_execute("COMMIT").await.unwrap();
        assert_eq!(ends(late).await, landed, "{sql}");
    }
}
