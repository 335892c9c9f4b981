use ringfence_guard::postgres::{admit, high, reset, touch};
use ringfence_guard::{Admission, High};
use ringfence_harness::PgBouncer;
use ringfence_wire::Token;
use tokio_postgres::IsolationLevel;

use crate::database::{code, connect, ends, exclusive, guarded, key, shared, waiting};

const STALE_BELOW_7: Admission = Admission::Stale { high: Token(7) };

#[tokio::test]
async fn a_newer_holder_shuts_out_older_ones_and_no_live_peer() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    let (a, b) = (key("orders/42"), key("orders/43"));
    assert_eq!(high(&client, &a).await.unwrap(), High::NEW);
    assert_eq!(touch(&client, &a, exclusive(5)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(touch(&client, &a, shared(9, 7)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(touch(&client, &a, exclusive(5)).await.unwrap(), STALE_BELOW_7);
    assert_eq!(touch(&client, &a, shared(7, 6)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(
        high(&client, &a).await.unwrap(),
        High::new(Token(7)).unwrap(),
        "an older fence does not lower it"
    );
    assert_eq!(touch(&client, &b, exclusive(5)).await.unwrap(), Admission::Accepted(()), "keys are apart");
}

#[tokio::test]
async fn an_invalid_token_is_an_error_and_changes_nothing() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    for (claim, why) in [
        ("0, 0", "token: 0 is no token"),
        ("-4, -4", "token: -4 is no token"),
        ("9007199254740992, 4", "token: 9007199254740992 is no token"),
        ("NULL, 4", "token: <NULL> is no token"),
        ("4, 0", "fence: 0 is no fence of the live token 4"),
        ("4, 5", "fence: 5 is no fence of the live token 4"),
    ] {
        for function in ["admit", "claim", "touch"] {
            let sql = format!("SELECT ringfence.{function}('k', {claim})");
            let error = client.batch_execute(&sql).await.unwrap_err();
            assert_eq!(code(&error), "22023", "{sql}");
            assert!(error.as_db_error().unwrap().message().starts_with(why), "{sql}: {error:?}");
        }
    }
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::NEW);
    client.batch_execute("SELECT ringfence.touch('k', 9007199254740991)").await.unwrap();
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::new(Token((1 << 53) - 1)).unwrap());
}

#[tokio::test]
async fn a_fence_of_null_is_the_token() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    for function in ["admit", "claim", "touch"] {
        let sql = format!("SELECT ringfence.{function}($1, $2, $3)");
        for (token, left) in [(7_i64, 7), (9, 9)] {
            client.batch_execute("BEGIN").await.unwrap();
            client.execute(&sql, &[&function, &token, &None::<i64>]).await.unwrap();
            client.batch_execute("COMMIT").await.unwrap();
            assert_eq!(
                high(&client, &key(function)).await.unwrap(),
                High::new(Token(left)).unwrap(),
                "{function}"
            );
        }
    }
}

/// In autocommit a claim ends before the write that it should guard. Once that went unnoticed.
#[tokio::test]
async fn a_claim_that_is_alone_in_its_transaction_is_an_error_and_raises_nothing() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    for sql in [
        "SELECT ringfence.claim('k', 7)",
        "select * from RINGFENCE.claim( 'k', 7, 7 ) as result ;\n",
        "SELECT * FROM \"ringfence\".\"claim\"('k', 7)",
        "/* app */ SELECT ringfence.claim('k', 7)",
        "SELECT ringfence.claim('k', 7) /*controller='it''s',action='**'*/ -- and more",
        "-- job 4\nSELECT ringfence.claim(CAST('k' AS text), CAST(abs(-7) AS bigint)) AS \"claimed\"",
        "SELECT ringfence.claim('k (1) -- ; /*', 7)",
    ] {
        assert_eq!(code(&client.batch_execute(sql).await.unwrap_err()), "25P01", "{sql}");
        assert_eq!(code(&client.execute(sql, &[]).await.unwrap_err()), "25P01", "{sql}");
    }
    let parameters = client.execute("SELECT ringfence.claim($1, $2, $3)", &[&"k", &7_i64, &7_i64]).await;
    assert_eq!(code(&parameters.unwrap_err()), "25P01");
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::NEW);
}

