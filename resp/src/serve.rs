use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ringfence_http::{Connection, Dialog, Remote, Reply};
use ringfence_service::{Service, Unsent};

use crate::frame::{Frame, Malformed};
use crate::node::Node;
use crate::session::{Answered, Session};

/// Options of the RESP port.
#[derive(Clone, Debug)]
pub struct Options {
    /// A request that takes this long is logged.
    pub slow_request: Duration,
}

/// The port of a node for clients that speak the Redis protocol.
#[derive(Clone)]
pub struct Resp(Arc<Node>);

impl Resp {
    /// Answers clients by `service`.
    pub fn new(service: Arc<Service>, options: Options) -> Self {
        Self(Arc::new(Node::new(service, options.slow_request)))
    }

    /// The server's side of a new connection from `remote`.
    pub fn dialog(&self, remote: Arc<Remote>) -> impl Dialog + use<> {
        Conversation { frame: Frame::default(), session: Session::new(Arc::clone(&self.0), remote) }
    }
}

/// The most requests that are answered together, and the most bytes of several.
const MOST_TOGETHER: usize = 64;
const MOST_BYTES_TOGETHER: usize = 16 << 10;

struct Conversation {
    frame: Frame,
    session: Session,
}

impl Dialog for Conversation {
    /// Clients share a connection, and do not wait for each other: what has arrived together is one request.
    fn frame(&mut self, received: &[u8]) -> Result<Option<usize>, Bytes> {
        let first = self.frame.advance(received).map_err(|malformed| match malformed {
            Malformed::Http => Bytes::new(),
            malformed => format!("-ERR {malformed}\r\n").into(),
        })?;
        let Some(mut length) = first else { return Ok(None) };
        for _ in 1..MOST_TOGETHER {
            // What is no request is refused when it is the first.
            match Frame::default().advance(&received[length..]) {
                Ok(Some(more)) if length + more <= MOST_BYTES_TOGETHER => length += more,
                _ => break,
            }
        }
        Ok(Some(length))
    }

    async fn answer(&mut self, requests: Bytes, connection: &Arc<Connection>) -> Reply {
        let Answered { bytes, is_last, unsent } = self.session.answer_all(requests, connection).await;
        let acknowledge = (!unsent.is_empty()).then_some(|| unsent.into_iter().for_each(Unsent::sent));
        let sent = acknowledge.map(|sent| Box::new(sent) as Box<dyn FnOnce() + Send>);
        Reply { bytes: bytes.into(), is_last, sent }
    }
}
