use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, OptsBuilder};
use ringfence_guard::{Admission, Claim};
use ringfence_harness::MariaDbServer;
use ringfence_wire::Token;

use crate::installation::installation;
use crate::pool::Pool;
use crate::race::race;
use crate::resource::Resource;
use crate::shown::shown;
use crate::statement::filled;

const BY_TRIGGERS: &str = "**MySQL and MariaDB, by triggers.**";
const BY_A_COLUMN: &str = "**MySQL and MariaDB, by a column**";

/// The forms of guard/README.md, and two wrong ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Trigger,
    Column,
    /// The column form without `writes`.
    Uncounted,
    Unguarded,
}

/// A number in MariaDB.
struct Number {
    pool: Pool<Conn>,
    form: Form,
    /// Whether the driver counts the rows that a statement matched, or those whose values changed.
    matched: bool,
    server: MariaDbServer,
}

impl Number {
    fn new(form: Form, matched: bool) -> Self {
        let pool = Pool::new();
        let server = pool.block_on(MariaDbServer::start()).unwrap();
        let number = Self { pool, form, matched, server };
        let prepare = match form {
            Form::Trigger => shown(BY_TRIGGERS, "protect"),
            Form::Column | Form::Uncounted => shown(BY_A_COLUMN, "add"),
            Form::Unguarded => String::new(),
        };
        let table = "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint)";
        let row = "INSERT INTO accounts VALUES (42, 0)";
        let prepare = prepare.split_inclusive(";\n").filter(|sql| !sql.trim().is_empty());
        number.with(async |client| {
            for sql in [table, row].into_iter().chain(installation()).chain(prepare) {
                client.query_drop(sql).await.expect(sql);
            }
        });
        number
    }

    fn with<T>(&self, what: impl AsyncFnOnce(&mut Conn) -> T) -> T {
        let options = OptsBuilder::default()
            .ip_or_hostname(self.server.address().ip().to_string())
            .tcp_port(self.server.address().port())
            .db_name(Some("test"))
            .client_found_rows(self.matched);
        self.pool.with(async || Conn::new(options).await.unwrap(), what)
    }

    /// The statement that guard/README.md shows under `label`.
    fn run(&self, label: &str, claim: Claim, number: u64) -> Admission {
        let sql = match self.form {
            // Others have used the connection.
            Form::Trigger if label == "write" => shown(BY_TRIGGERS, "touch") + &shown(BY_TRIGGERS, "write"),
            Form::Trigger => shown(BY_TRIGGERS, label),
            Form::Column => shown(BY_A_COLUMN, label),
            Form::Uncounted => shown(BY_A_COLUMN, label).replace("writes = writes + 1, ", ""),
            Form::Unguarded => "UPDATE accounts SET balance = :balance WHERE id = :id".to_owned(),
        };
        self.with(async |client| {
            let accepted = match client.query_drop(filled(&sql, claim, number)).await {
                Ok(()) => matches!(self.form, Form::Trigger | Form::Unguarded) || client.affected_rows() > 0,
                Err(Error::Server(error)) if error.state == "RF412" => false,
                Err(error) => panic!("{error}"),
            };
            if accepted {
                return Admission::Accepted(());
            }
            let numbers = if self.form == Form::Trigger { "ringfence_guard" } else { "accounts" };
            let high: Option<u64> = client.query_first(format!("SELECT high FROM {numbers}")).await.unwrap();
            Admission::Stale { high: Token(high.unwrap()) }
        })
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        match self.form {
            Form::Unguarded => Admission::Accepted(()),
            _ => self.run("touch", claim, 0),
        }
    }

    fn read(&self) -> u64 {
        let read =
            async |client: &mut Conn| client.query_first("SELECT balance FROM accounts").await.unwrap();
        self.with(read).unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.run("write", claim, number)
    }
}

#[test]
#[ignore = "slow"]
fn the_triggers_reject_late_holders_and_nobody_else() {
    race(&Number::new(Form::Trigger, false)).assert_right();
    race(&Number::new(Form::Trigger, true)).assert_right();
}

#[test]
#[ignore = "slow"]
fn the_column_form_rejects_late_holders_and_nobody_else() {
    race(&Number::new(Form::Column, false)).assert_right();
    race(&Number::new(Form::Column, true)).assert_right();
}

#[test]
#[ignore = "slow"]
fn changed_rows_without_a_counter_shut_out_live_holders() {
    let report = race(&Number::new(Form::Uncounted, false));
    assert!(report.live_shut_out > 0, "{report:?}");
    assert_eq!((report.stale_writes, report.lost_updates), (0, 0), "{report:?}");
}

#[test]
#[ignore = "slow"]
fn mariadb_without_a_guard_loses_updates() {
    race(&Number::new(Form::Unguarded, false)).assert_wrong();
}
