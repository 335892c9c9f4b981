//! The caller's end of a connection, with a test at the other end.

mod deliveries;
mod successor;

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::stream;
use futures_util::{FutureExt, StreamExt};
use openraft::EntryPayload;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use ringfence_lease::{Command, Request, SUPPORTED};
use ringfence_wire::RulesRange;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::acknowledged::ask_for_acknowledged;
use super::addresses::Found;
use super::append::AppendLink;
use super::call::{CallError, LATELY, MAX_CALLS, MAX_QUEUED};
use super::directory::Target;
use super::frame::{FrameReader, FrameWriter};
use super::handshake::{
    Channel, HELLO, Hello, Processes, Program, WELCOME, Welcome, get, put_first, put_refusal, read_first,
};
use super::message::{
    ANSWER, APPEND, APPENDED, Answer, CALL, Call, Order, get_numbered, put_appended, put_numbered,
};
use super::{Directory, Peers, Tcp, Transport, snapshot};
use crate::consensus::{Consensus, Entry, Vote, log_id};
use crate::members::tests::{Cluster, grant, until};
use crate::propose::asker::Asker;
use crate::storage::identity::Identity;
use crate::storage::starts::Starts;
use crate::unanswered::Unanswered;

const SOON: Duration = Duration::from_secs(60);
const MAX: usize = 64 << 20;

/// The node 1, which finds the node 2 at the other end.
async fn node() -> (Arc<Peers>, Arc<dyn Transport>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = BTreeMap::from([(2, listener.local_addr().unwrap().to_string())]);
    let transport: Arc<dyn Transport> = Arc::new(Tcp(listener));
    let (incarnation, starts) = (Uuid::from_u128(1), Starts::default());
    let identity = Identity { node_id: 1, incarnation, cluster: None, founder: false, starts };
    let directory =
        Directory::new(identity, String::new(), addresses, &transport, Program::of_this(SUPPORTED));
    (Arc::new(Peers::new(Arc::new(directory), Command::since)), transport)
}

/// The other end of a connection.
struct End {
    reader: FrameReader,
    writer: FrameWriter,
}

/// Accepts the next connection, as the incarnation that is called.
async fn welcome(transport: &Arc<dyn Transport>) -> (End, Hello) {
    let connection = timeout(SOON, transport.accept()).await.unwrap().unwrap();
    let mut reader = FrameReader::new(connection.reader, MAX);
    let mut writer = FrameWriter::new(connection.writer);
    let (kind, body) = read_first(&mut reader, "hello").await.unwrap();
    assert_eq!(kind, HELLO);
    let hello = get::<Hello>(&body).unwrap();
    let incarnation = hello.to_incarnation.unwrap_or_default();
    put_first(&mut writer, WELCOME, &Welcome { incarnation, url: String::new() });
    writer.flush().await.unwrap();
    (End { reader, writer }, hello)
}

async fn answer(end: &mut End, answer: Answer) {
    let (kind, body) = end.reader.next().await.unwrap().unwrap();
    assert_eq!(kind, CALL);
    let (number, _) = get_numbered::<Call>(body).unwrap();
    end.writer.put(ANSWER, |out| put_numbered(out, number, &answer));
    end.writer.flush().await.unwrap();
}

fn call(peers: &Arc<Peers>, incarnation: u128, call: Call) -> JoinHandle<Result<Answer, CallError>> {
    let peers = Arc::clone(peers);
    tokio::spawn(async move { peers.call_incarnation(2, Some(Uuid::from_u128(incarnation)), call).await })
}

#[tokio::test]
async fn each_incarnation_has_a_link_and_answers_of_its_own() {
    let (peers, transport) = node().await;
    let old = call(&peers, 10, Call::ReadIndex);
    let (mut old_end, hello) = welcome(&transport).await;
    assert_eq!(hello.to_incarnation, Some(Uuid::from_u128(10)));
    let new = call(&peers, 11, Call::ReadIndex);
    let (mut new_end, hello) = welcome(&transport).await;
    assert_eq!(hello.to_incarnation, Some(Uuid::from_u128(11)));
    answer(&mut old_end, Answer::Unknown).await;
    assert_eq!(old.await.unwrap().unwrap(), Answer::Unknown);
    assert!(!new.is_finished());
    answer(&mut new_end, Answer::NotDone).await;
    assert_eq!(new.await.unwrap().unwrap(), Answer::NotDone);
}

