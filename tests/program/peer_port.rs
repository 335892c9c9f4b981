//! The peer port and strangers: each connection that breaks the protocol is closed with one log line, and nothing else
//! happens.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::support::PROGRAM;
use crate::support::peer::{HELLO, Hello, Identity, PREFACE, REFUSAL, WELCOME, frame, varint, words};
use ringfence_harness::{Answered, Cluster, Node, take, until};

/// Bounds the close of a connection. A node waits 5 s for a hello.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
const VOTES: u8 = 1;
const APPENDS: u8 = 3;
const HEARTBEATS: u8 = 4;
const SNAPSHOTS: u8 = 5;

/// What a caller sends, and what the log says about it.
struct Case {
    name: &'static str,
    sends: Vec<u8>,
    /// Whether it then closes its side; otherwise it waits for the node to close.
    closes: bool,
    logged: &'static str,
}

fn case(name: &'static str, sends: impl Into<Vec<u8>>, logged: &'static str) -> Case {
    Case { name, sends: sends.into(), closes: false, logged }
}

fn closing(name: &'static str, sends: impl Into<Vec<u8>>, logged: &'static str) -> Case {
    Case { closes: true, ..case(name, sends, logged) }
}

#[tokio::test]
async fn anything_but_a_hello_is_refused_with_one_log_line() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let noise: Vec<u8> = (0..4_096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut flipped = frame(HELLO, b"some body");
    flipped[4] ^= 1;
    let cases = [
        case("random bytes", noise.clone(), "no node of ringfence"),
        case("HTTP", "GET / HTTP/1.1\r\nhost: here\r\n\r\n", "no node of ringfence"),
        closing("nothing at all", "", "closed"),
        closing("half a preface", "RING", "closed"),
        closing("a preface alone", PREFACE, "closed before its hello"),
        case("silence", "", "nothing in time"),
        case("a preface, then silence", PREFACE, "nothing in time"),
        case("another version", *b"RINGPEER\x02\x00", "version 2"),
        case("a preface, then random bytes", [PREFACE, &noise].concat(), "a frame of"),
        case("the largest length", [PREFACE, &[0xff; 8]].concat(), "4294967295 bytes"),
        case("no length", [PREFACE, &[0; 8]].concat(), "a frame of 0 bytes"),
        case(
            "a hello that is too long",
            [PREFACE, &frame(HELLO, &noise.repeat(5))].concat(),
            "a frame of 20481",
        ),
        case("a wrong checksum", [PREFACE, &flipped].concat(), "wrong checksum"),
        closing(
            "a frame cut short",
            [PREFACE, &frame(HELLO, &noise)[..100]].concat(),
            "in the middle of a frame",
        ),
        case("a hello of random bytes", [PREFACE, &frame(HELLO, &noise)].concat(), "malformed"),
        case("an empty hello", [PREFACE, &frame(HELLO, b"")].concat(), "malformed"),
        case("no hello but a call", [PREFACE, &frame(16, b"x")].concat(), "instead of a hello"),
    ];
    // At every node, so also at the leader; all at once, because some are slow.
    std::thread::scope(|scope| {
        for (node, case) in cluster.nodes().iter().flat_map(|node| cases.iter().map(move |case| (node, case)))
        {
            scope.spawn(move || meets(node, case, None));
        }
    });
    unharmed(&cluster).await;
}

#[tokio::test]
async fn a_hello_of_another_cluster_node_or_directory_is_refused() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let (own, caller) = (Identity::of(cluster.node(1)), Identity::of(cluster.node(2)));
    let honest = Hello::new(VOTES, &caller, &own);
    let hello = |hello: Hello| [PREFACE, &frame(HELLO, &hello.encode())].concat();
    let other = own.incarnation ^ 1;
    let cases = [
        case("another group", hello(Hello { group: 1, ..honest.clone() }), "no Raft group 1"),
        case("for another node", hello(Hello { to: 3, ..honest.clone() }), "this is node 1, not node 3"),
        case(
            "for another directory",
            hello(Hello { to_incarnation: Some(other), ..honest.clone() }),
            "another data directory than the cluster knows",
        ),
        case(
            "of another cluster",
            hello(Hello { cluster: Some(own.cluster ^ 1), ..honest.clone() }),
            "belongs to cluster",
        ),
        case(
            "of a wiped member",
            hello(Hello { incarnation: caller.incarnation ^ 1, ..honest.clone() }),
            "node 2 comes with another data directory",
        ),
        // The same reason twice in a row is logged once.
        case("of no cluster", hello(Hello { cluster: None, ..honest.clone() }), "belongs to cluster"),
        case(
            "of a wiped member that knows nothing newer",
            hello(Hello {
                incarnation: caller.incarnation ^ 2,
                member_as_of: Some((0, 0)),
                ..honest.clone()
            }),
            "node 2 comes with another data directory",
        ),
        case("on a channel that is none", hello(Hello { channel: 9, ..honest.clone() }), "malformed"),
    ];
    for case in &cases {
        meets(cluster.node(1), case, Some(REFUSAL));
    }
    unharmed(&cluster).await;
}

