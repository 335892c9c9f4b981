//! Writers that know nothing of the guard: a setting of their connection claims for them.

mod deadlocks;

use std::process::Stdio;

use ringfence_guard::postgres::SQL;
use ringfence_harness::PostgresServer;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio_postgres::{Client, Error};

use crate::database::{code, connect, ends, guarded, refused, waiting};

/// The last is claimed by nobody below.
pub(crate) const TABLES: &str = "
    CREATE TABLE settings (name text, value int);
    INSERT INTO settings VALUES ('a', 0);
    CREATE TABLE orders (id int PRIMARY KEY, total int);
    INSERT INTO orders VALUES (41, 0), (42, 0), (43, 0);
    SELECT ringfence.protect('settings', 'the settings', by_connection => true),
           ringfence.protect('orders', 'orders/', 'id', by_connection => true);";
/// All that a program may claim, in no order.
pub(crate) const KEYS: [&str; 3] = ["the settings", "orders/42", "orders/41"];

/// A program that nobody changed: scripts of `psql`. After an error, each goes on.
const PROGRAMS: [&str; 8] = [
    "UPDATE orders SET total = total + 1 WHERE id = 42;",
    "BEGIN; DELETE FROM orders WHERE id = 42; INSERT INTO orders VALUES (42, 1); COMMIT;",
    "PREPARE w AS UPDATE orders SET total = $1 WHERE id = 41; EXECUTE w(1); DISCARD PLANS; EXECUTE w(2);",
    "BEGIN; SAVEPOINT s; UPDATE orders SET total = 1 WHERE id = 41; ROLLBACK TO s; UPDATE orders SET total = 1 WHERE id = 41; COMMIT;",
    "INSERT INTO orders VALUES (42, 3) ON CONFLICT (id) DO UPDATE SET total = 3;",
    "WITH gone AS (DELETE FROM settings) INSERT INTO orders VALUES (42, 9) ON CONFLICT (id) DO UPDATE SET total = 9;",
    "COPY settings FROM stdin;\nb\t1\nc\t2\n\\.\n",
    "TRUNCATE settings;",
];

/// The setting with these keys.
pub(crate) fn setting(keys: &[&str], token: u64) -> String {
    let escaped = |key: &str| key.replace(' ', "%20").replace('/', "%2F");
    let claims: Vec<_> = keys.iter().map(|key| format!("{}={token}", escaped(key))).collect();
    format!("-c ringfence.may_claim={}", claims.join(","))
}

/// A connection that begins with these options.
pub(crate) async fn connect_with(server: &PostgresServer, options: &str) -> Client {
    let options = options.replace('%', "%25").replace(' ', "%20").replace('=', "%3D");
    connect(&format!("{}?options={options}", server.url())).await
}

