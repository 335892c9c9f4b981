//! One connection of a client.

use std::net::SocketAddr;
use std::time::Instant;

use ringfence_wire::{LEADER_HEADER, WITHIN_HEADER};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::Inner;
use super::act::{Act, Reply, Then};
use super::log::Asked;
use super::message::{Message, Wire};

const PROBE: &str = "/livez";

/// Until it ends.
pub(super) async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, number: usize, mut inner: Inner) {
    // What is late anyway is not to be delayed by the kernel.
    let _ = stream.set_nodelay(true);
    if inner.lives().await.is_none() {
        return;
    }
    let wire = match tls {
        None => Some(Wire::new(stream)),
        Some(tls) => tls.accept(stream).await.ok().map(Wire::new),
    };
    let Some(client) = wire else { return };
    let mut connection = Connection { client, node: None, number, inner };
    while connection.exchange().await.is_some() {}
}

impl Inner {
    /// `None` if the machine is gone, once it is back: it knows no connection of before.
    async fn lives(&mut self) -> Option<()> {
        let was_gone = self.ills.borrow().vanished;
        // Without the sender all is over.
        self.ills.wait_for(|ills| !ills.vanished).await.ok()?;
        (!was_gone).then_some(())
    }
}

struct Connection {
    client: Wire,
    /// Each connection of a client has one of its own, so that the node learns when the client goes.
    node: Option<Wire>,
    number: usize,
    inner: Inner,
}

impl Connection {
    /// One request. `None` at the end of the connection.
    async fn exchange(&mut self) -> Option<()> {
        let request = self.client.message().await?;
        self.inner.lives().await?;
        let mut words = request.first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        if path == PROBE {
            self.inner.shared.log.probed(self.inner.number);
            if self.inner.ills.borrow().hushed {
                no_client(&mut self.client, &self.inner).await;
                return None;
            }
            let mut reply = Reply::of(self.forward(&request).await?);
            if self.inner.ills.borrow().blocked
                && request.headers.iter().any(|(name, _)| name == WITHIN_HEADER)
            {
                reply.status = 503;
            }
            return self.client.write(&reply.encode()).await.ok();
        }
        let shared = self.inner.shared.clone();
        let (index, act) = {
            let mut script = shared.script();
            let asked = shared.log.asked(Asked {
                index: 0,
                front: self.inner.number,
                connection: self.number,
                at: Instant::now(),
                is_encrypted: self.inner.is_encrypted,
                method,
                path,
                headers: request.headers.clone(),
                body: serde_json::from_slice(&request.body).unwrap_or_default(),
                node_said: None,
                told: None,
                is_over: false,
            });
            (asked.index, (*script)(&asked))
        };
        let told = self.perform(act, &request, index).await;
        match told {
            Some((status, at)) => shared.log.answered(index, status, at),
            None => shared.log.left(index),
        }
        told.map(drop)
    }

    /// Returns the status of what the client was told in full, and when that began.
    async fn perform(&mut self, act: Act, request: &Message, index: usize) -> Option<(u16, Instant)> {
        let said = match act.is_forwarded {
            true => {
                let said = self.forward(request).await?;
                self.inner.shared.log.node_said(index, status_of(&said));
                Some(said)
            }
            false => None,
        };
        if let Some(gate) = &act.gate {
            tokio::select! {
                () = gate.opened() => {}
                () = no_client(&mut self.client, &self.inner) => return None,
            }
        }
        self.inner.lives().await?;
        let reply = match (act.then, said) {
            (Then::Reply(reply), _) => reply,
            (Then::Answer, Some(said)) => Reply::of(said),
            (Then::Edit(change), Some(said)) => {
                let mut reply = Reply::of(said);
                change(&mut reply);
                reply
            }
            (Then::Half, Some(said)) => {
                let bytes = Reply::of(said).encode();
                // The head, and some of the body.
                let _ = self.client.write(&bytes[..bytes.len() - 10]).await;
                return None;
            }
            (Then::Hang, _) => {
                no_client(&mut self.client, &self.inner).await;
                return None;
            }
            (Then::Close | Then::Answer | Then::Edit(_) | Then::Half, _) => return None,
        };
        let at = Instant::now();
        self.client.write(&reply.encode()).await.ok()?;
        Some((reply.status, at))
    }

    /// What the node says; `None` if it says nothing, or the client is gone before that.
    async fn forward(&mut self, request: &Message) -> Option<Message> {
        if self.node.is_none() {
            self.node = Some(connect(self.inner.node).await?);
        }
        let node = self.node.as_mut()?;
        let asking = async {
            node.write(&request.encode()).await.ok()?;
            node.message().await
        };
        tokio::select! {
            said = asking => said,
            () = no_client(&mut self.client, &self.inner) => None,
        }
    }
}

/// Returns once the client has closed the connection. That it sends more while it is owed an answer is its fault.
async fn no_client(client: &mut Wire, inner: &Inner) {
    if !client.is_closed().await {
        inner.shared.log.violated("a connection was used again whose answer had not been read in full");
    }
}

async fn connect(node: SocketAddr) -> Option<Wire> {
    let stream = TcpStream::connect(node).await.ok()?;
    stream.set_nodelay(true).ok()?;
    Some(Wire::new(stream))
}

fn status_of(message: &Message) -> u16 {
    message.first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default()
}

impl Reply {
    /// Nothing of it leads clients past the fronts.
    fn of(said: Message) -> Self {
        let status = status_of(&said);
        let kept = |name: &str| name != LEADER_HEADER && name != "content-length" && name != "connection";
        let headers = said.headers.into_iter().filter(|(name, _)| kept(name)).collect();
        Self { status, headers, body: said.body }
    }

    fn encode(&self) -> Vec<u8> {
        let mut headers = self.headers.clone();
        if self.status != 204 {
            headers.push(("content-length".to_owned(), self.body.len().to_string()));
        }
        let first = format!("HTTP/1.1 {} Played", self.status);
        Message { first, headers, body: self.body.clone() }.encode()
    }
}
