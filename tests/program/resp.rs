//! Locks over the Redis protocol, while nodes and connections fail.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, FromRedisValue, ProtocolVersion, RedisConnectionInfo, RedisResult, cmd, pipe,
};
use ringfence_guard::{Admission, Claim, MemoryGuard};
use ringfence_harness::{Answered, Builder, Consistency, Node, RedisServer, key, run, try_once, until};
use ringfence_wire::{LeaseId, ProblemKind, Token};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{PROGRAM, SOON, cluster};

/// Releases a lock, if it is still that of its holder.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
/// A lock with this time-to-live that ends was taken back.
const DAY_MS: u32 = 86_400_000;

/// A client of a node, which may still be starting.
async fn connect(node: &Node, protocol: ProtocolVersion) -> MultiplexedConnection {
    let info = RedisConnectionInfo::default().set_protocol(protocol);
    let connect = async || {
        let stream = TcpStream::connect(node.resp()).await.ok()?;
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, AsyncConnectionConfig::new()).await.ok()?;
        tokio::spawn(driver);
        Some(connection)
    };
    let mut connection = until(SOON, "the port is open", connect).await.unwrap();
    connection.set_response_timeout(SOON);
    connection
}

async fn call<T: FromRedisValue>(client: &mut MultiplexedConnection, line: &str) -> RedisResult<T> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query_async(client).await
}

/// Acquires a lock with this value, and gets its token.
async fn acquire(client: &mut MultiplexedConnection, lock: &str, value: &str, ms: u32) -> Option<Token> {
    let set = call::<Option<String>>(client, &format!("SET {lock} {value} NX PX {ms}")).await.unwrap();
    set?;
    Some(Token(call(client, &format!("RINGFENCE.TOKEN {lock} {value}")).await.unwrap()))
}

async fn release(client: &mut MultiplexedConnection, lock: &str, value: &str) -> RedisResult<u64> {
    cmd("EVAL").arg(RELEASE).arg(1).arg(lock).arg(value).query_async(client).await
}

#[tokio::test]
async fn a_lock_by_one_protocol_is_a_lease_by_the_other() {
    let cluster = cluster().resp().start().await.unwrap();
    for (number, protocol) in [ProtocolVersion::RESP2, ProtocolVersion::RESP3].into_iter().enumerate() {
        let lock = format!("orders/{number}");
        let mut client = connect(cluster.node(1), protocol).await;
        let token = acquire(&mut client, &lock, "v", 60_000).await.unwrap();
        let http = cluster.node(2).client().patient();
        let view = http.key(&key(&lock), Consistency::Linearizable).await.done();
        assert_eq!((view.holders[0].token, view.fence), (token, token));
        assert_eq!(view.holders[0].ttl_ms, 60_000);
        http.acquire(LeaseId::random(), &try_once(&lock)).await.refused(ProblemKind::Held);
        // Through another node, and together with others.
        let mut other = connect(cluster.node(3), protocol).await;
        assert_eq!(acquire(&mut other, &lock, "w", 60_000).await, None);
        let replies: (u64, Option<String>, u64, Option<String>) = pipe()
            .atomic()
            .cmd("PEXPIRE")
            .arg(&lock)
            .arg(90_000)
            .cmd("GET")
            .arg(&lock)
            .cmd("DEL")
            .arg(&lock)
            .cmd("SET")
            .arg(&lock)
            .arg("v")
            .arg("NX")
            .arg("PX")
            .arg(60_000)
            .query_async(&mut other)
            .await
            .unwrap();
        assert_eq!(replies, (1, Some("v".to_owned()), 1, Some("OK".to_owned())));
        let newer: u64 = call(&mut client, &format!("RINGFENCE.TOKEN {lock} v")).await.unwrap();
        assert!(newer > token.0, "the value is the same, and the lease another");
        let replies: (u64, Option<String>) =
            pipe().cmd("DEL").arg(&lock).cmd("GET").arg(&lock).query_async(&mut client).await.unwrap();
        assert_eq!(replies, (1, None));
        let lease = http.acquire(LeaseId::random(), &try_once(&lock)).await.done();
        assert!(lease.grant().unwrap().token.0 > newer);
        assert_eq!(acquire(&mut client, &lock, "v", 60_000).await, None);
        let error = call::<u64>(&mut client, &format!("DEL {lock}")).await.unwrap_err();
        assert!(error.to_string().contains("held over HTTP"), "{error}");
    }
}

