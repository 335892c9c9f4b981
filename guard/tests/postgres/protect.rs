use ringfence_guard::postgres::SQL;

use crate::database::{code, connect, guarded, refused};

/// Once a misspelled table was protected without an error, which protected nothing.
#[tokio::test]
async fn no_table_and_no_key_are_errors() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE TABLE orders (id int)").await.unwrap();
    for arguments in ["to_regclass('typo'), 'orders/', 'id'", "'orders', NULL, 'id'", "'orders', NULL"] {
        let error = client.batch_execute(&format!("SELECT ringfence.protect({arguments})")).await;
        assert_eq!(code(&error.expect_err(arguments)), "22004", "{arguments}");
    }
    client.batch_execute("INSERT INTO orders VALUES (1)").await.unwrap();
}

#[tokio::test]
async fn a_generated_id_is_claimed_before_its_row_is_made() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client
        .batch_execute(
            "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total int);
             SELECT ringfence.protect('orders', 'orders/', 'id')",
        )
        .await
        .unwrap();
    assert_eq!(refused(&client, "INSERT INTO orders (total) VALUES (1)").await, "RF428");
    let id: i64 = client.query_one(of_head("SELECT nextval"), &[]).await.unwrap().get(0);
    let insert = format!("INSERT INTO orders OVERRIDING SYSTEM VALUE VALUES ({id}, 1)");
    let claimed = format!("BEGIN; SELECT ringfence.claim('orders/{id}', 7); {insert}; COMMIT");
    client.batch_execute(&claimed).await.unwrap();
}

#[tokio::test]
async fn the_guarded_tables_can_be_listed() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client
        .batch_execute(
            "CREATE TABLE plain (id int); CREATE TABLE settings (id int); CREATE TABLE orders (id int);
             CREATE TABLE disabled (id int);
             SELECT ringfence.protect('settings', 'settings'), ringfence.protect('orders', 'orders/', 'id'),
                    ringfence.protect('disabled', 'disabled');
             ALTER TABLE disabled DISABLE TRIGGER USER",
        )
        .await
        .unwrap();
    let sql = format!("SELECT tgrelid::regclass::text FROM ({}) AS t ORDER BY 1", of_head("SELECT tgrelid"));
    let tables: Vec<String> = client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(tables, ["orders", "settings"]);
}

/// The statement in the head of the file that begins so, without its semicolon.
fn of_head(begin: &str) -> &'static str {
    let mut statements = SQL.lines().map(|line| line.trim_start_matches(['-', ' ']).trim_end_matches(';'));
    statements.find(|line| line.starts_with(begin)).expect(begin)
}
