//! Builds strings, and the errors of scripts.

use std::fmt::Display;

use bytes::Bytes;

use super::{Frame, Host, Machine, Step, Stop, Value};
use crate::Halt;
use crate::budget::{Budget, Exhausted};
use crate::number;

/// The memory of a string besides its bytes.
const STRING: usize = 64;

/// A string that is being built.
pub(super) struct Text(Vec<u8>);

impl Text {
    pub(super) fn new(budget: &mut Budget) -> Result<Self, Exhausted> {
        budget.take(STRING)?;
        budget.spend(2)?;
        Ok(Self(Vec::new()))
    }

    pub(super) fn add(&mut self, part: &[u8], budget: &mut Budget) -> Result<(), Exhausted> {
        budget.pass(part.len())?;
        budget.reserve(&mut self.0, part.len())?;
        self.0.extend_from_slice(part);
        Ok(())
    }

    /// Adds a string or a number. Returns `false` if the value is neither.
    pub(super) fn add_value(&mut self, value: &Value, budget: &mut Budget) -> Result<bool, Exhausted> {
        match value {
            Value::String(text) => self.add(text, budget)?,
            Value::Number(number) => {
                budget.spend(number::cost_of_writing(*number, number::DIGITS))?;
                self.add(number::to_string(*number).as_bytes(), budget)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.0.into()
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::String(text.into_bytes())
    }
}

impl<H: Host> Machine<'_, H> {
    /// A new string.
    pub(super) fn text(&mut self, bytes: &[u8]) -> Step<H, Bytes> {
        let mut text = Text::new(self.budget)?;
        text.add(bytes, self.budget)?;
        Ok(text.into_bytes())
    }

    /// Pushes a string whose bytes have been paid for.
    pub(super) fn push_bytes(&mut self, bytes: Vec<u8>) -> Step<H> {
        self.budget.take(STRING)?;
        self.push(Value::String(bytes.into()))
    }

    pub(super) fn push_text(&mut self, bytes: &[u8]) -> Step<H> {
        let text = self.text(bytes)?;
        self.push(Value::String(text))
    }

    /// The result of `tostring`.
    pub(super) fn text_of(&mut self, value: &Value) -> Step<H, Bytes> {
        let named = |kind: &str, number: u32| format!("{kind}: 0x{number:08x}");
        let text = match value {
            Value::Nil => "nil".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(number) => {
                self.budget.spend(number::cost_of_writing(*number, number::DIGITS))?;
                number::to_string(*number)
            }
            Value::String(text) => return Ok(text.clone()),
            Value::Table(id) => named("table", *id),
            Value::Function(id) => named("function", *id),
            Value::Builtin(builtin) => format!("function: builtin {}", builtin.name()),
            Value::Library(library) => format!("table: {}", library.name()),
        };
        self.text(text.as_bytes())
    }

    /// An error with the line of the script and this text.
    pub(super) fn fail(&mut self, text: impl Display) -> Stop<H> {
        self.raise(format_args!("{}{text}", self.place(1)))
    }

    /// An error with this text.
    pub(super) fn raise(&mut self, text: impl Display) -> Stop<H> {
        match self.text(text.to_string().as_bytes()) {
            Ok(text) => Stop::Raised(Value::String(text)),
            Err(stop) => stop,
        }
    }

    /// Ends the script, because Redis would do what it asks for, and this interpreter does not. A script that caught this could go on
    /// as if Redis had failed.
    pub(super) fn unsupported(&self, what: impl Display) -> Stop<H> {
        Stop::Halted(Halt::Unsupported(format!("{what} is not supported here")))
    }

    fn line_of(&self, frame: &Frame) -> String {
        format!("user_script:{}: ", self.number_of_line(frame))
    }

    /// The line that the script has reached.
    pub(super) fn line(&self) -> u32 {
        self.frames.last().map_or(self.last_line, |frame| self.number_of_line(frame))
    }

    fn number_of_line(&self, frame: &Frame) -> u32 {
        let lines = &self.code.functions[frame.function as usize].lines;
        lines[(frame.next as usize).saturating_sub(1).min(lines.len() - 1)].into()
    }

    /// The line of the function `level` calls above the built-in function, for an error message.
    pub(super) fn place(&self, level: usize) -> String {
        let count = self.frames.len();
        let is_hidden = match level {
            0 => true,
            1 => !self.is_called_by_script,
            _ => self.frames.iter().rev().take(level - 1).any(|frame| frame.protections > 0),
        };
        let frame = count.checked_sub(level).filter(|_| !is_hidden).and_then(|index| self.frames.get(index));
        frame.map_or(String::new(), |frame| self.line_of(frame))
    }
}
