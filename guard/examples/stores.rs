//! Prints the cost of a guard in Redis and PostgreSQL, and of the mirror's reader, each against the same without it:
//!
//! ```text
//! cargo run --release -p ringfence-guard --example stores
//! ```
//! Real servers on this machine, one operation in flight on each connection. Both sides of a comparison run in turns of a
//! second; the medians are printed. PostgreSQL waits for the disk at each commit, as by default.

// A measurement that fails panics.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use ringfence_guard::postgres::{SQL, admit};
use ringfence_guard::redis::RedisGuard;
use ringfence_guard::{Claim, MirrorReader, MirrorVerdict};
use ringfence_harness::{PostgresServer, RedisServer};
use ringfence_wire::{Key, Token};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};

const CONNECTIONS: usize = 16;
const TURNS: usize = 7;
const TURN: Duration = Duration::from_secs(1);
/// The commands of one pipeline.
const MANY: usize = 100;

const TABLES: &str = "
    CREATE TABLE plain (key text PRIMARY KEY, n bigint);
    CREATE TABLE own_column (key text PRIMARY KEY, n bigint, high bigint NOT NULL DEFAULT 0);
    CREATE TABLE triggered (key text PRIMARY KEY, n bigint);";

/// A connection and its own key.
struct Own<C> {
    connection: C,
    key: Key,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!(
        "{CONNECTIONS} connections, medians of {TURNS} turns{:>35} {:>10} {:>7}",
        "without", "with", "ratio"
    );
    redis_writes_and_checks().await;
    postgres_writes().await;
}

async fn redis_writes_and_checks() {
    let server = RedisServer::builder().start().await.unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut own: Vec<Own<MultiplexedConnection>> = Vec::new();
    for key in keys() {
        own.push(Own { connection: client.get_multiplexed_async_connection().await.unwrap(), key });
    }
    let claim = claim();
    let hash = |own: &Own<_>| format!("{{{}}}:hash", own.key);
    let text = |own: &Own<_>| format!("{{{}}}:text", own.key);

    compare(
        "redis: SET",
        &mut own,
        async |own| own.connection.set::<_, _, ()>(text(own), "value").await.unwrap(),
        async |own| {
            let (guard, name) = (RedisGuard::new(&own.key).unwrap(), text(own));
            assert!(guard.set(&mut own.connection, claim, &name, "value").await.unwrap().is_accepted());
        },
    )
    .await;
    compare(
        "redis: HSET",
        &mut own,
        async |own| own.connection.hset::<_, _, _, ()>(hash(own), "field", "value").await.unwrap(),
        async |own| {
            let (guard, name) = (RedisGuard::new(&own.key).unwrap(), hash(own));
            let fields = [("field", "value")];
            assert!(guard.hset(&mut own.connection, claim, &name, &fields).await.unwrap().is_accepted());
        },
    )
    .await;

    let reader = MirrorReader::default();
    for own in &mut own {
        let fields =
            ["rev", "8", "fence", "8", "token", "8", "state", "held", "mode", "exclusive", "holder", "me"];
        let name = format!("ringfence:{{{}}}", own.key);
        redis::cmd("HSET").arg(name).arg(&fields).exec_async(&mut own.connection).await.unwrap();
    }
    compare(
        "mirror: plain GET, one check",
        &mut own,
        async |own| drop(own.connection.get::<_, String>(text(own)).await.unwrap()),
        async |own| {
            let verdict = reader.check(&mut own.connection, &own.key, Token(7)).await.unwrap();
            assert_eq!(verdict, MirrorVerdict::Stale { fence: Token(8) });
        },
    )
    .await;
    // A real caller has its keys and tokens already.
    let checks = |own: &Own<_>| vec![(own.key.clone(), Token(7)); MANY];
    let mut own: Vec<_> = own.into_iter().map(|own| (checks(&own), own)).collect();
    for plain in ["GET", "HGET"] {
        compare(
            &format!("mirror: a pipeline of {MANY} {plain}s, of {MANY} checks"),
            &mut own,
            async |(_, own)| {
                let mut command = redis::cmd(plain);
                match plain {
                    "GET" => command.arg(text(own)),
                    _ => command.arg(format!("ringfence:{{{}}}", own.key)).arg("fence"),
                };
                let mut pipeline = redis::pipe();
                for _ in 0..MANY {
                    pipeline.add_command(command.clone());
                }
                drop(pipeline.query_async::<Vec<String>>(&mut own.connection).await.unwrap());
            },
            async |(checks, own)| {
                let verdicts = reader.check_many(&mut own.connection, checks).await.unwrap();
                assert_eq!(verdicts.len(), MANY);
            },
        )
        .await;
    }
}

