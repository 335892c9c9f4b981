use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use arcstr::ArcStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The name of a thing to protect: 1 to 512 bytes of UTF-8 without control characters, in segments separated by `/`. No
/// segment is empty, `.` or `..`, because URL parsers rewrite those. A clone shares the text and is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(ArcStr);

/// Why a text is not a [`Key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The empty text.
    #[error("a key must not be empty")]
    Empty,
    /// More than [`Key::MAX_BYTES`] bytes.
    #[error("a key has at most 512 bytes of UTF-8")]
    TooLong,
    /// A character such as a line break or NUL.
    #[error("a key must not contain control characters")]
    Control,
    /// `a//b`, a leading or trailing `/`, `.` or `..`.
    #[error("a key must not contain an empty, `.` or `..` segment between its slashes")]
    Segment,
}

impl Key {
    /// The longest key, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 512;

    /// Checks `text` and makes a key of it.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        check(text, Some(text))?;
        Ok(Self(text.into()))
    }

    /// Checks that a key can start with `prefix`. Asking for a prefix that no key can have is a mistake.
    pub fn check_prefix(prefix: &str) -> Result<(), KeyError> {
        check(prefix, prefix.rsplit_once('/').map(|(segments, _)| segments))
    }

    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it begins like `@db3/`, as the keys of Redis names that no request over HTTP can acquire. Requests over HTTP may read and
    /// revoke them.
    pub fn is_of_database(&self) -> bool {
        let Some(behind) = self.0.strip_prefix("@db") else { return false };
        let number = behind.split_once('/').map_or(behind, |(number, _)| number);
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    }
}

/// Checks the length and the characters of `text`, and the `segments` that are complete.
fn check(text: &str, segments: Option<&str>) -> Result<(), KeyError> {
    if text.len() > Key::MAX_BYTES {
        return Err(KeyError::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(KeyError::Control);
    }
    let mut segments = segments.into_iter().flat_map(|segments| segments.split('/'));
    if segments.any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(KeyError::Segment);
    }
    Ok(())
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

/// Ordered maps with keys can be searched by text.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Functions that take the text of a key also take keys.
impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                Key::new(text).map_err(E::custom)
            }
        }
        // Not `deserialize_str`: that makes postcard keep all texts of a message that it reads from a stream.
        deserializer.deserialize_string(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_in_a_url_path() {
        for good in ["a", "orders/42", "ä/ö ü", "a.b/..c", &"x".repeat(512)] {
            assert_eq!(Key::new(good).expect(good).as_str(), good);
        }
        let long = "é".repeat(257);
        for (bad, why) in [
            ("", KeyError::Empty),
            (long.as_str(), KeyError::TooLong),
            ("a\nb", KeyError::Control),
            ("a\u{85}", KeyError::Control),
            ("/a", KeyError::Segment),
            ("a/", KeyError::Segment),
            ("a//b", KeyError::Segment),
            (".", KeyError::Segment),
            ("a/../b", KeyError::Segment),
        ] {
            assert_eq!(Key::new(bad), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn a_key_of_a_database_is_known_by_its_first_segment() {
        for (text, is_of_database) in [
            ("@db3/a", true),
            ("@db0/a/b", true),
            ("@db007", true),
            ("@db/a", false),
            ("@db3a/a", false),
            ("@db-3/a", false),
            ("db3/a", false),
            ("a/@db3/b", false),
        ] {
            assert_eq!(Key::new(text).unwrap().is_of_database(), is_of_database, "{text}");
        }
    }

    #[test]
    fn a_prefix_is_legal_if_a_key_can_start_with_it() {
        let most = "x".repeat(512);
        for good in ["", "a", "a/", "a/.", "a/..", "..", "a.b/..c", "ä/ö ü", &most] {
            assert_eq!(Key::check_prefix(good), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            ("/", KeyError::Segment),
            ("/a", KeyError::Segment),
            ("a//", KeyError::Segment),
            ("./", KeyError::Segment),
            ("a/../b", KeyError::Segment),
            ("a\n", KeyError::Control),
            (format!("{most}x").as_str(), KeyError::TooLong),
        ] {
            assert_eq!(Key::check_prefix(bad), Err(why), "{bad:?}");
        }
    }
}
