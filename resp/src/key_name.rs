//! Keys by their names in the Redis protocol. A name there is any bytes; a key here is text of a certain form.
//!
//! In database 0, a name that HTTP can acquire is the same key here. HTTP acquires no key that begins with `@db` and a number, and here,
//! such names are refused. So all other names are below such keys: `@db3/a` is `a` in database 3, and `@db0/` has what cannot be a key.
//! There, bytes that a key cannot have become `%` and two digits: bytes that are not UTF-8, control characters, a slash at the beginning,
//! at the end, or after a slash, and the first dot of a segment `.` or `..`. So does `%` itself: two names are never one key.
//!
//! Before rules [`NAMES`], some names were other keys. Under older rules, they are refused: nodes with an older program still use the old
//! keys, and a name with two keys is granted twice. A name is also refused if an older program may have made its key of another name
//! ([`was_of_another_name`]): the rules are not raised while a lock has such a key.

use std::fmt::Write;

use ringfence_lease::{NAMES, was_of_another_name};
use ringfence_service::Failure;
use ringfence_wire::{Key, KeyError};

use crate::refused::Refused;

/// The number of databases.
pub(crate) const DATABASES: u16 = 1_024;

/// Decides which key a name is. Nothing else in this crate makes keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Naming {
    pub(crate) database: u16,
    /// The rules of the cluster, as this node knows them.
    pub(crate) rules: u8,
}

impl Naming {
    /// The key that `name` is.
    pub(crate) fn key(self, name: &[u8]) -> Result<Key, Refused> {
        if name.is_empty() {
            return Err(Refused::arguments("ERR ringfence: a key must not be empty"));
        }
        let name = name.get(..=Key::MAX_BYTES).unwrap_or(name);
        let plain = str::from_utf8(name).ok().filter(|_| self.database == 0);
        let key = match plain.and_then(|text| Key::new(text).ok()) {
            Some(key) if key.is_of_database() => {
                return Err(Refused::unsupported(
                    "`@db` and a number stand for a database: use SELECT, and the name without them",
                ));
            }
            Some(key) => key,
            None => Key::new(&format!("@db{}/{}", self.database, escape(name))).map_err(refuse)?,
        };
        match self.rules {
            rules if rules < NAMES && was_of_another_name(&key) => {
                Err(Failure::NotYet { rules, since: NAMES }.into())
            }
            _ => Ok(key),
        }
    }
}

