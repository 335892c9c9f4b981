use std::fmt;
use std::str::FromStr;

use ringfence_wire::{FieldError, Key, Revision};

use crate::request::number;

/// Where the next page of a list starts: `<revision>.<key in hexadecimal>`. Opaque to clients. It consists of letters, digits
/// and a dot, which are the same in a URL with or without percent-encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The revision of the oldest view of a page so far.
    pub(crate) revision: Revision,
    /// The last key of the previous page.
    pub(crate) last: Key,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.revision)?;
        self.last.as_str().bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Cursor {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        parse(text)
            .ok_or_else(|| FieldError::new("after", "is not a cursor: use `next` of the previous page"))
    }
}

fn parse(text: &str) -> Option<Cursor> {
    let (revision, hexadecimal) = text.split_once('.')?;
    let (pairs, []) = hexadecimal.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    let last = Key::new(std::str::from_utf8(&bytes?).ok()?).ok()?;
    Some(Cursor { revision: Revision(number(revision)?), last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_round_trips_and_needs_no_percent_encoding() {
        let cursor = Cursor { revision: Revision(7), last: Key::new("a b/%2F+ä").unwrap() };
        let text = cursor.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'), "{text}");
        assert_eq!(text.parse(), Ok(cursor));
    }

    #[test]
    fn other_texts_are_rejected() {
        for text in
            ["", "7", "7.", "x.61", "7.6", "7.6g", "7.ff", "7.2f", "-7.61", "7.61.61", "7.+1", "+7.61"]
        {
            let error = text.parse::<Cursor>().expect_err(text);
            assert_eq!(error.field.as_deref(), Some("after"));
        }
    }
}
