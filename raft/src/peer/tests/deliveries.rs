//! Snapshots that a test at the other end does not take.

use std::future::pending;

use bytes::BufMut;
use openraft::errors::ReplicationClosed;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use tempfile::TempDir;

use super::*;
use crate::consensus::{Member, SnapshotMeta};
use crate::peer::Network;
use crate::peer::link::Link;
use crate::peer::message::{
    SNAPSHOT_BEGIN, SNAPSHOT_CHUNK, SNAPSHOT_END, SNAPSHOT_INSTALLED, SNAPSHOT_REFUSED,
};
use crate::storage::identity::DataDir;
use crate::storage::record::{put_meta, put_vote};
use crate::storage::snapshots::Generations;
use crate::storage::snapshots::generation::Snapshot;

const TO: u128 = 10;

fn target() -> Target {
    Target { to: 2, incarnation: Some(Uuid::from_u128(TO)), channel: Channel::Snapshots }
}

/// Each failure was repeated at once and without end, and nobody learned of any reason.
#[tokio::test]
async fn a_snapshot_that_is_refused_is_sent_again_after_a_pause_and_the_reason_is_known_until_then() {
    let cluster = Box::pin(Cluster::start(1)).await;
    grant(&cluster.handle(1), 1).await;
    let raft = &cluster.handle(1).shared.raft;
    raft.trigger().snapshot().await.unwrap();
    until("there is a snapshot", async || raft.get_snapshot().await.unwrap().is_some()).await;
    let Snapshot { meta, snapshot } = raft.get_snapshot().await.unwrap().unwrap();
    let copy = || Snapshot { meta: meta.clone(), snapshot: Arc::clone(&snapshot) };

    let (peers, transport) = node().await;
    let address = peers.directory.address(2).unwrap();
    peers.directory.introduce(2, &address).unwrap();
    let temporary = TempDir::new().unwrap();
    let dir = Arc::new(DataDir::open(temporary.path(), 1).unwrap().0);
    let generations = Arc::new(Generations::open(dir, SUPPORTED).unwrap());
    let log = cluster.handle(1).shared.log.clone();
    let member = Member { peer: address, incarnation: Uuid::from_u128(TO) };
    let mut client = Network(Arc::clone(&peers), log, generations).new_client(2, &member).await;
    let vote = Vote::new_committed(1, 1);
    let mut send = async || {
        let option = RPCOption::new(SOON);
        client.full_snapshot(vote, copy(), pending::<ReplicationClosed>(), option).await
    };
    let reason = || peers.directory.undelivered((2, Uuid::from_u128(TO)), 1);

    // The snapshot is not read to its end: the refusal comes in its middle.
    let refuse = async {
        let (mut end, _) = welcome(&transport).await;
        assert_eq!(end.reader.next().await.unwrap().unwrap().0, SNAPSHOT_BEGIN);
        end.writer.put(SNAPSHOT_REFUSED, |out| out.extend_from_slice(b"no \x1broom"));
        end.writer.flush().await.unwrap();
        end
    };
    let (sent, end) = tokio::join!(send(), refuse);
    assert!(sent.is_err());
    drop(end);
    assert_eq!(reason().unwrap(), "the node refuses it: no room");

    // Without a connection: openraft asks for it again, with its newest snapshot.
    let next = peers.directory.next_delivery(target(), 1).unwrap();
    let mut accepted = pin!(transport.accept());
    let waited = tokio::select! {
        biased;
        _ = &mut accepted => panic!("it was sent without a pause"),
        waited = send() => waited,
    };
    assert!(waited.is_err() && Instant::now() >= next && reason().is_some());

    let install = async {
        let (mut end, _) = welcome(&transport).await;
        while end.reader.next().await.unwrap().unwrap().0 != SNAPSHOT_END {}
        end.writer.put(SNAPSHOT_INSTALLED, |out| put_vote(out, &vote));
        end.writer.flush().await.map(|()| end).unwrap()
    };
    let (sent, _end) = tokio::join!(send(), install);
    sent.unwrap();
    assert_eq!(reason(), None);
    assert_eq!(peers.directory.acknowledged((2, Uuid::from_u128(TO)), 1), meta.last_log_id);
}