#[tokio::test]
async fn a_peer_that_sends_nonsense_after_its_hello_is_refused() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    for node in cluster.nodes() {
        let caller = cluster.others(node.id()).next().unwrap();
        let (own, caller) = (Identity::of(node), Identity::of(caller));
        for (channel, kind) in [(VOTES, 16), (APPENDS, 32), (SNAPSHOTS, 48)] {
            let hello = frame(HELLO, &Hello::new(channel, &caller, &own).encode());
            let after = |rest: &[u8]| [PREFACE, &hello, rest].concat();
            let nonsense: Vec<u8> = (0..200u8).map(|n| n.wrapping_mul(37) ^ 0xa5).collect();
            for case in [
                case("random bytes", after(&nonsense), "a frame of"),
                case("the largest length", after(&[0xff; 8]), "a frame of 4294967295 bytes"),
                case("a kind that is none", after(&frame(250, &nonsense)), "a frame of kind 250"),
                closing(
                    "a frame cut short",
                    after(&frame(kind, &nonsense)[..50]),
                    "in the middle of a frame",
                ),
            ] {
                meets(node, &case, Some(WELCOME));
            }
        }
    }
    unharmed(&cluster).await;
}

/// One forged heartbeat with the last term but one was accepted, and no node could ever lead again.
#[tokio::test]
async fn a_caller_speaks_for_itself_and_in_terms_that_can_be() {
    const CALL: u8 = 16;
    const APPEND: u8 = 32;
    const SNAPSHOT_BEGIN: u8 = 48;
    const LAST_TERM_BUT_ONE: u64 = u64::MAX - 1;
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    // A vote that is committed.
    let vote = |term, node| [words(&[term, node]), vec![1]].concat();
    let append = |term, node| frame(APPEND, &[vote(term, node), vec![0, 0]].concat());
    // Calls 0 to 2 are a vote, a pre-vote and a transfer.
    let call = |which: u8, term, node: u8, committed: u8| {
        let rest = if which == 2 { vec![1, 0] } else { vec![0, 0] };
        frame(CALL, &[words(&[7]), vec![which], varint(term), vec![node, committed], rest].concat())
    };
    for own in cluster.nodes() {
        let other = |offset| cluster.node((own.id() + offset - 1) % 3 + 1);
        let (caller, third) = (Identity::of(other(1)), other(2).id());
        let id = caller.node;
        let own = Identity::of(own);
        let meets = |name, channel, message: &[u8], logged| {
            let hello = frame(HELLO, &Hello::new(channel, &caller, &own).encode());
            meets(
                cluster.node(own.node),
                &case(name, [PREFACE, &hello, message].concat(), logged),
                Some(WELCOME),
            );
        };
        for channel in [APPENDS, HEARTBEATS] {
            meets("an append of another", channel, &append(5, third), "speaks for node");
            meets("an append far ahead", channel, &append(LAST_TERM_BUT_ONE, id), "is above");
        }
        let newer = [vote(5, id), vec![1], words(&[6, 1]), vec![0]].concat();
        meets("entries of a later term", APPENDS, &frame(APPEND, &newer), "names the entry");
        for which in [0, 1, 2] {
            let committed = u8::from(which == 2);
            meets("a call of another", VOTES, &call(which, 5, third as u8, committed), "speaks for node");
            meets(
                "a call far ahead",
                VOTES,
                &call(which, LAST_TERM_BUT_ONE, id as u8, committed),
                "is above",
            );
            meets(
                "a wrong kind of vote",
                VOTES,
                &call(which, 5, id as u8, 1 - committed),
                "a ballot of a leader",
            );
        }
        // A snapshot of 9 bytes, of no entries and no members.
        let snapshot = |term, node| {
            let members = [&[0, 0][..], &2u32.to_le_bytes(), &[0, 0]].concat();
            frame(SNAPSHOT_BEGIN, &[vote(term, node), words(&[9]), members].concat())
        };
        meets("a snapshot of another", SNAPSHOTS, &snapshot(5, third), "speaks for node");
        meets("a snapshot far ahead", SNAPSHOTS, &snapshot(LAST_TERM_BUT_ONE, id), "is above");
    }
    unharmed(&cluster).await;
}

