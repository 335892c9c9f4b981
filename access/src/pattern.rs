use std::fmt::{self, Display, Formatter};

use ringfence_wire::Key;

/// The keys that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `*`: all keys.
    All,
    /// `accounts/`: the keys that begin with this text, which ends in a slash.
    Subtree(String),
    /// `=accounts/42`: this key.
    One(Key),
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        if text == "*" {
            return Ok(Self::All);
        }
        if let Some(key) = text.strip_prefix('=') {
            return Key::new(key).map(Self::One).map_err(|_| "what follows `=` is not a valid key");
        }
        if !text.ends_with('/') {
            return Err("must end in `/` for a subtree, begin with `=` for one key, or be `*` for all keys");
        }
        Key::check_prefix(text).map_err(|_| "is not the beginning of a valid key")?;
        Ok(Self::Subtree(text.to_owned()))
    }

    pub(crate) fn covers(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::Subtree(prefix) => key.starts_with(prefix),
            Self::One(one) => one.as_str() == key,
        }
    }

    /// Whether it covers every key that starts with `prefix`.
    pub(crate) fn covers_all_under(&self, prefix: &str) -> bool {
        match self {
            Self::All => true,
            Self::Subtree(own) => prefix.starts_with(own),
            Self::One(_) => false,
        }
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Subtree(prefix) => f.write_str(prefix),
            Self::One(key) => write!(f, "={key}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn other_patterns_are_refused() {
        for text in ["", "a", "a*", "a/*", "=", "=a\n", "\0/", "**", " *"] {
            assert!(Pattern::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_subtree_ends_at_its_slash() {
        let team = Pattern::parse("team1/").unwrap();
        for (key, is_covered) in
            [("team1/a", true), ("team1/", true), ("team1", false), ("team10/a", false), ("Team1/a", false)]
        {
            assert_eq!(team.covers(key), is_covered, "{key}");
        }
        for (prefix, is_covered) in
            [("team1/", true), ("team1/a", true), ("team1", false), ("", false), ("team10/", false)]
        {
            assert_eq!(team.covers_all_under(prefix), is_covered, "{prefix}");
        }
        assert!(!Pattern::parse("=a").unwrap().covers_all_under("a"), "`a` begins other keys, too");
    }

    proptest! {
        #[test]
        fn what_covers_a_prefix_covers_every_key_under_it(pattern in "[ab]{1,2}(/[ab]{1,2})?/|=[ab]{1,2}(/[ab]{1,2})?|\\*", prefix in "[ab/]{0,4}", rest in "[ab/]{0,3}") {
            let pattern = Pattern::parse(&pattern).unwrap();
            prop_assert_eq!(&Pattern::parse(&pattern.to_string()).unwrap(), &pattern);
            let key = prefix.clone() + &rest;
            prop_assert!(!pattern.covers_all_under(&prefix) || pattern.covers(&key));
        }
    }
}
