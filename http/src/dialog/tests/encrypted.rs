//! Dialogs over TLS.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ringfence_tls::{Certificates, Client, Files, Unrelated};
use tempfile::TempDir;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

/// A server with TLS, a connector that trusts it, and its files.
async fn encrypted() -> (Server, TlsConnector, TempDir) {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let (certificate, key) = (file("own.pem", own.pem()), file("own.key", key.serialize_pem()));
    let files = Files { certificate, key, authority: None };
    let server = ringfence_tls::Server::load(files, Certificates::Optional, &Unrelated::default()).unwrap();
    let client = Client::with_authority(Some(file("authority.pem", authority.pem()))).unwrap();
    let tls = Tls { server: Arc::new(server), refusal: Some("no TLS\n".into()) };
    let server = Server::start(Threads::here(), Some(tls), 10).await;
    (server, TlsConnector::from(client.current()), dir)
}

/// A client that has sent this.
async fn sent(server: &Server, connector: &TlsConnector, text: &str) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut client = connector.connect(server.address.ip().into(), stream).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    client.flush().await.unwrap();
    client
}

#[tokio::test(start_paused = true)]
async fn a_client_without_tls_is_told_so_and_half_a_handshake_ends() {
    let (server, _connector, _dir) = encrypted().await;
    let mut plain = server.sent("echo a\n").await;
    assert_eq!(rest(&mut plain).await, "no TLS\n");
    for half in [&b"\x16\x03\x01"[..], b""] {
        let (mut client, begun) = (server.sent(half).await, Instant::now());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(begun.elapsed().as_secs(), HEAD_TIMEOUT.as_secs());
    }
}

#[tokio::test]
async fn a_hangup_is_seen_through_tls() {
    let (server, connector, _dir) = encrypted().await;
    for (number, says_so) in [true, false].into_iter().enumerate() {
        server.gate.send_replace(false);
        let mut client = sent(&server, &connector, "wait\n").await;
        until("it begins", || server.seen.begun.load(Relaxed) > number).await;
        if says_so {
            client.shutdown().await.unwrap();
        }
        drop(client);
        for _ in 0..1_000 {
            yield_now().await;
        }
        server.gate.send_replace(true);
        until("the connection ends", || server.connections.count().0 == 0).await;
    }
    assert_eq!((server.seen.ended.load(Relaxed), server.seen.sent.load(Relaxed)), (2, 0));
}

#[tokio::test]
async fn a_response_is_sent_once_all_of_it_is_encrypted_and_in_the_kernel() {
    let (server, connector, _dir) = encrypted().await;
    let bytes = 20 << 20;
    let mut client = sent(&server, &connector, &format!("echo a\nlarge {bytes}\n")).await;
    client.read_exact(&mut [0; 3]).await.unwrap();
    for _ in 0..1_000 {
        yield_now().await;
    }
    assert_eq!(server.seen.sent.load(Relaxed), 1);
    client.read_exact(&mut vec![0; bytes - 1]).await.unwrap();
    until("it is sent", || server.seen.sent.load(Relaxed) == 2).await;
    client.write_all(b"quit b\n").await.unwrap();
    let mut last = String::new();
    client.read_to_string(&mut last).await.unwrap();
    assert_eq!(last, "b\n");
}