#[tokio::test]
async fn a_claim_with_other_statements_in_its_transaction_is_not_alone() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE TABLE t AS SELECT 0 AS n").await.unwrap();
    client
        .batch_execute(
            "CREATE FUNCTION claim() RETURNS void LANGUAGE sql AS
             $$ SELECT ringfence.claim('k', 7); UPDATE t SET n = n + 1 $$",
        )
        .await
        .unwrap();
    for one_message in [
        "BEGIN; SELECT ringfence.claim('k', 7); UPDATE t SET n = n + 1; COMMIT",
        "SELECT ringfence.claim('k', 7); UPDATE t SET n = n + 1",
        "SELECT claim()",
        "SELECT ringfence.claim('k', 7), claim()",
        "SELECT claim() /* SELECT ringfence.claim('k', 7) */",
        "DO $$ BEGIN PERFORM ringfence.claim('k', 7); UPDATE t SET n = n + 1; END $$",
        "WITH claimed AS (SELECT ringfence.claim('k', 7)) UPDATE t SET n = n + 1 FROM claimed",
    ] {
        client.batch_execute(one_message).await.expect(one_message);
    }
    for begin in ["BEGIN", "BEGIN; SET CONSTRAINTS ALL IMMEDIATE", "BEGIN ISOLATION LEVEL SERIALIZABLE"] {
        for then in ["UPDATE t SET n = n + 1", "SET CONSTRAINTS ALL IMMEDIATE; UPDATE t SET n = n + 1", ""] {
            client.batch_execute(begin).await.unwrap();
            client.execute("SELECT ringfence.claim($1, $2)", &[&"k", &7_i64]).await.unwrap();
            client.batch_execute("SELECT ringfence.claim('k', 8, 7)").await.unwrap();
            client.batch_execute(then).await.unwrap();
            client.batch_execute("COMMIT").await.expect(begin);
        }
    }
    // These may be alone.
    client.execute("SELECT ringfence.touch($1, $2)", &[&"k", &7_i64]).await.unwrap();
    client.batch_execute("SELECT * FROM ringfence.admit('k', 7)").await.unwrap();
}

