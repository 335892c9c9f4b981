use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Value};
use ringfence_harness::MariaDbServer;
use tokio::process::Command;

use crate::database::{Counts, bound, connect, ends, guarded, state, waiting};
use crate::pairs::BAD;
use crate::shown::shown;

const FORM: &str = "**MySQL and MariaDB, by triggers.**";
pub(crate) const WRITE: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = 42";
const LEVELS: [&str; 4] = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// A server with a protected table of accounts.
pub(crate) async fn accounts() -> MariaDbServer {
    let server = guarded().await;
    let mut client = connect(&server, Counts::Changed).await;
    client
        .query_drop("CREATE TABLE accounts (id bigint PRIMARY KEY AUTO_INCREMENT, balance bigint)")
        .await
        .unwrap();
    client.query_drop("INSERT INTO accounts VALUES (41, 0), (42, 0), (43, 0)").await.unwrap();
    for statement in shown(FORM, "protect").split_inclusive(";\n").filter(|text| !text.trim().is_empty()) {
        client.query_drop(statement).await.expect(statement);
    }
    server
}

/// A connection that has touched account 42.
pub(crate) async fn holder(server: &MariaDbServer, token: u64) -> Conn {
    let mut client = connect(server, Counts::Changed).await;
    touch(&mut client, token, Value::NULL).await.unwrap();
    client
}

/// Touches account 42. Fails with the SQLSTATE.
pub(crate) async fn touch(
    client: &mut Conn,
    token: impl Into<Value>,
    fence: impl Into<Value>,
) -> Result<(), String> {
    let named = [("token", token.into()), ("fence", fence.into())];
    bound(client, &shown(FORM, "touch"), &named).await.map(drop).map_err(|error| state(&error).to_owned())
}

/// Runs a statement. Fails with the SQLSTATE.
pub(crate) async fn run(client: &mut Conn, sql: &str) -> Result<(), String> {
    client.query_drop(sql).await.map_err(|error| state(&error).to_owned())
}

pub(crate) fn refused(by: &str) -> Result<(), String> {
    Err(by.to_owned())
}

async fn balances(server: &MariaDbServer) -> Vec<(i64, i64)> {
    connect(server, Counts::Changed)
        .await
        .query("SELECT id, balance FROM accounts ORDER BY id")
        .await
        .unwrap()
}

#[tokio::test]
async fn a_program_that_nobody_changed_writes_after_the_touch_alone() {
    let server = accounts().await;
    let (live, unaware) = (&mut holder(&server, 7).await, &mut connect(&server, Counts::Changed).await);
    for (write, then) in [
        ("UPDATE accounts SET balance = balance + 1 WHERE id = 42", 1),
        ("UPDATE IGNORE accounts SET balance = 2 WHERE id = 42", 2),
        ("UPDATE accounts a JOIN (SELECT 42 AS id) b USING (id) SET a.balance = 3", 3),
        ("REPLACE INTO accounts VALUES (42, 4)", 4),
        ("INSERT INTO accounts VALUES (42, 0) ON DUPLICATE KEY UPDATE balance = 5", 5),
        ("DELETE a FROM accounts a JOIN (SELECT 42 AS id) b USING (id)", 0),
        ("DELETE FROM accounts WHERE id = 42", 0),
    ] {
        let before = balances(&server).await;
        assert_eq!(run(unaware, write).await, refused("RF428"), "{write}");
        assert_eq!(run(live, &write.replace("42", "41")).await, refused("RF428"), "{write}");
        assert_eq!(balances(&server).await, before, "{write}");
        run(live, write).await.expect(write);
        if then == 0 {
            for insert in ["INSERT INTO accounts VALUES (42, 6)", "INSERT IGNORE INTO accounts SELECT 42, 6"]
            {
                assert_eq!(run(unaware, insert).await, refused("RF428"), "{insert}");
                assert_eq!(run(live, &insert.replace("42", "51")).await, refused("RF428"), "{insert}");
                run(live, insert).await.expect(insert);
                run(live, "DELETE FROM accounts WHERE id = 42").await.unwrap();
            }
            run(live, "INSERT INTO accounts VALUES (42, 0)").await.unwrap();
        }
        assert_eq!(balances(&server).await, [(41, 0), (42, then), (43, 0)], "{write}");
    }
    for beyond in [
        "UPDATE accounts SET id = 44 WHERE id = 42",
        "UPDATE accounts SET balance = 9",
        "INSERT INTO accounts (balance) VALUES (1)",
        "REPLACE INTO accounts VALUES (42, 9), (50, 9)",
    ] {
        assert_eq!(run(live, beyond).await, refused("RF428"), "{beyond}");
    }
    assert_eq!(balances(&server).await, [(41, 0), (42, 0), (43, 0)]);
}

