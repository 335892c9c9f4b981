//! Backups, and clusters that are restored from them.

use std::path::Path;
use std::process::Command;

use ringfence_harness::{Answered, Builder, Cluster, Consistency, key, take, until};
use ringfence_wire::{Backup, Token};
use tempfile::TempDir;

use crate::support::end::{self, End, ringfence};
use crate::support::{PROGRAM, SOON, file_of};

fn cluster(first_revision: u64) -> Builder {
    Cluster::builder(PROGRAM).first_revision(Some(first_revision))
}

fn backup(words: &[&str], file: &Path) -> End {
    end::run(Command::new(PROGRAM).arg("backup").args(words).arg(file))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_cluster_grants_larger_tokens_or_none_and_holds_no_lease() {
    let (_dir, file) = file_of("backup.json");
    let old = cluster(1_000).start().await.unwrap();
    let token = take(&old.node(1).client().patient(), "a").await.token;
    let saved = backup(&["save", "--urls", &old.node(2).url(), "-o", "json"], &file);
    let saved: Backup = saved.json();
    assert!(saved.first_revision.0 == 1_000 && saved.revision.0 >= token.0, "{saved:?}");
    let shown: Backup = backup(&["inspect", "-o", "json"], &file).json();
    assert_eq!(shown, saved);
    drop(old);

    let restore = format!("--restore={}", file.display());
    let below = cluster(saved.revision.0).nodes(1).argument(&restore).lay_out().await.unwrap();
    below.start_all().unwrap();
    let refused = || async { below.node(1).log().contains("its first revision would be").then_some(()) };
    until(SOON, "it logs why it does not start", refused).await.unwrap();
    let leads = || async { below.node(1).client().cluster().await.done().leader };
    until(SOON, "it has a leader nevertheless", leads).await.unwrap();
    assert!(!below.node(1).client().is_ready().await);
    let shown = end::run(&mut ringfence(&format!("cluster status --urls {}", below.node(1).url()))).out;
    assert!(shown.contains("none: not started"), "{shown}");
    // It must not replace the backup of the cluster that it replaces.
    let kept = std::fs::read(&file).unwrap();
    let said = backup(&["save", "--urls", &below.node(1).url()], &file).fails();
    assert!(said.contains("no revision yet"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), kept);
    drop(below);

    let beyond = cluster(saved.revision.0 + 1).argument(&restore).start().await.unwrap();
    let client = beyond.node(1).client().patient();
    let view = client.key(&key("a"), Consistency::Linearizable).await.done();
    assert!(view.holders.is_empty() && view.fence > token, "{view:?}");
    assert!(take(&client, "a").await.token > token);
}

/// A backup of a running cluster has its revision of that moment.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_revision_that_an_objection_states_is_above_what_was_granted_after_the_backup() {
    let (_dir, file) = file_of("backup.json");
    let old = cluster(1 << 52).nodes(1).start().await.unwrap();
    backup(&["save", "--urls", &old.node(1).url()], &file).with(0);
    let client = old.node(1).client().patient();
    let mut token = Token(0);
    for number in 0..100 {
        token = take(&client, &format!("later/{number}")).await.token;
    }
    drop(old);
    let restore = format!("--restore={}", file.display());
    let new = Cluster::builder(PROGRAM).nodes(1).argument(&restore);
    let behind = new.first_revision(None).lay_out().await.unwrap();
    behind.start_all().unwrap();
    let stated = || async {
        let log = behind.node(1).log();
        let (_, rest) = log.split_once("start all nodes with --first-revision=")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let stated = until(SOON, "the objection states a revision", stated).await.unwrap();
    drop(behind);
    let new = cluster(stated).nodes(1).argument(&restore).start().await.unwrap();
    assert!(take(&new.node(1).client().patient(), "a").await.token > token);
}

/// The survivor lacks what the others acknowledged without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_restored_from_a_stale_survivor_grants_larger_tokens_than_the_lost_majority() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("backup.json");
    let old = Cluster::builder(PROGRAM).first_revision(None).start().await.unwrap();
    let survivor = old.node(3);
    take(&old.node(1).client().patient(), "a").await;
    let data = format!("--data={}", survivor.data().display());
    let said = backup(&["save", &data], &file).fails();
    assert!(said.contains("in use by another process"), "{said}");
    assert!(!file.exists());

    // Its entry takes several sectors.
    take(&old.node(1).client().patient(), &"x".repeat(512)).await;
    old.caught_up(SOON).await.unwrap();
    survivor.kill().unwrap();
    let client = old.node(1).client().patient();
    let mut token = take(&client, "b").await.token;
    for number in 0..50 {
        let next = take(&client, &format!("without/{number}")).await.token;
        assert!(next > token);
        token = next;
    }
    old.kill_all().unwrap();
    for lost in old.others(3) {
        lost.wipe().unwrap();
    }
    tear(survivor.segments().last().unwrap());
    // An operator may copy the directory, and lose its times.
    let copy = dir.path().join("copy");
    let copied = Command::new("cp").arg("-r").args([survivor.data(), copy.clone()]).status().unwrap();
    assert!(copied.success());
    let saved = backup(&["save", "--data", copy.to_str().unwrap(), "-o", "json"], &file);
    let saved: Backup = saved.json();
    assert!(saved.revision.0 >= token.0, "{saved:?}, though {token} was granted");
    drop(old);

    let restore = format!("--restore={}", file.display());
    let new = Cluster::builder(PROGRAM).first_revision(None).argument(&restore).start().await.unwrap();
    assert!(take(&new.node(1).client().patient(), "a").await.token.0 > saved.revision.0);
}

