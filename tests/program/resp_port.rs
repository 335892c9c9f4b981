//! The port for clients that speak the Redis protocol: when it is open, and which clients it serves.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use ringfence_harness::{Certificates, Node, until};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{SOON, cluster};

/// Where a node listens.
fn port(node: &Node) -> SocketAddr {
    SocketAddr::new(node.http().ip(), 6379)
}

/// Starts a node that speaks the Redis protocol.
fn start(node: &Node, arguments: &[String]) {
    node.start_with(|command| {
        command.arg(format!("--resp={}", port(node))).args(arguments);
    })
    .unwrap();
}

/// The answer to `PING`.
async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> String {
    stream.write_all(b"PING\r\n").await.unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(line).unwrap()
}

#[tokio::test]
async fn the_port_is_open_from_the_start_of_the_node_to_its_stop() {
    let cluster = cluster().nodes(2).lay_out().await.unwrap();
    let node = cluster.node(1);
    start(node, &[]);
    node.tells("missing=[2]").await.unwrap();
    assert_eq!(TcpStream::connect(port(node)).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    cluster.node(2).start().unwrap();
    let connect = async || TcpStream::connect(port(node)).await.ok();
    let mut client = until(SOON, "the port is open", connect).await.unwrap();
    assert_eq!(answer(&mut client).await, "+PONG\r\n");
    node.tells("the Redis protocol is spoken").await.unwrap();
    cluster.ready().await.unwrap();
    assert!(node.metric("ringfence_http_connections").await.unwrap() >= Some(1.0));

    // An idle connection does not hold up a stop.
    assert!(node.terminate().await.unwrap().success());
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    assert!(!node.log().contains("stopped although"), "{}", node.log());
}

#[tokio::test]
async fn a_port_that_another_program_has_is_named() {
    let cluster = cluster().nodes(1).lay_out().await.unwrap();
    let node = cluster.node(1);
    let _other = TcpListener::bind(port(node)).unwrap();
    start(node, &[]);
    assert_eq!(node.ends().await.unwrap().code(), Some(1));
    assert!(node.log().contains(&format!("cannot listen on {} (--resp)", port(node))), "{}", node.log());
}

#[tokio::test]
async fn the_port_has_the_certificates_of_the_http_port() {
    let cluster = cluster().nodes(1).lay_out().await.unwrap();
    let (node, dir) = (cluster.node(1), TempDir::new().unwrap());
    let files = Certificates::new(dir.path(), &format!("IP:{}", node.http().ip())).unwrap();
    let certificate = format!("--tls-certificate={}", files.certificate().display());
    let own = [certificate, format!("--tls-key={}", files.key().display())];
    let client = ringfence_tls::Client::with_authority(Some(files.authority().to_owned())).unwrap();
    let client = TlsConnector::from(client.current());
    for plain in ["-ERR ringfence: this port requires TLS\r\n", "+PONG\r\n"] {
        let accept = plain.starts_with('+').then(|| "--plain=accept".to_owned());
        start(node, &own.iter().cloned().chain(accept).collect::<Vec<_>>());
        let connect = async || TcpStream::connect(port(node)).await.ok();
        let mut stream = until(SOON, "the port is open", connect).await.unwrap();
        assert_eq!(answer(&mut stream).await, plain);
        let stream = TcpStream::connect(port(node)).await.unwrap();
        let mut stream = client.connect(port(node).ip().into(), stream).await.unwrap();
        assert_eq!(answer(&mut stream).await, "+PONG\r\n");
        assert!(node.terminate().await.unwrap().success());
    }
}
