//! How long messages take, and what keeps them back.

use ringfence_raft::NodeId;
use serde::{Deserialize, Serialize};

/// How long messages take, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// At least.
    pub least: u64,
    /// At most, as a rule.
    pub most: u64,
    /// How many of 1,000 messages take up to [`Latency::spike`].
    pub spikes: u32,
    /// The most that such a message takes.
    pub spike: u64,
}

/// What goes one way on one channel waits until a time.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// `None`: on all channels.
    pub channel: Option<u8>,
    /// Whether only replies are held, on connections that the receiver opened, or only calls; `None`: both.
    pub replies: Option<bool>,
    /// Only messages of more bytes than this. The rest of a stream waits behind them, as TCP keeps the order.
    pub over: usize,
    /// The time until which.
    pub until: u64,
}

/// A path that carries few bytes, one way. Each connection has its share: none waits for the others.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Bytes per second of each connection.
    pub rate: u64,
    /// The time until which.
    pub until: u64,
}