#[tokio::test]
async fn only_an_operator_resets_a_key() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    let k = key("k");
    assert_eq!(touch(&client, &k, exclusive(1_790_000_000_000_000)).await.unwrap(), Admission::Accepted(()));
    let stale = Admission::Stale { high: Token(1_790_000_000_000_000) };
    assert_eq!(touch(&client, &k, exclusive(8)).await.unwrap(), stale);
    client
        .batch_execute("CREATE ROLE writer LOGIN; GRANT USAGE ON SCHEMA ringfence TO writer")
        .await
        .unwrap();
    let writer = connect(&server.url().replace("postgres@", "writer@")).await;
    assert_eq!(touch(&writer, &k, exclusive(8)).await.unwrap(), stale);
    let eight = High::reset(Token(8)).unwrap();
    assert_eq!(code(&reset(&writer, &k, eight).await.unwrap_err()), "42501");
    let by_hand = "UPDATE ringfence.guard SET high = 8";
    assert_eq!(code(&writer.batch_execute(by_hand).await.unwrap_err()), "42501");
    for no_token in ["0", "-1", "9007199254740992"] {
        let sql = format!("SELECT ringfence.reset('k', {no_token})");
        assert_eq!(code(&client.batch_execute(&sql).await.unwrap_err()), "23514");
    }
    reset(&client, &k, eight).await.unwrap();
    assert_eq!(touch(&writer, &k, exclusive(8)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(touch(&writer, &k, exclusive(7)).await.unwrap(), Admission::Stale { high: Token(8) });
}

#[tokio::test]
async fn a_claim_waits_for_the_transaction_before_it_and_sees_its_outcome() {
    let server = guarded().await;
    let (mut first, watcher) = (connect(&server.url()).await, connect(&server.url()).await);
    // A new key: there is no row to lock yet.
    for (state, before) in [("new", None), ("known", Some(exclusive(1)))] {
        for commits in [true, false] {
            let k = key(&format!("{state}/{commits}"));
            if let Some(claim) = before {
                assert_eq!(touch(&watcher, &k, claim).await.unwrap(), Admission::Accepted(()));
            }
            let newer = first.transaction().await.unwrap();
            assert_eq!(admit(&newer, &k, exclusive(7)).await.unwrap(), Admission::Accepted(()));
            let client = connect(&server.url()).await;
            let of_older = k.clone();
            let older = tokio::spawn(async move { touch(&client, &of_older, exclusive(5)).await.unwrap() });
            waiting(&watcher, 1).await;
            let (expected, left) = if commits {
                newer.commit().await.unwrap();
                (STALE_BELOW_7, 7)
            } else {
                newer.rollback().await.unwrap();
                (Admission::Accepted(()), 5)
            };
            assert_eq!(ends(older).await, expected, "{k:?}");
            assert_eq!(high(&watcher, &k).await.unwrap(), High::new(Token(left)).unwrap(), "{k:?}");
        }
    }
}

#[tokio::test]
async fn a_new_holder_reads_what_the_old_one_wrote_before_its_touch() {
    let server = guarded().await;
    let mut old = connect(&server.url()).await;
    old.batch_execute("CREATE TABLE t AS SELECT 0 AS n").await.unwrap();
    let writing = old.transaction().await.unwrap();
    assert_eq!(admit(&writing, &key("k"), exclusive(5)).await.unwrap(), Admission::Accepted(()));
    writing.batch_execute("UPDATE t SET n = 1").await.unwrap();
    let mut new = connect(&server.url()).await;
    let reads = tokio::spawn(async move {
        let reading = new.transaction().await.unwrap();
        assert_eq!(admit(&reading, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted(()));
        reading.query_one("SELECT n FROM t", &[]).await.unwrap().get::<_, i32>(0)
    });
    waiting(&connect(&server.url()).await, 1).await;
    writing.commit().await.unwrap();
    assert_eq!(ends(reads).await, 1);
}

/// The number is written even if it does not change: otherwise this transaction would be admitted, and read `n` from
/// before the other one.
#[tokio::test]
async fn a_snapshot_from_before_another_claim_is_a_serialization_failure() {
    let server = guarded().await;
    let (mut client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    assert_eq!(touch(&other, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted(()));
    let repeatable = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let transaction = repeatable.start().await.unwrap();
    transaction.batch_execute("SELECT 1").await.unwrap();
    assert_eq!(touch(&other, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted(()));
    assert_eq!(code(&admit(&transaction, &key("k"), exclusive(7)).await.unwrap_err()), "40001");
}

#[tokio::test]
async fn after_a_stale_claim_nothing_of_the_transaction_lands() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    client.batch_execute("CREATE TABLE t AS SELECT 0 AS n; SELECT ringfence.touch('k', 7)").await.unwrap();
    client.batch_execute("BEGIN; UPDATE t SET n = 1").await.unwrap();
    let error = client.batch_execute("SELECT ringfence.claim('k', 5)").await.unwrap_err();
    assert_eq!(code(&error), "RF412");
    assert_eq!(error.as_db_error().unwrap().message(), "stale token: of k, every token below 7 is dead");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(client.query_one("SELECT n FROM t", &[]).await.unwrap().get::<_, i32>(0), 0);
}

#[tokio::test]
async fn clients_that_share_a_connection_by_transactions_are_guarded() {
    let server = guarded().await;
    let bouncer = PgBouncer::start(&server, 1).await.unwrap();
    let (mut one, mut two) = (connect(&bouncer.url()).await, connect(&bouncer.url()).await);
    for token in 1..20 {
        let transaction = one.transaction().await.unwrap();
        assert_eq!(
            admit(&transaction, &key("k"), exclusive(token * 2)).await.unwrap(),
            Admission::Accepted(())
        );
        transaction.commit().await.unwrap();
        let transaction = two.transaction().await.unwrap();
        let stale = Admission::Stale { high: Token(token * 2) };
        assert_eq!(admit(&transaction, &key("k"), exclusive(token * 2 - 1)).await.unwrap(), stale);
        assert_eq!(high(&transaction, &key("k")).await.unwrap(), High::new(Token(token * 2)).unwrap());
    }
}

#[tokio::test]
async fn the_server_ends_a_holder_that_pauses_in_its_transaction() {
    let server = guarded().await;
    let (mut old, new) = (connect(&server.url()).await, connect(&server.url()).await);
    old.batch_execute("CREATE TABLE t AS SELECT 0 AS n").await.unwrap();
    let paused = old.transaction().await.unwrap();
    assert_eq!(admit(&paused, &key("k"), exclusive(5)).await.unwrap(), Admission::Accepted(()));
    let then_pause = "UPDATE t SET n = 1; SET LOCAL idle_in_transaction_session_timeout = '300ms'";
    paused.batch_execute(then_pause).await.unwrap();
    let touches = tokio::spawn(async move {
        assert_eq!(touch(&new, &key("k"), exclusive(7)).await.unwrap(), Admission::Accepted(()));
        new.query_one("SELECT n FROM t", &[]).await.unwrap().get::<_, i32>(0)
    });
    assert_eq!(ends(touches).await, 0);
    assert!(paused.commit().await.is_err());
    let client = connect(&server.url()).await;
    assert_eq!(client.query_one("SELECT n FROM t", &[]).await.unwrap().get::<_, i32>(0), 0);
    assert_eq!(high(&client, &key("k")).await.unwrap(), High::new(Token(7)).unwrap());
}