async fn postgres_writes() {
    let server = PostgresServer::start_with(&["fsync=on"]).await.unwrap();
    let mut own: Vec<Own<Client>> = Vec::new();
    for key in keys() {
        let (connection, driver) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(driver);
        own.push(Own { connection, key });
    }
    own[0].connection.batch_execute(&format!("{SQL} {TABLES}")).await.unwrap();
    for own in &own {
        for table in ["plain", "own_column", "triggered"] {
            let sql = format!("INSERT INTO {table} (key, n) VALUES ($1, 0)");
            own.connection.execute(&sql, &[&own.key.as_str()]).await.unwrap();
        }
    }
    own[0].connection.batch_execute("SELECT ringfence.protect('triggered', '', 'key')").await.unwrap();
    let claim = claim();

    for (form, table) in [("function", "plain"), ("trigger", "triggered")] {
        compare(
            &format!("postgres: a transaction with one UPDATE, by the {form}"),
            &mut own,
            async |own| in_a_transaction(own, None, "plain").await,
            async |own| in_a_transaction(own, Some(claim), table).await,
        )
        .await;
    }
    compare(
        "postgres: one UPDATE, by the column",
        &mut own,
        async |own| {
            let sql = "UPDATE plain SET n = n + 1 WHERE key = $1";
            let updated = own.connection.execute_typed(sql, &[(&own.key.as_str(), Type::TEXT)]).await;
            assert_eq!(updated.unwrap(), 1);
        },
        async |own| {
            let sql = "UPDATE own_column SET n = n + 1, high = GREATEST(high, $2)
                       WHERE key = $1 AND $2 BETWEEN GREATEST(high, 1) AND 9007199254740991";
            let token = i64::try_from(claim.token().0).unwrap();
            let parameters: [(&(dyn ToSql + Sync), Type); 2] =
                [(&own.key.as_str(), Type::TEXT), (&token, Type::INT8)];
            let updated = own.connection.execute_typed(sql, &parameters).await;
            assert_eq!(updated.unwrap(), 1);
        },
    )
    .await;
}

async fn in_a_transaction(own: &mut Own<Client>, claim: Option<Claim>, table: &str) {
    let transaction = own.connection.transaction().await.unwrap();
    if let Some(claim) = claim {
        assert!(admit(&transaction, &own.key, claim).await.unwrap().is_accepted());
    }
    let sql = format!("UPDATE {table} SET n = n + 1 WHERE key = $1");
    let updated = transaction.execute_typed(&sql, &[(&own.key.as_str(), Type::TEXT)]).await;
    assert_eq!(updated.unwrap(), 1);
    transaction.commit().await.unwrap();
}

/// Prints the operations per second of both.
async fn compare<C>(what: &str, own: &mut [C], without: impl AsyncFn(&mut C), with: impl AsyncFn(&mut C)) {
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        rates[0].push(rate(own, &without).await);
        rates[1].push(rate(own, &with).await);
    }
    let [without, with] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[TURNS / 2]
    });
    println!("{what:<64} {without:>8.0} {with:>10.0} {:>7.2}", with / without);
}

/// The operations per second of one turn: all connections at once, each sequentially.
async fn rate<C>(own: &mut [C], operation: &impl AsyncFn(&mut C)) -> f64 {
    let began = Instant::now();
    let done = join_all(own.iter_mut().map(async |own| {
        let mut done = 0;
        while began.elapsed() < TURN {
            operation(own).await;
            done += 1;
        }
        done
    }));
    let done: u32 = done.await.into_iter().sum();
    f64::from(done) / began.elapsed().as_secs_f64()
}

fn keys() -> impl Iterator<Item = Key> {
    (0..CONNECTIONS).map(|n| Key::new(&format!("orders/{n}")).unwrap())
}

fn claim() -> Claim {
    Claim::exclusive(Token(7)).unwrap()
}
