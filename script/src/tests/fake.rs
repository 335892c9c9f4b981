//! A tiny Redis in memory, with a clock that stands still until it is moved.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;

use crate::{Budget, Halt, Host, Reply};

#[derive(Clone, Debug, Default)]
pub(super) struct FakeRedis {
    pub(super) now_ms: i64,
    values: BTreeMap<Bytes, (Bytes, Option<i64>)>,
    pub(super) calls: usize,
}

impl Host for FakeRedis {
    type Refusal = Infallible;

    fn call(
        &mut self,
        arguments: Vec<Bytes>,
        _: u32,
        budget: &mut Budget,
    ) -> Result<Reply, Halt<Infallible>> {
        budget.spend(50)?;
        self.calls += 1;
        let name = arguments[0].to_ascii_lowercase();
        let now = self.now_ms;
        self.values.retain(|_, (_, until)| until.is_none_or(|until| until > now));
        Ok(match (&name[..], &arguments[1..]) {
            (b"get", [key]) => self.get(key),
            (b"mget", keys @ [_, ..]) => Reply::Array(keys.iter().map(|key| self.get(key)).collect()),
            (b"exists", keys @ [_, ..]) => self.count(keys, |fake, key| fake.values.contains_key(key)),
            (b"del" | b"unlink", keys @ [_, ..]) => {
                self.count(keys, |fake, key| fake.values.remove(key).is_some())
            }
            (b"set", [key, value, options @ ..]) => self.set(key, value, options),
            (b"pexpire", [key, ms]) => match (self.values.get_mut(key), number(ms)) {
                (_, None) => Reply::error("ERR value is not an integer or out of range"),
                (None, _) => Reply::Integer(0),
                (Some((_, until)), Some(ms)) => {
                    *until = Some(now + ms);
                    Reply::Integer(1)
                }
            },
            (b"pttl", [key]) => Reply::Integer(match self.values.get(key) {
                None => -2,
                Some((_, until)) => until.map_or(-1, |until| until - now),
            }),
            (b"get" | b"mget" | b"exists" | b"del" | b"unlink" | b"set" | b"pexpire" | b"pttl", _) => {
                Reply::error("ERR Wrong number of args calling Redis command from script")
            }
            _ => Reply::error("ERR Unknown Redis command called from script"),
        })
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

impl FakeRedis {
    fn get(&self, key: &Bytes) -> Reply {
        self.values.get(key).map_or(Reply::Null, |(value, _)| Reply::Bulk(value.clone()))
    }

    fn count(&mut self, keys: &[Bytes], mut counts: impl FnMut(&mut Self, &Bytes) -> bool) -> Reply {
        Reply::Integer(keys.iter().filter(|key| counts(self, key)).count() as i64)
    }

    fn set(&mut self, key: &Bytes, value: &Bytes, options: &[Bytes]) -> Reply {
        let is_there = self.values.contains_key(key);
        let mut until = None;
        let mut options = options.iter().map(|option| option.to_ascii_lowercase());
        while let Some(option) = options.next() {
            match &option[..] {
                b"nx" if is_there => return Reply::Null,
                b"xx" if !is_there => return Reply::Null,
                b"nx" | b"xx" => {}
                b"px" | b"ex" => match options.next().as_deref().and_then(number) {
                    Some(time) => until = Some(self.now_ms + time * if option == b"ex" { 1_000 } else { 1 }),
                    None => return Reply::error("ERR value is not an integer or out of range"),
                },
                _ => return Reply::error("ERR syntax error"),
            }
        }
        self.values.insert(key.clone(), (value.clone(), until));
        Reply::OK
    }
}
