//! Parses the script of a story.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use ringfence_lease::{
    Acquire, Attachment, Command, Condition, Conditional, KeyChange, Owner, Quota, Request, Value,
};
use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, PrincipalName, Revision, Token, Ttl, Wait};

/// The words that end the list of keys of an acquire.
const OPTIONS: [&str; 6] = ["ttl", "wait", "keep", "by", "with", "as"];

/// `OWNER: COMMAND`, where the owner may be followed by its quotas, as in `ann/2/1/9000`, is a command of that principal.
pub(super) fn request(words: &[&str]) -> Request {
    match words {
        [owner, words @ ..] if owner.ends_with(':') => {
            let mut parts = owner.trim_end_matches(':').split('/');
            let name = principal(parts.next().expect("a split has a first part"));
            let (leases, waiting) = (parts.next().map(number), parts.next().map(number));
            let quota = Quota { leases, waiting, bytes: parts.next().map(number) };
            Request { by: Some(Owner { name, quota }), commands: commands(words) }
        }
        words => commands(words).into(),
    }
}

pub(super) fn principal(word: &str) -> PrincipalName {
    PrincipalName::new(word).unwrap()
}

/// `each 1..3 COMMAND` is the command three times, with the number instead of `#`.
fn commands(words: &[&str]) -> Vec<Command> {
    match words {
        [] => Vec::new(),
        ["each", range, template @ ..] => {
            let (from, to) = range.split_once("..").expect("each FROM..TO");
            let template = template.join(" ");
            let filled = |n: u64| template.replace('#', &n.to_string());
            (number(from)..=number(to)).map(|n| command(&filled(n).split(' ').collect::<Vec<_>>())).collect()
        }
        words => vec![command(words)],
    }
}

fn command(words: &[&str]) -> Command {
    let option = |name| words.iter().position(|&word| word == name).map(|at| words[at + 1]);
    let ttl = option("ttl").map(ttl);
    match words[0] {
        "start" => Command::Start { revision: Revision(number(words[1])) },
        "renew" => Command::Renew { lease_id: id(words[1]), ttl },
        "release" => Command::Release { lease_id: id(words[1]) },
        "revoke" => Command::Revoke { key: key(words[1]), token: Token(number(words[2])) },
        "detach" => Command::Detach { lease_id: id(words[1]), attachment: Attachment(number(words[2])) },
        "takeback" => Command::TakeBack { lease_id: id(words[1]), attachment: Attachment(number(words[2])) },
        "acquire" => Command::Acquire(Box::new(Acquire {
            lease_id: id(words[1]),
            claims: words[2..]
                .iter()
                .take_while(|word| !OPTIONS.contains(word))
                .map(|word| claim(word))
                .collect(),
            ttl: ttl.unwrap_or_default(),
            wait: option("wait").map_or(Wait::default(), |ms| Wait::from_ms(number(ms)).unwrap()),
            keep_place: words.contains(&"keep"),
            holder: option("by").and_then(Holder::new),
            metadata: option("with").map_or(Metadata::default(), metadata),
            attachment: Attachment(option("as").map_or(0, number)),
        })),
        "change" => Command::Conditional(Box::new(conditional(&words[1..]))),
        other => panic!("no command is called {other}"),
    }
}

/// Clauses without separators. The first word of each tells how many words follow.
fn conditional(mut words: &[&str]) -> Conditional {
    let (mut conditions, mut changes) = (Vec::new(), Vec::new());
    while !words.is_empty() {
        words = match *words {
            ["if", key, condition, ref rest @ ..] => {
                conditions.push((self::key(key), self::condition(condition)));
                rest
            }
            ["set", key, lease_id, value, ttl, ref rest @ ..] => {
                changes.push(KeyChange::Acquire {
                    key: self::key(key),
                    lease_id: id(lease_id),
                    ttl: self::ttl(ttl),
                    value: Value::new(value.as_bytes()).unwrap(),
                    holder: None,
                    attachment: Attachment(0),
                });
                rest
            }
            ["keep", key, token, ref rest @ ..] => {
                changes.push(KeyChange::Keep { key: self::key(key), token: Token(number(token)) });
                rest
            }
            ["expire", key, token, ttl, ref rest @ ..] => {
                changes.push(KeyChange::Expire {
                    key: self::key(key),
                    token: Token(number(token)),
                    ttl: self::ttl(ttl),
                });
                rest
            }
            ["end", key, token, ref rest @ ..] => {
                changes.push(KeyChange::End { key: self::key(key), token: Token(number(token)) });
                rest
            }
            _ => panic!("what is {words:?}?"),
        };
    }
    Conditional::new(conditions, changes).unwrap()
}

/// `free`, `taken`, a token, or a token and a deadline: `7@1500`.
fn condition(word: &str) -> Condition {
    match (word, word.split_once('@')) {
        ("free", _) => Condition::Free,
        ("taken", _) => Condition::Taken,
        (token, None) => Condition::Held { token: Token(number(token)), until_ms: None },
        (_, Some((token, ms))) => Condition::Held { token: Token(number(token)), until_ms: Some(number(ms)) },
    }
}

fn ttl(word: &str) -> Ttl {
    Ttl::from_ms(number(word)).unwrap()
}

/// The id whose bits are the bytes of the name.
pub(super) fn id(name: &str) -> LeaseId {
    LeaseId::from_u128(name.bytes().fold(0, |bits, byte| bits << 8 | u128::from(byte))).unwrap()
}

/// The name that the id was made from.
pub(super) fn name(id: LeaseId) -> String {
    let digits: Vec<u32> = id.to_string().chars().filter_map(|digit| digit.to_digit(16)).collect();
    let bytes = digits.chunks(2).map(|pair| char::from_u32(pair[0] << 4 | pair[1]).unwrap());
    bytes.filter(|&byte| byte != '\0').collect()
}

pub(super) fn key(word: &str) -> Key {
    Key::new(word).unwrap()
}

pub(super) fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

/// `a`, `a=shared` or `a=shared/2`.
fn claim(word: &str) -> (Key, Mode) {
    match word.split_once('=') {
        None => (key(word), Mode::Exclusive),
        Some((name, mode)) => {
            let limit = mode.split_once('/').and_then(|(_, limit)| NonZeroU32::new(number(limit)));
            (key(name), Mode::Shared { limit })
        }
    }
}

fn metadata(pair: &str) -> Metadata {
    let (name, value) = pair.split_once('=').expect("NAME=VALUE");
    Metadata::new(BTreeMap::from([(name.to_owned(), value.to_owned())])).unwrap()
}