/// A follower that was turned back to before a snapshot was neither refused nor caught up.
#[tokio::test]
async fn a_snapshot_that_was_installed_is_acknowledged_and_so_is_what_follows() {
    let (peers, transport) = node().await;
    let directory = &peers.directory;
    directory.introduce(2, &directory.address(2).unwrap()).unwrap();
    let (member, covers, next) = ((2, Uuid::from_u128(TO)), log_id(1, 200), log_id(1, 201));
    directory.note_delivered(target(), 1, Some(covers));
    directory.note_sent(member, 1, 201..=201);
    assert_eq!(directory.acknowledged(member, 1), Some(covers));
    directory.note_acknowledged(member, 1, next);
    directory.note_delivered(target(), 1, Some(covers));
    assert_eq!((directory.acknowledged(member, 1), directory.acknowledged(member, 2)), (Some(next), None));
    let lack = async {
        let (mut end, _) = welcome(&transport).await;
        assert_eq!(end.reader.next().await.unwrap().unwrap().0, APPEND);
        end.writer.put(APPENDED, |out| put_appended(out, &Err(StreamAppendError::Conflict(covers))));
        end.writer.flush().await.map(|()| end).unwrap()
    };
    let appends = Target { channel: Channel::Appends, ..target() };
    let (asked, _end) =
        tokio::join!(ask_for_acknowledged(directory, appends, Vote::new_committed(1, 1)), lack);
    assert!(asked.is_err() && directory.has_lost(2, Some(member.1)));
}

/// Entries that were never sent, between two that were, counted as sent; and an acknowledgement was forgotten when a run began anew.
#[tokio::test]
async fn what_counts_as_sent_has_no_gaps_and_an_acknowledgement_outlasts_them() {
    let (peers, _transport) = node().await;
    let directory = &peers.directory;
    directory.introduce(2, &directory.address(2).unwrap()).unwrap();
    let member = (2, Uuid::from_u128(TO));
    let acknowledge = |index| {
        directory.note_acknowledged(member, 1, log_id(1, index));
        directory.acknowledged(member, 1).map(|last| last.index())
    };
    directory.note_sent(member, 1, 100..=200);
    directory.note_sent(member, 1, 1..=50);
    assert_eq!([acknowledge(60), acknowledge(50)], [None, Some(50)]);
    directory.note_sent(member, 1, 51..=60);
    assert_eq!(acknowledge(60), Some(60));
    directory.note_sent(member, 1, 70..=80);
    assert_eq!([acknowledge(65), acknowledge(80)], [Some(60), Some(80)]);
    directory.note_sent(member, 1, 100..=200);
    directory.note_delivered(target(), 1, Some(log_id(1, 90)));
    assert_eq!([acknowledge(95), acknowledge(90)], [Some(90), Some(90)]);
    directory.note_sent(member, 2, 201..=201);
    assert_eq!(directory.acknowledged(member, 1), None);
}

#[tokio::test]
async fn the_pauses_between_attempts_grow_up_to_a_bound_until_a_snapshot_was_delivered() {
    let (peers, _transport) = node().await;
    let directory = &peers.directory;
    directory.introduce(2, &directory.address(2).unwrap()).unwrap();
    tokio::time::pause();
    let fail = |target| {
        directory.note_undelivered(target, 1, None, &std::io::Error::other("of some kind"));
        directory.next_delivery(target, 1).map(|next| (next - Instant::now()).as_secs())
    };
    let pauses: Vec<_> = (0..8).filter_map(|_| fail(target())).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    // A data directory that replaces it has nothing to do with that.
    assert_eq!(
        directory.next_delivery(Target { incarnation: Some(Uuid::from_u128(11)), ..target() }, 1),
        None
    );
    directory.note_delivered(target(), 1, None);
    assert_eq!((directory.next_delivery(target(), 1), fail(target())), (None, Some(1)));
}

/// A node that led, did not, and led again showed the failures of the first time.
#[tokio::test]
async fn a_failure_counts_for_the_term_that_it_was_met_in_and_until_the_member_has_the_log_instead() {
    let (peers, transport) = node().await;
    let directory = &peers.directory;
    directory.introduce(2, &directory.address(2).unwrap()).unwrap();
    let (covers, error) = (log_id(2, 50), std::io::Error::other("of some kind"));
    directory.note_undelivered(target(), 2, Some(covers), &error);
    let known = |term| {
        let reason = directory.undelivered((2, Uuid::from_u128(TO)), term);
        (reason.is_some(), directory.next_delivery(target(), term).is_some())
    };
    assert_eq!([known(2), known(3)], [(true, true), (false, false)]);

    let needed_from = watch::Sender::new(0);
    let appends = Target { channel: Channel::Appends, ..target() };
    for (index, is_left) in [(49, true), (50, false)] {
        let matched = Some(log_id(2, index));
        let mut link = AppendLink::new(Arc::clone(directory), appends, needed_from.subscribe());
        let vote = Vote::new_committed(2, 1);
        let request =
            AppendEntriesRequest { vote, prev_log_id: matched, entries: Vec::new(), leader_commit: None };
        let append = async {
            pin!(link.stream(stream::iter([request])).await.unwrap()).next().await.unwrap().unwrap()
        };
        let answer = async {
            let (mut end, _) = welcome(&transport).await;
            assert_eq!(end.reader.next().await.unwrap().unwrap().0, APPEND);
            end.writer.put(APPENDED, |out| put_appended(out, &Ok(matched)));
            end.writer.flush().await.map(|()| end).unwrap()
        };
        let (answered, _end) = tokio::join!(append, answer);
        assert_eq!((answered, known(2)), (Ok(matched), (is_left, is_left)));
    }
}