/// HTTP and the command line use the name that lists show, but they cannot acquire such a lock.
#[tokio::test]
async fn an_operator_finds_and_revokes_a_lock_of_a_database() {
    let cluster = cluster().nodes(1).resp().start().await.unwrap();
    let node = cluster.node(1);
    let mut client = connect(node, ProtocolVersion::RESP2).await;
    let http = node.client().patient();
    for (database, name, shown) in [(3, "orders/42", "@db3/orders/42"), (0, "50%\t/", "@db0/50%25%09%2F")] {
        () = call(&mut client, &format!("SELECT {database}")).await.unwrap();
        let token = acquire(&mut client, name, "v", DAY_MS).await.unwrap();
        let refused = http.acquire(LeaseId::random(), &try_once(shown)).await;
        refused.refused(ProblemKind::InvalidRequest);
        let ringfence = async |arguments: &[&str]| {
            let ended = run(PROGRAM, [arguments, &["--urls", &node.url()]].concat(), SOON).await.unwrap();
            assert!(ended.status.success(), "{ended:?}");
            ended.output
        };
        let prefix = &shown[..5];
        assert!(ringfence(&["ls", prefix]).await.contains(shown));
        ringfence(&["revoke", shown, &token.to_string()]).await;
        assert_eq!(call::<Option<String>>(&mut client, &format!("GET {name}")).await.unwrap(), None);
    }
}

/// Once, nothing in the log said which script of a library cannot run.
#[tokio::test]
async fn a_script_that_calls_what_is_refused_is_in_the_log_once_and_counted() {
    let cluster = cluster().nodes(1).resp().start().await.unwrap();
    let node = cluster.node(1);
    let mut client = connect(node, ProtocolVersion::RESP2).await;
    let late = "local name = 'in' .. 'cr'\nreturn redis.call(name, KEYS[1])";
    for (script, count) in [("return redis.call('TIME')", 3), (late, 4)] {
        for _ in 0..count {
            let refused = cmd("EVAL").arg(script).arg(1).arg("a").query_async::<()>(&mut client).await;
            refused.unwrap_err();
        }
    }
    let counted = async |command: &str| {
        let series = format!("ringfence_resp_calls_refused_total{{command=\"{command}\"}}");
        node.metric(&series).await.unwrap()
    };
    assert_eq!((counted("time").await, counted("incr").await), (Some(3.0), Some(4.0)));
    let log = node.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("a script calls a command that is refused here")).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("time") && lines[1].contains("incr"), "{lines:?}");
}

#[tokio::test]
async fn a_lock_survives_its_leader_and_then_all_nodes() {
    let cluster = cluster().resp().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let follower = cluster.others(leader.id()).next().unwrap();
    let mut client = connect(follower, ProtocolVersion::RESP2).await;
    let token = acquire(&mut client, "lock", "v", DAY_MS).await.unwrap();
    leader.kill().unwrap();
    let same = async |client: &mut MultiplexedConnection| {
        // Without a leader, the answer is an error, never nil.
        let ask = async || call::<Option<u64>>(&mut client.clone(), "RINGFENCE.TOKEN lock v").await.ok();
        assert_eq!(until(SOON, "the token", ask).await.unwrap(), Some(token.0));
    };
    same(&mut client).await;
    cluster.kill_all().unwrap();
    cluster.start_all().unwrap();
    let mut client = connect(follower, ProtocolVersion::RESP2).await;
    same(&mut client).await;
    let ended = async || release(&mut client.clone(), "lock", "v").await.ok();
    assert_eq!(until(SOON, "the release", ended).await.unwrap(), 1);
    let later = acquire(&mut client, "lock", "v", DAY_MS).await.unwrap();
    assert!(later > token);
}

#[tokio::test]
async fn a_late_holder_has_the_smaller_token_and_the_guard_rejects_it() {
    let cluster = cluster().nodes(1).resp().start().await.unwrap();
    let [mut late, mut next] = [
        connect(cluster.node(1), ProtocolVersion::RESP3).await,
        connect(cluster.node(1), ProtocolVersion::RESP3).await,
    ];
    let first = acquire(&mut late, "orders/42", "late", 100).await.unwrap();
    let acquired = async || acquire(&mut next.clone(), "orders/42", "next", 60_000).await;
    let second = until(SOON, "the lock ends", acquired).await.unwrap();
    assert!(second > first);
    assert_eq!(release(&mut late, "orders/42", "late").await.unwrap(), 0, "it is another one's");
    let fence: Vec<u64> = call(&mut next, "HMGET ringfence:{orders/42} token fence").await.unwrap();
    assert_eq!(fence, [second.0, second.0]);
    let guard = MemoryGuard::new(10);
    let claim = |token: Token| Claim::new(token, token).unwrap();
    let guarded = guard
        .key_or_ask(&key("orders/42"), |_| Ok::<_, ringfence_guard::ClaimError>(Token(fence[0])))
        .unwrap();
    assert!(guarded.write(claim(second), || ()).is_accepted());
    assert!(matches!(
        guarded.write(claim(first), || panic!("a stale writer writes")),
        Admission::Stale { .. }
    ));
    assert_eq!(release(&mut next, "orders/42", "next").await.unwrap(), 1);
}