/// A stranger who said that a member listens with him could stop any leader: it called him, and believed what he said.
#[tokio::test]
async fn who_is_only_asked_condemns_nobody_and_says_nothing_of_a_program() {
    let (peers, transport) = node().await;
    let directory = &peers.directory;
    let member = (2, Uuid::from_u128(2));
    let address = directory.address(2).unwrap();
    let refuse = async || {
        let connection = transport.accept().await.unwrap();
        let mut writer = FrameWriter::new(connection.writer);
        put_refusal(&mut writer, "this is a copy".to_owned(), true);
        writer.flush().await.unwrap();
    };
    let condemned = directory.condemned();
    let (found, ()) = tokio::join!(directory.ask(member, &address), refuse());
    assert!(matches!(found, Found::Silent(_)), "{found:?}");
    assert_eq!(*condemned.borrow(), None);
    let (found, _) = tokio::join!(directory.ask(member, &address), welcome(&transport));
    assert!(matches!(found, Found::Member(_)), "{found:?}");
    assert!(directory.program_of(2, member.1).is_none() && directory.url(2).is_none());
    // What is called as a member is believed.
    let target = Target { to: 2, incarnation: Some(member.1), channel: Channel::Votes };
    let (refused, ()) = tokio::join!(directory.connect(target, MAX), refuse());
    assert!(refused.is_err());
    assert!(condemned.borrow().as_ref().is_some_and(|why| why.contains("this is a copy")));
}

#[tokio::test]
async fn calls_on_a_dropped_link_fail_as_unknown() {
    let (peers, transport) = node().await;
    let asked = call(&peers, 10, Call::ReadIndex);
    let (mut end, _) = welcome(&transport).await;
    assert!(end.reader.next().await.unwrap().is_some());
    peers.links().clear();
    assert!(matches!(asked.await.unwrap(), Err(CallError::Unknown(_))));
    assert!(end.reader.next().await.unwrap().is_none());
}

/// Its outcome was once called unknown, though nothing of it had left this node.
#[tokio::test]
async fn a_call_that_is_given_up_before_a_byte_of_it_is_sent_is_certainly_not_sent_and_never_will_be() {
    let (peers, transport) = node().await;
    let soon = || Instant::now() + Duration::from_millis(20);
    // The other side has accepted the connection, as far as TCP is concerned, and says nothing.
    let order = |id| Order::Remove { id };
    assert_eq!(peers.order(2, order(7), soon()).await, Err(Unanswered::Unavailable));
    let given_up = peers.read_index(2, soon());
    assert!(given_up.await.is_none());
    let waits = {
        let peers = Arc::clone(&peers);
        tokio::spawn(async move { peers.order(2, Order::Remove { id: 8 }, Instant::now() + SOON).await })
    };
    let (mut end, _) = welcome(&transport).await;
    let (kind, body) = end.reader.next().await.unwrap().unwrap();
    assert_eq!((kind, get_numbered::<Call>(body).unwrap().1), (CALL, Call::Order(order(8))));

    // Of a call that was sent, nobody knows.
    assert_eq!(peers.order(2, order(9), soon()).await, Err(Unanswered::Indeterminate));
    drop(end);
    assert_eq!(waits.await.unwrap(), Err(Unanswered::Indeterminate));
}

