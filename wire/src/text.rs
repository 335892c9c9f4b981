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

/// The name of a principal: 1 to 64 characters of `a-z 0-9 . _ -`, of which the first is a letter or digit. A clone shares the
/// text and is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrincipalName(ArcStr);

impl PrincipalName {
    /// The longest name, in characters.
    pub const MAX_LEN: usize = 64;

    /// Checks `text` and makes a name of it; `None` if it is none.
    pub fn new(text: &str) -> Option<Self> {
        let is_first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_valid = (1..=Self::MAX_LEN).contains(&text.len())
            && text.bytes().next().is_some_and(is_first)
            && text.bytes().all(|byte| is_first(byte) || b"._-".contains(&byte));
        is_valid.then(|| Self(text.into()))
    }

    /// The name of all callers that show none, where access rules apply.
    pub fn anonymous() -> Self {
        Self(arcstr::literal!("anonymous"))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for PrincipalName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PrincipalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| {
            de::Error::custom(
                "the name of a principal must have 1 to 64 characters of a-z 0-9 . _ - and begin with a letter or digit",
            )
        })
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
                let (mut entries, mut bytes) = (BTreeMap::new(), 0);
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    bytes += name.len() + value.len();
                    // Before the rest is read, which may be much.
                    if bytes > Metadata::MAX_BYTES {
                        return Err(de::Error::custom("metadata has at most 4,096 bytes in total"));
                    }
                    if entries.contains_key(&name) {
                        return Err(de::Error::custom(format_args!("duplicate field `{name}`")));
                    }
                    entries.insert(name, value);
                }
                Ok(Metadata(entries))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
