use std::collections::BTreeMap;
use std::sync::Arc;

use ringfence_guard::postgres::{admit, high, touch};
use ringfence_guard::{Admission, High};
use ringfence_wire::{Key, Token};
use tokio::sync::mpsc;
use tokio_postgres::{Client, Error};

use crate::database::{connect, exclusive, guarded, key};

const WRITERS: u64 = 4;
const KILLS: u64 = 5;
/// Answers between two kills.
const ANSWERS: usize = 200;

/// Claims and writes in one transaction.
async fn write(client: &mut Client, key: &Key, token: u64) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let admission = admit(&transaction, key, exclusive(token)).await?;
    assert_eq!(admission, Admission::Accepted(()), "{key:?} {token}");
    let sql = "UPDATE t SET n = $1 WHERE key = $2";
    let number = i64::try_from(token).unwrap();
    transaction.execute(sql, &[&number, &key.as_str()]).await?;
    transaction.commit().await
}

/// Writes with rising tokens until the server is gone, and reports each acknowledged one.
async fn writes(url: Arc<str>, key: Key, first: u64, answers: mpsc::UnboundedSender<(Key, u64)>) {
    let mut client = connect(&url).await;
    for token in first.. {
        if write(&mut client, &key, token).await.is_err() {
            return;
        }
        answers.send((key.clone(), token)).unwrap();
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn a_killed_server_keeps_every_acknowledged_number() {
    let server = guarded().await;
    let url: Arc<str> = server.url().into();
    let client = connect(&url).await;
    let keys: Vec<Key> = (0..WRITERS).map(|writer| key(&format!("k/{writer}"))).collect();
    client.batch_execute("CREATE TABLE t (key text PRIMARY KEY, n bigint)").await.unwrap();
    for k in &keys {
        client.execute("INSERT INTO t VALUES ($1, 0)", &[&k.as_str()]).await.unwrap();
    }
    let mut acknowledged: BTreeMap<Key, u64> = keys.iter().map(|k| (k.clone(), 0)).collect();
    for kill in 1..=KILLS {
        let (sender, mut answers) = mpsc::unbounded_channel();
        let first = kill * 1_000_000;
        let writers: Vec<_> = keys
            .iter()
            .map(|k| tokio::spawn(writes(url.clone(), k.clone(), first, sender.clone())))
            .collect();
        drop(sender);
        for _ in 0..ANSWERS {
            let (k, token) = answers.recv().await.unwrap();
            acknowledged.insert(k, token);
        }
        server.kill().await.unwrap();
        while let Some((k, token)) = answers.recv().await {
            acknowledged.insert(k, token);
        }
        for writer in writers {
            writer.await.unwrap();
        }
        server.restart().await.unwrap();
        let client = connect(&url).await;
        for (k, &token) in &acknowledged {
            let written: i64 =
                client.query_one("SELECT n FROM t WHERE key = $1", &[&k.as_str()]).await.unwrap().get(0);
            let stands = Token(written.unsigned_abs());
            assert_eq!(
                high(&client, k).await.unwrap(),
                High::new(stands).unwrap(),
                "the number is as new as the data"
            );
            assert!(stands >= Token(token), "{k:?}: {token} was acknowledged, {stands} is there");
            let late = touch(&client, k, exclusive(stands.0 - 1)).await.unwrap();
            assert_eq!(late, Admission::Stale { high: stands });
        }
    }
}
