//! The storage that the locks protect: one stock count, served over TCP to the holders' processes.
//!
//! It checks what it is shown ([`Pass`]), in the same step as the access, by the rule of `ringfence-guard` for tokens.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringfence_guard::{Claim, High};
use ringfence_wire::Token;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::step::{Answer, Pass};

/// The stock before anybody writes.
pub(crate) const STOCK: i64 = 100;

/// An access, one JSON value a line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Access {
    pub(crate) pass: Pass,
    /// The new count; a read without one.
    pub(crate) write: Option<i64>,
}

/// The storage. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Register {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    count: i64,
    high: High,
    registered: Option<String>,
}

impl Register {
    /// A register of its own, with a stock of `count`.
    pub(crate) async fn open(count: i64) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let state = Arc::new(Mutex::new(State { count, high: High::NEW, registered: None }));
        let mut serving = JoinSet::new();
        let address = listener.local_addr()?;
        serving.spawn(serve(listener, Arc::clone(&state)));
        Ok(Self { address, state, _serving: serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The stock count.
    pub(crate) fn count(&self) -> i64 {
        self.state.lock().expect("no panic while it is locked").count
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let state = Arc::clone(&state);
                connections.spawn(async move { drop(answer(stream, &state).await) });
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn answer(stream: TcpStream, state: &Mutex<State>) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await? {
        let access: Access = serde_json::from_str(&line)?;
        let answer = state.lock().expect("no panic while it is locked").access(&access);
        writer.write_all((serde_json::to_string(&answer)? + "\n").as_bytes()).await?;
    }
    Ok(())
}

impl State {
    fn access(&mut self, access: &Access) -> Answer {
        match &access.pass {
            Pass::Nothing => {}
            Pass::Token(token) => match Claim::exclusive(Token(*token)).map(|claim| self.high.admit(claim)) {
                Ok(admission) if admission.is_accepted() => {}
                Ok(_) => {
                    let high = self.high.token();
                    return Answer::Rejected { why: format!("token {token} is below {high}") };
                }
                Err(error) => return Answer::Rejected { why: error.to_string() },
            },
            Pass::Name(name) => {
                if access.write.is_none() {
                    self.registered = Some(name.clone());
                } else if self.registered.as_ref() != Some(name) {
                    return Answer::Rejected { why: "another name is registered".into() };
                }
            }
        }
        match access.write {
            None => Answer::Read { count: self.count },
            Some(count) => {
                self.count = count;
                Answer::Written { count }
            }
        }
    }
}
