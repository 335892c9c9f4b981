use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

use crate::database::{code, connect, ends, guarded, waiting};
use crate::pairs::{BAD, GOOD, Pair, raised};
use crate::shown::shown;

const FORM: &str = "**SQL, by a column.**";
/// The mistake that README.md warns of: the number is in another table.
const ELSEWHERE: &str =
    "UPDATE accounts SET balance = :balance WHERE id = :id AND (SELECT high FROM numbers) <= :token";

const STATEMENTS: [&str; 5] = ["touch", "write", "touch or make", "create or write", "delete"];

/// Creates the table of accounts with the columns of README.md, and account 1 with 100.
async fn accounts(client: &Client) {
    client.batch_execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint)").await.unwrap();
    client.batch_execute(&shown(FORM, "add")).await.unwrap();
    client.batch_execute("INSERT INTO accounts (id, balance) VALUES (1, 100)").await.unwrap();
}

/// Runs one statement with named parameters, whose types the server infers. Returns the number of changed rows.
async fn bound(client: &Client, sql: &str, named: &[(&str, Option<i64>)]) -> u64 {
    try_bound(client, sql, named).await.expect(sql)
}

async fn try_bound(
    client: &Client,
    sql: &str,
    named: &[(&str, Option<i64>)],
) -> Result<u64, tokio_postgres::Error> {
    let (mut sql, mut parameters) = (sql.to_owned(), Vec::<&(dyn ToSql + Sync)>::new());
    for (name, value) in named {
        let name = format!(":{name}");
        if sql.contains(&name) {
            parameters.push(value);
            sql = sql.replace(&name, &format!("${}", parameters.len()));
        }
    }
    client.execute(&sql, &parameters).await
}

/// Returns the number of changed rows.
async fn run(client: &Client, label: &str, id: i64, token: Option<i64>, fence: Option<i64>) -> u64 {
    let named = [("id", Some(id)), ("balance", token), ("token", token), ("fence", fence)];
    bound(client, &shown(FORM, label), &named).await
}

/// The balance, the number, and whether the row is a tombstone.
async fn row(client: &Client, id: i64) -> Option<(Option<i64>, i64, bool)> {
    let row =
        client.query_opt("SELECT balance, high, deleted FROM accounts WHERE id = $1", &[&id]).await.unwrap();
    row.map(|row| (row.get(0), row.get(1), row.get(2)))
}

#[tokio::test]
async fn the_statements_of_the_readme_reject_a_stale_holder_and_no_live_peer() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    accounts(&client).await;
    for write in ["write", "create or write"] {
        client.batch_execute("UPDATE accounts SET balance = 100, high = 0").await.unwrap();
        assert_eq!(run(&client, write, 1, Some(9), Some(5)).await, 1);
        assert_eq!(run(&client, write, 1, Some(7), Some(5)).await, 1, "a newer peer does not shut it out");
        assert_eq!(run(&client, write, 1, Some(4), Some(3)).await, 0);
        assert_eq!(run(&client, write, 1, Some(6), Some(2)).await, 1);
        assert_eq!(row(&client, 1).await, Some((Some(6), 5, false)), "{write}");
    }
    for touch in ["touch", "touch or make"] {
        client.batch_execute("UPDATE accounts SET balance = 100, high = 0").await.unwrap();
        assert_eq!(run(&client, touch, 1, Some(7), Some(7)).await, 1);
        assert_eq!(run(&client, touch, 1, Some(5), Some(5)).await, 0);
        assert_eq!(run(&client, "write", 1, Some(5), Some(5)).await, 0);
        assert_eq!(row(&client, 1).await, Some((Some(100), 7, false)), "{touch}");
    }
    assert_eq!(run(&client, "reset", 1, None, Some(6)).await, 1);
    assert_eq!(run(&client, "write", 1, Some(6), Some(6)).await, 1);
}

/// A NULL fence once left the number as it was: `GREATEST` skips NULL.
#[tokio::test]
async fn a_fence_of_null_is_the_token_and_a_token_of_null_changes_nothing() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    accounts(&client).await;
    for statement in STATEMENTS {
        client.batch_execute("UPDATE accounts SET balance = 100, high = 0, deleted = false").await.unwrap();
        assert_eq!(run(&client, statement, 1, Some(7), None).await, 1, "{statement}");
        assert_eq!(row(&client, 1).await.unwrap().1, 7, "{statement}");
        assert_eq!(run(&client, "write", 1, Some(5), None).await, 0, "{statement}");
        let before = row(&client, 1).await;
        for fence in [None, Some(9)] {
            assert_eq!(run(&client, statement, 1, None, fence).await, 0, "{statement} {fence:?}");
            assert_eq!(run(&client, statement, 2, None, fence).await, 0, "{statement} {fence:?}");
        }
        assert_eq!((row(&client, 1).await, row(&client, 2).await), (before, None), "{statement}");
    }
}

#[tokio::test]
async fn an_operator_cannot_set_a_timestamp_in_nanoseconds() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    accounts(&client).await;
    let named = [("id", Some(1)), ("fence", Some(1_790_000_000_000_000_000))];
    let refused = try_bound(&client, &shown(FORM, "reset"), &named).await.unwrap_err();
    assert_eq!(code(&refused), "23514");
    assert_eq!(row(&client, 1).await, Some((Some(100), 0, false)));
}

