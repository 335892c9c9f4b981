use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a client of the Redis protocol stores with a key. A value is a secret: no view, event or log of the node has it. A clone shares
/// the bytes and is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// The longest value, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Checks the length; `None` if it is too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= Self::MAX_BYTES).then(|| Self(bytes.into()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Shows the length only.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes)", self.0.len())
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // What people read, as of `ringfence inspect log`, does not have it.
        match serializer.is_human_readable() {
            true => serializer.collect_str(&format_args!("{self:?}")),
            false => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("at most 1,024 bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
                Value::new(bytes).ok_or_else(|| E::custom("a value has at most 1,024 bytes"))
            }
        }
        // Not `deserialize_bytes`: that makes postcard keep all bytes of a message that it reads from a stream.
        deserializer.deserialize_byte_buf(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_bounded_and_not_shown() {
        let longest = Value::new(&[0xff; Value::MAX_BYTES]).unwrap();
        assert_eq!(Value::new(&[0; Value::MAX_BYTES + 1]), None);
        assert_eq!(format!("{longest:?}"), "Value(1024 bytes)");
        assert_eq!(serde_json::to_string(&longest).unwrap(), "\"Value(1024 bytes)\"");
        let bytes = postcard::to_stdvec(&longest).unwrap();
        assert_eq!(postcard::from_bytes::<Value>(&bytes).unwrap(), longest);
        let too_long = postcard::to_stdvec(&vec![0_u8; Value::MAX_BYTES + 1]).unwrap();
        assert!(postcard::from_bytes::<Value>(&too_long).is_err());
    }
}
