//! HTTP to the nodes: [`Nodes`] chooses one, and a [`Node`] sends [`Request`]s alone or in batches, over connections that it
//! reuses.

mod distrust;
mod http;
mod node;
mod nodes;
mod pulse;
mod tls;

pub(crate) use distrust::Distrust;
pub(crate) use http::{Failure, Request, Response, Streaming, encode};
pub(crate) use node::Node;
pub(crate) use nodes::Nodes;
pub(crate) use tls::Cause;
pub use tls::{Credential, TLS_LOG, Tls};
