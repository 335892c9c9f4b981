//! `redis`.

use bytes::Bytes;

use super::arguments::Arguments;
use super::{Host, Machine, Step, Stop, Value};
use crate::number;
use crate::reply::Reply;

const WRONG_ARGUMENTS: &str = "wrong number or type of arguments";

impl<H: Host> Machine<'_, H> {
    pub(super) fn redis_call(&mut self, arguments: &Arguments) -> Step<H> {
        let answer = self.command(arguments)?;
        let is_error = matches!(answer, Reply::Error(_));
        let value = self.value_from(answer)?;
        if is_error {
            return Err(Stop::Raised(value));
        }
        self.push(value)
    }

    pub(super) fn redis_pcall(&mut self, arguments: &Arguments) -> Step<H> {
        let answer = self.command(arguments)?;
        let value = self.value_from(answer)?;
        self.push(value)
    }

    /// Runs a command of the host.
    fn command(&mut self, arguments: &Arguments) -> Step<H, Reply> {
        if arguments.count == 0 {
            return Ok(Reply::error("ERR Please specify at least one argument for this redis lib call"));
        }
        self.budget.spend(1 + arguments.count as u64 / 4)?;
        let mut command = Vec::new();
        self.budget.reserve(&mut command, arguments.count)?;
        for number in 1..=arguments.count {
            command.push(match self.argument(arguments, number) {
                Value::String(text) => text,
                Value::Number(number) => {
                    self.budget.spend(number::cost_of_writing(number, 17))?;
                    self.text(number::general(number, 17).as_bytes())?
                }
                _ => {
                    let reason = "ERR Lua redis lib command arguments must be strings or integers";
                    return Ok(Reply::error(reason));
                }
            });
        }
        let line = self.line();
        self.host.call(command, line, self.budget).map_err(Stop::Halted)
    }

    /// A table with one field.
    pub(super) fn table_with(&mut self, field: &'static str, value: Value) -> Step<H, Value> {
        let table = Value::Table(self.new_table()?);
        self.set(&table, Value::String(Bytes::from_static(field.as_bytes())), value)?;
        Ok(table)
    }

    pub(super) fn redis_status_reply(&mut self, arguments: &Arguments) -> Step<H> {
        match (self.argument(arguments, 1), arguments.count) {
            (status @ Value::String(_), 1) => {
                let table = self.table_with("ok", status)?;
                self.push(table)
            }
            _ => self.push_error(WRONG_ARGUMENTS.as_bytes()),
        }
    }

    pub(super) fn redis_error_reply(&mut self, arguments: &Arguments) -> Step<H> {
        match (self.argument(arguments, 1), arguments.count) {
            (Value::String(text), 1) => self.push_error(text.strip_prefix(b"-").unwrap_or(&text)),
            _ => self.push_error(WRONG_ARGUMENTS.as_bytes()),
        }
    }

    /// Pushes an error, with a code if it has none.
    fn push_error(&mut self, text: &[u8]) -> Step<H> {
        self.budget.pass(text.len())?;
        self.budget.take(text.len())?;
        let has_code = text.contains(&b' ') && text != WRONG_ARGUMENTS.as_bytes();
        let code: &[u8] = if has_code { b"" } else { b"ERR " };
        let text = self.text(&[code, text].concat())?;
        let table = self.table_with("err", Value::String(text))?;
        self.push(table)
    }

    /// Checks its arguments, and writes nothing.
    pub(super) fn redis_log(&mut self, arguments: &Arguments) -> Step<H> {
        if arguments.count < 2 {
            return Err(self.redis_error("ERR redis.log() requires two arguments or more."));
        }
        let level = self.argument(arguments, 1);
        match self.as_number(&level)? {
            Some(level) if level > -1.0 && level < 4.0 => Ok(()),
            Some(_) => Err(self.redis_error("ERR Invalid debug level.")),
            None => Err(self.redis_error("ERR First argument must be a number (log level).")),
        }
    }

    pub(super) fn redis_setresp(&mut self, arguments: &Arguments) -> Step<H> {
        if arguments.count != 1 {
            return Err(self.redis_error("ERR redis.setresp() requires one argument."));
        }
        let version = self.argument(arguments, 1);
        match self.as_number(&version)?.map(f64::trunc) {
            Some(2.0) => self.is_new_protocol = false,
            Some(3.0) => self.is_new_protocol = true,
            _ => return Err(self.redis_error("ERR RESP version must be 2 or 3.")),
        }
        Ok(())
    }

    /// An error of a function of `redis`.
    fn redis_error(&mut self, text: &'static str) -> Stop<H> {
        match self.table_with("err", Value::String(Bytes::from_static(text.as_bytes()))) {
            Ok(error) => Stop::Raised(error),
            Err(stop) => stop,
        }
    }
}
