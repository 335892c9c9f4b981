//! What a log stores.

use std::io;

use bytes::Bytes;

/// The largest payload of a record: 1 GiB.
pub const MAX_PAYLOAD: usize = 1 << 30;

/// One record. The log does not look into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What the payload is, for the owner.
    pub kind: u8,
    /// At most [`MAX_PAYLOAD`] bytes; may be empty.
    pub payload: Bytes,
}

/// Records with their sequences.
pub type Records = Vec<(u64, Record)>;

/// Called by the flusher once an append is on disk, or has failed.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;
