//! The storage that the locks protect: one stock count, served over TCP to the holders' processes.
//!
//! It checks what it is shown ([`Pass`]), in the same step as the access, by the rule of `ringfence-guard` for tokens.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ringfence_guard::{Claim, High};
use ringfence_harness::Proxy;
use ringfence_wire::Token;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

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
    proxy: Proxy,
    state: Arc<Mutex<State>>,
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
        let state = Arc::new(Mutex::new(State { count, high: High::NEW, registered: None }));
        let own = Arc::clone(&state);
        let proxy = Proxy::open(move |stream| answer(stream, Arc::clone(&own))).await?;
        Ok(Self { proxy, state })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// The stock count.
    pub(crate) fn count(&self) -> i64 {
        self.state.lock().expect("no panic while it is locked").count
    }
}

async fn answer(stream: TcpStream, state: Arc<Mutex<State>>) -> std::io::Result<()> {
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
