use std::sync::Mutex;
use std::time::Duration;

use ringfence_guard::{Admission, Claim};
use ringfence_wire::Token;
use rusqlite::{Connection, named_params};
use tempfile::TempDir;

use crate::race::race;
use crate::resource::Resource;
use crate::scratch::folder;

/// A number in SQLite, with a connection for each holder.
struct Number {
    folder: TempDir,
    idle: Mutex<Vec<Connection>>,
    guarded: bool,
}

impl Number {
    fn new(guarded: bool) -> Self {
        let number = Self { folder: folder(), idle: Mutex::default(), guarded };
        let table = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
                     CREATE TABLE t (id integer PRIMARY KEY, n integer, high bigint NOT NULL DEFAULT 0);
                     INSERT INTO t (id, n) VALUES (1, 0)";
        number.with(|db| db.execute_batch(table).unwrap());
        number
    }

    fn with<T>(&self, what: impl FnOnce(&Connection) -> T) -> T {
        let idle = self.idle.lock().unwrap().pop();
        let db = idle.unwrap_or_else(|| {
            let db = Connection::open(self.folder.path().join("db")).unwrap();
            db.busy_timeout(Duration::from_secs(60)).unwrap();
            db
        });
        let done = what(&db);
        self.idle.lock().unwrap().push(db);
        done
    }

    /// One UPDATE, with or without a number to write.
    fn update(&self, claim: Claim, number: Option<u64>) -> Admission {
        let (token, fence) = (claim.token().0.cast_signed(), claim.fence().0.cast_signed());
        let number = number.map(u64::cast_signed);
        self.with(|db| {
            let changed = match self.guarded {
                true => db.execute(
                    "UPDATE t SET n = COALESCE(:n, n), high = max(high, CAST(COALESCE(:fence, :token) AS integer))
                      WHERE id = 1 AND CAST(:token AS integer) BETWEEN max(high, 1) AND 9007199254740991
                        AND CAST(COALESCE(:fence, :token) AS integer) BETWEEN 1 AND CAST(:token AS integer)",
                    named_params! { ":n": number, ":token": token, ":fence": fence },
                ),
                false => db.execute("UPDATE t SET n = COALESCE(?1, n) WHERE id = 1", [number]),
            };
            if changed.unwrap() == 1 {
                return Admission::Accepted(());
            }
            let high: i64 = db.query_row("SELECT high FROM t", [], |row| row.get(0)).unwrap();
            Admission::Stale { high: Token(high.unsigned_abs()) }
        })
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        match self.guarded {
            true => self.update(claim, None),
            false => Admission::Accepted(()),
        }
    }

    fn read(&self) -> u64 {
        let read = |db: &Connection| db.query_row("SELECT n FROM t", [], |row| row.get::<_, i64>(0)).unwrap();
        self.with(read).unsigned_abs()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.update(claim, Some(number))
    }
}

#[test]
fn sqlite_rejects_late_holders_and_nobody_else() {
    race(&Number::new(true)).assert_right();
}

#[test]
#[ignore = "slow"]
fn sqlite_without_a_guard_loses_updates() {
    race(&Number::new(false)).assert_wrong();
}
