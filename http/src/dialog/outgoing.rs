//! Sends responses. Those that are known together are sent together, but each is sent once the kernel has its last byte: its client may
//! know it then, however much follows.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;

use super::Response;
use crate::connections::{InFlight, Portion};
use crate::socket::Socket;
use crate::turns::{PER_TURN, Pace, Turns};

/// Responses that are to be sent.
#[derive(Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    in_flight: Vec<InFlight>,
    kept: Vec<Portion>,
    /// Where responses end, and what is to be called then.
    ends: VecDeque<(usize, Box<dyn FnOnce() + Send>)>,
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether there are as many bytes as are sent in one turn.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= PER_TURN
    }

    pub(super) fn add(&mut self, in_flight: InFlight, response: Response) {
        let Response { bytes, kept, sent } = response;
        self.bytes.extend_from_slice(&bytes);
        self.in_flight.push(in_flight);
        self.kept.extend(kept);
        self.ends.extend(sent.map(|sent| (self.bytes.len(), sent)));
    }

    /// Sends all responses in pieces, each in a turn of its own.
    pub(super) async fn send(mut self, socket: &mut Socket, turns: &Arc<Turns>) -> io::Result<()> {
        let Some(first) = self.in_flight.first() else { return Ok(()) };
        first.respond();
        let connection = Arc::clone(&first.0);
        let (mut pace, mut written) = (Pace::new(turns), 0);
        while written < self.bytes.len() {
            poll_fn(|cx| pace.poll(cx, || connection.tenant())).await;
            let end = self.bytes.len().min(written + PER_TURN);
            let more = socket.write(&self.bytes[written..end]).await?;
            if more == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += more;
            pace.took(more);
            // TLS may have kept a part of it.
            socket.flush().await?;
            self.sent(written);
        }
        self.sent(written);
        drop(self.in_flight);
        connection.flushed();
        Ok(())
    }

    /// The kernel has this many bytes.
    fn sent(&mut self, written: usize) {
        while self.ends.front().is_some_and(|(end, _)| *end <= written)
            && let Some((_, sent)) = self.ends.pop_front()
        {
            sent();
        }
    }
}
