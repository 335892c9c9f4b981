use ringfence_guard::Admission;
use ringfence_guard::postgres::admit;
use ringfence_harness::PgBouncer;
use tokio_postgres::Client;

use crate::database::{code, connect, exclusive, guarded, key, refused};
use crate::shown::shown;

const TABLES: &str = "
    CREATE TABLE settings (name text, value int);
    INSERT INTO settings VALUES ('a', 0);
    CREATE TABLE orders (id int PRIMARY KEY, total int);
    INSERT INTO orders VALUES (41, 0), (42, 0);";
const PROTECT: &str = "
    SELECT ringfence.protect('settings', 'settings');
    SELECT ringfence.protect('orders', 'orders/', 'id');";
/// The triggers that an earlier version of the file told users to create.
const BY_HAND: &str = "
    CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON settings
      FOR EACH STATEMENT EXECUTE FUNCTION ringfence.demand_claim('settings');
    CREATE TRIGGER guarded BEFORE INSERT OR UPDATE OR DELETE ON orders
      FOR EACH ROW EXECUTE FUNCTION ringfence.demand_claim('orders/', 'id');";

/// Every kind of write to a table of each form.
const WRITES: [&str; 8] = [
    "INSERT INTO settings VALUES ('b', 1)",
    "UPDATE settings SET value = 2",
    "DELETE FROM settings WHERE name = 'a'",
    "TRUNCATE settings",
    "UPDATE orders SET total = 1 WHERE id = 42",
    "DELETE FROM orders WHERE id = 42",
    "INSERT INTO orders VALUES (42, 2)",
    "INSERT INTO orders VALUES (42, 3) ON CONFLICT (id) DO UPDATE SET total = 3",
];
const CLAIM_BOTH: &str = "SELECT ringfence.claim('settings', 7); SELECT ringfence.claim('orders/42', 7)";

async fn with(client: &Client, triggers: &str) {
    client.batch_execute(TABLES).await.unwrap();
    client.batch_execute(triggers).await.unwrap();
}

#[tokio::test]
#[ignore = "slow"]
async fn a_write_lands_only_with_a_claim_of_its_key_in_the_same_transaction() {
    for triggers in [PROTECT, BY_HAND] {
        let server = guarded().await;
        let client = connect(&server.url()).await;
        with(&client, triggers).await;
        for write in WRITES {
            assert_eq!(code(&client.batch_execute(write).await.unwrap_err()), "RF428", "{write}");
            let other_keys = "SELECT ringfence.claim('other', 7); SELECT ringfence.claim('orders/4', 7)";
            assert_eq!(refused(&client, &format!("{other_keys}; {write}")).await, "RF428", "{write}");
            let taken_back = format!("SAVEPOINT s; {CLAIM_BOTH}; ROLLBACK TO s");
            assert_eq!(refused(&client, &format!("{taken_back}; {write}")).await, "RF428", "{write}");
            let kept = format!("SAVEPOINT s; {CLAIM_BOTH}; RELEASE s; {CLAIM_BOTH}");
            client.batch_execute(&format!("BEGIN; {kept}; {write}; COMMIT")).await.expect(write);
            assert_eq!(refused(&client, WRITES[0]).await, "RF428", "the claim went with its transaction");
        }
        let order = client.query_one("SELECT total FROM orders WHERE id = 42", &[]).await.unwrap();
        assert_eq!(order.get::<_, i32>(0), 3);
        assert_eq!(client.query("SELECT * FROM settings", &[]).await.unwrap().len(), 0);
        client.batch_execute("SELECT ringfence.touch('settings', 8)").await.unwrap();
        assert_eq!(refused(&client, &format!("{CLAIM_BOTH}; {}", WRITES[0])).await, "RF412");
    }
}

#[tokio::test]
async fn the_statements_of_the_readme_reject_a_stale_holder() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client
        .batch_execute("CREATE TABLE accounts (id int, balance int); INSERT INTO accounts VALUES (42, 100)")
        .await
        .unwrap();
    let run = async |label: &str, token: u64, fence: &str| {
        let sql = shown("**PostgreSQL, by a trigger.**", label);
        let sql = sql.replace(":token", &token.to_string()).replace(":fence", fence);
        let done = client.batch_execute(&sql).await;
        client.batch_execute("ROLLBACK").await.unwrap();
        done.map_err(|error| code(&error).to_owned())
    };
    run("protect", 0, "").await.unwrap();
    run("touch", 7, "NULL").await.unwrap();
    assert_eq!(run("touch", 5, "5").await, Err("RF412".to_owned()));
    assert_eq!(run("write", 5, "NULL").await, Err("RF412".to_owned()));
    run("write", 8, "7").await.unwrap();
    run("write", 7, "7").await.unwrap();
    let accounts = client.query("SELECT balance FROM accounts WHERE id = 42", &[]).await.unwrap();
    assert_eq!(accounts[0].get::<_, i32>(0), 130);
}

