use std::collections::BTreeMap;
use std::fmt;

use arcstr::ArcStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A public label of a holder: at most 256 bytes. A clone shares the text and is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(ArcStr);

impl Holder {
    /// The longest label, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 256;

    /// Checks `text` and makes a label of it; `None` if it is too long.
    pub fn new(text: &str) -> Option<Self> {
        (text.len() <= Self::MAX_BYTES).then(|| Self(text.into()))
    }

    /// The text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Holder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| de::Error::custom("a holder has at most 256 bytes of UTF-8"))
    }
}

/// Public data of a holder: string to string, 4 KiB in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// The limit for all names and values together, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 4096;

    /// Checks the size; `None` if it is too large.
    pub fn new(entries: BTreeMap<String, String>) -> Option<Self> {
        let bytes: usize = entries.iter().map(|(name, value)| name.len() + value.len()).sum();
        (bytes <= Self::MAX_BYTES).then_some(Self(entries))
    }

    /// The entries, by name.
    pub fn entries(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    if entries.contains_key(&name) {
                        return Err(de::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    entries.insert(name, value);
                }
                Metadata::new(entries)
                    .ok_or_else(|| de::Error::custom("metadata has at most 4,096 bytes in total"))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
