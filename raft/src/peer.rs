//! Talking to the other nodes: framed binary messages over connections that stay open.
//!
//! ```text
//!  openraft ──▶ network ──▶ append, snapshot, call ──▶ link ──▶ │ transport │ ──▶ link ──▶ server ──▶ openraft
//!  handle, reads ──▶ peers ──────────────────┘      (handshake)            (handshake)       └──▶ Service
//! ```
//! Appends, heartbeats, votes, forwards and snapshots each have connections of their own ([`handshake::Channel`]), so that a
//! large message of one never delays another. [`handshake`] says what the two sides check; a connection that would not pass
//! any more is closed.
//!
//! Nodes meet the network in [`transport`] alone. [`server::Service`] is what a node answers beyond Raft's own messages; the
//! node provides it, so nothing here knows the rooms above.

mod acknowledged;
mod addresses;
mod append;
mod call;
mod callable;
mod campaign;
mod certificate;
mod copies;
mod deliveries;
mod directory;
mod frame;
#[cfg(test)]
mod garbage;
mod handshake;
mod heartbeat;
mod known;
mod link;
mod message;
mod network;
mod peers;
mod server;
mod silence;
mod snapshot;
mod successor;
#[cfg(test)]
mod tests;
mod tls;
mod transport;

pub(crate) use self::call::CallError;
pub(crate) use self::callable::UNANSWERED;
pub use self::certificate::{Certificate, is_of_node};
pub(crate) use self::directory::Directory;
pub(crate) use self::handshake::Program;
pub(crate) use self::message::{Answer, Call, Order, Probed, ReadPoint};
pub(crate) use self::network::Network;
pub(crate) use self::peers::{Peers, passed};
pub(crate) use self::server::{Server, Service};
pub use self::tls::Tls;
pub use self::transport::{ByteReader, ByteWriter, Connection, Tcp, Transport};
