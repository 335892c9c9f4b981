//! `--listen`: what probes and neighbours learn of a lease.

use std::net::{SocketAddr, TcpListener};

use ringfence_harness::HttpConnection;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::detached::detached;
use super::*;

/// An address where nothing listens.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// `lock a` that listens there, with a shell that runs `script`.
fn listening(cluster: &Cluster, words: &str, address: SocketAddr, script: &str) -> Child {
    lock(cluster, &format!("a {words} --listen {address}"), script).spawn().unwrap()
}

/// The status and the body of an answer.
async fn ask(address: SocketAddr, path: &str) -> std::io::Result<(u16, Value)> {
    let mut connection = HttpConnection::open(address).await?;
    let answer = connection.call("GET", path, "").await?;
    Ok((answer.status, serde_json::from_slice(answer.body).unwrap()))
}

/// Waits for an answer with this status, which has this body.
async fn answers(address: SocketAddr, expected: u16) -> Value {
    let look = async || ask(address, "/leader").await.ok().filter(|(status, _)| *status == expected);
    until(SOON, format!("/leader is {expected}"), look).await.unwrap().1
}

#[tokio::test]
async fn the_leader_is_ready_and_another_one_says_who_leads() {
    let cluster = cluster().await;
    let [one, two] = [free(), free()];
    let dir = TempDir::new().unwrap();
    let go = |name: &str| dir.path().join(name).display().to_string();
    let script = |name: &str| format!("until [ -e {} ]; do sleep 0.05; done", go(name));
    let first = listening(&cluster, "b --holder first", one, &script("first"));
    let leads = answers(one, 200).await;
    let token = view(&cluster, "a").await.holders[0].token;
    assert_eq!((&leads["token"], &leads["holder"]), (&Value::from(token.0), &Value::from("first")));
    let keys: Vec<_> =
        leads["keys"].as_array().unwrap().iter().map(|key| (&key["key"], &key["fence"])).collect();
    assert_eq!(keys, [(&Value::from("a"), &leads["token"]), (&Value::from("b"), &leads["token"])]);
    assert!(leads["expires_in_ms"].as_u64().unwrap() > 0 && leads.get("lease_id").is_none(), "{leads}");

    let second = listening(&cluster, "--holder second", two, &script("second"));
    let known = async || answers(two, 503).await.get("token").cloned();
    assert_eq!(until(SOON, "it knows the holder", known).await.unwrap(), token.0);
    let waits = answers(two, 503).await;
    assert_eq!((&waits["holder"], &waits["keys"][0]["key"]), (&Value::from("first"), &Value::from("a")));
    assert_eq!(ask(two, "/livez").await.unwrap(), (200, serde_json::json!({ "status": "live" })));
    assert_eq!(ask(two, "/").await.unwrap().0, 404);

    std::fs::write(go("first"), "").unwrap();
    end_of(first).await.with(0);
    assert!(ask(one, "/leader").await.is_err(), "its listener ends with it");
    assert!(answers(two, 200).await["token"].as_u64() > Some(token.0));
    std::fs::write(go("second"), "").unwrap();
    end_of(second).await.with(0);
}