#[tokio::test]
async fn nobody_becomes_a_member_by_claiming_a_newer_membership() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    for own in cluster.nodes() {
        let (identity, caller) = (Identity::of(own), Identity::of(cluster.node(own.id() % 3 + 1)));
        let claims = Hello { member_as_of: Some((127, 127)), ..Hello::new(VOTES, &caller, &identity) };
        for hello in [
            Hello { from: 99, ..claims.clone() },
            Hello { from: 99, channel: APPENDS, ..claims.clone() },
            Hello { from: 99, channel: SNAPSHOTS, ..claims.clone() },
            Hello { incarnation: caller.incarnation ^ 1, ..claims.clone() },
        ] {
            let hello = [PREFACE, &frame(HELLO, &hello.encode())].concat();
            let is_refused = || async { (answer(own, &hello) == REFUSAL).then_some(()) };
            // A node that has not heard its leader for a moment lets them in.
            until(CLOSED_WITHIN, "the caller is refused", is_refused).await.unwrap();
        }
        own.tells("is no member that the leader knows").await.unwrap();
    }
    unharmed(&cluster).await;
}

/// The kind of the frame that `node` answers `hello` with.
fn answer(node: &Node, hello: &[u8]) -> u8 {
    let (mut stream, mut answer) = (TcpStream::connect(node.peer()).unwrap(), [0; PREFACE.len() + 9]);
    stream.set_read_timeout(Some(CLOSED_WITHIN)).unwrap();
    stream.write_all(hello).unwrap();
    stream.read_exact(&mut answer).unwrap();
    answer[PREFACE.len() + 8]
}

#[tokio::test]
async fn silent_callers_do_not_keep_a_node_from_its_work() {
    let cluster = Cluster::builder(PROGRAM).start().await.unwrap();
    let silent: Vec<TcpStream> = cluster
        .nodes()
        .iter()
        .flat_map(|node| (0..300).map(|_| TcpStream::connect(node.peer()).unwrap()))
        .collect();
    unharmed(&cluster).await;
    drop(silent);
}

/// Connects to `node` as in `case`. The node must close the connection, after a frame of the kind `answered` if given, and log
/// exactly one line about it, a warning.
fn meets(node: &Node, case: &Case, answered: Option<u8>) {
    let mut stream = TcpStream::connect(node.peer()).unwrap();
    let from = stream.local_addr().unwrap();
    stream.set_read_timeout(Some(CLOSED_WITHIN)).unwrap();
    // The node may refuse before all of it is sent.
    let _ = stream.write_all(&case.sends);
    if case.closes {
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    let was_reset = match stream.read_to_end(&mut answer) {
        Ok(_) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        Err(error) => panic!("{}: not closed by node {}: {error}", case.name, node.id()),
    };
    // A reset, when the node has not read everything, may discard the answer.
    if let Some(kind) = answered
        && !was_reset
    {
        assert!(answer.starts_with(PREFACE), "{}: answered {answer:?}", case.name);
        assert_eq!(answer.get(PREFACE.len() + 8), Some(&kind), "{}", case.name);
    }
    let deadline = Instant::now() + CLOSED_WITHIN;
    let lines = loop {
        let lines = lines_about(node, from);
        if !lines.is_empty() || Instant::now() > deadline {
            break lines;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let [line] = lines.as_slice() else { panic!("{}: node {} logged {lines:?}", case.name, node.id()) };
    assert!(line.contains(" WARN ") && line.contains(case.logged), "{}: {line}", case.name);
}

/// The log lines about the connection from `from`.
fn lines_about(node: &Node, from: SocketAddr) -> Vec<String> {
    let from = format!("from={from} ");
    node.log().lines().filter(|line| line.contains(&from)).map(str::to_owned).collect()
}

/// Checks that no node was restarted, and that all work.
async fn unharmed(cluster: &Cluster) {
    for node in cluster.nodes() {
        let client = node.client();
        take(&client, &format!("unharmed/{}", node.id())).await;
        assert_eq!(node.log().matches("node started").count(), 1, "node {} was not restarted", node.id());
        let one_leads = || async { (client.cluster().await.done().members.len() == 3).then_some(()) };
        until(CLOSED_WITHIN, "the cluster knows its members", one_leads).await.unwrap();
    }
    cluster.check_logs().unwrap();
}
