use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// A lease's handle: a UUID chosen by the client, which makes a repeated request harmless. Anybody who knows it can renew
/// and release the lease, so it is in no public view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LeaseId(Uuid);

/// The text is not a UUID, or is the nil UUID (which programs share that forget to draw one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lease_id is a UUID other than the nil UUID: 32 hexadecimal digits, with or without dashes")]
pub struct LeaseIdError;

impl LeaseId {
    /// A fresh random id (UUID version 4).
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id with these 128 bits; `None` for the nil UUID.
    pub fn from_u128(bits: u128) -> Option<Self> {
        (bits != 0).then_some(Self(Uuid::from_u128(bits)))
    }

    /// Its 128 bits.
    pub fn to_u128(self) -> u128 {
        self.0.as_u128()
    }
}

impl FromStr for LeaseId {
    type Err = LeaseIdError;

    fn from_str(text: &str) -> Result<Self, LeaseIdError> {
        match Uuid::try_parse(text) {
            Ok(uuid) if !uuid.is_nil() && matches!(text.len(), 32 | 36) => Ok(Self(uuid)),
            _ => Err(LeaseIdError),
        }
    }
}

impl<'de> Deserialize<'de> for LeaseId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            Uuid::deserialize(deserializer).map(Self)
        }
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_plain_uuid_and_not_nil() {
        let id: LeaseId = "0B6F3A525CC54B0E9C1E2A6F1D3C7E10".parse().expect("32 hexadecimal digits");
        assert_eq!(id.to_string(), "0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in ["", "7", "{0b6f3a52-5cc5-4b0e-9c1e-2a6f1d3c7e10}", "00000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(bad.parse::<LeaseId>(), Err(LeaseIdError), "{bad}");
        }
    }
}