#[tokio::test]
#[ignore = "slow"]
async fn a_row_that_moves_to_another_key_needs_claims_of_both() {
    for triggers in [PROTECT, BY_HAND] {
        let server = guarded().await;
        let client = connect(&server.url()).await;
        with(&client, triggers).await;
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
}

#[tokio::test]
async fn protecting_a_table_again_replaces_its_guard_and_any_text_is_a_key() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    client.batch_execute("ALTER TABLE orders RENAME id TO \"the % 'id'\"").await.unwrap();
    for prefix in ["orders/", "%s 100% \\ $1 it''s/"] {
        let protect = format!("SELECT ringfence.protect('orders', '{prefix}', 'the % ''id''')");
        client.batch_execute(&protect).await.unwrap();
        let write = "UPDATE orders SET total = total + 1 WHERE \"the % 'id'\" = 42";
        assert_eq!(refused(&client, write).await, "RF428");
        let claim = format!("SELECT ringfence.claim('{prefix}42', 7)");
        client.batch_execute(&format!("BEGIN; {claim}; {write}; COMMIT")).await.unwrap();
        client.batch_execute("BEGIN; SELECT ringfence.claim('orders/42', 7)").await.unwrap();
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(
        code(&client.batch_execute("SELECT ringfence.protect('orders', 'o/', 'none')").await.unwrap_err()),
        "42703"
    );
    assert_eq!(refused(&client, "DELETE FROM orders").await, "RF428", "the guard before stands");
}

/// Once TRUNCATE was unguarded for tables with a key for each row, which no claim can cover.
#[tokio::test]
async fn a_table_with_a_key_for_each_row_cannot_be_truncated() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    with(&client, PROTECT).await;
    let both = "SELECT ringfence.claim('orders/41', 7); SELECT ringfence.claim('orders/42', 7)";
    assert_eq!(refused(&client, "TRUNCATE orders").await, "RF428");
    assert_eq!(refused(&client, &format!("{both}; TRUNCATE orders")).await, "RF428");
    client.batch_execute(&format!("BEGIN; {both}; DELETE FROM orders; COMMIT")).await.unwrap();
}

/// Once a trigger of the parent ran only if the statement named the parent.
#[tokio::test]
async fn partitions_and_inheriting_tables_are_guarded_under_any_name() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    for (name, makes) in [
        (
            "parted",
            "CREATE TABLE parted (id int, n int) PARTITION BY RANGE (id);
             CREATE TABLE parted_child PARTITION OF parted FOR VALUES FROM (0) TO (1000) PARTITION BY RANGE (id);
             CREATE TABLE parted_leaf PARTITION OF parted_child FOR VALUES FROM (0) TO (100)",
        ),
        (
            "base",
            "CREATE TABLE base (id int, n int);
             CREATE TABLE base_child () INHERITS (base);
             CREATE TABLE base_leaf (more int) INHERITS (base_child)",
        ),
    ] {
        client.batch_execute(makes).await.unwrap();
        client.batch_execute(&format!("INSERT INTO {name}_leaf VALUES (1, 0)")).await.unwrap();
        let forms = [(format!("'{name}/', 'id'"), format!("{name}/1")), (format!("'{name}'"), name.to_owned())];
        for (arguments, key) in forms {
            // Twice, as after a new partition.
            let protect = format!("SELECT ringfence.protect('{name}', {arguments})");
            client.batch_execute(&format!("{protect}; {protect}")).await.unwrap();
            let claim = format!("SELECT ringfence.claim('{key}', 7)");
            for table in [name.to_owned(), format!("{name}_child"), format!("{name}_leaf")] {
                for write in [
                    format!("INSERT INTO {table} VALUES (1, 0)"),
                    format!("UPDATE {table} SET n = 1 WHERE id = 1"),
                    format!("DELETE FROM {table} WHERE id = 1"),
                ] {
                    assert_eq!(refused(&client, &write).await, "RF428", "{arguments}: {write}");
                    client.batch_execute(&format!("BEGIN; {claim}; {write}; ROLLBACK")).await.expect(&write);
                }
                assert_eq!(refused(&client, &format!("TRUNCATE {table}")).await, "RF428", "{arguments}: {table}");
            }
        }
    }
    // A new partition has the row triggers at once.
    client
        .batch_execute("CREATE TABLE parted_new PARTITION OF parted_child FOR VALUES FROM (100) TO (200)")
        .await
        .unwrap();
    assert_eq!(refused(&client, "INSERT INTO parted_new VALUES (101, 0)").await, "RF428");
    client.batch_execute("SELECT ringfence.protect('parted', 'parted')").await.unwrap();
    assert_eq!(refused(&client, "TRUNCATE parted_new").await, "RF428");
}

