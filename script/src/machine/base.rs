//! The built-in functions that are global variables.

use bytes::Bytes;

use super::arguments::Arguments;
use super::text::Text;
use super::{Host, Machine, Step, Stop, Value};
use crate::names::Builtin;
use crate::number;
use crate::table::NextError;

/// The most arguments and results of `unpack`, as in Lua.
const MAX_UNPACKED: i64 = 8_000;

impl<H: Host> Machine<'_, H> {
    pub(super) fn assert(&mut self, arguments: &Arguments) -> Step<H> {
        if !self.any(arguments, 1)?.is_true() {
            return match self.argument(arguments, 2) {
                Value::Nil => Err(self.fail("assertion failed!")),
                _ => {
                    let message = self.string(arguments, 2)?;
                    self.fail_with(&message, 1)
                }
            };
        }
        self.push_arguments(arguments, 1)
    }

    /// Pushes the arguments from this one on.
    fn push_arguments(&mut self, arguments: &Arguments, from: usize) -> Step<H> {
        let count = (arguments.count + 1).saturating_sub(from);
        self.budget.spend(count as u64)?;
        self.make_room(count)?;
        let first = arguments.first + from - 1;
        self.stack.extend_from_within(first..first + count);
        Ok(())
    }

    pub(super) fn error(&mut self, arguments: &Arguments) -> Step<H> {
        let level = usize::try_from(self.int_or(arguments, 2, 1)?).unwrap_or(0);
        let message = self.argument(arguments, 1);
        let (Value::String(_) | Value::Number(_)) = message else { return Err(Stop::Raised(message)) };
        let text = self.text_of(&message)?;
        self.fail_with(&text, level)
    }

    /// Fails with a text from the script.
    fn fail_with(&mut self, text: &[u8], level: usize) -> Step<H> {
        let mut whole = Text::new(self.budget)?;
        whole.add(self.place(level).as_bytes(), self.budget)?;
        whole.add(text, self.budget)?;
        Err(Stop::Raised(whole.into()))
    }

    pub(super) fn ipairs(&mut self, arguments: &Arguments) -> Step<H> {
        let id = self.table(arguments, 1)?;
        self.push(Value::Builtin(Builtin::IpairsNext))?;
        self.push(Value::Table(id))?;
        self.push(Value::Number(0.0))
    }

    pub(super) fn ipairs_next(&mut self, arguments: &Arguments) -> Step<H> {
        let next = Value::Number((self.int(arguments, 2)? + 1) as f64);
        let id = self.table(arguments, 1)?;
        let value = self.tables[id as usize].get(&next);
        if value.is_nil() {
            return self.push(Value::Nil);
        }
        self.push(next)?;
        self.push(value)
    }

    pub(super) fn pairs(&mut self, arguments: &Arguments) -> Step<H> {
        let id = self.table(arguments, 1)?;
        self.push(Value::Builtin(Builtin::Next))?;
        self.push(Value::Table(id))?;
        self.push(Value::Nil)
    }

    pub(super) fn next(&mut self, arguments: &Arguments) -> Step<H> {
        let id = self.table(arguments, 1)?;
        let key = self.argument(arguments, 2);
        self.pay_for_key(&key)?;
        match self.tables[id as usize].next(&key, self.budget) {
            Ok(Some((key, value))) => {
                self.push(key)?;
                self.push(value)
            }
            Ok(None) => self.push(Value::Nil),
            Err(NextError::NoKey) => Err(self.raise("invalid key to 'next'")),
            Err(NextError::Exhausted(why)) => Err(why.into()),
        }
    }

    pub(super) fn select(&mut self, arguments: &Arguments) -> Step<H> {
        if matches!(self.argument(arguments, 1), Value::String(text) if text.starts_with(b"#")) {
            return self.push(Value::from(arguments.count - 1));
        }
        let given = arguments.count as i64;
        let from = match self.int(arguments, 1)? {
            negative if negative < 0 => given + negative,
            from => from,
        };
        if from < 1 {
            return Err(self.bad_argument(arguments, 1, "index out of range"));
        }
        self.push_arguments(arguments, from.min(given) as usize + 1)
    }

    pub(super) fn parse_number(&mut self, arguments: &Arguments) -> Step<H> {
        let base = self.int_or(arguments, 2, 10)?;
        let value = self.any(arguments, 1)?;
        let number = if base == 10 {
            self.as_number(&value)?
        } else {
            let text = self.string(arguments, 1)?;
            let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
                return Err(self.bad_argument(arguments, 2, "base out of range"));
            };
            self.budget.spend(1 + text.len() as u64 / 4)?;
            number::parse_in(&text, base)
        };
        self.push(number.map_or(Value::Nil, Value::Number))
    }

    pub(super) fn push_string_of(&mut self, arguments: &Arguments) -> Step<H> {
        let value = self.any(arguments, 1)?;
        let text = self.text_of(&value)?;
        self.push(Value::String(text))
    }

    pub(super) fn type_of(&mut self, arguments: &Arguments) -> Step<H> {
        let name = self.any(arguments, 1)?.type_name();
        self.push(Value::String(Bytes::from_static(name.as_bytes())))
    }

    pub(super) fn unpack(&mut self, arguments: &Arguments) -> Step<H> {
        let id = self.table(arguments, 1)?;
        let from = self.int_or(arguments, 2, 1)?;
        let to = match self.argument(arguments, 3) {
            Value::Nil => self.length_of(id)? as i64,
            _ => self.int(arguments, 3)?,
        };
        let count = to - from + 1;
        if count > MAX_UNPACKED - arguments.count as i64 {
            return Err(self.fail("too many results to unpack"));
        }
        for position in from..=to {
            self.budget.spend(1)?;
            let value = self.tables[id as usize].get(&Value::Number(position as f64));
            self.push(value)?;
        }
        Ok(())
    }
}
