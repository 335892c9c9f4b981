use ringfence_guard::Admission;
use ringfence_guard::postgres::admit;
use ringfence_harness::PgBouncer;
use tokio_postgres::Client;

use crate::database::{code, connect, exclusive, guarded, key};

const TABLES: &str = "
    CREATE TABLE settings (name text, value int);
    INSERT INTO settings VALUES ('a', 0);
    CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON settings
      FOR EACH STATEMENT EXECUTE FUNCTION ringfence.demand_claim('settings');
    CREATE TABLE orders (id int PRIMARY KEY, total int);
    INSERT INTO orders VALUES (41, 0), (42, 0);
    CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE ON orders
      FOR EACH ROW EXECUTE FUNCTION ringfence.demand_claim('orders/', 'id');";

/// Every kind of write to a table of each form.
const WRITES: [&str; 8] = [
    "INSERT INTO settings VALUES ('b', 1)",
    "UPDATE settings SET value = 2",
    "DELETE FROM settings",
    "TRUNCATE settings",
    "UPDATE orders SET total = 1 WHERE id = 42",
    "DELETE FROM orders WHERE id = 42",
    "INSERT INTO orders VALUES (42, 2)",
    "INSERT INTO orders VALUES (42, 3) ON CONFLICT (id) DO UPDATE SET total = 3",
];
const CLAIM_BOTH: &str = "SELECT ringfence.claim('settings', 7); SELECT ringfence.claim('orders/42', 7)";

/// The error of a transaction; it is rolled back.
async fn refused(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(&format!("BEGIN; {sql}; COMMIT")).await.expect_err(sql);
    client.batch_execute("ROLLBACK").await.unwrap();
    code(&error).to_owned()
}

#[tokio::test]
async fn a_write_lands_only_with_a_claim_of_its_key_in_the_same_transaction() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    for write in WRITES {
        assert_eq!(refused(&client, write).await, "RF428", "{write}");
        let other_keys = "SELECT ringfence.claim('other', 7); SELECT ringfence.claim('orders/4', 7)";
        assert_eq!(refused(&client, &format!("{other_keys}; {write}")).await, "RF428", "{write}");
        let taken_back = format!("SAVEPOINT s; {CLAIM_BOTH}; ROLLBACK TO s");
        assert_eq!(refused(&client, &format!("{taken_back}; {write}")).await, "RF428", "{write}");
        client.batch_execute(&format!("BEGIN; {CLAIM_BOTH}; {write}; COMMIT")).await.expect(write);
        assert_eq!(refused(&client, WRITES[1]).await, "RF428", "the claim went with its transaction");
    }
    let order = client.query_one("SELECT total FROM orders WHERE id = 42", &[]).await.unwrap();
    assert_eq!(order.get::<_, i32>(0), 3);
    assert_eq!(client.query("SELECT * FROM settings", &[]).await.unwrap().len(), 0);
    client.batch_execute("SELECT ringfence.claim('settings', 8)").await.unwrap();
    assert_eq!(refused(&client, &format!("{CLAIM_BOTH}; {}", WRITES[0])).await, "RF412");
}

#[tokio::test]
async fn a_row_that_moves_to_another_key_needs_claims_of_both() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let (from, to) = ("SELECT ringfence.claim('orders/42', 7)", "SELECT ringfence.claim('orders/43', 7)");
    let moves = "UPDATE orders SET id = 43 WHERE id = 42";
    assert_eq!(refused(&client, &format!("{from}; {moves}")).await, "RF428");
    assert_eq!(refused(&client, &format!("{to}; {moves}")).await, "RF428");
    client.batch_execute(&format!("BEGIN; {from}; {to}; {moves}; COMMIT")).await.unwrap();
    assert_eq!(
        refused(&client, &format!("{to}; UPDATE orders SET total = 1")).await,
        "RF428",
        "41 is not claimed"
    );
}

#[tokio::test]
async fn a_claim_that_is_left_behind_on_a_pooled_connection_counts_for_nobody() {
    let server = guarded().await;
    let bouncer = PgBouncer::start(&server, 1).await.unwrap();
    let (mut one, two) = (connect(&bouncer.url()).await, connect(&bouncer.url()).await);
    one.batch_execute(TABLES).await.unwrap();
    let left = "SELECT current_setting('ringfence.claims', true)";
    let transaction = one.transaction().await.unwrap();
    assert_eq!(admit(&transaction, &key("settings"), exclusive(7)).await.unwrap(), Admission::Accepted);
    transaction.commit().await.unwrap();
    let nothing = two.query_typed(left, &[]).await.unwrap();
    assert_eq!(nothing[0].get::<_, &str>(0), "", "it goes with its transaction");
    let transaction = one.transaction().await.unwrap();
    assert_eq!(admit(&transaction, &key("settings"), exclusive(7)).await.unwrap(), Admission::Accepted);
    let keep = "SELECT set_config('ringfence.claims', current_setting('ringfence.claims'), false)";
    transaction.batch_execute(keep).await.unwrap();
    transaction.batch_execute("UPDATE settings SET value = 1").await.unwrap();
    transaction.commit().await.unwrap();
    let kept = two.query_typed(left, &[]).await.unwrap();
    assert!(kept[0].get::<_, &str>(0).contains("settings"), "unless somebody keeps it");
    assert_eq!(refused(&two, "UPDATE settings SET value = 2").await, "RF428");
}