/// Leaves out the last sector that was written to a segment, as a power cut may.
fn tear(segment: &Path) {
    let mut bytes = std::fs::read(segment).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes[last & !511..].fill(0);
    std::fs::write(segment, bytes).unwrap();
}

/// The wall clock tells nothing of a cluster that was founded ahead of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_survivor_that_is_ahead_of_the_clock_gives_a_wide_margin() {
    let (_dir, file) = file_of("backup.json");
    let first = 1 << 52;
    let old = cluster(first).nodes(1).start().await.unwrap();
    let token = take(&old.node(1).client().patient(), "a").await.token;
    old.kill_all().unwrap();
    let save = ["save", "--data", &old.node(1).data().display().to_string()];
    backup(&save, &file).with(0);
    let saved: Backup = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(saved.first_revision.0 == first + 1 && saved.revision.0 > token.0 + (1 << 44), "{saved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_can_go_to_standard_output_and_come_from_standard_input() {
    let dir = TempDir::new().unwrap();
    let cluster = cluster(1_000).nodes(1).start().await.unwrap();
    let save = |file: &str| {
        let words = format!("backup save {file} --urls {}", cluster.node(1).url());
        end::run(ringfence(&words).current_dir(dir.path())).with(0).out
    };
    let (saved, _) = (save("-"), save("file"));
    let [of_output, of_file] = [saved.clone(), std::fs::read_to_string(dir.path().join("file")).unwrap()]
        .map(|text| serde_json::from_str::<Backup>(&text).unwrap());
    assert_eq!(of_output.cluster_id, of_file.cluster_id);
    assert!(!dir.path().join("-").exists());
    let out = dir.path().join("out");
    std::fs::write(&out, &saved).unwrap();
    end::run(ringfence("backup inspect -").stdin(std::fs::File::open(&out).unwrap())).with(0);
}

#[tokio::test]
async fn a_directory_without_a_committed_entry_gives_no_backup() {
    let dir = TempDir::new().unwrap();
    let (empty, file) = (dir.path().join("empty"), dir.path().join("backup.json"));
    std::fs::create_dir(&empty).unwrap();
    let refused = |data: &Path| {
        let said = backup(&["save", "--data", data.to_str().unwrap()], &file).fails();
        assert!(!file.exists());
        said
    };
    let said = refused(&empty);
    assert!(said.contains("not the data directory of a node"), "{said}");
    let alone = cluster(1).lay_out().await.unwrap();
    let node = alone.node(1);
    node.start().unwrap();
    let waits = || async { node.log().contains("waiting for the other members").then_some(()) };
    until(SOON, "it waits for the other members", waits).await.unwrap();
    node.kill().unwrap();
    let said = refused(&node.data());
    assert!(said.contains("no committed entry"), "{said}");
}

#[tokio::test]
async fn an_invalid_backup_is_refused_with_the_reason() {
    let (_dir, file) = file_of("backup.json");
    let cluster_id = "5c0f3c60-4f0e-4d0b-9a53-0f8f0c1b7e55";
    let whole = format!(r#"{{"format":1,"cluster_id":"{cluster_id}","first_revision":5,"revision":7}}"#);
    std::fs::write(&file, &whole).unwrap();
    backup(&["inspect"], &file).with(0);
    for (wrong, reason) in [
        (whole.replace("\"format\":1", "\"format\":2"), "format"),
        (whole.replace("\"revision\":7", "\"revision\":4"), "revision"),
        (whole.replace("\"revision\":7", "\"revisions\":7"), "revisions"),
        (whole.replace("on\":5", "on\":0").replace("\"revision\":7", "\"revision\":0"), "had not started"),
        (whole[..whole.len() - 3].to_owned(), "backup.json"),
        (String::new(), "backup.json"),
    ] {
        std::fs::write(&file, &wrong).unwrap();
        let said = backup(&["inspect"], &file).fails();
        assert!(said.contains(reason) && said.contains("backup.json"), "{wrong}: {said}");
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
