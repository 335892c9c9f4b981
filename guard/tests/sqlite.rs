//! The column form of README.md in a real SQLite, with the replacements that README.md names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rusqlite::types::Value;
use rusqlite::{Connection, Error, ErrorCode};

#[path = "postgres/pairs.rs"]
mod pairs;
#[path = "postgres/shown.rs"]
mod shown;

use pairs::{BAD, GOOD, Pair, raised};

const FORM: &str = "**SQL, by a column.**";
const STATEMENTS: [&str; 5] = ["touch", "write", "touch or make", "create or write", "delete"];

fn accounts() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE accounts (id integer PRIMARY KEY, balance integer)").unwrap();
    for column in ["ADD COLUMN high", "ADD COLUMN deleted"] {
        let add = shown::shown(FORM, "add");
        let column = add.lines().find(|line| line.contains(column)).unwrap().trim_end_matches([',', ';']);
        db.execute_batch(&format!("ALTER TABLE accounts {column}")).unwrap();
    }
    db.execute_batch("INSERT INTO accounts (id, balance) VALUES (1, 100)").unwrap();
    db
}

fn sql(label: &str) -> String {
    shown::shown(FORM, label).replace("GREATEST(", "max(").replace(":token", "CAST(:token AS integer)")
}

/// Returns the number of changed rows.
fn try_run(
    db: &Connection,
    label: &str,
    id: i64,
    token: impl Into<Value>,
    fence: impl Into<Value>,
) -> Result<usize, Error> {
    let mut statement = db.prepare(&sql(label)).unwrap();
    for (name, value) in
        [(":id", id.into()), (":balance", 5.into()), (":token", token.into()), (":fence", fence.into())]
    {
        if let Some(index) = statement.parameter_index(name).unwrap() {
            statement.raw_bind_parameter(index, value).unwrap();
        }
    }
    statement.raw_execute()
}

fn run(db: &Connection, label: &str, id: i64, token: impl Into<Value>, fence: impl Into<Value>) -> usize {
    try_run(db, label, id, token, fence).unwrap()
}

/// The balance, the number, and whether the row is a tombstone.
fn row(db: &Connection, id: i64) -> (Option<i64>, i64, bool) {
    let sql = "SELECT balance, high, deleted FROM accounts WHERE id = ?1";
    db.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap()
}

#[test]
fn the_statements_reject_a_stale_holder_and_no_live_peer() {
    let db = accounts();
    for write in ["write", "create or write"] {
        db.execute_batch("UPDATE accounts SET balance = 100, high = 0").unwrap();
        for (token, fence, rows) in [(9, 5, 1), (9, 5, 1), (7, 5, 1), (4, 3, 0), (6, 2, 1)] {
            assert_eq!(run(&db, write, 1, token, fence), rows, "{write} {token}");
        }
        assert_eq!(row(&db, 1), (Some(5), 5, false), "{write}");
    }
    for touch in ["touch", "touch or make"] {
        db.execute_batch("UPDATE accounts SET balance = 100, high = 0").unwrap();
        assert_eq!(run(&db, touch, 1, 7, 7), 1);
        assert_eq!((run(&db, touch, 1, 5, 5), run(&db, "write", 1, 5, 5)), (0, 0));
        assert_eq!(row(&db, 1), (Some(100), 7, false), "{touch}");
    }
    assert_eq!(run(&db, "reset", 1, Value::Null, 6), 1);
    assert_eq!(run(&db, "write", 1, 6, 6), 1);
}

/// There, a text is larger than any number.
#[test]
fn a_text_is_compared_as_a_number_and_a_fence_of_null_is_the_token() {
    let db = accounts();
    for statement in STATEMENTS {
        db.execute_batch("UPDATE accounts SET balance = 100, high = 9, deleted = false").unwrap();
        let text = |text: &str| Value::from(text.to_owned());
        assert_eq!(run(&db, statement, 1, text("10"), Value::Null), 1, "{statement}");
        assert_eq!(row(&db, 1).1, 10, "{statement}");
        assert_eq!(run(&db, statement, 1, text("12"), text("9")), 1, "{statement}");
        assert_eq!(row(&db, 1).1, 10, "{statement}");
        let before = row(&db, 1);
        for no_token in [text("9"), text(""), text("NaN"), Value::Null] {
            assert_eq!(run(&db, statement, 1, no_token.clone(), 5), 0, "{statement} {no_token:?}");
        }
        assert_eq!(row(&db, 1), before, "{statement}");
    }
}

#[test]
fn an_operator_cannot_set_a_timestamp_in_nanoseconds() {
    let db = accounts();
    let refused = try_run(&db, "reset", 1, Value::Null, 1_790_000_000_000_000_000_i64).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::ConstraintViolation));
    assert_eq!(row(&db, 1), (Some(100), 0, false));
}

/// Token 0, as an unset variable, once passed on every row that nobody had touched.
#[test]
fn each_statement_contains_the_whole_rule() {
    let db = accounts();
    let rows = || -> i64 { db.query_row("SELECT count(*) FROM accounts", [], |row| row.get(0)).unwrap() };
    for (statement, high) in STATEMENTS.into_iter().flat_map(|statement| [(statement, 0), (statement, 5)]) {
        let renew = format!("UPDATE accounts SET balance = 100, high = {high}, deleted = false");
        db.execute_batch(&renew).unwrap();
        for (token, fence) in BAD.into_iter().flat_map(spelled) {
            for id in [1, 2] {
                let changed = try_run(&db, statement, id, token.clone(), fence.clone()).unwrap_or(0);
                assert_eq!((changed, rows()), (0, 1), "{statement} {high}: {token:?} {fence:?}");
            }
            assert_eq!(row(&db, 1), (Some(100), high, false), "{statement} {high}: {token:?} {fence:?}");
        }
        for pair in GOOD {
            for (token, fence) in spelled(pair) {
                db.execute_batch(&renew).unwrap();
                assert_eq!(run(&db, statement, 1, token, fence), 1, "{statement} {high}: {pair:?}");
                assert_eq!(row(&db, 1).1, raised(high, pair), "{statement} {high}: {pair:?}");
            }
        }
    }
}

/// The pair as numbers, if it is one of numbers, and as texts.
fn spelled((token, fence): Pair) -> [(Value, Value); 2] {
    let plain = |text: &str| text.parse::<i64>().map_or_else(|_| text.to_owned().into(), Value::from);
    let quote = |text: &str| Value::from(text.to_owned());
    let with =
        |spell: &dyn Fn(&str) -> Value| [token, fence].map(|text| text.map_or(Value::Null, spell)).into();
    [with(&plain), with(&quote)]
}

#[test]
fn a_tombstone_rejects_a_stale_insert() {
    let db = accounts();
    let seen = || db.prepare(&sql("read")).unwrap().exists([2]).unwrap();
    assert_eq!(run(&db, "touch or make", 2, 7, 7), 1);
    assert_eq!(run(&db, "create or write", 2, 5, 5), 0);
    assert_eq!((row(&db, 2), seen()), ((None, 7, true), false));
    assert_eq!(run(&db, "create or write", 2, 7, 7), 1);
    assert_eq!((row(&db, 2), seen()), ((Some(5), 7, false), true));
    assert_eq!((run(&db, "delete", 2, 5, 5), run(&db, "delete", 2, 9, 9)), (0, 1));
    assert_eq!(run(&db, "create or write", 2, 7, 7), 0);
    assert_eq!((row(&db, 2), seen()), ((Some(5), 9, true), false));
}
