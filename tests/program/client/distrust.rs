//! TLS that fails for a reason that no repeat mends.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_client::{Client, Error, Tls, Token};
use ringfence_harness::{Lookups, available};
use ringfence_tls::{Certificates, Files, Server, Unrelated};
use ringfence_wire::LeaseId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;

use crate::ends::cert_of_old;
use crate::support::{PROGRAM, cert};

/// Servers that take turns at one address: each has the certificate of node 1 in its folder, and does what it is asked. And how many
/// connections they have had.
async fn serve(listener: TcpListener, dirs: &[&Path]) -> (SocketAddr, Arc<AtomicUsize>) {
    let load = |dir: &&Path| {
        let (certificate, key) = (dir.join("node-1.pem"), dir.join("node-1.key"));
        let files = Files { certificate, key, authority: None };
        Server::load(files, Certificates::Required, &Unrelated::default()).unwrap()
    };
    let servers: Vec<Server> = dirs.iter().map(load).collect();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        for server in servers.iter().cycle() {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let accepting = TlsAcceptor::from(server.current()).accept(stream);
            tokio::spawn(async move {
                let Ok(mut stream) = accepting.await else { return };
                while stream.read(&mut [0; 4_096]).await.is_ok_and(|count| count > 0) {
                    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
                }
            });
        }
    });
    (address, count)
}

async fn server(dir: &Path) -> (SocketAddr, Arc<AtomicUsize>) {
    serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), &[dir]).await
}

/// Two folders with authorities, and a certificate of node 1 for this host.
async fn authorities(host: &str) -> [tempfile::TempDir; 2] {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for dir in &dirs {
        cert(dir.path(), &["authorities"]).await;
        cert(dir.path(), &["node", "--id=1", &format!("--hosts={host}")]).await;
    }
    dirs
}

/// One with a wrong certificate once failed each call that came to it first.
#[tokio::test]
async fn one_of_several_nodes_at_an_address_may_be_wrong() {
    let [dir, other] = authorities("127.0.0.1").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, count) = serve(listener, &[other.path(), dir.path()]).await;
    let tls = Tls { authority: Some(dir.path().join("authority.pem")), ..Tls::default() };
    for calls in 1..=3 {
        let client = Client::connect_with([format!("https://{address}")], &tls).unwrap();
        client.revoke("a", Token(1)).await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 2 * calls);
    }
}

/// It once was the first that each call came to, for as long as the process lived: its handshake counted as an answer.
#[tokio::test]
async fn one_of_several_addresses_of_a_name_may_be_wrong() {
    let [dir, other] = authorities("two.test").await;
    let wrong = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: IpAddr = "127.0.0.9".parse().unwrap();
    let right = TcpListener::bind((at, wrong.local_addr().unwrap().port())).await.unwrap();
    let (wrong, _) = serve(wrong, &[other.path()]).await;
    serve(right, &[dir.path()]).await;
    let names: &[(&str, &[IpAddr])] = &[("two.test", &[wrong.ip(), at])];
    let Some(lookups) = available(Lookups::new(names, Duration::ZERO)) else { return };
    let mut command = Command::new(PROGRAM);
    let url = format!("https://two.test:{}", wrong.port());
    command.args(["revoke", "a", "1", "-u", &url]).envs(lookups.variables());
    let output = command.env("RINGFENCE_AUTHORITY", dir.path().join("authority.pem")).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn unavailable<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Unavailable { why }) => why,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was done"),
    }
}

#[tokio::test]
async fn each_node_is_asked_twice_unless_a_lease_may_be_held() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, other) = (dir.path(), other.path());
    for dir in [dir, other] {
        cert(dir, &["authorities"]).await;
    }
    let node = |host: &str| format!("--hosts={host}");
    for (authority, host, is_old, told) in [
        (other, "127.0.0.1", false, "RINGFENCE_AUTHORITY"),
        (dir, "127.0.0.9", false, "is not for the host of this URL"),
        (dir, "127.0.0.1", true, "the node's certificate ended on"),
    ] {
        let words = ["node", "--id=1", &node(host), "--force"];
        match is_old {
            true => cert_of_old(dir, 400, &words).await,
            false => cert(dir, &words).await,
        }
        let servers = [server(dir).await, server(dir).await];
        let urls = servers.each_ref().map(|(address, _)| format!("https://{address}"));
        let tls = Tls { authority: Some(authority.join("authority.pem")), ..Tls::default() };
        let counts = || servers.each_ref().map(|(_, count)| count.swap(0, Ordering::SeqCst));
        let client = || Client::connect_with(&urls, &tls).unwrap();
        for why in [
            unavailable(client().lock("a").acquire().await),
            unavailable(client().cluster().await),
            unavailable(client().revoke("a", Token(1)).await),
            unavailable(client().watch("").next().await),
        ] {
            assert!(why.contains(told), "{why}");
        }
        assert_eq!(counts(), [8, 8], "{told}");
        for (_, why) in client().readiness().await {
            assert!(why.as_ref().is_some_and(|why| why.contains(told)), "{why:?}");
        }
        counts();
        // Its files may be replaced in time.
        let why = unavailable(client().renew(LeaseId::random(), None).await);
        assert!(why.contains(told) && counts().iter().all(|count| *count > 2), "{why}");
    }
}