/// Token 0, as an unset variable, once passed on every row that nobody had touched.
#[tokio::test]
async fn each_statement_contains_the_whole_rule() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    accounts(&client).await;
    let renew = async |high: i64| {
        let sql =
            format!("TRUNCATE accounts; INSERT INTO accounts (id, balance, high) VALUES (1, 100, {high})");
        client.batch_execute(&sql).await.unwrap();
    };
    for statement in STATEMENTS {
        for high in [0, 5] {
            renew(high).await;
            for pair in BAD {
                for (id, sql) in
                    [1, 2].into_iter().flat_map(|id| spelled(statement, id, pair).map(move |sql| (id, sql)))
                {
                    assert_eq!(client.execute(&sql, &[]).await.unwrap_or(0), 0, "{high}: {sql}");
                    let stands = (id == 1).then_some((Some(100), high, false));
                    assert_eq!(row(&client, id).await, stands, "{high}: {sql}");
                }
            }
            for pair in GOOD {
                for sql in spelled(statement, 1, pair) {
                    renew(high).await;
                    assert_eq!(client.execute(&sql, &[]).await.expect(&sql), 1, "{high}: {sql}");
                    assert_eq!(row(&client, 1).await.unwrap().1, raised(high, pair), "{high}: {sql}");
                }
            }
        }
    }
}

/// The statement with the pair as numbers, if it is one of numbers, and as texts.
fn spelled(statement: &str, id: i64, (token, fence): Pair) -> impl Iterator<Item = String> {
    let quote = |text: &str| format!("'{text}'");
    let plain = |text: &str| text.parse::<i64>().map_or_else(|_| quote(text), |number| number.to_string());
    let with = |spell: &dyn Fn(&str) -> String| {
        let spell = |text: Option<&str>| text.map_or("NULL".to_owned(), spell);
        shown(FORM, statement)
            .replace(":id", &id.to_string())
            .replace(":balance", "1")
            .replace(":token", &spell(token))
            .replace(":fence", &spell(fence))
    };
    [with(&plain), with(&quote)].into_iter()
}

/// A plain INSERT of a stale holder once landed, as there was no row whose number could reject it.
#[tokio::test]
async fn a_tombstone_rejects_a_stale_insert() {
    let server = guarded().await;
    let client = connect(&server.url()).await;
    accounts(&client).await;
    let seen =
        async |id: i64| client.query(&shown(FORM, "read").replace(":id", "$1"), &[&id]).await.unwrap().len();

    assert_eq!(run(&client, "touch or make", 2, Some(7), Some(7)).await, 1);
    assert_eq!(seen(2).await, 0, "a tombstone is not read");
    assert_eq!(run(&client, "create or write", 2, Some(5), Some(5)).await, 0);
    assert_eq!((row(&client, 2).await, seen(2).await), (Some((None, 7, true)), 0));
    assert_eq!(run(&client, "create or write", 2, Some(7), Some(7)).await, 1);
    assert_eq!((row(&client, 2).await, seen(2).await), (Some((Some(7), 7, false)), 1));

    assert_eq!(run(&client, "delete", 2, Some(5), Some(5)).await, 0);
    assert_eq!(run(&client, "delete", 2, Some(9), Some(9)).await, 1);
    assert_eq!(run(&client, "create or write", 2, Some(7), Some(7)).await, 0);
    assert_eq!((row(&client, 2).await, seen(2).await), (Some((Some(7), 9, true)), 0));
    assert_eq!(run(&client, "create or write", 3, Some(1), Some(1)).await, 1, "nobody has touched this one");
}

#[tokio::test]
async fn a_write_that_waited_sees_the_new_number_only_in_its_own_row() {
    let server = guarded().await;
    let (watcher, new) = (connect(&server.url()).await, connect(&server.url()).await);
    accounts(&watcher).await;
    watcher.batch_execute("CREATE TABLE numbers AS SELECT 0::bigint AS high").await.unwrap();
    let raise = "UPDATE accounts SET high = 7";
    let make = "INSERT INTO accounts (id, high, deleted) VALUES (1, 7, true)";
    let elsewhere = "UPDATE numbers SET high = 7; UPDATE accounts SET balance = 1";
    for (sql, before, newer, landed) in [
        (shown(FORM, "write"), 1, raise, 0),
        (shown(FORM, "create or write"), 1, raise, 0),
        (shown(FORM, "create or write"), 0, make, 0),
        (ELSEWHERE.to_owned(), 1, elsewhere, 1),
    ] {
        watcher.batch_execute("TRUNCATE accounts").await.unwrap();
        if before == 1 {
            watcher.batch_execute("INSERT INTO accounts (id, balance) VALUES (1, 0)").await.unwrap();
        }
        new.batch_execute(&format!("BEGIN; {newer}")).await.unwrap();
        let old = connect(&server.url()).await;
        let late = tokio::spawn(async move {
            let five = Some(5);
            let named = [("id", Some(1)), ("balance", five), ("token", five), ("fence", five)];
            bound(&old, &sql, &named).await
        });
        waiting(&watcher, 1).await;
        new.batch_execute("COMMIT").await.unwrap();
        assert_eq!(ends(late).await, landed, "{newer}");
    }
}