/// The queue once grew for as long as the other side hung.
#[tokio::test]
async fn calls_to_a_node_that_hangs_soon_fail() {
    let (peers, transport) = node().await;
    let first = call(&peers, 10, Call::ReadIndex);
    let (mut end, _) = welcome(&transport).await;
    let (mut taken, mut refused) = (Vec::new(), 0);
    for _ in 0..2 * (MAX_CALLS + MAX_QUEUED) {
        let mut asked = Box::pin(peers.call_incarnation(2, Some(Uuid::from_u128(10)), Call::ReadIndex));
        match (&mut asked).now_or_never() {
            None => taken.push(asked),
            Some(Err(CallError::NotSent(_))) => refused += 1,
            Some(other) => panic!("{other:?}"),
        }
        // The link takes what it can.
        tokio::task::yield_now().await;
    }
    assert_eq!(taken.len() + 1, MAX_CALLS + MAX_QUEUED);
    assert_eq!(refused, MAX_CALLS + MAX_QUEUED + 1);
    answer(&mut end, Answer::NotDone).await;
    assert_eq!(first.await.unwrap().unwrap(), Answer::NotDone);
}

/// Proposals of one client once filled the link. Reads, and the proposals of others, waited there.
#[tokio::test]
async fn one_who_proposes_much_leaves_a_link_to_others() {
    let ((peers, transport), request) = (node().await, Request::default());
    let propose = |asker| Box::pin(peers.propose(2, Asker::from_number(asker), &request, || 1, pending()));
    tokio::time::pause();
    let mut many: Vec<_> = (0..2 * MAX_CALLS).map(|_| propose(5)).collect();
    many.retain_mut(|asked| asked.now_or_never() != Some(Err(Unanswered::Full)));
    assert!(many.len() < MAX_CALLS / 2, "{}", many.len());
    tokio::time::advance(LATELY).await;
    tokio::time::resume();
    let (mut end, _) = welcome(&transport).await;
    for _ in 0..many.len() {
        assert!(end.reader.next().await.unwrap().is_some());
    }
    // Their clients are gone, but the leader has them. It does not answer, so there may be another one soon.
    drop(many);
    assert_eq!(propose(5).now_or_never(), Some(Err(Unanswered::Unavailable)));
    let answers =
        async { (answer(&mut end, Answer::NotDone).await, answer(&mut end, Answer::NotDone).await) };
    let (other, read, _) = tokio::join!(propose(6), peers.call(2, Call::ReadIndex), answers);
    assert_eq!((other, read.unwrap()), (Err(Unanswered::Unavailable), Answer::NotDone));
}

/// An older program would close the connection, and all calls on it would fail.
#[tokio::test]
async fn a_call_that_the_program_of_the_other_side_does_not_know_is_not_sent() {
    let (peers, transport) = node().await;
    let asked = call(&peers, 10, Call::Upgrade { to: None, check: true });
    let known = call(&peers, 10, Call::ReadIndex);
    let (mut end, _) = welcome(&transport).await;
    answer(&mut end, Answer::NotDone).await;
    assert_eq!(known.await.unwrap().unwrap(), Answer::NotDone);
    let Err(CallError::NotSent(error)) = asked.await.unwrap() else { panic!("it was sent") };
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    let silent = peers.directory.program_of(2, Uuid::from_u128(10)).unwrap();
    assert_eq!((silent.rules, silent.version.as_str()), (RulesRange { oldest: 1, newest: 1 }, ""));
    assert_eq!(peers.directory.program_of(2, Uuid::from_u128(11)), None);
}

/// The caller once read no answers while it wrote: the other side, which writes before it reads on, waited for it.
#[tokio::test]
async fn answers_are_read_while_calls_are_written() {
    let (peers, transport) = node().await;
    let large = "x".repeat(256 << 10);
    let asked: Vec<_> = (0..200)
        .map(|_| {
            let order = Order::Add { id: 3, peer: large.clone() };
            call(&peers, 10, Call::Order(order))
        })
        .collect();
    let (mut end, _) = welcome(&transport).await;
    let all = async {
        for _ in 0..asked.len() {
            answer(&mut end, Answer::Refused { reason: large.clone() }).await;
        }
    };
    timeout(SOON, all).await.expect("both wait for each other");
    for asked in asked {
        assert!(matches!(asked.await.unwrap(), Ok(Answer::Refused { .. })));
    }
}