/// What such a program prints, as errors their SQLSTATE.
async fn psql(server: &PostgresServer, options: &str, program: &str) -> String {
    let mut psql = Command::new("psql");
    psql.args(["-qXAt", "-v", "VERBOSITY=sqlstate", &server.url()]).env("PGOPTIONS", options);
    let piped = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    child.stdin.take().unwrap().write_all(program.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn an_unchanged_program_writes_with_its_setting_alone() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let live = setting(&KEYS, 7);
    assert_eq!(psql(&server, &live, "CALL ringfence.touch_all()").await, "");
    for program in PROGRAMS {
        assert_eq!(psql(&server, &live, program).await, "", "{program}");
        let other_keys = setting(&["settings", "orders/4", "order", "orders/"], 7);
        for options in ["", "-c ringfence.may_claim=", &other_keys] {
            let printed = psql(&server, options, program).await;
            assert!(
                printed.contains("RF428") && !printed.contains("RF412"),
                "{options}: {program}: {printed}"
            );
        }
        let printed = psql(&server, &setting(&KEYS, 6), program).await;
        assert!(printed.contains("RF412"), "{program}: {printed}");
    }
    let written = "SELECT total FROM orders WHERE id = 42 UNION ALL SELECT count(*)::int FROM settings";
    let written: Vec<i32> = client.query(written, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(written, [9, 0], "only what had a claim");
    assert_eq!(
        psql(&server, &live, "UPDATE orders SET total = 1 WHERE id = 43;").await.trim(),
        "ERROR:  RF428"
    );
    assert!(psql(&server, &live, "TRUNCATE orders;").await.contains("RF428"), "no claim covers all rows");
}

/// Its connection is older than the newer holder.
#[tokio::test]
async fn a_program_that_wakes_up_late_is_refused_and_resets_of_its_pool_change_nothing() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let late = connect_with(&server, &setting(&KEYS, 7)).await;
    let write = "UPDATE orders SET total = total + 1 WHERE id = 42";
    for reset in
        ["SELECT 1", "DISCARD ALL", "RESET ALL", "SET ringfence.may_claim = ''; RESET ringfence.may_claim"]
    {
        for part in reset.split("; ") {
            late.batch_execute(part).await.unwrap();
        }
        late.batch_execute(write).await.expect(reset);
    }
    // What the session says itself is as good as a claim by hand, and no better.
    for (said, then) in [("", "RF428"), ("orders/42=6", "RF412"), ("no", "22023")] {
        let error = refused(&late, &format!("SET LOCAL ringfence.may_claim = '{said}'; {write}")).await;
        assert_eq!(error, then, "{said}");
    }
    late.batch_execute(write).await.unwrap();
    let prepared = late.prepare(write).await.unwrap();
    late.execute(&prepared, &[]).await.unwrap();
    client.batch_execute("SELECT ringfence.touch('orders/42', 8)").await.unwrap();
    assert_eq!(code(&late.execute(&prepared, &[]).await.unwrap_err()), "RF412");
    assert_eq!(refused(&late, write).await, "RF412");
    // Claims by hand need no setting.
    client
        .batch_execute(&format!("BEGIN; SELECT ringfence.claim('orders/42', 8); {write}; COMMIT"))
        .await
        .unwrap();
}

#[tokio::test]
async fn the_claim_is_the_first_of_the_statement_under_repeatable_read_as_well() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let [one, two] =
        [connect_with(&server, &setting(&KEYS, 7)).await, connect_with(&server, &setting(&KEYS, 7)).await];
    let write = "UPDATE orders SET total = total + 1 WHERE id = 42";
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT total FROM orders";
    for (claimed, result) in [
        ("orders SET total = 1 WHERE id = 41", Some("40001")),
        ("pg_settings SET setting = 1 WHERE false", None),
    ] {
        one.batch_execute(begin).await.unwrap();
        two.batch_execute(&format!("UPDATE {claimed}")).await.unwrap();
        let written = one.batch_execute(write).await;
        assert_eq!(written.as_ref().err().map(code), result, "{claimed}");
        one.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[tokio::test]
async fn partitions_and_inheriting_tables_claim_under_any_name() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client
        .batch_execute(
            "CREATE TABLE parted (id int, n int) PARTITION BY RANGE (id);
             CREATE TABLE parted_leaf PARTITION OF parted FOR VALUES FROM (0) TO (100);
             CREATE TABLE base (id int, n int);
             CREATE TABLE base_leaf (more int) INHERITS (base)",
        )
        .await
        .unwrap();
    for name in ["parted", "base"] {
        for (arguments, key) in
            [(format!("'{name}/', 'id'"), format!("{name}/1")), (format!("'{name}'"), name.to_owned())]
        {
            client
                .batch_execute(&format!(
                    "SELECT ringfence.protect('{name}', {arguments}, by_connection => true)"
                ))
                .await
                .unwrap();
            let writer = connect_with(&server, &setting(&[&key], 7)).await;
            for table in [name.to_owned(), format!("{name}_leaf")] {
                for write in [
                    "INSERT INTO t VALUES (1, 0)",
                    "UPDATE t SET n = 1 WHERE id = 1",
                    "DELETE FROM t WHERE id = 1",
                ] {
                    let write = write.replace(" t ", &format!(" {table} "));
                    assert_eq!(refused(&client, &write).await, "RF428", "{write}");
                    writer.batch_execute(&write).await.expect(&write);
                }
            }
        }
        let writer = connect_with(&server, &setting(&[name], 7)).await;
        writer.batch_execute(&format!("TRUNCATE {name}_leaf; TRUNCATE {name}")).await.unwrap();
    }
    // A new partition refuses direct writes until it is protected.
    client
        .batch_execute("CREATE TABLE parted_new PARTITION OF parted FOR VALUES FROM (100) TO (200)")
        .await
        .unwrap();
    let writer = connect_with(&server, &setting(&["parted"], 7)).await;
    let [through, direct] =
        ["parted", "parted_new"].map(|table| format!("INSERT INTO {table} VALUES (101, 0)"));
    writer.batch_execute(&through).await.unwrap();
    assert_eq!(code(&writer.batch_execute(&direct).await.unwrap_err()), "RF428");
    client
        .batch_execute("SELECT ringfence.protect('parted', 'parted', by_connection => true)")
        .await
        .unwrap();
    writer.batch_execute(&direct).await.unwrap();
}

#[tokio::test]
async fn a_malformed_setting_is_an_error_that_names_it() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let write = async |list: &str| -> Result<(), Error> {
        client.execute("SELECT set_config('ringfence.may_claim', $1, false)", &[&list]).await.unwrap();
        client.batch_execute("UPDATE orders SET total = 1 WHERE id = 42").await
    };
    let huge = format!("orders/42=7{}", ",a=1".repeat(2_500));
    for list in [
        "orders/42",
        "orders/42=",
        "=7",
        "orders/42=7,",
        ",orders/42=7",
        "orders/42=7, orders/41=7",
        "orders/42=7 ",
        "orders/42=-7",
        "orders/42=7=7",
        "orders/42=0x7",
        "orders/42=12345678901234567",
        "orders%2=7",
        "orders%00=7",
        "orders%2G42=7",
        "\n=7",
        "'); DROP TABLE orders; --",
        "orders/42=7;",
        &huge,
    ] {
        let error = write(list).await.expect_err(list);
        assert_eq!(code(&error), "22023", "{list}");
        let message = error.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with("ringfence.may_claim: ") && message.len() < 400, "{message}");
    }
    assert_eq!(code(&write("orders/42=7,orders/%FF=7").await.unwrap_err()), "22021", "no UTF-8");
    write("orders/42=7,%FF=7").await.expect("of another table");
    for list in ["orders/42=0", "orders/42=9007199254740992"] {
        assert_eq!(code(&write(list).await.unwrap_err()), "22023", "{list}: no token");
    }
    write("orders/42=7").await.unwrap();
    assert_eq!(code(&write("orders/42=7,orders/42=6").await.unwrap_err()), "RF412", "both are claimed");
    // Any text is a key, however it is written.
    client
        .batch_execute("SELECT ringfence.protect('orders', 'ä '' , = % \\ \"/', 'id', by_connection => true)")
        .await
        .unwrap();
    write("%C3%A4%20'%20%2C%20%3D%20%25%20\\%20\"/42=7").await.unwrap();
    write("ä%20%27%20%2c%20%3d%20%25%20%5C%20%22%2F%34%32=7,unknown=9").await.unwrap();
    assert!(write("").await.is_err());
}

