//! Replies: what commands answer to scripts, and scripts to their clients.

use bytes::Bytes;

/// How deep a reply may be nested.
pub const MAX_NESTING: usize = 32;

/// A reply of the Redis protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// A short text, such as `OK`.
    Status(Bytes),
    /// The text of an error, which begins with its code.
    Error(Bytes),
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(Bytes),
    /// No string.
    Null,
    /// A null array. Only the old protocol encodes it differently from a null string.
    NullArray,
    /// Only in the new protocol. In the old one, 1 or 0.
    Bool(bool),
    /// Replies in order.
    Array(Vec<Reply>),
    /// Pairs of keys and values. In the old protocol, an array in which they alternate.
    Map(Vec<(Reply, Reply)>),
}

impl Reply {
    /// The usual answer of a command that has nothing to tell.
    pub const OK: Self = Self::Status(Bytes::from_static(b"OK"));

    /// An error with this text.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(Bytes::from(text.into()))
    }

    /// A string.
    pub fn bulk(bytes: impl Into<Bytes>) -> Self {
        Self::Bulk(bytes.into())
    }
}