/// Whatever a key cannot have is escaped, so only its length can be wrong.
fn refuse(_: KeyError) -> Refused {
    Refused::arguments("ERR ringfence: a key has at most 512 bytes, of which some count three times")
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
    use super::*;
    use crate::refused::Kind;
    use proptest::prelude::*;

    const NEW: u8 = NAMES;

    fn key(database: u16, name: &[u8]) -> Result<Key, Refused> {
        Naming { database, rules: NEW }.key(name)
    }

    /// The database and the name that the key `text` stands for.
    fn name(text: &str) -> (u16, Vec<u8>) {
        if !Key::new(text).unwrap().is_of_database() {
            return (0, text.into());
        }
        let (database, rest) = text.strip_prefix("@db").unwrap().split_once('/').unwrap();
        let (mut name, mut rest) = (Vec::new(), rest.as_bytes());
        while let Some((&first, behind)) = rest.split_first() {
            let byte = (first == b'%')
                .then(|| u8::from_str_radix(str::from_utf8(&behind[..2]).unwrap(), 16).unwrap());
            name.push(byte.unwrap_or(first));
            rest = if byte.is_some() { &behind[2..] } else { behind };
        }
        (database.parse().unwrap(), name)
    }

    /// The key that a program with older rules makes of a name.
    fn key_before(database: u16, name: &[u8]) -> Option<Key> {
        let escaped = (!name.is_empty()).then(|| escape(name))?;
        Key::new(&if database == 0 { escaped } else { format!("db{database}/{escaped}") }).ok()
    }

    /// Whether HTTP acquires this key.
    fn is_wanted_over_http(text: &str) -> bool {
        Key::new(text).is_ok_and(|key| !key.is_of_database())
    }

    #[test]
    fn what_http_can_acquire_is_itself_and_the_rest_is_escaped() {
        for same in
            ["orders/42", "lock:{orders}:42", "ä ö", "50%off", "a%2Fb", "100%", "db3/a", "...", "@dbs/a"]
        {
            assert_eq!(key(0, same.as_bytes()).unwrap().as_str(), same);
        }
        for (name, escaped) in [
            (&b"a\nb\0"[..], "a%0Ab%00"),
            ("\u{85}".as_bytes(), "%C2%85"),
            (b"a\xffb", "a%FFb"),
            (b"50%\n", "50%25%0A"),
            (b"/", "%2F"),
            (b"/a//b///c/", "%2Fa/%2Fb/%2F/c%2F"),
            (b".", "%2E"),
            (b"../a/./..", "%2E./a/%2E/%2E."),
            (b"./", ".%2F"),
            (b"@db3/", "@db3%2F"),
        ] {
            assert_eq!(key(0, name).unwrap().as_str(), format!("@db0/{escaped}"));
            assert_eq!(key(3, name).unwrap().as_str(), format!("@db3/{escaped}"));
        }
        assert_eq!(key(3, b"accounts/42").unwrap().as_str(), "@db3/accounts/42");
        assert_eq!(key(3, b"@db4/a").unwrap().as_str(), "@db3/@db4/a");
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
        for name in ["@db3/a", "@db0/a%0A", "@db3"] {
            assert!(key(0, name.as_bytes()).unwrap_err().text().contains("SELECT"));
        }
    }

    /// A node of an older program took `50%off` for `50%25off`, and `a` in database 1 for `db1/a`.
    #[test]
    fn names_that_an_older_program_takes_for_other_keys_are_refused_until_the_rules_are_raised() {
        let old = |database, name: &[u8]| Naming { database, rules: NEW - 1 }.key(name);
        for (database, name) in [(0, &b"50%off"[..]), (0, b"a\n"), (0, b"/"), (1, b"a"), (7, b"50%off")] {
            let refused = old(database, name).unwrap_err();
            assert_eq!(refused.kind(), Kind::Unavailable, "{refused:?}");
            assert!(refused.text().contains("cluster upgrade") && refused.text().contains("was not done"));
        }
        // Such a node may have made these keys of escaped names, or of names in a database. Locks on them would keep the rules as they are.
        for name in ["50%25off", "db1/a", "db1023/a"] {
            assert_eq!(old(0, name.as_bytes()).unwrap_err().kind(), Kind::Unavailable, "{name}");
        }
        // These are refused under any rules.
        assert_eq!(old(0, b"@db3/a").unwrap_err().kind(), Kind::Unsupported);
        assert!(old(3, &[b'x'; 512]).unwrap_err().text().contains("512"));
        for name in ["a", "orders/42", "db0/a", "db1", "ä ö"] {
            assert_eq!(old(0, name.as_bytes()).unwrap().as_str(), name);
        }
    }

    proptest! {
        #[test]
        fn both_doors_have_one_key_for_one_name(
            start in "(@db[0-9]{0,2}/?)?",
            text in "[a./%2@db3\n\u{85}é]{0,30}",
            odd in prop::collection::vec(any::<u8>(), 0..4),
            database in prop_oneof![Just(0_u16), 0..DATABASES],
        ) {
            let whole = [start.as_bytes(), text.as_bytes(), &odd].concat();
            let is_wanted = str::from_utf8(&whole).ok().filter(|text| is_wanted_over_http(text));
            let Ok(key) = key(database, &whole) else {
                prop_assert!(is_wanted.is_none() || database != 0);
                return Ok(());
            };
            // HTTP acquires this key only if the name is the same there.
            let is_same = database == 0 && is_wanted.is_some();
            prop_assert_eq!(is_wanted_over_http(key.as_str()), is_same, "{}", key);
            prop_assert!(!is_same || key.as_str().as_bytes() == whole);
            // Two names, or one name in two databases, are never one key.
            prop_assert_eq!(name(key.as_str()), (database, whole));
        }

        /// Otherwise, clients that use such names keep the rules from being raised.
        #[test]
        fn under_older_rules_nobody_sets_a_lock_that_is_in_the_way_of_new_ones(
            start in "(@?db[0-9]{0,4}/?)?",
            text in "[a./%2@db3\n]{0,9}",
            database in prop_oneof![Just(0_u16), 0..DATABASES],
        ) {
            let whole = [start.as_bytes(), text.as_bytes()].concat();
            let now = Naming { database, rules: NEW - 1 }.key(&whole).ok();
            let (before, later) = (key_before(database, &whole), key(database, &whole).ok());
            if let Some(now) = &now {
                prop_assert!(!was_of_another_name(now), "{}", now);
                prop_assert_eq!((Some(now), Some(now)), (before.as_ref(), later.as_ref()));
            }
            if let Some(before) = before.filter(|key| !was_of_another_name(key)) {
                prop_assert_eq!(later, Some(before));
            }
        }
    }
}
