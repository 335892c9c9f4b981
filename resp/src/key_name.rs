//! Keys by their names in the Redis protocol. A name there is any bytes; a key here is text of a certain form.
//!
//! An ordinary name is the same key over HTTP. Bytes that a key cannot have are written as `%` and two digits: bytes that are not UTF-8,
//! control characters, a slash at the beginning, at the end, or after a slash, and the first dot of a segment `.` or `..`. `%` itself is written
//! so, too: two names are never one key.

use std::fmt::Write;

use ringfence_wire::{Key, KeyError};

use crate::refused::{Kind, Refused};

/// The number of databases.
pub(crate) const DATABASES: u16 = 1_024;

/// The key `name` of a database. Each database but 0 has a subtree of its own: `db3/a`.
pub(crate) fn key(database: u16, name: &[u8]) -> Result<Key, Refused> {
    let name = name.get(..=Key::MAX_BYTES).unwrap_or(name);
    let escaped = if name.is_empty() { String::new() } else { escape(name) };
    let text = if database == 0 || name.is_empty() { escaped } else { format!("db{database}/{escaped}") };
    Key::new(&text).map_err(|error| {
        let why = match error {
            KeyError::TooLong => "a key has at most 512 bytes, of which some count three times",
            _ => "a key must not be empty",
        };
        Refused::new(Kind::Arguments, format!("ERR ringfence: {why}"))
    })
}

/// `name` as the text of a key, unless it is too long.
fn escape(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '/' if text.is_empty() || text.ends_with('/') => text += "%2F",
                '%' => text += "%25",
                _ if character.is_control() => hex(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes()),
                _ => text.push(character),
            }
        }
        hex(&mut text, chunk.invalid());
    }
    if text.ends_with('/') {
        text.truncate(text.len() - 1);
        text += "%2F";
    }
    let segments = text.split('/').map(|segment| match segment {
        "." => "%2E",
        ".." => "%2E.",
        _ => segment,
    });
    segments.collect::<Vec<_>>().join("/")
}

fn hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "%{byte:02X}").expect("writing to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The name that the key `text` stands for.
    fn name(text: &str) -> Vec<u8> {
        let (mut name, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, behind)) = rest.split_first() {
            let byte = (first == b'%')
                .then(|| u8::from_str_radix(str::from_utf8(&behind[..2]).unwrap(), 16).unwrap());
            name.push(byte.unwrap_or(first));
            rest = if byte.is_some() { &behind[2..] } else { behind };
        }
        name
    }

    #[test]
    fn ordinary_names_are_keys_as_they_are_and_odd_ones_are_escaped() {
        for (name, expected) in [
            (&b"orders/42"[..], "orders/42"),
            (b"lock:{orders}:42", "lock:{orders}:42"),
            ("ä ö".as_bytes(), "ä ö"),
            (b"a%2Fb", "a%252Fb"),
            (b"a\nb\0", "a%0Ab%00"),
            ("\u{85}".as_bytes(), "%C2%85"),
            (b"a\xffb", "a%FFb"),
            (b"/", "%2F"),
            (b"/a//b///c/", "%2Fa/%2Fb/%2F/c%2F"),
            (b".", "%2E"),
            (b"../a/./..", "%2E./a/%2E/%2E."),
            (b"./", ".%2F"),
            (b"...", "..."),
        ] {
            assert_eq!(key(0, name).unwrap().as_str(), expected);
            assert_eq!(key(3, name).unwrap().as_str(), format!("db3/{expected}"));
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_refused() {
        for (name, why) in
            [(&b""[..], "empty"), (&[b'x'; 513], "512"), (&[0xff; 171], "512"), (&[0; 60_000], "512")]
        {
            for database in [0, 3] {
                let refused = key(database, name).unwrap_err();
                assert!(refused.text().contains(why), "{refused:?}");
            }
        }
        assert!(key(0, &[b'x'; 512]).is_ok());
        assert!(key(1, &[b'x'; 512]).is_err());
    }

    proptest! {
        #[test]
        fn a_name_can_be_told_from_its_key(bytes in "[a./%2\n\u{85}é]{1,30}", odd in prop::collection::vec(any::<u8>(), 0..20)) {
            let whole = [bytes.as_bytes(), &odd].concat();
            prop_assert_eq!(name(key(0, &whole).unwrap().as_str()), whole);
        }
    }
}
