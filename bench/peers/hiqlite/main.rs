//! `hiqlite-peer member ID DIR IP`: a member of three. `hiqlite-peer clients IP`: clients of theirs, as in
//! `bench/src/service/apart.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;

use hiqlite::{CacheVariants, Client, LogSync, Node, NodeConfig, start_node_with_cache};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, stdin, stdout};
use tokio::sync::mpsc;

type Failure = Box<dyn Error + Send + Sync>;

const SECRET: &str = "for a benchmark on loopback";
const API: u16 = 7700;
const RAFT: u16 = 7710;

/// No cache: only locks.
#[derive(Debug)]
enum NoCache {}

impl CacheVariants for NoCache {
    fn hiqlite_cache_index(&self) -> usize {
        match *self {}
    }

    fn hiqlite_cache_variants() -> &'static [(usize, &'static str)] {
        &[]
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime =
        |threads| tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    match arguments[..] {
        ["member", id, dir, ip] => runtime(2)?.block_on(member(id.parse()?, dir, ip)),
        // As the clients of the others, these share one thread.
        ["clients", ip] => runtime(1)?.block_on(clients(ip)),
        _ => Err("member ID DIR IP, or clients IP".into()),
    }
}

async fn member(node_id: u64, dir: &str, ip: &str) -> Result<(), Failure> {
    let nodes = (0..3).map(|id| Node {
        id: id.into(),
        addr_raft: format!("{ip}:{}", RAFT + id),
        addr_api: format!("{ip}:{}", API + id),
    });
    let config = NodeConfig {
        node_id,
        nodes: nodes.collect(),
        listen_addr_api: Cow::from(ip.to_owned()),
        listen_addr_raft: Cow::from(ip.to_owned()),
        data_dir: Cow::from(dir.to_owned()),
        // An acknowledged lock is on the disks of a majority, as with the others.
        wal_sync: LogSync::Immediate,
        cache_storage_disk: true,
        secret_raft: SECRET.to_owned(),
        secret_api: SECRET.to_owned(),
        ..NodeConfig::default()
    };
    let _member = start_node_with_cache::<NoCache>(config).await?;
    std::future::pending().await
}

async fn connect(ip: &str) -> Result<Client, Failure> {
    let nodes = (0..3).map(|id| format!("{ip}:{}", API + id)).collect();
    Ok(Client::remote(nodes, false, false, SECRET.to_owned(), false, None).await?)
}

async fn clients(ip: &str) -> Result<(), Failure> {
    let shared = connect(ip).await?;
    let (answers, answered) = mpsc::unbounded_channel();
    tokio::spawn(print(answered));
    let mut all = HashMap::new();
    let mut requests = BufReader::new(stdin()).lines();
    while let Some(line) = requests.next_line().await? {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let id = words[0].clone();
        let is_over = words[1] == "close";
        let start = |id: &String| {
            let (requests, requested) = mpsc::unbounded_channel();
            tokio::spawn(serve(id.clone(), ip.to_owned(), shared.clone(), requested, answers.clone()));
            requests
        };
        let _ = all.entry(id.clone()).or_insert_with_key(start).send(words);
        if is_over {
            all.remove(&id);
        }
    }
    Ok(())
}

/// Writes at once what is answered at once.
async fn print(mut answered: mpsc::UnboundedReceiver<String>) {
    let mut output = stdout();
    while let Some(mut lines) = answered.recv().await {
        while let Ok(line) = answered.try_recv() {
            lines += &line;
        }
        if output.write_all(lines.as_bytes()).await.is_err() || output.flush().await.is_err() {
            break;
        }
    }
}

async fn serve(
    id: String,
    ip: String,
    shared: Client,
    mut requests: mpsc::UnboundedReceiver<Vec<String>>,
    answers: mpsc::UnboundedSender<String>,
) {
    let (mut client, mut held) = (shared, None);
    while let Some(words) = requests.recv().await {
        let done: Result<(), Failure> = async {
            match (words[1].as_str(), words.get(2)) {
                ("open", _) => client = connect(&ip).await?,
                ("acquire", Some(key)) => held = Some(client.lock(key.clone()).await?),
                // A task that this spawns releases it, and nothing says when.
                _ => drop(held.take()),
            }
            Ok(())
        }
        .await;
        let error = done.err().map(|error| format!(" {error}").replace('\n', " ")).unwrap_or_default();
        let _ = answers.send(format!("{id}{error}\n"));
    }
}