/// The keys that its tables have are all of its own.
#[tokio::test]
async fn a_database_that_lacks_the_characters_of_another_key_writes_its_own() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    let make = "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    client.batch_execute(make).await.unwrap();
    let latin = connect(&format!("postgresql://postgres@{}/latin", server.address())).await;
    latin.batch_execute(ringfence_guard::postgres::SQL).await.unwrap();
    let tables = "CREATE TABLE orders (id text, total int);
                  SELECT ringfence.protect('orders', 'bücher/', 'id', by_connection => true)";
    latin.batch_execute(tables).await.unwrap();
    for sql in [
        "SET ringfence.may_claim = 'b%C3%BCcher%2F1=7,%E3%82%AB=7'",
        "CALL ringfence.touch_all()",
        "INSERT INTO orders VALUES ('1', 1)",
    ] {
        latin.batch_execute(sql).await.expect(sql);
    }
    assert_eq!(refused(&latin, "INSERT INTO orders VALUES ('2', 1)").await, "RF428");
}

#[tokio::test]
async fn a_statement_claims_the_keys_of_its_table_alone_before_it_looks_for_rows() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let [one, two] =
        [connect_with(&server, &setting(&KEYS, 7)).await, connect_with(&server, &setting(&KEYS, 7)).await];
    // It finds no row, and has claimed both orders.
    one.batch_execute("BEGIN; DELETE FROM orders WHERE id = 1").await.unwrap();
    let elsewhere = "BEGIN; SET LOCAL lock_timeout = '10s'; UPDATE settings SET value = 1; COMMIT";
    two.batch_execute(elsewhere).await.unwrap();
    let waits =
        tokio::spawn(async move { two.batch_execute("UPDATE orders SET total = 5 WHERE id = 41").await });
    waiting(&client, 1).await;
    one.batch_execute("ROLLBACK").await.unwrap();
    ends(waits).await.unwrap();
}

