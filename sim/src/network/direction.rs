//! One direction of a connection.

use std::collections::VecDeque;
use std::task::Waker;

use ringfence_raft::NodeId;

use crate::coverage::Coverage;
use crate::messages::{APPENDS, HEAD, PREFACE};

pub(super) struct Direction {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    /// Whether it goes to the node that opened the connection.
    pub(super) is_back: bool,
    /// The other direction of the connection.
    pub(super) other: usize,
    pub(super) channel: Option<u8>,
    /// Written, but not yet a whole message.
    pub(super) partial: Vec<u8>,
    pub(super) has_begun: bool,
    /// Messages on their way.
    pub(super) queue: VecDeque<(u64, Vec<u8>)>,
    pub(super) in_flight: usize,
    pub(super) readable: VecDeque<u8>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// Closed by the writer: the reader gets what is on its way, and then the end.
    Closed,
    /// Both ends fail at once.
    Reset,
    /// The machine of the writer lost its power: nothing comes any more.
    Silent,
}

impl Direction {
    pub(super) fn new(from: NodeId, to: NodeId, is_back: bool, other: usize) -> Self {
        Self {
            from,
            to,
            is_back,
            other,
            channel: None,
            partial: Vec::new(),
            has_begun: false,
            queue: VecDeque::new(),
            in_flight: 0,
            readable: VecDeque::new(),
            reader: None,
            writer: None,
            end: End::Open,
        }
    }

    /// Whether it carries the answers to appends.
    pub(super) fn is_acknowledging(&self) -> bool {
        self.is_back && self.channel == Some(APPENDS)
    }

    /// Ends at once, and loses what is on its way.
    pub(super) fn end_with(&mut self, end: End, coverage: &mut Coverage, wakers: &mut Vec<Waker>) {
        self.end = end;
        if end == End::Reset {
            wakers.extend(self.reader.take());
            wakers.extend(self.writer.take());
        }
        self.lose_all(coverage);
    }

    /// Loses what is on its way.
    pub(super) fn lose_all(&mut self, coverage: &mut Coverage) {
        if self.is_acknowledging() {
            coverage.add("acknowledgements lost", self.queue.len() as u64);
        }
        self.queue.clear();
        self.in_flight = 0;
    }

    /// Takes the next whole message off what was written.
    pub(super) fn next_message(&mut self) -> Option<Vec<u8>> {
        let preface = if self.has_begun { 0 } else { PREFACE };
        let head = self.partial.get(preface..preface + HEAD)?;
        let length = u32::from_le_bytes(*head.first_chunk().expect("a head has 8 bytes")) as usize;
        let end = preface + HEAD + length;
        if self.partial.len() < end {
            return None;
        }
        let rest = self.partial.split_off(end);
        let message = std::mem::replace(&mut self.partial, rest);
        self.has_begun = true;
        Some(message)
    }
}
