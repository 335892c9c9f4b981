//! TLS between nodes, with real processes: who is let in, and what happens when files change.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use ringfence_harness::{Certificates, Cluster, Node, run, take, until};

use tempfile::TempDir;

use crate::support::{PROGRAM, SOON};

/// Of the nodes 1 to 3, which share a certificate here, so that they share their arguments.
const NAMES: &str = "URI:ringfence:node:1,URI:ringfence:node:2,URI:ringfence:node:3";
const REFUSED: &str = "ringfence_files_refused{use=\"peers\"}";
const EXPIRES: &str = "ringfence_tls_certificate_expires_seconds{use=\"peers\"}";

async fn value(node: &Node, name: &str) -> Option<f64> {
    node.client().metric(name).await.ok()?
}

/// Each node grants a lease.
async fn works(cluster: &Cluster, round: &str) {
    for node in cluster.nodes() {
        take(&node.client(), &format!("{round}/{}", node.id())).await;
    }
}

#[tokio::test]
#[ignore = "slow"]
async fn certificates_are_replaced_while_nodes_run_and_broken_files_change_nothing() {
    let dir = TempDir::new().unwrap();
    let files = Certificates::new(dir.path(), NAMES).unwrap();
    let mut builder = Cluster::builder(PROGRAM);
    for argument in files.peer_arguments() {
        builder = builder.argument(argument);
    }
    let cluster = builder.start().await.unwrap();
    works(&cluster, "first").await;
    let all = async |name: &str, expected: &dyn Fn(f64) -> bool| {
        let found = async || {
            for node in cluster.nodes() {
                value(node, name).await.filter(|value| expected(*value))?;
            }
            Some(())
        };
        until(SOON, name, found).await.unwrap();
    };
    let first = value(cluster.node(1), EXPIRES).await.unwrap();
    all(REFUSED, &|value| value == 0.0).await;

    // A caller without a certificate is told nothing, whatever it says.
    for node in cluster.nodes() {
        let (mut stream, mut answer) = (TcpStream::connect(node.peer()).unwrap(), Vec::new());
        stream.set_read_timeout(Some(SOON)).unwrap();
        let _ = stream.write_all(b"RINGPEER\x01\x00");
        // Closed, or reset.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"RINGPEER"), "{answer:?}");
    }

    let whole = fs::read(files.certificate()).unwrap();
    fs::write(files.certificate(), &whole[..whole.len() / 2]).unwrap();
    all(REFUSED, &|value| value == 1.0).await;
    works(&cluster, "broken").await;
    fs::write(files.certificate(), &whole).unwrap();
    all(REFUSED, &|value| value == 0.0).await;

    // The nodes load the new files one after the other. In between, each trusts both authorities.
    let other = TempDir::new().unwrap();
    let new = Certificates::new(other.path(), NAMES).unwrap();
    let old = fs::read(files.authority()).unwrap();
    let both = [old, fs::read(new.authority()).unwrap()].concat();
    fs::write(files.authority(), both).unwrap();
    let loaded = |count| {
        let cluster = &cluster;
        move || async move {
            let log = |node: &Node| node.log().matches("files that changed are in use").count();
            cluster.nodes().iter().all(|node| log(node) >= count).then_some(())
        }
    };
    until(SOON, "both authorities are trusted", loaded(1)).await.unwrap();
    fs::copy(new.certificate(), files.certificate()).unwrap();
    fs::copy(new.key(), files.key()).unwrap();
    until(SOON, "the new certificate is in use", loaded(2)).await.unwrap();
    works(&cluster, "both").await;
    fs::copy(new.authority(), files.authority()).unwrap();
    until(SOON, "only the new authority is trusted", loaded(3)).await.unwrap();
    works(&cluster, "new").await;
    all(EXPIRES, &|value| value >= first).await;
    cluster.check_logs().unwrap();
}

#[tokio::test]
async fn files_that_cannot_be_used_are_refused_at_the_start() {
    let dir = TempDir::new().unwrap();
    let files = Certificates::new(dir.path(), "URI:ringfence:node:2").unwrap();
    let serve = async |arguments: &[String]| {
        let data = dir.path().join("data").display().to_string();
        let own = ["serve", "--id=1", "--http=127.0.0.1:0", "--peer=127.0.0.1:0", "--data"];
        let own = own.map(str::to_owned).into_iter().chain([data]);
        let ended = run(PROGRAM, own.chain(arguments.iter().cloned()), SOON).await.unwrap();
        assert!(!ended.status.success(), "{ended:?}");
        ended.output
    };
    let all = files.peer_arguments();
    assert!(serve(&all).await.contains("server.pem: is the certificate of another node"));
    assert!(serve(&all[..2]).await.contains("require each other"));
    fs::write(files.key(), "no key").unwrap();
    assert!(serve(&all).await.contains("server.key"));
}
