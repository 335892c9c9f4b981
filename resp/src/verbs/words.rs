use bytes::Bytes;
use ringfence_lease::Value;
use ringfence_wire::{Key, MAX_TTL_MS, MIN_TTL_MS, Ttl};

use crate::frame::integer;
use crate::key_name::Naming;
use crate::refused::Refused;

/// Where a command stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// It is a request by itself.
    Alone,
    /// Behind MULTI.
    Queued,
    /// In a script.
    Script,
}

/// The words of a command.
pub(super) struct Words<'a> {
    /// In lower case.
    pub(super) name: &'static str,
    /// Without the name.
    pub(super) arguments: &'a [Bytes],
    pub(super) context: Context,
    pub(super) naming: Naming,
}

/// The unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

impl Words<'_> {
    /// The argument number `at` as a key.
    pub(super) fn key(&self, at: usize) -> Result<Key, Refused> {
        self.naming.key(&self.arguments[at])
    }

    /// All arguments as keys.
    pub(super) fn keys(&self) -> Result<Vec<Key>, Refused> {
        (0..self.arguments.len()).map(|at| self.key(at)).collect()
    }

    /// The argument number `at` as a value.
    pub(super) fn value(&self, at: usize) -> Result<Value, Refused> {
        Value::new(&self.arguments[at])
            .ok_or_else(|| Refused::arguments("ERR ringfence: a value has at most 1,024 bytes"))
    }

    /// Whether argument number `at` is `word`, in any case.
    pub(super) fn is(&self, at: usize, word: &str) -> bool {
        self.arguments.get(at).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// The argument number `at` as an integer.
    pub(super) fn integer(&self, at: usize) -> Result<i64, Refused> {
        let argument = self.arguments.get(at).ok_or_else(syntax)?;
        integer(argument).ok_or_else(Refused::no_integer)
    }

    /// The argument number `at` as a time from now, in milliseconds. It may be negative.
    pub(super) fn ms(&self, at: usize, unit: Unit) -> Result<i64, Refused> {
        let ms = self.integer(at)?.checked_mul(if unit == Unit::Seconds { 1_000 } else { 1 });
        ms.ok_or_else(|| self.invalid_expire())
    }

    /// The argument number `at` as the time-to-live of a lock. The shortest is 100 ms.
    pub(super) fn ttl(&self, at: usize, unit: Unit) -> Result<Ttl, Refused> {
        self.ttl_of(self.ms(at, unit)?)
    }

    /// Converts a time in milliseconds to a time-to-live.
    pub(super) fn ttl_of(&self, ms: i64) -> Result<Ttl, Refused> {
        if ms <= 0 {
            return Err(self.invalid_expire());
        }
        let ms = u32::try_from(ms).unwrap_or(u32::MAX).max(MIN_TTL_MS);
        Ttl::from_ms(ms).ok_or_else(|| {
            Refused::arguments(format!(
                "ERR ringfence: a lock lives for at most 24 hours ({MAX_TTL_MS} ms) unless it is extended"
            ))
        })
    }

    fn invalid_expire(&self) -> Refused {
        Refused::arguments(format!("ERR invalid expire time in '{}' command", self.name))
    }
}

/// The error for options that do not belong together.
pub(super) fn syntax() -> Refused {
    Refused::arguments("ERR syntax error")
}