/// A script of the program `mysql`, which the option makes touch.
#[tokio::test]
async fn a_script_writes_by_an_option_and_does_not_begin_late() {
    let server = accounts().await;
    let script = async |token: u64| {
        let address = server.address();
        let touch = format!("SET @ringfence_may_claim = ringfence_touch('accounts/42', {token}, NULL)");
        let mut mysql = Command::new("mariadb");
        mysql.arg("--no-defaults").args([
            "--protocol=tcp",
            "--user=root",
            "--init-command",
            &touch,
            "--execute",
            WRITE,
        ]);
        mysql.arg(format!("--host={}", address.ip())).arg(format!("--port={}", address.port())).arg("test");
        let output = mysql.output().await.unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(script(7).await, "");
    assert_eq!(script(8).await, "");
    let late = script(7).await;
    assert!(late.contains("(RF412): stale token: every token below 8 is dead, of accounts/42"), "{late}");
    assert_eq!(balances(&server).await[1], (42, 2));
}

/// A connection is older than the newer holder; another begins too late.
#[tokio::test]
async fn a_program_that_wakes_up_late_is_refused_and_no_live_peer() {
    let server = accounts().await;
    let [late, live] = &mut [holder(&server, 7).await, connect(&server, Counts::Changed).await];
    run(late, WRITE).await.unwrap();
    // Shared holders have one fence and different tokens.
    for (token, fence) in [(9, 6), (8, 6), (9, 6)] {
        touch(live, token, fence).await.unwrap();
        run(live, WRITE).await.unwrap();
        run(late, WRITE).await.unwrap();
    }
    touch(live, 9, 9).await.unwrap();
    assert_eq!(run(late, WRITE).await, refused("RF412"));
    assert_eq!(touch(late, 8, 8).await, refused("RF412"));
    run(live, WRITE).await.unwrap();
    // What a pool does between two of its clients.
    live.reset().await.unwrap();
    assert_eq!(run(live, WRITE).await, refused("RF428"));
    assert_eq!(balances(&server).await[1], (42, 8));
}

#[tokio::test]
async fn a_touch_waits_for_what_an_older_holder_has_open_at_each_level_of_isolation() {
    let server = accounts().await;
    for (turn, level) in (0..).zip(LEVELS) {
        let (older, newer) = (7 + turn, 8 + turn);
        let mut late = holder(&server, older).await;
        run(&mut late, &format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        run(&mut late, &format!("BEGIN; SELECT * FROM accounts; {WRITE}")).await.unwrap();
        // A lease has many connections: no other one of it waits.
        holder(&server, older).await;
        let touches = tokio::spawn({
            let mut live = connect(&server, Counts::Changed).await;
            async move {
                touch(&mut live, newer, Value::NULL).await.unwrap();
                let seen: Option<u64> =
                    live.query_first("SELECT balance FROM accounts WHERE id = 42").await.unwrap();
                seen.unwrap()
            }
        });
        waiting(&server, 1).await;
        run(&mut late, WRITE).await.unwrap();
        run(&mut late, "COMMIT").await.unwrap();
        assert_eq!(ends(touches).await, 2 * (turn + 1), "{level}");
        assert_eq!(run(&mut late, WRITE).await, refused("RF412"), "{level}");
    }
}

/// REPEATABLE READ, and all levels below.
#[tokio::test]
async fn a_transaction_with_an_old_snapshot_sees_the_new_number() {
    let server = accounts().await;
    for level in &LEVELS[..3] {
        let mut late = holder(&server, 7).await;
        run(&mut late, &format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        run(&mut late, "BEGIN; SELECT * FROM ringfence_guard, accounts").await.unwrap();
        holder(&server, 8).await;
        assert_eq!(run(&mut late, WRITE).await, refused("RF412"), "{level}");
        run(&mut late, "ROLLBACK; UPDATE ringfence_guard SET high = 7").await.unwrap();
    }
}

/// What it reads could be from before its touch.
#[tokio::test]
async fn a_transaction_cannot_touch() {
    let server = accounts().await;
    let mut client = holder(&server, 7).await;
    for begin in ["BEGIN", "START TRANSACTION WITH CONSISTENT SNAPSHOT", "XA START 'x'", "SET autocommit = 0"]
    {
        run(&mut client, begin).await.unwrap();
        assert_eq!(touch(&mut client, 8, 8).await, refused("25001"), "{begin}");
        client = holder(&server, 7).await;
    }
    run(&mut client, WRITE).await.unwrap();
}

/// As after the ROLLBACK of a touch: otherwise an older holder could write after what this one has read.
#[tokio::test]
async fn a_touch_that_the_table_has_lost_claims_nothing() {
    let server = accounts().await;
    for lose in ["DELETE FROM ringfence_guard", "UPDATE ringfence_guard SET high = 7"] {
        let newer = &mut holder(&server, 8).await;
        run(newer, lose).await.unwrap();
        assert_eq!(run(newer, WRITE).await, refused("RF428"), "{lose}");
    }
    run(&mut holder(&server, 7).await, WRITE).await.unwrap();
}

/// MariaDB drops shared locks at XA PREPARE at the other levels.
#[tokio::test]
async fn a_prepared_transaction_keeps_a_touch_waiting_if_it_is_serializable() {
    let server = accounts().await;
    let mut late = holder(&server, 7).await;
    let prepare = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; XA START 'x'; {WRITE}; XA END 'x'; XA PREPARE 'x'"
    );
    run(&mut late, &prepare).await.unwrap();
    let touches = tokio::spawn({
        let mut live = connect(&server, Counts::Changed).await;
        async move { touch(&mut live, 8, 8).await }
    });
    waiting(&server, 1).await;
    run(&mut late, "XA COMMIT 'x'").await.unwrap();
    ends(touches).await.unwrap();
}

/// With a lock for one, they do: a statement locks its rows one by one, and the number between them.
#[tokio::test]
async fn statements_of_one_lease_do_not_deadlock() {
    let server = accounts().await;
    let mut client = connect(&server, Counts::Changed).await;
    let protect = "CREATE TABLE items (id int PRIMARY KEY, n int); CREATE TRIGGER items_update AFTER UPDATE ON items FOR EACH ROW
                   CALL ringfence_demand('items')";
    run(&mut client, protect).await.unwrap();
    let rows: Vec<_> = (0..40).map(|id| format!("({id}, 0)")).collect();
    run(&mut client, &format!("INSERT INTO items VALUES {}", rows.join(", "))).await.unwrap();
    let writer = async |first: usize| {
        let mut client = connect(&server, Counts::Changed).await;
        run(&mut client, "SET @ringfence_may_claim = ringfence_touch('items', 7, NULL)").await.unwrap();
        for turn in 0..100 {
            let from = (first + turn * 7) % 30;
            let write = format!("UPDATE items SET n = n + 1 WHERE id BETWEEN {from} AND {}", from + 9);
            run(&mut client, &write).await.unwrap();
        }
    };
    tokio::join!(writer(0), writer(3), writer(11), writer(20));
    assert_eq!(client.query_first("SELECT sum(n) FROM items").await.unwrap(), Some(4_000));
}

#[tokio::test]
async fn no_number_but_a_token_and_its_fence_passes() {
    let server = accounts().await;
    let client = &mut holder(&server, 7).await;
    for mode in ["STRICT_ALL_TABLES", ""] {
        run(client, &format!("SET sql_mode = '{mode}'")).await.unwrap();
        for (token, fence) in BAD {
            let value = |text: Option<&str>| text.map_or(Value::NULL, Value::from);
            assert!(touch(client, value(token), value(fence)).await.is_err(), "{mode}: {token:?} {fence:?}");
        }
        for (token, fence) in [(0, 0), (-4, -4), (1 << 53, 4), (9, 0), (9, 10), (i64::MAX, i64::MAX)] {
            assert_eq!(touch(client, token, fence).await, refused("22023"), "{token} {fence}");
        }
        let none = "SET @ringfence_may_claim = ringfence_touch(NULL, 7, NULL)";
        assert_eq!(run(client, none).await, refused("23000"));
        let long = "SET @ringfence_may_claim = ringfence_touch(repeat('a', 513), 7, NULL)";
        assert_eq!(run(client, long).await, refused("22001"));
        // The last touch that passed counts.
        run(client, WRITE).await.unwrap();
    }
    // Strings are compared as numbers.
    touch(client, "10", "10").await.unwrap();
    assert_eq!(touch(client, "9", "9").await, refused("RF412"));
    run(client, WRITE).await.unwrap();
}

/// What a program sets by hand is no more than it would touch.
#[tokio::test]
async fn a_variable_that_no_touch_made_claims_nothing() {
    let server = accounts().await;
    let client = &mut holder(&server, 7).await;
    let key = "6163636F756E74732F3432"; // accounts/42
    let huge = ",61=7:7".repeat(10_000);
    for list in ["", "7", ",", "accounts/42=7:7", &format!("{key}=7:7"), &format!(",61{key}=7:7"), &huge] {
        run(client, &format!("SET @ringfence_may_claim = '{list}'")).await.unwrap();
        assert_eq!(run(client, WRITE).await, refused("RF428"), "{list}");
    }
    for list in ["NULL", "7", "1.5", "x'00'"] {
        run(client, &format!("SET @ringfence_may_claim = {list}")).await.unwrap();
        assert_eq!(run(client, WRITE).await, refused("RF428"), "{list}");
    }
    for (numbers, then) in
        [("", "22007"), (":", "22007"), ("6:6", "RF412"), ("8:8", "RF428"), ("x:y", "22007")]
    {
        run(client, &format!("SET @ringfence_may_claim = ',{key}={numbers}'")).await.unwrap();
        assert_eq!(run(client, WRITE).await, refused(then), "{numbers}");
    }
}

/// The key of a row is that of its text, whatever the character set of its column.
#[tokio::test]
async fn a_key_is_its_bytes_in_utf_8_in_each_character_set() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    for (column, set) in
        ["utf8mb4", "latin1", "utf16"].into_iter().flat_map(|c| [(c, "utf8mb4"), (c, "latin1")])
    {
        let table = format!(
            "SET NAMES utf8mb4; CREATE OR REPLACE TABLE users (name varchar(20) CHARACTER SET {column} PRIMARY KEY, n int);
             CREATE TRIGGER users_insert AFTER INSERT ON users FOR EACH ROW CALL ringfence_demand(CONCAT('users/', NEW.name))"
        );
        run(client, &table).await.unwrap();
        // The bytes of the literal are those of the character set.
        let name = if set == "latin1" { "_latin1 x'E4'" } else { "'ä'" };
        let touch = format!("SET @ringfence_may_claim = ringfence_touch(CONCAT('users/', {name}), 7, NULL)");
        run(client, &format!("SET NAMES {set}; {touch}; SET NAMES utf8mb4")).await.unwrap();
        // The last one has, in latin1, the bytes of the key.
        for other in ["Ä", "a", "ä ", "Ã¤"] {
            let insert = format!("INSERT INTO users VALUES ('{other}', 0)");
            assert_eq!(run(client, &insert).await, refused("RF428"), "{column} {set}: {other}");
        }
        run(client, &format!("INSERT INTO users VALUES ({name}, 0)")).await.expect(column);
    }
}

#[tokio::test]
async fn each_name_is_refused_by_its_own_error() {
    let server = accounts().await;
    let client = &mut connect(&server, Counts::Changed).await;
    let longest = "a".repeat(512);
    run(client, &format!("SET @ringfence_may_claim = ringfence_touch('{longest}', 7, NULL)")).await.unwrap();
    for mode in ["STRICT_ALL_TABLES", ""] {
        run(client, &format!("SET sql_mode = '{mode}'; CALL ringfence_demand('{longest}')")).await.unwrap();
        let long = format!("CALL ringfence_demand('{longest}a')");
        assert_eq!(run(client, &long).await, refused("RF428"), "{mode}");
    }
    // The database is in latin1, and the errors name the key.
    assert_eq!(run(client, "CALL ringfence_demand('锁')").await, refused("RF428"));
    run(client, "SET @ringfence_may_claim = ringfence_touch('锁', 7, NULL)").await.unwrap();
    let stale = "SET @ringfence_may_claim = ringfence_touch('锁', 6, NULL)";
    assert_eq!(run(client, stale).await, refused("RF412"));
}

#[tokio::test]
async fn an_operator_resets_one_number() {
    let server = accounts().await;
    let client = &mut holder(&server, 7).await;
    touch(client, 1_790_000_000_000_000_i64, Value::NULL).await.unwrap();
    assert_eq!(touch(client, 8, 8).await, refused("RF412"));
    for (high, then) in [("1790000000000000000", refused("23000")), ("0", refused("23000")), ("8", Ok(()))] {
        let reset = format!("UPDATE ringfence_guard SET high = {high} WHERE `key` = 'accounts/42'");
        assert_eq!(run(client, &reset).await, then, "{high}");
    }
    assert_eq!(touch(client, 7, 7).await, refused("RF412"));
    touch(client, 8, 8).await.unwrap();
    run(client, WRITE).await.unwrap();
}