/// Otherwise the lock would be held for a day by a client that does not know it.
#[tokio::test]
async fn a_lock_whose_connection_is_cut_before_the_answer_is_taken_back() {
    let cluster = cluster().resp().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let mut client = TcpStream::connect(leader.resp()).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    client.readable().await.unwrap();
    let followers: Vec<&Node> = cluster.others(leader.id()).collect();
    followers.iter().for_each(|node| node.stop().unwrap());
    for node in &followers {
        node.stands_still().await.unwrap();
    }
    let set =
        format!("*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$1\r\nv\r\n$2\r\nNX\r\n$2\r\nPX\r\n$8\r\n{DAY_MS}\r\n");
    let before = leader.metric("ringfence_raft_last_log_index").await.unwrap();
    client.write_all(set.as_bytes()).await.unwrap();
    let proposed =
        async || (leader.metric("ringfence_raft_last_log_index").await.ok()? > before).then_some(());
    until(SOON, "it is proposed", proposed).await.unwrap();
    drop(client);
    followers.iter().for_each(|node| node.resume().unwrap());
    let free = async || {
        let view = leader.client().key(&key("lock"), Consistency::Linearizable).await.success().ok()?;
        (view.holders.is_empty() && view.fence > Token(1)).then_some(())
    };
    until(SOON, "it is taken back", free).await.unwrap();
}

#[tokio::test]
async fn without_a_quorum_a_lock_is_certainly_not_granted() {
    let cluster = cluster().resp().start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let follower = cluster.others(leader.id()).next().unwrap();
    let mut client = connect(follower, ProtocolVersion::RESP2).await;
    assert!(acquire(&mut client, "before", "v", DAY_MS).await.is_some());
    cluster.others(follower.id()).for_each(|node| node.kill().unwrap());
    // The connection closes each time: another node may know a leader.
    let refused = async || {
        let mut client = connect(follower, ProtocolVersion::RESP2).await;
        let error = call::<Option<String>>(&mut client, "SET lock v NX PX 60000").await.unwrap_err();
        // The first one may have been under way to the leader.
        (error.code() == Some("LOADING")).then_some(client)
    };
    let mut client = until(SOON, "nobody leads", refused).await.unwrap();
    assert!(call::<Option<String>>(&mut client, "GET before").await.unwrap_err().is_connection_dropped());
    // A read that cannot be decided is an error, too.
    let mut client = connect(follower, ProtocolVersion::RESP2).await;
    assert_eq!(call::<Option<String>>(&mut client, "GET before").await.unwrap_err().code(), Some("LOADING"));
}

/// Otherwise a program that checks tokens in the mirror would not find this one.
#[tokio::test]
async fn a_lock_that_the_mirror_does_not_have_is_not_held() {
    let server = RedisServer::builder().start().await.unwrap();
    let arguments = [
        format!("--redis={}", server.url()),
        "--mirror-mode=before-answer".to_owned(),
        "--mirror-timeout=1s".to_owned(),
    ];
    let builder = arguments.into_iter().fold(cluster().nodes(1), Builder::argument);
    let cluster = builder.resp().start().await.unwrap();
    let client = connect(cluster.node(1), ProtocolVersion::RESP2).await;
    let mut mirror =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mirrored = async || acquire(&mut client.clone(), "first", "v", DAY_MS).await;
    let token = until(SOON, "Redis is known", mirrored).await.unwrap();
    let fence: u64 = call(&mut mirror, "HGET ringfence:{first} fence").await.unwrap();
    assert_eq!(fence, token.0, "it is answered once Redis has it");
    server.stop().await.unwrap();
    let refused = async || {
        let set = call::<Option<String>>(&mut client.clone(), "SET lock v NX PX 86400000").await;
        set.err().filter(|error| error.to_string().contains("the mirror did not have it"))
    };
    let error = until(Duration::from_secs(10), "it is refused", refused).await;
    server.resume().unwrap();
    error.unwrap();
    let free = async || (call::<u64>(&mut client.clone(), "EXISTS lock").await.ok()? == 0).then_some(());
    until(SOON, "it is taken back", free).await.unwrap();
}
