//! Three real ZooKeeper servers, from the system's package.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Error, Trio};

/// Bounds one question.
const ASKED: Duration = Duration::from_secs(5);
const CLIENTS: u16 = 2181;
const PEERS: u16 = 2888;
const ELECTIONS: u16 = 3888;

/// A cluster of three.
#[derive(Debug)]
pub struct ZooKeeperCluster(Trio);

impl ZooKeeperCluster {
    /// Starts three servers from this class path and waits until each serves.
    pub async fn start(class_path: &str) -> Result<Self, Error> {
        Self::start_with(class_path, &[]).await
    }

    /// The same with these variables in their environment.
    pub async fn start_with(class_path: &str, variables: &[(&str, String)]) -> Result<Self, Error> {
        let servers = Trio::start("java", |command, id, ip, dir| {
            let all: String =
                (0..3).map(|id| format!("server.{id}={ip}:{}:{}\n", PEERS + id, ELECTIONS + id)).collect();
            let config = format!(
                "tickTime=500\nmaxSessionTimeout=60000\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPortAddress={ip}\nclientPort={}\n\
                 maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{all}",
                dir.display(),
                CLIENTS + id
            );
            std::fs::write(dir.join("myid"), id.to_string())?;
            std::fs::write(dir.join("zoo.cfg"), config)?;
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            command.args(["-cp", class_path, "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"]);
            Ok(())
        })?;
        let addresses = servers.at(CLIENTS);
        let serves = async |id: usize| {
            ask(addresses[id], "srvr").await.is_some_and(|answer| answer.contains("Mode: "))
        };
        servers.ready(serves).await?;
        Ok(Self(servers))
    }

    /// The servers.
    pub fn servers(&self) -> &Trio {
        &self.0
    }

    /// The client address of each server.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        self.0.at(CLIENTS)
    }

    /// The answer of each server to a four letter word, if it gives one.
    pub async fn ask(&self, word: &str) -> Vec<Option<String>> {
        let mut answers = Vec::new();
        for address in self.addresses() {
            answers.push(ask(address, word).await);
        }
        answers
    }

    /// The server that says that it leads, if one does.
    pub async fn leader(&self) -> Option<usize> {
        let leads = |answer: &Option<String>| answer.as_ref().is_some_and(|it| it.contains("Mode: leader"));
        self.ask("srvr").await.iter().position(leads)
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
