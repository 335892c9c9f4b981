//! The arguments of built-in functions. They lie on the stack.

use bytes::Bytes;

use super::{Host, Machine, Step, Stop, Value};
use crate::names::Builtin;
use crate::number;

/// The arguments of a built-in function.
pub(super) struct Arguments {
    pub(super) builtin: Builtin,
    /// The place of the first one on the stack.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// The arguments are counted from 1.
impl<H: Host> Machine<'_, H> {
    pub(super) fn given(&self, arguments: &Arguments, number: usize) -> Option<&Value> {
        (number <= arguments.count).then(|| &self.stack[arguments.first + number - 1])
    }

    /// The argument, or nil if it is missing.
    pub(super) fn argument(&self, arguments: &Arguments, number: usize) -> Value {
        self.given(arguments, number).cloned().unwrap_or(Value::Nil)
    }

    pub(super) fn bad_argument(&mut self, arguments: &Arguments, number: usize, reason: &str) -> Stop<H> {
        let name = if self.is_called_by_script { arguments.builtin.name() } else { "?" };
        self.fail(format_args!("bad argument #{number} to '{name}' ({reason})"))
    }

    fn wrong_type(&mut self, arguments: &Arguments, number: usize, expected: &str) -> Stop<H> {
        let found = self.given(arguments, number).map_or("no value", Value::type_name);
        self.bad_argument(arguments, number, &format!("{expected} expected, got {found}"))
    }

    pub(super) fn any(&mut self, arguments: &Arguments, number: usize) -> Step<H, Value> {
        match self.given(arguments, number).cloned() {
            Some(value) => Ok(value),
            None => Err(self.bad_argument(arguments, number, "value expected")),
        }
    }

    pub(super) fn number(&mut self, arguments: &Arguments, number: usize) -> Step<H, f64> {
        let value = self.argument(arguments, number);
        match self.as_number(&value)? {
            Some(number) => Ok(number),
            None => Err(self.wrong_type(arguments, number, "number")),
        }
    }

    /// A number as a `long` of C.
    pub(super) fn long(&mut self, arguments: &Arguments, number: usize) -> Step<H, i64> {
        Ok(number::to_integer(self.number(arguments, number)?))
    }

    /// As [`Self::long`], or `default` if the argument is nil or missing.
    pub(super) fn long_or(&mut self, arguments: &Arguments, number: usize, default: i64) -> Step<H, i64> {
        match self.argument(arguments, number) {
            Value::Nil => Ok(default),
            _ => self.long(arguments, number),
        }
    }

    /// A number as an `int` of C: the lower half of a `long`.
    pub(super) fn int(&mut self, arguments: &Arguments, number: usize) -> Step<H, i64> {
        Ok(i64::from(self.long(arguments, number)? as i32))
    }

    /// As [`Self::int`], or `default` if the argument is nil or missing.
    pub(super) fn int_or(&mut self, arguments: &Arguments, number: usize, default: i64) -> Step<H, i64> {
        Ok(i64::from(self.long_or(arguments, number, default)? as i32))
    }

    /// A string, or a number as a string.
    pub(super) fn string(&mut self, arguments: &Arguments, number: usize) -> Step<H, Bytes> {
        match self.argument(arguments, number) {
            Value::String(text) => Ok(text),
            value @ Value::Number(_) => self.text_of(&value),
            _ => Err(self.wrong_type(arguments, number, "string")),
        }
    }

    /// The number of a table.
    pub(super) fn table(&mut self, arguments: &Arguments, number: usize) -> Step<H, u32> {
        match self.argument(arguments, number) {
            Value::Table(id) => Ok(id),
            Value::Library(library) => {
                Err(self.unsupported(format_args!("the table {} as an argument", library.name())))
            }
            _ => Err(self.wrong_type(arguments, number, "table")),
        }
    }
}
