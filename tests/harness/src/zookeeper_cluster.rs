//! Three real ZooKeeper servers on one loopback address, from the system's package.

use std::net::SocketAddr;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Error;
use crate::loopback::Loopback;
use crate::process::{Server, folder, mortal};

/// Bounds one question.
const ASKED: Duration = Duration::from_secs(5);
const CLIENTS: u16 = 2181;
const PEERS: u16 = 2888;
const ELECTIONS: u16 = 3888;

/// A cluster of three with its own data on disk. It ends with the test program.
#[derive(Debug)]
pub struct ZooKeeperCluster {
    servers: Vec<Server>,
    loopback: Loopback,
    _dir: TempDir,
}

impl ZooKeeperCluster {
    /// Starts three servers from this class path and waits until each serves.
    pub async fn start(class_path: &str) -> Result<Self, Error> {
        Self::start_with(class_path, &[]).await
    }

    /// The same with these variables in their environment.
    pub async fn start_with(class_path: &str, variables: &[(&str, String)]) -> Result<Self, Error> {
        let (dir, loopback) = (folder("zookeeper")?, Loopback::claim()?);
        let ip = loopback.at(CLIENTS).ip();
        let all: String =
            (0..3).map(|id| format!("server.{id}={ip}:{}:{}\n", PEERS + id, ELECTIONS + id)).collect();
        let mut servers = Vec::new();
        for id in 0..3 {
            let data = dir.path().join(id.to_string());
            let config = format!(
                "tickTime=500\nmaxSessionTimeout=60000\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPortAddress={ip}\nclientPort={}\n\
                 maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{all}",
                data.display(),
                CLIENTS + id
            );
            std::fs::create_dir(&data)
                .and_then(|()| std::fs::write(data.join("myid"), id.to_string()))
                .and_then(|()| std::fs::write(data.join("zoo.cfg"), config))
                .map_err(Error::io("cannot configure ZooKeeper"))?;
            let mut command = mortal("java");
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            command.args(["-cp", class_path, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
            command.arg(data.join("zoo.cfg")).current_dir(&data);
            let name = format!("ZooKeeper at {}", loopback.at(CLIENTS + id));
            servers.push(Server::start_new(name, data.join("log"), command)?);
        }
        let cluster = Self { servers, loopback, _dir: dir };
        for (server, address) in cluster.servers.iter().zip(cluster.addresses()) {
            let serves = async || ask(address, "srvr").await.is_some_and(|answer| answer.contains("Mode: "));
            server.ready(serves).await?;
        }
        Ok(cluster)
    }

    /// The client address of each server.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|id| self.loopback.at(CLIENTS + id))
    }

    /// The answer of each server to a four letter word, if it gives one.
    pub async fn ask(&self, word: &str) -> Vec<Option<String>> {
        let mut answers = Vec::new();
        for address in self.addresses() {
            answers.push(ask(address, word).await);
        }
        answers
    }

    /// The client address of the server that says that it leads, if one does.
    pub async fn leader(&self) -> Option<SocketAddr> {
        let leads = |answer: &Option<String>| answer.as_ref().is_some_and(|it| it.contains("Mode: leader"));
        let leader = self.ask("srvr").await.iter().position(leads)?;
        Some(self.addresses()[leader])
    }

    /// Kills the server with this client address.
    pub fn kill(&self, address: SocketAddr) -> Result<(), Error> {
        let server = self.servers.iter().zip(self.addresses()).find(|(_, at)| *at == address);
        server.map_or(Ok(()), |(server, _)| server.kill())
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(Server::pid).collect()
    }
}

async fn ask(address: SocketAddr, word: &str) -> Option<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    timeout(ASKED, asked).await.ok()?.ok()
}
