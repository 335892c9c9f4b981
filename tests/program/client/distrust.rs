//! TLS that fails for a reason that no repeat mends.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ringfence_client::{Client, Error, Tls, Token};
use ringfence_tls::{Certificates, Files, Server, Unrelated};
use ringfence_wire::LeaseId;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::ends::cert_of_old;
use crate::support::cert;

/// A server with the certificate of node 1 in `dir`, and how many connections it has had.
async fn server(dir: &Path) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let files = Files { certificate: dir.join("node-1.pem"), key: dir.join("node-1.key"), authority: None };
    let server = Server::load(files, Certificates::Required, &Unrelated::default()).unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(TlsAcceptor::from(server.current()).accept(stream));
        }
    });
    (address, count)
}

fn unavailable<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Unavailable { why }) => why,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was done"),
    }
}

#[tokio::test]
async fn each_node_is_asked_once_unless_a_lease_may_be_held() {
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
        assert_eq!(counts(), [4, 4], "{told}");
        for (_, why) in client().readiness().await {
            assert!(why.as_ref().is_some_and(|why| why.contains(told)), "{why:?}");
        }
        counts();
        // Its files may be replaced in time.
        let why = unavailable(client().renew(LeaseId::random(), None).await);
        assert!(why.contains(told) && counts().iter().all(|count| *count > 1), "{why}");
    }
}