#[tokio::test]
async fn a_reason_for_which_a_snapshot_was_not_received_is_a_warning_once() {
    let (peers, _transport) = node().await;
    let directory = &peers.directory;
    directory.introduce(2, &directory.address(2).unwrap()).unwrap();
    let note = |reason: &'static str| directory.note_unreceived(2, std::io::Error::other(reason)).kind();
    let (told, repeated) = (std::io::ErrorKind::Other, std::io::ErrorKind::AlreadyExists);
    assert_eq!([note("one"), note("one"), note("other"), note("one")], [told, repeated, told, told]);
    directory.note_received(2);
    assert_eq!(note("one"), told);
}

/// Each took as much of the disk as the snapshot, for as long as its connection lasted; eight of each leader that there had been.
#[tokio::test]
async fn a_node_receives_one_snapshot_at_a_time_and_only_of_the_leader_that_it_would_follow() {
    let cluster = Box::pin(Cluster::start(3)).await;
    grant(&cluster.handle(1), 1).await;
    let leader = cluster.handle(1).status().leader.unwrap();
    let (id, leader) = (leader % 3 + 1, cluster.handle(leader));
    let (directory, raft) = (&leader.shared.peers.directory, &leader.shared.raft);
    raft.trigger().snapshot().await.unwrap();
    until("there is a snapshot", async || raft.get_snapshot().await.unwrap().is_some()).await;
    let Snapshot { meta, snapshot } = raft.get_snapshot().await.unwrap().unwrap();
    let incarnation = cluster.handle(id).shared.peers.directory.identity.incarnation;
    let target = Target { to: id, incarnation: Some(incarnation), channel: Channel::Snapshots };
    let vote = leader.shared.metrics(|it| it.vote);
    let stale = Vote::new_committed(0, leader.status().node_id);
    let none = SnapshotMeta { last_log_id: None, ..meta.clone() };
    let begin = async |vote: Vote, meta: &SnapshotMeta| {
        let mut link = directory.connect(target, MAX).await.unwrap();
        link.writer.put(SNAPSHOT_BEGIN, |out| {
            put_vote(out, &vote);
            out.put_u64_le(1 << 30);
            put_meta(out, meta);
        });
        link.writer.put(SNAPSHOT_CHUNK, |out| out.extend_from_slice(&[7; 1 << 10]));
        link.writer.flush().await.unwrap();
        link
    };
    let unfinished = || {
        let entries = std::fs::read_dir(cluster.data(id).join("snapshots")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("new-")).collect::<Vec<_>>()
    };
    let refused = async |link: &mut Link| match timeout(SOON, link.reader.next()).await.unwrap().unwrap() {
        Some((SNAPSHOT_REFUSED, why)) => String::from_utf8(why.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };

    let mut first = begin(vote, &meta).await;
    until("the first is there", async || unfinished() == ["new-0"]).await;
    let why = refused(&mut begin(stale, &none).await).await;
    assert!(why.contains("of the leader of term 0"), "{why}");
    assert_eq!(unfinished(), ["new-0"]);
    // Its sender has lost the connection, and this node has not noticed.
    let second = begin(vote, &meta).await;
    assert_eq!(refused(&mut first).await, "another transfer has begun");
    until("the second is there, alone", async || unfinished() == ["new-1"]).await;
    drop(second);
    until("nothing is left", async || unfinished().is_empty()).await;
    let sent = snapshot::send(directory, target, vote, Snapshot { meta, snapshot });
    // A machine that stands still deposes leaders, too.
    let sent = timeout(SOON, sent).await.unwrap();
    assert!(sent.is_ok() || leader.shared.metrics(|it| it.vote) != vote, "{sent:?}");
}
