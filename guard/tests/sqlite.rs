//! The column form of README.md in a real SQLite, with the replacements that README.md names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rusqlite::types::Value;
use rusqlite::{Connection, Error, ErrorCode};

#[path = "postgres/shown.rs"]
mod shown;

const FORM: &str = "**SQL, by a column.**";

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
    let fence = "NULLIF(CAST(:fence AS integer), 0)";
    let statement = shown::shown(FORM, label).replace("CAST(:fence AS bigint)", fence);
    statement
        .replace("GREATEST(", "max(")
        .replace("CAST(:token AS bigint)", ":token")
        .replace(":token", "CAST(:token AS integer)")
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
    for statement in ["touch", "write", "touch or make", "create or write", "delete"] {
        db.execute_batch("UPDATE accounts SET balance = 100, high = 9, deleted = false").unwrap();
        let text = |text: &str| Value::from(text.to_owned());
        assert_eq!(run(&db, statement, 1, text("10"), Value::Null), 1, "{statement}");
        assert_eq!(row(&db, 1).1, 10, "{statement}");
        assert_eq!(run(&db, statement, 1, text("12"), text("9")), 1, "{statement}");
        assert_eq!(row(&db, 1).1, 10, "{statement}");
        for no_fence in ["", "NaN", "0"] {
            db.execute_batch("UPDATE accounts SET high = 9").unwrap();
            assert_eq!(run(&db, statement, 1, 10, text(no_fence)), 1, "{statement} {no_fence:?}");
            assert_eq!(row(&db, 1).1, 10, "{statement} {no_fence:?}");
        }
        let before = row(&db, 1);
        for no_token in [text("9"), text(""), text("NaN"), Value::Null] {
            assert_eq!(run(&db, statement, 1, no_token.clone(), 11), 0, "{statement} {no_token:?}");
            assert_eq!(
                run(&db, statement, 2, no_token.clone(), 11),
                usize::from(no_token == text("9") && statement.contains(" or "))
            );
            db.execute_batch("DELETE FROM accounts WHERE id = 2").unwrap();
        }
        assert_eq!(row(&db, 1), before, "{statement}");
    }
}

#[test]
fn a_timestamp_in_nanoseconds_is_refused_by_the_column() {
    let db = accounts();
    for statement in ["touch", "write", "touch or make", "create or write"] {
        let now = 1_790_000_000_000_000_000_i64;
        let refused = try_run(&db, statement, 1, now, now).unwrap_err();
        assert_eq!(refused.sqlite_error_code(), Some(ErrorCode::ConstraintViolation), "{statement}");
    }
    assert_eq!(row(&db, 1), (Some(100), 0, false));
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
