//! `string`, without `format`.

use super::arguments::Arguments;
use super::{Host, Machine, Step, Value};

impl<H: Host> Machine<'_, H> {
    pub(super) fn string_len(&mut self, arguments: &Arguments) -> Step<H> {
        let length = self.string(arguments, 1)?.len();
        self.push(Value::from(length))
    }

    pub(super) fn string_map(&mut self, arguments: &Arguments, map: fn(&[u8]) -> Vec<u8>) -> Step<H> {
        let text = self.string(arguments, 1)?;
        self.budget.spend(1 + text.len() as u64 / 16)?;
        self.budget.take(text.len())?;
        self.push_bytes(map(&text))
    }

    pub(super) fn string_rep(&mut self, arguments: &Arguments) -> Step<H> {
        let text = self.string(arguments, 1)?;
        let times = usize::try_from(self.int(arguments, 2)?).unwrap_or(0);
        let length = text.len().saturating_mul(times);
        self.budget.pass(length)?;
        self.budget.take(length)?;
        self.push_bytes(text.repeat(if text.is_empty() { 0 } else { times }))
    }

    /// The part of a string between two positions. A negative position counts from the end.
    fn part(text: &[u8], from: i64, to: i64) -> &[u8] {
        let length = text.len() as i64;
        let absolute = |position: i64| if position < 0 { (length + position + 1).max(0) } else { position };
        let (from, to) = (absolute(from).max(1), absolute(to).min(length));
        if from > to { &[] } else { &text[from as usize - 1..to as usize] }
    }

    pub(super) fn string_sub(&mut self, arguments: &Arguments) -> Step<H> {
        let text = self.string(arguments, 1)?;
        let (from, to) = (self.long(arguments, 2)?, self.long_or(arguments, 3, -1)?);
        self.push_text(Self::part(&text, from, to))
    }

    pub(super) fn string_byte(&mut self, arguments: &Arguments) -> Step<H> {
        let text = self.string(arguments, 1)?;
        let from = self.long_or(arguments, 2, 1)?;
        let to = self.long_or(arguments, 3, from)?;
        let part = Self::part(&text, from, to);
        self.budget.spend(part.len() as u64 / 4)?;
        self.make_room(part.len())?;
        self.stack.extend(part.iter().map(|byte| Value::Number(f64::from(*byte))));
        Ok(())
    }

    pub(super) fn string_char(&mut self, arguments: &Arguments) -> Step<H> {
        let mut bytes = Vec::new();
        self.budget.reserve(&mut bytes, arguments.count)?;
        for number in 1..=arguments.count {
            self.budget.spend(1)?;
            match u8::try_from(self.int(arguments, number)?) {
                Ok(byte) => bytes.push(byte),
                Err(_) => return Err(self.bad_argument(arguments, number, "invalid value")),
            }
        }
        self.push_bytes(bytes)
    }

    pub(super) fn string_find(&mut self, arguments: &Arguments) -> Step<H> {
        let (text, what) = (self.string(arguments, 1)?, self.string(arguments, 2)?);
        let is_plain = self.argument(arguments, 4).is_true();
        self.budget.spend(1 + what.len() as u64 / 4)?;
        // As in Redis, a character after a NUL has no meaning in patterns.
        let is_magic =
            |byte: &u8| matches!(byte, b'^' | b'$' | b'*' | b'+' | b'?' | b'.' | b'(' | b'[' | b'%' | b'-');
        if !is_plain && what.iter().take_while(|byte| **byte != 0).any(is_magic) {
            return Err(self.unsupported("a pattern in string.find"));
        }
        let start = match self.long_or(arguments, 3, 1)? {
            from if from < 0 => (text.len() as i64 + from).max(0),
            from => from.max(1) - 1,
        };
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(text.len());
        let rest = &text[start..];
        let places = (rest.len() + 1).saturating_sub(what.len()) as u64;
        self.budget.spend(1 + places.saturating_mul(1 + what.len() as u64 / 16) / 8)?;
        let found = match what.is_empty() {
            true => Some(0),
            false => rest.windows(what.len()).position(|part| part == what),
        };
        let Some(found) = found else { return self.push(Value::Nil) };
        self.push(Value::from(start + found + 1))?;
        self.push(Value::from(start + found + what.len()))
    }
}
