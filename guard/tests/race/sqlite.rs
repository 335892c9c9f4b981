use std::sync::Mutex;
use std::time::Duration;

use ringfence_guard::{Admission, Claim};
use ringfence_wire::Token;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::race::race;
use crate::resource::Resource;
use crate::scratch::folder;
use crate::shown::shown;
use crate::statement::filled;

const FORM: &str = "**SQL, by a column.**";

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
                     CREATE TABLE accounts (id integer PRIMARY KEY, balance integer, high bigint NOT NULL DEFAULT 0);
                     INSERT INTO accounts (id, balance) VALUES (42, 0)";
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

    /// The statement that guard/README.md shows under `label`, with the replacements that it names.
    fn update(&self, label: &str, claim: Claim, number: u64) -> Admission {
        let sql = match self.guarded {
            true => {
                shown(FORM, label).replace("GREATEST(", "max(").replace(":token", "CAST(:token AS integer)")
            }
            false => "UPDATE accounts SET balance = :balance WHERE id = :id".to_owned(),
        };
        self.with(|db| {
            if db.execute(&filled(&sql, claim, number), []).unwrap() == 1 {
                return Admission::Accepted(());
            }
            let high: i64 = db.query_row("SELECT high FROM accounts", [], |row| row.get(0)).unwrap();
            Admission::Stale { high: Token(high.unsigned_abs()) }
        })
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        match self.guarded {
            true => self.update("touch", claim, 0),
            false => Admission::Accepted(()),
        }
    }

    fn read(&self) -> u64 {
        let read = |db: &Connection| {
            db.query_row("SELECT balance FROM accounts", [], |row| row.get::<_, i64>(0)).unwrap()
        };
        self.with(read).unsigned_abs()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.update("write", claim, number)
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