/// The lock stands still together with its command, and those who ask were there before it goes on.
#[tokio::test]
async fn a_program_that_was_paused_beyond_its_lease_never_says_that_it_leads() {
    let cluster = cluster().await;
    let address = free();
    let (_dir, file) = file_of("pids");
    let script = format!("echo $$ $PPID > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let child = listening(&cluster, "--ttl 2s", address, &script);
    let pids = pids_in(&file).await;
    answers(address, 200).await;
    let mut asking = Vec::new();
    for _ in 0..20 {
        let mut connection = HttpConnection::open(address).await.unwrap();
        assert_eq!(connection.call("GET", "/leader", "").await.unwrap().status, 200);
        asking.push(connection);
    }
    signal(&child, Signal::STOP);
    pids.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    let next = run(lock(&cluster, "a", "echo led")).await.with(0);
    assert_eq!(next.out, "led\n");
    let asked = asking.into_iter().map(|mut connection| {
        tokio::spawn(async move { connection.call("GET", "/leader", "").await.map(|answer| answer.status) })
    });
    let asked: Vec<_> = asked.collect();
    // They have sent what they ask.
    tokio::task::yield_now().await;
    signal(&child, Signal::CONT);
    for asks in asked {
        let status = asks.await.unwrap();
        // The listener may have ended with its program.
        assert!(!matches!(status, Ok(200)), "{status:?}");
    }
    for pid in pids {
        let _ = kill_process(pid, Signal::CONT);
    }
    end_of(child).await.with(76);
}

#[tokio::test]
async fn a_lease_that_is_held_for_a_neighbour_is_told_until_it_is_lost() {
    let cluster = cluster().await;
    let address = free();
    let grant = detached(&cluster, "6s").await;
    let words = format!("hold {} --listen {address}", grant["lease_id"].as_str().unwrap());
    let child = ringfence(&cluster, &words).spawn().unwrap();
    assert_eq!(answers(address, 200).await["token"], grant["token"]);
    run(ringfence(&cluster, &format!("revoke a {}", grant["token"]))).await.with(0);
    end_of(child).await.with(76);
}

/// Before the command, it is not the leader: here it waits for an older holder in a database that never answers.
#[tokio::test]
async fn who_holds_the_lease_and_has_no_command_yet_is_not_ready() {
    let cluster = cluster().await;
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free();
    let url = format!("postgres://u@{}/d", database.local_addr().unwrap());
    let child = listening(&cluster, &format!("--holder me --postgres {url}"), address, "echo ran");
    let own = async || (answers(address, 503).await["holder"] == "me").then_some(());
    until(SOON, "it holds the lease", own).await.unwrap();
    assert_eq!(ask(address, "/leader").await.unwrap().0, 503);
    signal(&child, Signal::TERM);
    end_of(child).await.says(143, "");
}

#[tokio::test]
async fn an_address_that_cannot_be_used_is_named_before_anything_is_acquired() {
    let cluster = cluster().await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for address in [taken.as_str(), "203.0.113.1:80", "localhost", ":80", "127.0.0.1:99999"] {
        let err = run(lock(&cluster, &format!("a --listen {address}"), "echo ran")).await.says(125, "");
        assert!(err.contains("--listen") && err.contains(address), "{err}");
    }
    let grant = run(ringfence(&cluster, "lock a --detach --listen 127.0.0.1:0")).await.says(125, "");
    assert!(grant.contains("--listen"), "{grant}");
    assert_eq!(view(&cluster, "a").await.holders.len(), 0);
}

/// They come from one host, say nothing, and hold on to what they have.
#[tokio::test]
async fn silent_strangers_hinder_no_renewal_and_shut_no_probe_out() {
    let cluster = cluster().await;
    let address = free();
    let (_dir, file) = file_of("go");
    let script = format!("until [ -e {} ]; do sleep 0.05; done", file.display());
    let child = listening(&cluster, "--ttl 2s", address, &script);
    let first = answers(address, 200).await;
    let (mut strangers, mut left, mut renewals) = (Vec::new(), u64::MAX, 0);
    while strangers.len() < 200 || renewals < 2 {
        for _ in 0..50 {
            strangers.push(TcpStream::connect(address).await.unwrap());
        }
        // From the same host, one may have to give way to them, and asks again.
        let answer = answers(address, 200).await;
        assert_eq!(answer["token"], first["token"]);
        let now = answer["expires_in_ms"].as_u64().unwrap();
        renewals += u32::from(now > left);
        left = now;
    }
    let mut closed = 0;
    for mut stranger in strangers.into_iter().take(100) {
        let read = tokio::time::timeout(SOON, stranger.read(&mut [0])).await.expect("it is closed");
        closed += usize::from(matches!(read, Ok(0) | Err(_)));
    }
    assert_eq!(closed, 100, "those who were there first have given way");
    std::fs::write(&file, "").unwrap();
    end_of(child).await.with(0);
}
