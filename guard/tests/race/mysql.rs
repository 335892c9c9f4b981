use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, OptsBuilder, params};
use ringfence_guard::{Admission, Claim};
use ringfence_harness::MariaDbServer;
use ringfence_wire::Token;

use crate::pool::Pool;
use crate::race::race;
use crate::resource::Resource;

const ADMIT: &str = include_str!("../../sql/mysql.sql");
const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, n bigint, high bigint NOT NULL DEFAULT 0,
                     writes bigint NOT NULL DEFAULT 0, token bigint, fence bigint)";
const TRIGGER: &str = "CREATE TRIGGER t_update BEFORE UPDATE ON t FOR EACH ROW
                       CALL ringfence_admit(OLD.high, NEW.high, NEW.token, NEW.fence)";

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
        number.with(async |client| {
            let (_, procedure) = ADMIT.split_once("DELIMITER //").unwrap();
            let procedure = procedure.split_once("//\n").unwrap().0;
            for sql in [TABLE, "INSERT INTO t (id, n) VALUES (1, 0)", procedure] {
                client.query_drop(sql).await.unwrap();
            }
            if form == Form::Trigger {
                client.query_drop(TRIGGER).await.unwrap();
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

    /// One UPDATE, with or without a number to write.
    fn update(&self, claim: Claim, number: Option<u64>) -> Admission {
        let sql = match self.form {
            Form::Trigger => "UPDATE t SET n = COALESCE(:n, n), token = :token, fence = :fence WHERE id = 1",
            Form::Column => {
                "UPDATE t SET n = COALESCE(:n, n), writes = writes + 1, high = GREATEST(high, COALESCE(:fence, :token))
                  WHERE id = 1 AND :token BETWEEN GREATEST(high, 1) AND 9007199254740991
                    AND COALESCE(:fence, :token) BETWEEN 1 AND :token"
            }
            Form::Uncounted => {
                "UPDATE t SET n = COALESCE(:n, n), high = GREATEST(high, COALESCE(:fence, :token))
                  WHERE id = 1 AND :token BETWEEN GREATEST(high, 1) AND 9007199254740991
                    AND COALESCE(:fence, :token) BETWEEN 1 AND :token"
            }
            Form::Unguarded => "UPDATE t SET n = COALESCE(:n, n) WHERE id = 1",
        };
        let (token, fence) = (claim.token().0, claim.fence().0);
        self.with(async |client| {
            let named = match self.form {
                Form::Unguarded => params! { "n" => number },
                _ => params! { "n" => number, "token" => token, "fence" => fence },
            };
            let accepted = match client.exec_drop(sql, named).await {
                Ok(()) => matches!(self.form, Form::Trigger | Form::Unguarded) || client.affected_rows() > 0,
                Err(Error::Server(error)) if error.state == "RF412" => false,
                Err(error) => panic!("{error}"),
            };
            if accepted {
                return Admission::Accepted(());
            }
            let high: Option<u64> = client.query_first("SELECT high FROM t").await.unwrap();
            Admission::Stale { high: Token(high.unwrap()) }
        })
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        match self.form {
            Form::Unguarded => Admission::Accepted(()),
            _ => self.update(claim, None),
        }
    }

    fn read(&self) -> u64 {
        let read = async |client: &mut Conn| client.query_first("SELECT n FROM t").await.unwrap();
        self.with(read).unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.update(claim, Some(number))
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
