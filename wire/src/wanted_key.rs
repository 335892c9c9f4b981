//! A key of a lease, as a request names it.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{FieldError, Key, Mode, ModeName};

/// The most keys of one lease.
pub const MAX_KEYS: usize = 64;

/// A key of a lease and its mode. In JSON a string (exclusive) or `{"key","mode","limit"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedKey {
    /// The thing to protect.
    pub key: Key,
    /// Alone or shared.
    pub mode: Mode,
}

impl WantedKey {
    /// Checks the number of keys, and that none comes twice. `path` is their field in the request.
    pub(crate) fn check_all(keys: &[Self], path: &str) -> Result<(), FieldError> {
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(FieldError::new(
                path,
                format!("a lease has 1 to {MAX_KEYS} keys, not {}", keys.len()),
            ));
        }
        let mut seen = BTreeSet::new();
        match keys.iter().position(|wanted| !seen.insert(&wanted.key)) {
            Some(twice) => {
                Err(FieldError::new(format!("{path}[{twice}]"), "a lease must not have a key twice"))
            }
            None => Ok(()),
        }
    }
}

/// The long form of a [`WantedKey`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename = "key")]
struct WantedKeyObject {
    key: Key,
    #[serde(default)]
    mode: ModeName,
    #[serde(default)]
    limit: Option<NonZeroU32>,
}

impl Serialize for WantedKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WantedKeyObject { key: self.key.clone(), mode: self.mode.name(), limit: self.mode.limit() }
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for WantedKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = WantedKey;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key as a string, or an object with `key`, `mode` and `limit`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WantedKey, E> {
                Ok(WantedKey { key: Key::new(text).map_err(E::custom)?, mode: Mode::Exclusive })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WantedKey, A::Error> {
                let object = WantedKeyObject::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let mode = match (object.mode, object.limit) {
                    (ModeName::Exclusive, None) => Mode::Exclusive,
                    (ModeName::Exclusive, Some(_)) => {
                        return Err(de::Error::custom("`limit` goes with `\"mode\": \"shared\"` only"));
                    }
                    (ModeName::Shared, limit) => Mode::Shared { limit },
                };
                Ok(WantedKey { key: object.key, mode })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}
