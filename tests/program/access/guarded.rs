//! A node with access rules, and requests that show a credential.

use std::fs;

use ringfence_access::Credential;
use ringfence_client::{Client, Tls};
use ringfence_harness::{Certificates, Cluster, Node, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::support::{PROGRAM, SOON};

/// A node with TLS and access rules.
pub(super) struct Guarded {
    pub(super) cluster: Cluster,
    pub(super) dir: TempDir,
    pub(super) files: Certificates,
    pub(super) tls: ringfence_tls::Client,
}

impl Guarded {
    pub(super) async fn start(rules: &str, arguments: &[&str]) -> Self {
        Self::start_on(Cluster::builder(PROGRAM).nodes(1).lay_out().await.unwrap(), rules, arguments).await
    }

    /// Starts the node of `cluster`, which may have data from before it had rules.
    pub(super) async fn start_on(cluster: Cluster, rules: &str, arguments: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let address = cluster.node(1).http();
        let files = Certificates::new(dir.path(), &format!("IP:{}", address.ip())).unwrap();
        let access = dir.path().join("access.toml");
        fs::write(&access, rules).unwrap();
        cluster
            .node(1)
            .start_with(|command| {
                command.args([
                    format!("--tls-certificate={}", files.certificate().display()),
                    format!("--tls-key={}", files.key().display()),
                    format!("--access={}", access.display()),
                ]);
                command.args(arguments);
            })
            .unwrap();
        let tls = ringfence_tls::Client::with_authority(Some(files.authority().to_owned())).unwrap();
        let guarded = Self { cluster, dir, files, tls };
        let ready = async || (guarded.send("GET", "/readyz", None, None).await.0 == 200).then_some(());
        until(SOON, "the node is ready", ready).await.unwrap();
        guarded
    }

    pub(super) fn node(&self) -> &Node {
        self.cluster.node(1)
    }

    pub(super) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let address = self.node().http();
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(self.tls.current()).connect(ServerName::from(address.ip()), stream).await
    }

    /// Sends a request on a connection of its own, and reads the response: its status and its body.
    pub(super) async fn send(
        &self,
        method: &str,
        target: &str,
        credential: Option<&str>,
        body: Option<&Value>,
    ) -> (u16, String) {
        let exchange = async {
            let mut stream = self.connect().await?;
            stream.write_all(request(method, target, credential, body).as_bytes()).await?;
            let mut response = Vec::new();
            // What is left of the response counts, and a watch never ends.
            let _ = tokio::time::timeout(SOON, async {
                while !is_whole(&response) && stream.read_buf(&mut response).await? > 0 {}
                std::io::Result::Ok(())
            })
            .await;
            std::io::Result::Ok(String::from_utf8_lossy(&response).into_owned())
        };
        let response = exchange.await.unwrap_or_default();
        let status = response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (status, body)
    }

    pub(super) fn client(&self, credential: &Credential) -> Client {
        let credential = Some(ringfence_client::Credential::new(credential.reveal()).unwrap());
        let tls = Tls { authority: Some(self.files.authority().to_owned()), credential, ..Tls::default() };
        Client::connect_with([format!("https://{}", self.node().http())], &tls).unwrap()
    }

    /// Replaces the rules, and waits until they are in use.
    pub(super) async fn replace_rules(&self, rules: &str) {
        let log = || self.node().log().matches("files that changed are in use").count();
        let before = log();
        fs::write(self.dir.path().join("access.toml"), rules).unwrap();
        let pid = self.node().pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        kill_process(pid.unwrap(), Signal::HUP).unwrap();
        until(SOON, "new rules", async || (log() > before).then_some(())).await.unwrap();
    }
}

pub(super) fn request(method: &str, target: &str, credential: Option<&str>, body: Option<&Value>) -> String {
    let authorization = credential.map(|credential| format!("authorization: Bearer {credential}\r\n"));
    let body = body.map(Value::to_string).unwrap_or_default();
    format!(
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\n{}content-length: {}\r\n\r\n{body}",
        authorization.unwrap_or_default(),
        body.len(),
    )
}

/// Whether a response has arrived as far as its length says. A stream of events has none.
pub(super) fn is_whole(response: &[u8]) -> bool {
    let text = String::from_utf8_lossy(response);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let has_none = head.contains(" 204 ") || head.contains("text/event-stream");
    has_none || length.is_some_and(|length: usize| body.len() >= length)
}

pub(super) fn principal(name: &str, credential: &Credential, allow: &str) -> String {
    format!("[principals.{name}]\ncredentials = [\"{}\"]\n{allow}\n", credential.digest())
}

pub(super) fn all_rights() -> &'static str {
    "allow = [{ keys = \"*\", may = [\"acquire\", \"read\", \"revoke\"] }]\ncluster = [\"metrics\", \"operate\"]"
}

pub(super) fn new() -> Credential {
    Credential::generate().unwrap()
}
