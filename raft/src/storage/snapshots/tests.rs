use std::{fs, thread};

use ringfence_lease::{Command, SUPPORTED};
use ringfence_wire::Revision;
use tempfile::TempDir;

use super::*;
use crate::consensus::{Membership, StoredMembership, log_id};
use crate::storage::identity::DirError;

fn open(dir: &TempDir) -> Arc<Generations> {
    let data = loop {
        match DataDir::open(dir.path(), 1) {
            // Another thread may still remove something.
            Err(DirError::InUse(_)) => thread::yield_now(),
            opened => break opened.unwrap().0,
        }
    };
    Arc::new(Generations::open(Arc::new(data), SUPPORTED).unwrap())
}

/// A table that differs from that of every other index, and what covers the log up to there.
fn state(index: u64) -> (SnapshotMeta, LeaseTable) {
    let mut table = LeaseTable::new();
    table.apply(index, vec![Command::Start { revision: Revision(1_000 + index) }], &mut Vec::new());
    let last_membership = StoredMembership::new(Some(log_id(1, 0)), Membership::default());
    (SnapshotMeta { last_log_id: Some(log_id(1, index)), last_membership }, table)
}

async fn take(generations: &Arc<Generations>, index: u64, keep_older: bool) {
    let (meta, table) = state(index);
    let made = generations.write(meta, table.freeze()).await.unwrap();
    generations.publish(Arc::new(made), keep_older).await.unwrap();
}

fn names(generations: &Generations) -> Vec<String> {
    let mut names = generations.store.list().unwrap();
    names.sort();
    names
}

/// Waits until `count` snapshots are left, finished or not. Another thread removes the others.
async fn until_left(generations: &Generations, count: usize) {
    while names(generations).len() > count {
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(names(generations).len(), count);
}

fn damage(generations: &Generations, index: u64) {
    fs::write(generations.store.path(&name_of(index)).join("db"), b"nothing that sled has written").unwrap();
}

#[tokio::test]
async fn the_newest_is_read_back_and_only_the_one_before_is_kept() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    assert!(generations.load(None).await.unwrap().is_none());
    for index in [3, 5, 9] {
        take(&generations, index, true).await;
    }
    assert_eq!(indexes(&*generations.store).unwrap(), [9, 5]);
    // One that was being made while a newer one was installed.
    take(&generations, 7, true).await;
    until_left(&generations, 2).await;
    let (table, meta) = open_again(&dir, generations).await.load(Some(log_id(1, 4))).await.unwrap().unwrap();
    assert_eq!((meta, table.snapshot()), (state(9).0, state(9).1.snapshot()));
}

async fn open_again(dir: &TempDir, generations: Arc<Generations>) -> Arc<Generations> {
    drop(generations);
    open(dir)
}

#[tokio::test]
async fn one_that_was_installed_drops_the_others() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    take(&generations, 3, true).await;
    take(&generations, 5, false).await;
    assert_eq!(indexes(&*generations.store).unwrap(), [5]);
}

#[tokio::test]
async fn a_damaged_one_is_passed_over_and_goes_with_the_next() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    take(&generations, 3, true).await;
    take(&generations, 5, true).await;
    damage(&generations, 5);
    let generations = open_again(&dir, generations).await;
    let (_, meta) = generations.load(Some(log_id(1, 3))).await.unwrap().unwrap();
    assert_eq!(meta, state(3).0);
    // The log is replayed to the same entry, and a snapshot is taken there once more.
    take(&generations, 5, true).await;
    assert_eq!(indexes(&*generations.store).unwrap(), [5, 3]);
    assert_eq!(generations.load(None).await.unwrap().unwrap().1, state(5).0);
}

/// Damage that a transfer found in one that had been replaced meanwhile was forgotten, and so that one was kept to fall back to.
#[tokio::test]
async fn damage_is_of_the_generation_in_which_it_was_found_whatever_replaced_it() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    let taken = async |index| {
        take(&generations, index, true).await;
        generations.newest().unwrap()
    };
    let note = |generation| generations.note_unreadable(generation, true);
    let (third, fifth) = (taken(3).await, taken(5).await);
    assert_eq!(note(&fifth), Some(generations.store.path(&name_of(5))));
    assert!(generations.is_damaged());
    let repaired = taken(5).await;
    assert!(!generations.is_damaged());
    assert_eq!(note(&fifth), None, "the one that was made anew is another");
    let ninth = taken(9).await;
    assert_eq!((note(&third), note(&fifth), generations.is_damaged()), (None, None, false));
    assert_eq!(note(&repaired), Some(generations.store.path(&name_of(5))));
    assert!(!generations.is_damaged(), "the newest is another");
    note(&ninth).unwrap();
    taken(13).await;
    assert_eq!(indexes(&*generations.store).unwrap(), [13]);
    assert!(generations.keeps_older(), "the log still has to reach back as far as it did");
}

/// A sender that was told nothing lost its connection after 3 s, and its log said that.
#[tokio::test]
async fn a_transfer_that_waits_long_for_the_one_before_is_refused_with_the_reason() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    let first = generations.receive().await.unwrap();
    let refused = timeout(Duration::from_secs(60), generations.receive()).await.expect("it is refused");
    let refused = refused.err().unwrap();
    assert!(is_passing(&refused) && refused.to_string().contains("the transfer before"), "{refused}");
    drop(first);
    while generations.receive().await.is_err() {}
}

#[tokio::test]
async fn no_flipped_bit_changes_what_is_read() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    take(&generations, 3, true).await;
    let path = generations.store.path(&name_of(3)).join("db");
    let whole = fs::read(&path).unwrap();
    let written = whole.iter().rposition(|byte| *byte != 0).unwrap();
    let (mut same, mut refused) = (0, 0);
    for byte in (0..=written).step_by(1 + written / 400) {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1 << (byte % 8);
        fs::write(&path, flipped).unwrap();
        match generations.read(3).await {
            Ok((generation, table)) => {
                let (meta, expected) = state(3);
                assert_eq!(
                    (&generation.head().meta, table.snapshot()),
                    (&meta, expected.snapshot()),
                    "{byte}"
                );
                same += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "{same} of them do not matter");
}

#[tokio::test]
async fn without_one_that_the_log_goes_on_from_the_reasons_are_told() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    let none = generations.load(Some(log_id(1, 4))).await.err().unwrap().to_string();
    assert!(none.contains("begins after entry 4") && none.contains("there is none"), "{none}");
    take(&generations, 3, true).await;
    take(&generations, 5, true).await;
    damage(&generations, 5);
    let reasons = generations.load(Some(log_id(1, 4))).await.err().unwrap().to_string();
    assert!(reasons.contains("does not reach back") && reasons.contains("0005: "), "{reasons}");
    // Where the log has everything there is no need for any.
    damage(&generations, 3);
    assert!(generations.load(None).await.unwrap().is_none());
}

#[tokio::test]
async fn what_was_not_finished_is_removed() {
    let dir = TempDir::new().unwrap();
    let generations = open(&dir);
    take(&generations, 3, true).await;
    let (meta, table) = state(5);
    let made = generations.write(meta, table.freeze()).await.unwrap();
    assert_eq!(names(&generations).len(), 2);
    drop(made);
    until_left(&generations, 1).await;
    fs::create_dir(generations.store.path("new-1-1")).unwrap();
    fs::create_dir(generations.store.path("reading-1-2")).unwrap();
    let generations = open_again(&dir, generations).await;
    assert_eq!(names(&generations), ["00000000000000000003"]);
}
