//! Backups, and clusters that are restored from them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use ringfence_harness::{
    Acquired, Answered, Builder, Client, Cluster, Consistency, definite, key, try_once, until,
};
use ringfence_wire::{Backup, LeaseId, Token};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");
/// Far longer than anything here takes.
const SOON: Duration = Duration::from_secs(60);

fn cluster(first_revision: u64) -> Builder {
    Cluster::builder(PROGRAM).first_revision(Some(first_revision))
}

async fn take(client: &Client) -> Token {
    let (id, request) = (LeaseId::random(), try_once("a"));
    match Ok(definite(SOON, || client.acquire(id, &request)).await.unwrap()).done() {
        Acquired::Granted(grant) => grant.token,
        other => panic!("not granted: {other:?}"),
    }
}

fn backup(words: &[&str], file: &Path) -> Output {
    Command::new(PROGRAM).arg("backup").args(words).arg(file).output().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cluster_grants_larger_tokens_or_none_and_holds_no_lease() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("backup.json");
    let old = cluster(1_000).start().await.unwrap();
    let token = take(&old.node(1).client().patient()).await;
    let saved = backup(&["save", "--urls", &old.node(2).url(), "-o", "json"], &file);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let saved: Backup = serde_json::from_slice(&saved.stdout).unwrap();
    assert!(saved.first_revision.0 == 1_000 && saved.revision.0 >= token.0, "{saved:?}");
    let shown: Backup = serde_json::from_slice(&backup(&["inspect", "-o", "json"], &file).stdout).unwrap();
    assert_eq!(shown, saved);
    drop(old);

    let restore = format!("--restore={}", file.display());
    let below = cluster(saved.revision.0).nodes(1).argument(&restore).lay_out().await.unwrap();
    below.start_all().unwrap();
    let refused = || async { below.node(1).log().contains("its first revision would be").then_some(()) };
    until(SOON, "it logs why it does not start", refused).await.unwrap();
    assert!(!below.node(1).client().is_ready().await);
    drop(below);

    let beyond = cluster(saved.revision.0 + 1).argument(&restore).start().await.unwrap();
    let client = beyond.node(1).client().patient();
    let view = client.key(&key("a"), Consistency::Linearizable).await.done();
    assert!(view.holders.is_empty() && view.fence > token, "{view:?}");
    assert!(take(&client).await > token);
}

#[tokio::test]
async fn an_invalid_backup_is_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("backup.json");
    let cluster_id = "5c0f3c60-4f0e-4d0b-9a53-0f8f0c1b7e55";
    let whole = format!(r#"{{"format":1,"cluster_id":"{cluster_id}","first_revision":5,"revision":7}}"#);
    std::fs::write(&file, &whole).unwrap();
    assert!(backup(&["inspect"], &file).status.success());
    for (wrong, reason) in [
        (whole.replace("\"format\":1", "\"format\":2"), "format"),
        (whole.replace("\"revision\":7", "\"revision\":4"), "revision"),
        (whole.replace("\"revision\":7", "\"revisions\":7"), "revisions"),
        (whole[..whole.len() - 3].to_owned(), "backup.json"),
        (String::new(), "backup.json"),
    ] {
        std::fs::write(&file, &wrong).unwrap();
        let inspected = backup(&["inspect"], &file);
        let said = String::from_utf8(inspected.stderr).unwrap();
        assert!(
            !inspected.status.success() && said.contains(reason) && said.contains("backup.json"),
            "{wrong}: {said}"
        );
        let node =
            cluster(9).nodes(1).argument(format!("--restore={}", file.display())).lay_out().await.unwrap();
        let ended = node.node(1).start_in_vain().await.unwrap();
        assert!(
            ended.output.contains("--restore") && ended.output.contains(reason),
            "{wrong}: {}",
            ended.output
        );
    }
}
