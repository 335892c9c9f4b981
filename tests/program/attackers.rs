//! Attackers on another host, with every kind of certificate that is not the right one: nothing gets in at either port.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::peer::{HELLO, Hello, Identity, PREFACE, REFUSAL, WELCOME, frame, varint, words};
use crate::support::routes::{About, request, routes};
use crate::support::{ALL, PROGRAM, SOON, Secured, cert, principal};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType, date_time_ymd};
use ringfence_access::Credential;
use ringfence_harness::{Cluster, HttpConnection, Network, Node, available};
use ringfence_tls::{Files, Peer, Refused, Unrelated};
use ringfence_wire::{Grant, LeaseId, Token};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, SignatureScheme};

/// The node of the network that is none of the cluster.
const ATTACKER: u64 = 4;
/// Who the attackers say that they are.
const CLAIMED: u64 = 2;
/// Founding, votes, forwards, appends, heartbeats, snapshots and the mirror.
const CHANNELS: std::ops::RangeInclusive<u8> = 0..=6;
const KEY: &str = "accounts/1";

/// An attacker, and the files that it has: a certificate and its key.
struct Attacker {
    name: &'static str,
    at_clients: Option<[PathBuf; 2]>,
    at_peers: Option<[PathBuf; 2]>,
    /// Whether the port for clients lets it shake hands: then each request is denied.
    is_anonymous: bool,
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

fn pair(dir: &Path, name: &str) -> [PathBuf; 2] {
    ["pem", "key"].map(|extension| dir.join(format!("{name}.{extension}")))
}

/// A certificate of this authority that has ended.
fn expired(dir: &Path, authority: &str, uri: &str) -> [PathBuf; 2] {
    let [certificate, key] = pair(dir, authority).map(|file| fs::read_to_string(file).unwrap());
    let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key).unwrap()).unwrap();
    let mut parameters = CertificateParams::default();
    (parameters.not_before, parameters.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    parameters.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    parameters.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().unwrap();
    let files = pair(dir, &format!("expired-{authority}"));
    fs::write(&files[0], parameters.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    files
}

async fn attackers(secured: &Secured, elsewhere: &Path) -> Vec<Attacker> {
    let dir = secured.path("");
    cert(&dir, &["client", "--name", "stranger"]).await;
    cert(elsewhere, &["authorities"]).await;
    cert(elsewhere, &["node", "--id", &CLAIMED.to_string(), "--hosts", "10.0.0.2"]).await;
    let refused = |name, at_clients, at_peers| Attacker {
        name,
        at_clients: Some(at_clients),
        at_peers: Some(at_peers),
        is_anonymous: false,
    };
    let client = pair(&dir, "client-stranger");
    vec![
        Attacker { name: "nothing", at_clients: None, at_peers: None, is_anonymous: true },
        Attacker { is_anonymous: true, ..refused("a client's certificate", client.clone(), client) },
        refused("another authority", pair(elsewhere, "node-2-peer"), pair(elsewhere, "node-2-peer")),
        refused("the certificate of node 3", pair(&dir, "node-3-peer"), pair(&dir, "node-3-peer")),
        refused(
            "certificates that have ended",
            expired(&dir, "authority", "ringfence:client:holder"),
            expired(&dir, "node-authority", "ringfence:node:2"),
        ),
    ]
}

impl Attacker {
    /// Its configuration at the port for clients.
    fn client_config(&self, secured: &Secured) -> Arc<ClientConfig> {
        let Some([certificate, key]) = self.at_clients.clone() else { return secured.tls() };
        let authority = Some(secured.path("authority.pem"));
        ringfence_tls::Client::load(Files { certificate, key, authority }).unwrap().current()
    }

    /// Its configuration at the peer port.
    fn peers(&self, secured: &Secured) -> Arc<ClientConfig> {
        let files = self.at_peers.clone().unwrap_or_else(|| pair(&secured.path(""), "node-3-peer"));
        let [certificate, key] = files;
        let authority = secured.path("node-authority.pem");
        let peer = Peer::load(certificate, key, authority, &Unrelated::default(), |_| true).unwrap();
        let mut config = (*peer.client(&Refused::default())).clone();
        if self.at_peers.is_none() {
            config.client_auth_cert_resolver = Arc::new(NoCertificate);
        }
        Arc::new(config)
    }

    /// The status of a request at the port for clients; `None` if there is no response.
    async fn asks(&self, secured: &Secured, node: &Node, (method, target, body): &Asked) -> Option<u16> {
        let (to, config) = (node.http(), self.client_config(secured));
        let stream = secured.reach(to).await.unwrap();
        let stream = TlsConnector::from(config).connect(ServerName::from(to.ip()), stream).await.ok()?;
        let mut connection = HttpConnection::over(stream, to, None);
        let body = body.as_ref().map(Value::to_string).unwrap_or_default();
        let answer = timeout(SOON, connection.call(method, target, &body)).await.expect("it is answered");
        Some(answer.ok()?.status)
    }

    /// The kind of the frame that a node answers at its peer port with; `None` if it closes the connection.
    async fn says(&self, secured: &Secured, node: &Node, words: &[u8]) -> Option<u8> {
        let mut heard = [0; PREFACE.len() + 9];
        let talk = async {
            let name = ServerName::try_from("node.invalid").unwrap();
            let stream = secured.reach(node.peer()).await?;
            let mut stream = TlsConnector::from(self.peers(secured)).connect(name, stream).await?;
            let _ = stream.write_all(words).await;
            stream.read_exact(&mut heard).await
        };
        timeout(SOON, talk).await.expect("it answers or closes").ok()?;
        assert!(heard.starts_with(PREFACE), "{heard:?}");
        // It follows the length and the checksum.
        heard.last().copied()
    }
}

/// A method, a target and a body.
type Asked = (String, String, Option<Value>);

/// Every route of the document, with effect for who may call it, and whether anybody may.
fn requests(document: &Value, lease: LeaseId, token: Token) -> Vec<(Asked, bool)> {
    let keys = ["stolen".to_owned()];
    let about = About { keys: &keys, prefix: "", lease, held: (KEY, token), changes_cluster: true };
    let asked = |(method, path, right): (String, String, String)| {
        let (target, mut body) = request(&method, &path, &about);
        if path == "/v1/batch"
            && let Some(body) = &mut body
        {
            body["operations"] = json!([body["operations"][0], { "release": { "lease_id": lease } }]);
        }
        ((method, target, body), right == "none")
    };
    routes(document).into_iter().map(asked).collect()
}

/// A hello of node 2 on a channel, and messages that would elect it, change the log, or found another cluster.
fn hello(channel: u8, own: &Identity, claimed: &Identity) -> Vec<u8> {
    const CALL: u8 = 16;
    const APPEND: u8 = 32;
    const TERM: u64 = 50;
    let vote = [words(&[TERM, CLAIMED]), vec![1]].concat();
    let call = |which: u8, rest: &[u8]| frame(CALL, &[&words(&[7]), &[which][..], rest].concat());
    let ballot = [varint(TERM), vec![CLAIMED as u8, 0, 0, 1]].concat();
    let adopt = [&[16][..], &(claimed.cluster ^ 1).to_be_bytes()].concat();
    [
        PREFACE,
        &frame(HELLO, &Hello::new(channel, claimed, own).encode()),
        // A vote, a pre-vote, a proposal, a probe and an adoption.
        &call(0, &ballot),
        &call(1, &ballot),
        &call(3, &[0]),
        &call(5, &[]),
        &call(6, &adopt),
        &frame(APPEND, &[vote, vec![0, 0]].concat()),
    ]
    .concat()
}

/// What no attacker may change.
async fn state(secured: &Secured, operator: &Credential) -> Vec<Value> {
    let mut states = Vec::new();
    for node in secured.cluster.nodes() {
        let mut connection = secured.connection(node, Some(operator.reveal())).await.unwrap();
        let status: Value =
            serde_json::from_slice(connection.expect(200, "GET", "/v1/cluster", "").await.unwrap()).unwrap();
        let parts = ["cluster_id", "term", "leader", "revision", "live_leases", "waiters", "rules"];
        let members = status["members"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        states.push(json!({ "members": members, "rest": parts.map(|part| &status[part]) }));
    }
    states
}

#[tokio::test]
async fn nobody_gets_in_from_another_host_with_the_wrong_certificate() {
    let Some(network) = available(Network::new(ATTACKER as u16)) else { return };
    let (operator, rules) = principal("operator", ALL);
    let secured = Secured::lay_out(Cluster::builder(PROGRAM).network(&network), &rules).await;
    let secured = secured.called_from(&network, ATTACKER);
    secured.start(&[format!("--tls-client-authority={}", secured.path("authority.pem").display())]);
    secured.ready().await;
    let elsewhere = TempDir::new().unwrap();
    let attackers = attackers(&secured, elsewhere.path()).await;

    let (first, lease) = (secured.cluster.node(1), LeaseId::random());
    let mut connection = secured.connection(first, Some(operator.reveal())).await.unwrap();
    let wish = json!({ "keys": [KEY], "ttl_ms": 3_600_000 }).to_string();
    let grant = connection.expect(201, "PUT", &format!("/v1/leases/{lease}"), &wish).await.unwrap();
    let token = serde_json::from_slice::<Grant>(grant).unwrap().token;
    let document = connection.expect(200, "GET", "/openapi.json", "").await.unwrap();
    let requests = requests(&serde_json::from_slice(document).unwrap(), lease, token);
    assert!(requests.len() > 20, "{requests:?}");
    // The others may not have applied the grant yet.
    let settled = async || {
        let states = state(&secured, &operator).await;
        states.windows(2).all(|two| two[0] == two[1]).then_some(states)
    };
    let before = ringfence_harness::until(SOON, "all nodes agree", settled).await.unwrap();
    let claimed = Identity::of(secured.cluster.node(CLAIMED));

    for attacker in &attackers {
        for node in secured.cluster.nodes() {
            for (asked, is_public) in &requests {
                let status = attacker.asks(&secured, node, asked).await;
                let is_right = match status {
                    None => !attacker.is_anonymous,
                    Some(status) => attacker.is_anonymous && (status == 401 || *is_public),
                };
                assert!(is_right, "{}: {asked:?}: {status:?}", attacker.name);
            }
            let own = Identity::of(node);
            for channel in CHANNELS {
                let answer = attacker.says(&secured, node, &hello(channel, &own, &claimed)).await;
                assert!(
                    matches!(answer, None | Some(REFUSAL)),
                    "{} on channel {channel}: {answer:?}",
                    attacker.name
                );
            }
        }
        assert_eq!(state(&secured, &operator).await, before, "{}", attacker.name);
    }
    // The same words are heard from node 2 itself.
    let at_peers = Some(pair(&secured.path(""), "node-2-peer"));
    let honest = Attacker { name: "node 2", at_clients: None, at_peers, is_anonymous: true };
    let own = Identity::of(first);
    let greeting = [PREFACE, &frame(HELLO, &Hello::new(1, &claimed, &own).encode())].concat();
    assert_eq!(honest.says(&secured, first, &greeting).await, Some(WELCOME));
}