/// Triggers that ran BEFORE the write once checked an id that another trigger changed later.
#[tokio::test]
async fn an_id_changed_by_another_trigger_is_checked_as_written() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    with(&client, PROTECT).await;
    client
        .batch_execute(
            "CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN NEW.id := NEW.id + 100; RETURN NEW; END $$;
             CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION redirect()",
        )
        .await
        .unwrap();
    let [claim_7, claim_107] = [7, 107].map(|id| format!("SELECT ringfence.claim('orders/{id}', 7)"));
    let write = "INSERT INTO orders VALUES (7, 1)";
    assert_eq!(refused(&client, &format!("{claim_7}; {write}")).await, "RF428");
    client.batch_execute(&format!("BEGIN; {claim_107}; {write}; COMMIT")).await.unwrap();
    let moves = "UPDATE orders SET total = 2 WHERE id = 107";
    assert_eq!(refused(&client, &format!("{claim_107}; {moves}")).await, "RF428", "it becomes 207");
}

/// Claims once were a setting, which a session can keep: its next claims failed, or counted for other clients.
#[tokio::test]
async fn no_claim_remains_on_a_pooled_connection() {
    let server = guarded().await;
    let bouncer = PgBouncer::start(&server, 1).await.unwrap();
    let (mut one, two) = (connect(&bouncer.url()).await, connect(&bouncer.url()).await);
    with(&one, PROTECT).await;
    for left in ["no JSON", "[1]", "{\"settings\": \"7\"}"] {
        let transaction = one.transaction().await.unwrap();
        assert_eq!(
            admit(&transaction, &key("settings"), exclusive(7)).await.unwrap(),
            Admission::Accepted(())
        );
        transaction.batch_execute("UPDATE settings SET value = value + 1").await.unwrap();
        transaction.batch_execute(&format!("SET ringfence.claims = '{left}'")).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(refused(&two, "UPDATE settings SET value = 2").await, "RF428", "{left}");
    }
    let value = one.query_typed("SELECT value FROM settings", &[]).await.unwrap();
    assert_eq!(value[0].get::<_, i32>(0), 3);
}

/// A server into which the table was restored reuses transaction numbers.
#[tokio::test]
async fn a_claim_by_the_same_transaction_number_of_another_server_does_not_count() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    with(&client, PROTECT).await;
    client.batch_execute("SELECT ringfence.touch('settings', 7)").await.unwrap();
    let restored = "UPDATE ringfence.guard SET claimed_by = pg_current_xact_id()";
    assert_eq!(refused(&client, &format!("{restored}; UPDATE settings SET value = 1")).await, "RF428");
}

/// A trigger's condition follows a renamed column, the name in its arguments does not: once they checked two columns.
#[tokio::test]
async fn a_new_column_with_the_name_of_a_renamed_id_does_not_bypass_the_guard() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    with(&client, PROTECT).await;
    let rename = "ALTER TABLE orders RENAME id TO old_id; ALTER TABLE orders ADD id int DEFAULT 5";
    client.batch_execute(rename).await.unwrap();
    let claim = "SELECT ringfence.claim('orders/5', 7)";
    for write in [
        "INSERT INTO orders VALUES (1, 0)",
        "UPDATE orders SET total = 1",
        "UPDATE orders SET old_id = 7 WHERE old_id = 42",
        "DELETE FROM orders",
    ] {
        assert_eq!(refused(&client, &format!("{claim}; {write}")).await, "RF428", "{write}");
    }
    client.batch_execute("SELECT ringfence.protect('orders', 'orders/', 'id')").await.unwrap();
    client.batch_execute(&format!("BEGIN; {claim}; DELETE FROM orders; COMMIT")).await.unwrap();
}

/// Two sessions with different settings would derive two keys for one row.
#[tokio::test]
async fn an_id_whose_text_depends_on_settings_is_refused() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client
        .batch_execute(
            "CREATE DOMAIN number AS int; CREATE DOMAIN small AS number; CREATE DOMAIN moment AS timestamptz",
        )
        .await
        .unwrap();
    let protect = async |kind: &str| {
        client.batch_execute(&format!("DROP TABLE IF EXISTS t; CREATE TABLE t (id {kind})")).await.unwrap();
        client.batch_execute("SELECT ringfence.protect('t', 't/', 'id')").await
    };
    for kind in ["timestamptz", "date", "interval", "float8", "bytea", "money", "int[]", "moment"] {
        let error = protect(kind).await.expect_err(kind);
        assert_eq!(code(&error), "42804", "{kind}");
        assert!(error.as_db_error().unwrap().message().starts_with("id: column id is of type"), "{error:?}");
    }
    for kind in
        ["int2", "int", "int8", "numeric(9, 2)", "text", "varchar(9)", "char(9)", "name", "uuid", "small"]
    {
        protect(kind).await.expect(kind);
    }
}
