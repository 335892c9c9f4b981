use ringfence_guard::postgres::{SQL, admit, high, touch};
use ringfence_guard::{Admission, Claim};
use ringfence_harness::{PgBouncer, PostgresServer};
use ringfence_wire::{Key, Token};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::pool::Pool;
use crate::race::race;
use crate::resource::Resource;
use crate::shown::{PAGE, shown, shown_in};
use crate::statement::filled;

/// Fewer than the holders.
const BOUNCED: usize = 3;
const TABLE: &str =
    "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint); INSERT INTO accounts VALUES (42, 0);";
const WRITE: &str = "UPDATE accounts SET balance = $1 WHERE id = 42";
const README: &str = include_str!("../../../README.md");
/// The documents that show the trigger form, and where it begins.
const TRIGGERS: [(&str, &str); 2] = [(README, "**At the storage**"), (PAGE, "**PostgreSQL, by a trigger.**")];
const BY_A_COLUMN: &str = "**SQL, by a column.**";

/// The forms of `postgres.sql`, and two wrong ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Function,
    Column,
    /// As the document with this index in [`TRIGGERS`] shows it.
    Trigger(usize),
    /// The claim is in a transaction of its own, before the one that writes.
    ClaimedBefore,
    Unguarded,
}

/// A number in PostgreSQL.
struct Number {
    pool: Pool<Client>,
    form: Form,
    key: Key,
    url: String,
    _bouncer: Option<PgBouncer>,
    _server: PostgresServer,
}

impl Number {
    fn new(form: Form) -> Self {
        Self::made(form, false)
    }

    /// The same through PgBouncer.
    fn pooled(form: Form) -> Self {
        Self::made(form, true)
    }

    fn made(form: Form, pooled: bool) -> Self {
        let pool = Pool::new();
        let (server, bouncer) = pool.block_on(async {
            let server = PostgresServer::start().await.unwrap();
            let bouncer = if pooled { Some(PgBouncer::start(&server, BOUNCED).await.unwrap()) } else { None };
            (server, bouncer)
        });
        let url = bouncer.as_ref().map_or_else(|| server.url(), PgBouncer::url);
        let key = "accounts/42".parse().unwrap();
        let number = Self { pool, form, key, url, _bouncer: bouncer, _server: server };
        let prepare = match form {
            Form::Trigger(document) => trigger(document, "protect"),
            Form::Column => shown(BY_A_COLUMN, "add"),
            _ => String::new(),
        };
        number.with(async |client| {
            for sql in [SQL, TABLE, &prepare] {
                client.batch_execute(sql).await.unwrap();
            }
        });
        number
    }

    fn with<T>(&self, what: impl AsyncFnOnce(&mut Client) -> T) -> T {
        let connect = async || {
            let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        };
        self.pool.with(connect, what)
    }

    /// The statement of the column form that guard/README.md shows under `label`.
    async fn update(client: &Client, label: &str, claim: Claim, number: u64) -> Admission {
        let sql = filled(&shown(BY_A_COLUMN, label), claim, number);
        if client.execute_typed(&sql, &[]).await.unwrap() == 1 {
            return Admission::Accepted(());
        }
        let row = client.query_typed_one("SELECT high FROM accounts", &[]).await.unwrap();
        Admission::Stale { high: Token(row.get::<_, i64>(0).unsigned_abs()) }
    }

    /// Runs what a document shows. A stale token is an error.
    async fn run(&self, client: &Client, sql: &str, claim: Claim, number: u64) -> Admission {
        // The shown block writes a fixed number.
        let sql = filled(sql, claim, number).replace("balance = 130", &format!("balance = {number}"));
        let Err(error) = client.batch_execute(&sql).await else { return Admission::Accepted(()) };
        assert_eq!(error.code().unwrap().code(), "RF412", "{error:?}");
        client.batch_execute("ROLLBACK").await.unwrap();
        Admission::Stale { high: high(client, &self.key).await.unwrap().token() }
    }
}

/// The statements of the trigger form under `label` in the document with this index in [`TRIGGERS`].
fn trigger(document: usize, label: &str) -> String {
    let (document, form) = TRIGGERS[document];
    shown_in(document, form, label)
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        self.with(async |client| match self.form {
            Form::Unguarded => Admission::Accepted(()),
            Form::Column => Self::update(client, "touch", claim, 0).await,
            Form::Trigger(document) => self.run(client, &trigger(document, "touch"), claim, 0).await,
            _ => touch(client, &self.key, claim).await.unwrap(),
        })
    }

    fn read(&self) -> u64 {
        let sql = "SELECT balance FROM accounts";
        let read =
            async |client: &mut Client| client.query_typed_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        self.with(read).unsigned_abs()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.with(async |client| {
            match self.form {
                Form::Column => return Self::update(client, "write", claim, number).await,
                Form::Trigger(document) => {
                    return self.run(client, &trigger(document, "write"), claim, number).await;
                }
                Form::ClaimedBefore => {
                    let admission = touch(client, &self.key, claim).await.unwrap();
                    if !admission.is_accepted() {
                        return admission;
                    }
                }
                Form::Function | Form::Unguarded => {}
            }
            let transaction = client.transaction().await.unwrap();
            if self.form == Form::Function {
                let admission = admit(&transaction, &self.key, claim).await.unwrap();
                if !admission.is_accepted() {
                    return admission;
                }
            }
            transaction.execute_typed(WRITE, &[(&bigint(number), Type::INT8)]).await.unwrap();
            transaction.commit().await.unwrap();
            Admission::Accepted(())
        })
    }
}

fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap()
}

#[test]
#[ignore = "slow"]
fn the_function_form_rejects_late_holders_and_nobody_else() {
    race(&Number::new(Form::Function)).assert_right();
}

#[test]
#[ignore = "slow"]
fn the_column_form_rejects_late_holders_and_nobody_else() {
    race(&Number::new(Form::Column)).assert_right();
}

#[test]
#[ignore = "slow"]
fn the_trigger_form_rejects_late_holders_and_nobody_else() {
    for document in 0..TRIGGERS.len() {
        race(&Number::new(Form::Trigger(document))).assert_right();
    }
}

#[test]
#[ignore = "slow"]
fn the_function_form_rejects_late_holders_through_a_pooler() {
    race(&Number::pooled(Form::Function)).assert_right();
}

#[test]
fn the_column_form_rejects_late_holders_through_a_pooler() {
    race(&Number::pooled(Form::Column)).assert_right();
}

#[test]
#[ignore = "slow"]
fn the_trigger_form_rejects_late_holders_through_a_pooler() {
    race(&Number::pooled(Form::Trigger(0))).assert_right();
}

#[test]
#[ignore = "slow"]
fn postgres_without_a_guard_loses_updates() {
    race(&Number::new(Form::Unguarded)).assert_wrong();
}

#[test]
#[ignore = "slow"]
fn a_claim_before_the_transaction_that_writes_loses_updates() {
    let report = race(&Number::new(Form::ClaimedBefore));
    eprintln!("claimed before: {report:?}");
    assert!(report.lost_updates > 0, "{report:?}");
    assert_eq!((report.stale_writes, report.live_shut_out), (0, 0), "{report:?}");
}