/// A wait for one key that keeps another would deadlock with who claims them in another order.
#[tokio::test]
async fn touch_all_waits_for_each_key_alone_and_keeps_none() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute(TABLES).await.unwrap();
    let older = connect(&server.url()).await;
    older.batch_execute("BEGIN; SELECT ringfence.claim('orders/42', 6)").await.unwrap();
    let newer = connect_with(&server, &setting(&KEYS, 7)).await;
    let touches = tokio::spawn(async move { newer.batch_execute("CALL ringfence.touch_all()").await });
    waiting(&client, 1).await;
    assert_eq!(
        code(&older.batch_execute("SELECT ringfence.claim('the settings', 6)").await.unwrap_err()),
        "RF412"
    );
    older.batch_execute("ROLLBACK").await.unwrap();
    ends(touches).await.unwrap();
    for key in KEYS {
        assert_eq!(refused(&client, &format!("SELECT ringfence.claim('{key}', 6)")).await, "RF412", "{key}");
    }
    let stale = connect_with(&server, &setting(&KEYS[2..], 6)).await;
    assert_eq!(code(&stale.batch_execute("CALL ringfence.touch_all()").await.unwrap_err()), "RF412");
    assert_eq!(
        code(&client.batch_execute("CALL ringfence.touch_all()").await.unwrap_err()),
        "RF428",
        "no setting"
    );
}

#[tokio::test]
async fn only_the_owner_of_the_table_lets_connections_claim() {
    let server = PostgresServer::start().await.unwrap();
    let client = connect(&server.url()).await;
    // As an earlier version of the file made it, without the last argument.
    let earlier = "CREATE SCHEMA ringfence; CREATE FUNCTION ringfence.protect(guarded regclass, key text, id name DEFAULT NULL)
                   RETURNS void LANGUAGE sql AS ''";
    client.batch_execute(&format!("{earlier}; {SQL}")).await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    let writer = connect_with(&server, &setting(&KEYS, 7)).await;
    let write = "UPDATE orders SET total = 1 WHERE id = 42";
    writer.batch_execute(write).await.unwrap();
    client.batch_execute("SELECT ringfence.protect('orders', 'orders/', 'id')").await.unwrap();
    assert_eq!(refused(&writer, write).await, "RF428");
}