/// Each name that a stranger made up once stayed.
#[tokio::test]
async fn a_node_keeps_nothing_of_nodes_that_are_no_members() {
    let cluster = Cluster::start(1).await;
    let directory = Arc::clone(&cluster.handle(1).shared.peers.directory);
    let before = directory.known();
    for from in 100..200 {
        let hello = Hello {
            group: 0,
            channel: Channel::Votes,
            cluster: directory.cluster(),
            from,
            incarnation: Uuid::from_u128(1),
            to: 1,
            to_incarnation: None,
            member_as_of: Some((u64::MAX, u64::MAX)),
            url: "http://stranger".to_owned(),
        };
        directory.admit(&hello, &Processes::default()).await.unwrap_err();
    }
    assert_eq!(directory.known(), before);
    directory.introduce(2, "127.0.0.1:1").unwrap();
    directory.note_reachable(3, Ok(()));
    directory.forget_others(&directory.membership().unwrap());
    assert_eq!(directory.known(), before + 1);
    assert_eq!(directory.address(2).unwrap(), "127.0.0.1:1");
}

/// Each response says who leads. A Raft thread that stood still with the directory took all threads with it that serve clients.
#[tokio::test]
async fn who_leads_is_told_while_a_thread_hangs_with_the_directory() {
    let cluster = Box::pin(Cluster::start(2)).await;
    grant(&cluster.handle(1), 1).await;
    let leader = cluster.handle(1).status().leader.unwrap();
    let follower = cluster.handle(3 - leader);
    until("it knows where the leader is", async || follower.leader_url().is_some()).await;
    let directory = Arc::clone(&follower.shared.peers.directory);
    let (go_on, gate) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let hangs = thread::spawn(move || {
        directory.with_known(leader, |_| {
            begun.send(()).unwrap();
            let _ = gate.recv();
        });
    });
    begins.recv().unwrap();
    let (told, tells) = mpsc::channel();
    thread::spawn(move || told.send(follower.leader_url()));
    assert!(tells.recv_timeout(SOON).expect("it is told").is_some());
    drop(go_on);
    hangs.join().unwrap();
}

/// What is accepted, committed and applied may not be on disk yet. A power cut took it, and the leader never found out what the
/// node lacks.
#[tokio::test]
async fn a_node_has_a_snapshot_only_once_what_it_covers_is_on_its_disk() {
    let cluster = Box::pin(Cluster::start(3)).await;
    grant(&cluster.handle(1), 1).await;
    let leader = cluster.handle(1).status().leader.unwrap();
    let (leader, follower) = (cluster.handle(leader), cluster.handle(leader % 3 + 1));
    let go_on = follower.shared.log.hang();
    grant(&leader, 2).await;
    let last = leader.status().applied_index;
    until("it has applied what is not on its disk", async || follower.status().applied_index >= last).await;

    let (raft, peers) = (&leader.shared.raft, &leader.shared.peers);
    raft.trigger().snapshot().await.unwrap();
    let taken = || leader.shared.metrics(|it| it.snapshot.map(|id| id.index()));
    until("there is a snapshot", async || taken() >= last).await;
    let (snapshot, vote) = (raft.get_snapshot().await.unwrap().unwrap(), leader.shared.metrics(|it| it.vote));
    let identity = &follower.shared.peers.directory.identity;
    let (to, incarnation) = (identity.node_id, Some(identity.incarnation));
    let target = Target { to, incarnation, channel: Channel::Snapshots };
    let mut sent = pin!(snapshot::send(&peers.directory, target, vote, snapshot));
    let early = timeout(Duration::from_millis(500), &mut sent).await;
    // A machine that stands still deposes leaders, too.
    if follower.status().term == vote.leader_id.term {
        assert!(early.is_err(), "{early:?}");
        drop(go_on);
        timeout(SOON, sent).await.unwrap().unwrap();
    }
}

