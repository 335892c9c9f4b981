//! Three real ZooKeeper servers on one loopback address, as they come from a package. They end with the test program.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::loopback::Loopback;
use crate::process::{Process, mortal};
use crate::{Error, until};

/// How long the servers may take to find each other.
const WITHIN: Duration = Duration::from_secs(60);
/// One question takes no longer.
const ASKED: Duration = Duration::from_secs(5);
const CLIENTS: u16 = 2181;
const PEERS: u16 = 2888;
const ELECTIONS: u16 = 3888;

/// A cluster of three, with data of its own on disk.
#[derive(Debug)]
pub struct ZooKeeperCluster {
    processes: Vec<Process>,
    loopback: Loopback,
    _dir: TempDir,
}

impl ZooKeeperCluster {
    /// Starts three servers from this class path, and waits until each serves.
    pub async fn start(class_path: &str) -> Result<Self, Error> {
        let dir = tempfile::Builder::new().prefix("ringfence-zookeeper-").tempdir();
        let dir = dir.map_err(Error::io("cannot make a directory"))?;
        let loopback = Loopback::claim()?;
        let ip = loopback.at(CLIENTS).ip();
        let servers: String =
            (0..3).map(|id| format!("server.{id}={ip}:{}:{}\n", PEERS + id, ELECTIONS + id)).collect();
        let configure = |data: &Path, id: u16| {
            std::fs::create_dir(data)?;
            std::fs::write(data.join("myid"), id.to_string())?;
            let config = format!(
                "tickTime=500\ninitLimit=20\nsyncLimit=10\ndataDir={}\nclientPortAddress={ip}\nclientPort={}\n\
                 maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{servers}",
                data.display(),
                CLIENTS + id
            );
            std::fs::write(data.join("zoo.cfg"), config)
        };
        let mut processes = Vec::new();
        for id in 0..3 {
            let data = dir.path().join(id.to_string());
            configure(&data, id).map_err(Error::io("cannot configure ZooKeeper"))?;
            let mut command = mortal("java");
            command.args(["-cp", class_path, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]);
            command.arg(data.join("zoo.cfg")).current_dir(&data);
            let started = Process::start(command, &data.join("log"));
            processes.push(started.map_err(Error::io("cannot start ZooKeeper"))?);
        }
        let cluster = Self { processes, loopback, _dir: dir };
        for address in cluster.addresses() {
            let serves = async || ask(address, "srvr").await.filter(|answer| answer.contains("Mode: "));
            until(WITHIN, format!("ZooKeeper at {address} serves"), serves).await?;
        }
        Ok(cluster)
    }

    /// Where each server takes clients.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        [0, 1, 2].map(|id| self.loopback.at(CLIENTS + id))
    }

    /// What each server answers to one of its four letter words, if it does.
    pub async fn ask(&self, word: &str) -> Vec<Option<String>> {
        let mut answers = Vec::new();
        for address in self.addresses() {
            answers.push(ask(address, word).await);
        }
        answers
    }

    /// The processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
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
