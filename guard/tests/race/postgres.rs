use ringfence_guard::postgres::{SQL, admit, high, touch};
use ringfence_guard::{Admission, Claim};
use ringfence_harness::{PgBouncer, PostgresServer};
use ringfence_wire::{Key, Token};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use crate::pool::Pool;
use crate::race::race;
use crate::resource::Resource;

/// Fewer than the holders.
const BOUNCED: usize = 3;
const TABLE: &str = "
    CREATE TABLE t (id int PRIMARY KEY, n bigint, high bigint NOT NULL DEFAULT 0);
    INSERT INTO t VALUES (1, 0);";
const TRIGGER: &str = "SELECT ringfence.protect('t', 't/', 'id')";
const WRITE: &str = "UPDATE t SET n = $1 WHERE id = 1";

/// The forms of `postgres.sql`, and two wrong ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Function,
    Column,
    Trigger,
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
        let key = "t/1".parse().unwrap();
        let number = Self { pool, form, key, url, _bouncer: bouncer, _server: server };
        number.with(async |client| {
            for sql in [SQL, TABLE].into_iter().chain((form == Form::Trigger).then_some(TRIGGER)) {
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

    /// One conditional UPDATE, with or without a number to write.
    async fn update(client: &Client, claim: Claim, number: Option<u64>) -> Admission {
        let sql = "UPDATE t SET n = COALESCE($3, n), high = GREATEST(high, COALESCE($2, $1))
                   WHERE id = 1 AND $1 BETWEEN GREATEST(high, 1) AND 9007199254740991 AND COALESCE($2, $1) BETWEEN 1 AND $1";
        let (token, fence, number) = (bigint(claim.token().0), bigint(claim.fence().0), number.map(bigint));
        let updated = client
            .execute_typed(sql, &[(&token, Type::INT8), (&fence, Type::INT8), (&number, Type::INT8)])
            .await
            .unwrap();
        if updated == 1 {
            return Admission::Accepted(());
        }
        let row = client.query_typed_one("SELECT high FROM t", &[]).await.unwrap();
        Admission::Stale { high: Token(row.get::<_, i64>(0).unsigned_abs()) }
    }

    /// As in any language: a stale token is an error.
    async fn claim_and_write(&self, client: &mut Client, claim: Claim, number: u64) -> Admission {
        let transaction = client.transaction().await.unwrap();
        let (token, fence) = (bigint(claim.token().0), bigint(claim.fence().0));
        let claimed = transaction
            .query_typed(
                "SELECT ringfence.claim($1, $2, $3)",
                &[(&self.key.as_str(), Type::TEXT), (&token, Type::INT8), (&fence, Type::INT8)],
            )
            .await;
        if let Err(error) = claimed {
            assert_eq!(error.code().unwrap().code(), "RF412", "{error:?}");
            transaction.rollback().await.unwrap();
            return Admission::Stale { high: high(client, &self.key).await.unwrap().token() };
        }
        transaction.execute_typed(WRITE, &[(&bigint(number), Type::INT8)]).await.unwrap();
        transaction.commit().await.unwrap();
        Admission::Accepted(())
    }
}

impl Resource for Number {
    fn touch(&self, claim: Claim) -> Admission {
        self.with(async |client| match self.form {
            Form::Unguarded => Admission::Accepted(()),
            Form::Column => Self::update(client, claim, None).await,
            _ => touch(client, &self.key, claim).await.unwrap(),
        })
    }

    fn read(&self) -> u64 {
        let sql = "SELECT n FROM t";
        let read =
            async |client: &mut Client| client.query_typed_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        self.with(read).unsigned_abs()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        self.with(async |client| {
            match self.form {
                Form::Column => return Self::update(client, claim, Some(number)).await,
                Form::Trigger => return self.claim_and_write(client, claim, number).await,
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
    race(&Number::new(Form::Trigger)).assert_right();
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
    race(&Number::pooled(Form::Trigger)).assert_right();
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
