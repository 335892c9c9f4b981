//! A cluster with TLS at both ports and access rules, and calls to it.

pub(crate) mod end;
pub(crate) mod peer;
pub(crate) mod routes;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ringfence_access::Credential;
use ringfence_client::{Client, Tls};
use ringfence_harness::{Builder, Cluster, HttpConnection, Network, Node, run, until};
use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ringfence");
/// Far longer than anything takes that is not said to take long.
pub(crate) const SOON: Duration = Duration::from_secs(60);
/// Three nodes, unless another number is said.
pub(crate) fn cluster() -> Builder {
    Cluster::builder(PROGRAM)
}

/// A file that does not exist yet, and its folder.
pub(crate) fn file_of(name: &str) -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join(name);
    (dir, file)
}

/// A program in `dir` that is this shell script.
pub(crate) fn script(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("program");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The program in `dir`, with this limit of descriptors.
pub(crate) fn limited(dir: &Path, descriptors: u32) -> PathBuf {
    script(dir, &format!("ulimit -n {descriptors} && exec '{PROGRAM}' \"$@\""))
}

/// The URLs of its nodes, as commands take them.
pub(crate) fn urls(cluster: &Cluster) -> String {
    cluster.nodes().iter().map(Node::url).collect::<Vec<_>>().join(",")
}

/// All that a principal may do.
pub(crate) const ALL: &str = "allow = [{ keys = \"*\", may = [\"acquire\", \"read\", \"revoke\"] }]\ncluster = [\"metrics\", \"operate\"]";

/// The cluster, and the directory with its certificates and rules.
pub(crate) struct Secured {
    pub(crate) cluster: Cluster,
    dir: TempDir,
    tls: ringfence_tls::Client,
    /// Where callers are: a node of this network that is not one of the cluster's. Otherwise, this machine.
    outside: Option<(Network, u64)>,
}

impl Secured {
    /// Lays out the cluster of `builder`, and makes its certificates. All nodes get these rules.
    pub(crate) async fn lay_out(builder: Builder, rules: &str) -> Self {
        Self::of(builder.lay_out().await.unwrap(), rules).await
    }

    /// The same of a cluster that does not run.
    pub(crate) async fn of(cluster: Cluster, rules: &str) -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("access.toml"), rules).unwrap();
        cert(dir.path(), &["authorities"]).await;
        for node in cluster.nodes() {
            let (id, host) = (node.id().to_string(), node.http().ip().to_string());
            cert(dir.path(), &["node", "--id", &id, "--hosts", &host]).await;
        }
        let authority = Some(dir.path().join("authority.pem"));
        let tls = ringfence_tls::Client::with_authority(authority).unwrap();
        Self { cluster, dir, tls, outside: None }
    }

    /// Calls come from node `id` of `network`.
    pub(crate) fn called_from(self, network: &Network, id: u64) -> Self {
        Self { outside: Some((network.clone(), id)), ..self }
    }

    /// Starts the nodes with these arguments.
    pub(crate) fn start(&self, arguments: &[String]) {
        self.start_with(arguments, |_, _| ());
    }

    /// The same, after a change of each command, which gets the id of the node.
    pub(crate) fn start_with(&self, arguments: &[String], change: impl Fn(u64, &mut Command)) {
        for node in self.cluster.nodes() {
            let own = |name: &str| self.path(&format!("node-{}{name}", node.id())).display().to_string();
            let files = [
                format!("--tls-certificate={}", own(".pem")),
                format!("--tls-key={}", own(".key")),
                format!("--access={}", self.path("access.toml").display()),
                format!("--peer-certificate={}", own("-peer.pem")),
                format!("--peer-key={}", own("-peer.key")),
                format!("--peer-authority={}", self.path("node-authority.pem").display()),
            ];
            node.start_with(|command| {
                command.args(files).args(arguments);
                change(node.id(), command);
            })
            .unwrap();
        }
    }

    /// A file of the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A client of these nodes.
    pub(crate) fn client<'a>(
        &self,
        nodes: impl IntoIterator<Item = &'a Node>,
        credential: &Credential,
    ) -> Client {
        let credential = Some(ringfence_client::Credential::new(credential.reveal()).unwrap());
        let tls = Tls { authority: Some(self.path("authority.pem")), credential, ..Tls::default() };
        let urls = nodes.into_iter().map(|node| format!("https://{}", node.http()));
        Client::connect_with(urls.collect::<Vec<_>>(), &tls).unwrap()
    }

    /// Waits until every node is ready.
    pub(crate) async fn ready(&self) {
        for node in self.cluster.nodes() {
            let ready = async || {
                let mut connection = self.connection(node, None).await.ok()?;
                (connection.call("GET", "/readyz", "").await.ok()?.status == 200).then_some(())
            };
            until(SOON, "the node is ready", ready).await.unwrap();
        }
    }

    /// A plain connection.
    pub(crate) async fn reach(&self, to: SocketAddr) -> io::Result<TcpStream> {
        match &self.outside {
            None => TcpStream::connect(to).await,
            Some((network, id)) => network.connect_from(*id, to).await,
        }
    }

    /// A connection for requests with this credential.
    pub(crate) async fn connection(
        &self,
        node: &Node,
        credential: Option<&str>,
    ) -> io::Result<HttpConnection> {
        let stream = self.shake_hands(self.reach(node.http()).await?, node.http().ip()).await?;
        Ok(HttpConnection::over(stream, node.http(), credential))
    }

    /// How clients without a certificate call the nodes.
    pub(crate) fn tls(&self) -> Arc<ClientConfig> {
        self.tls.current()
    }

    /// Makes `stream` to a node at this address an encrypted one.
    pub(crate) async fn shake_hands(
        &self,
        stream: TcpStream,
        host: IpAddr,
    ) -> io::Result<TlsStream<TcpStream>> {
        TlsConnector::from(self.tls()).connect(ServerName::from(host), stream).await
    }
}

/// Connects to `to` from the address `from`.
pub(crate) async fn connect_from(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    timeout(SOON, socket.connect(to)).await?
}

/// Runs `ringfence cert`.
pub(crate) async fn cert(dir: &Path, words: &[&str]) {
    let dir = format!("--dir={}", dir.display());
    let ended =
        run(PROGRAM, ["cert"].iter().chain(words).copied().chain([dir.as_str()]), SOON).await.unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

/// The rules for a principal with a new credential.
pub(crate) fn principal(name: &str, allow: &str) -> (Credential, String) {
    let credential = Credential::generate().unwrap();
    let rules = rules_of(name, &credential, allow);
    (credential, rules)
}

/// The rules for a principal with this credential.
pub(crate) fn rules_of(name: &str, credential: &Credential, allow: &str) -> String {
    format!("[principals.{name}]\ncredentials = [\"{}\"]\n{allow}\n", credential.digest())
}
