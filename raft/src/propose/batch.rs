//! The contents of a log entry: the rules to decide by, a time, and commands.
//!
//! The first byte is the version of the rules. An entry raises the rules of the table to its own, so there is no moment at
//! which an entry is in a format that the rules in use do not have, or the other way round. Builds from before the rules had
//! versions wrote 1 here, as a format, and stop at any other number.

use bytes::Bytes;
use ringfence_lease::{Command, UnsupportedRules};
use ringfence_wire::RulesRange;

use crate::consensus::EncodedBatch;

/// Commands, the cluster time at which they are applied, and the rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) rules: u8,
    pub(crate) at_ms: u64,
    pub(crate) commands: Vec<Command>,
}

/// Why a log entry cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("a log entry cannot be read: {0}")]
    Rules(#[from] UnsupportedRules),
    #[error("a log entry is malformed: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("a log entry is empty")]
    Empty,
}

impl Batch {
    pub(crate) fn encode(&self) -> EncodedBatch {
        let bytes = postcard::to_extend(&(self.at_ms, &self.commands), vec![self.rules])
            .expect("commands contain nothing that postcard cannot encode");
        EncodedBatch(Bytes::from(bytes))
    }

    /// Reads an entry whose rules are `supported`.
    pub(crate) fn decode(encoded: &EncodedBatch, supported: RulesRange) -> Result<Self, DecodeError> {
        let (&rules, rest) = encoded.0.split_first().ok_or(DecodeError::Empty)?;
        UnsupportedRules::check(rules, supported)?;
        let (at_ms, commands) = postcard::from_bytes(rest)?;
        Ok(Self { rules, at_ms, commands })
    }
}

#[cfg(test)]
mod tests {
    use ringfence_wire::LeaseId;

    use super::*;

    /// Builds of different versions read each other's logs: these bytes must not change.
    #[test]
    fn the_bytes_of_an_entry_under_the_first_rules_are_fixed() {
        let commands = vec![Command::Release { lease_id: LeaseId::from_u128(7).unwrap() }];
        let batch = Batch { rules: 1, at_ms: 300, commands };
        let mut golden = vec![1, 0xac, 2, 1, 3, 16];
        golden.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(batch.encode().0, golden);
        let supported = RulesRange { oldest: 1, newest: 1 };
        assert_eq!(Batch::decode(&batch.encode(), supported).unwrap(), batch);
        let refused = Batch::decode(&Batch { rules: 2, ..batch }.encode(), supported).unwrap_err();
        assert!(matches!(refused, DecodeError::Rules(UnsupportedRules { found: 2, .. })), "{refused}");
        let empty = Batch::decode(&EncodedBatch(Bytes::new()), supported).unwrap_err();
        assert!(matches!(empty, DecodeError::Empty), "{empty}");
    }
}
