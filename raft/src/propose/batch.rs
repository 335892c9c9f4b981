//! The contents of a log entry: a time, and commands.

use bytes::Bytes;
use ringfence_lease::Command;

use crate::consensus::EncodedBatch;

/// The format, the first byte of an encoded batch. Entries of an unknown format are rejected.
const FORMAT: u8 = 1;

/// Commands, and the cluster time at which they are applied.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) at_ms: u64,
    pub(crate) commands: Vec<Command>,
}

/// Why a log entry cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("a log entry has format {0}, which this version of ringfence does not know")]
    Format(u8),
    #[error("a log entry is malformed: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("a log entry is empty")]
    Empty,
}

impl Batch {
    pub(crate) fn encode(&self) -> EncodedBatch {
        let bytes = postcard::to_extend(&(self.at_ms, &self.commands), vec![FORMAT])
            .expect("commands contain nothing that postcard cannot encode");
        EncodedBatch(Bytes::from(bytes))
    }

    pub(crate) fn decode(encoded: &EncodedBatch) -> Result<Self, DecodeError> {
        match encoded.0.split_first() {
            None => Err(DecodeError::Empty),
            Some((&FORMAT, rest)) => {
                let (at_ms, commands) = postcard::from_bytes(rest)?;
                Ok(Self { at_ms, commands })
            }
            Some((&format, _)) => Err(DecodeError::Format(format)),
        }
    }
}
