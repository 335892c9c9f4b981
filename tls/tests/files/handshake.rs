//! A handshake in memory.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

/// The chains of two sides that accepted each other.
pub(crate) struct Done {
    pub(crate) of_client: Vec<CertificateDer<'static>>,
    pub(crate) of_server: Vec<CertificateDer<'static>>,
}

/// Lets a client that wants to talk to `host` shake hands with a server.
pub(crate) fn handshake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    host: &str,
) -> Result<Done, rustls::Error> {
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), host).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        let mut to_server = to_server.as_slice();
        while !to_server.is_empty() {
            server.read_tls(&mut to_server).unwrap();
            server.process_new_packets()?;
        }
        while server.wants_write() {
            server.write_tls(&mut to_client).unwrap();
        }
        let mut to_client = to_client.as_slice();
        while !to_client.is_empty() {
            client.read_tls(&mut to_client).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    let chain = |chain: Option<&[CertificateDer<'static>]>| chain.unwrap_or_default().to_vec();
    Ok(Done { of_client: chain(server.peer_certificates()), of_server: chain(client.peer_certificates()) })
}