/// A connection that broke had sent the entry, and the next one was told that it is there.
#[tokio::test]
async fn what_a_follower_acknowledged_counts_whichever_connection_sent_it() {
    let (peers, transport) = node().await;
    peers.directory.introduce(2, &peers.directory.address(2).unwrap()).unwrap();
    let (incarnation, needed_from) = (Some(Uuid::from_u128(2)), watch::Sender::new(0));
    let target = Target { to: 2, incarnation, channel: Channel::Appends };
    let first = log_id(1, 1);
    let entries = vec![Entry { log_id: first, payload: EntryPayload::Blank }];
    let append = |prev_log_id, entries| {
        let mut link = AppendLink::new(Arc::clone(&peers.directory), target, needed_from.subscribe());
        let vote = Vote::new_committed(1, 1);
        let request = AppendEntriesRequest { vote, prev_log_id, entries, leader_commit: None };
        async move { pin!(link.stream(stream::iter([request])).await.unwrap()).next().await.unwrap() }
    };
    let answer = async |answer: Option<StreamAppendResult<Consensus>>| {
        let (mut end, _) = welcome(&transport).await;
        assert_eq!(end.reader.next().await.unwrap().unwrap().0, APPEND);
        if let Some(answer) = answer {
            end.writer.put(APPENDED, |out| put_appended(out, &answer));
            end.writer.flush().await.unwrap();
        }
    };
    let (broken, ()) = tokio::join!(append(None, entries), answer(None));
    assert!(broken.is_err());
    let (told, ()) = tokio::join!(append(Some(first), Vec::new()), answer(Some(Ok(Some(first)))));
    assert!(told.unwrap().is_ok());
    assert!(!peers.directory.has_lost(2, incarnation));
    // What it was not sent in this term does not count.
    let covered = log_id(1, 1_000);
    let (told, ()) = tokio::join!(append(Some(covered), Vec::new()), answer(Some(Ok(Some(covered)))));
    assert!(told.unwrap().is_ok());
    let lacks = |lacked| answer(Some(Err(StreamAppendError::Conflict(lacked))));
    let (told, ()) = tokio::join!(append(Some(covered), Vec::new()), lacks(covered));
    assert!(told.unwrap().is_err() && !peers.directory.has_lost(2, incarnation));
    // Before a snapshot is sent that covers it, it is asked for.
    let ask = async |term| ask_for_acknowledged(&peers.directory, target, Vote::new_committed(term, 1)).await;
    assert_eq!(ask(2).await.unwrap(), None, "nothing was acknowledged in this term");
    let higher = Vote::new(2, 3);
    let (voted, ()) = tokio::join!(ask(1), answer(Some(Err(StreamAppendError::HigherVote(higher)))));
    assert_eq!(voted.unwrap(), Some(higher));
    let (has, ()) = tokio::join!(ask(1), answer(Some(Ok(Some(first)))));
    assert!(has.unwrap().is_none() && !peers.directory.has_lost(2, incarnation));
    let (lost, ()) = tokio::join!(ask(1), lacks(first));
    assert!(lost.is_err() && peers.directory.has_lost(2, incarnation));
}

/// Once, this time began anew each second, and whenever anything happened.
#[tokio::test]
async fn a_connection_that_owes_an_answer_for_long_is_given_up() {
    let (peers, transport) = node().await;
    let target = Target { to: 2, incarnation: Some(Uuid::from_u128(2)), channel: Channel::Appends };
    let mut link = AppendLink::new(Arc::clone(&peers.directory), target, watch::channel(0).1);
    let vote = Vote::new_committed(1, 1);
    let entries = vec![Entry { log_id: log_id(1, 1), payload: EntryPayload::Blank }];
    let request = AppendEntriesRequest { vote, prev_log_id: None, entries, leader_commit: None };
    let append = async { pin!(link.stream(stream::iter([request])).await.unwrap()).next().await.unwrap() };
    let (failed, _end) = timeout(SOON, async { tokio::join!(append, welcome(&transport)) }).await.unwrap();
    assert!(failed.unwrap_err().to_string().contains("no answer to an append"));
}
