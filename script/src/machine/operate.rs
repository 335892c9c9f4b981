//! Operators, and keys of tables.

use super::text::Text;
use super::{Host, Machine, Step, Value};
use crate::code::{Arithmetic, Comparison};
use crate::lexer::shown;
use crate::names::{Library, Meaning};
use crate::number;
use crate::value::Key;

impl<H: Host> Machine<'_, H> {
    /// The value as a number, also if it is a string with a number.
    pub(super) fn as_number(&mut self, value: &Value) -> Step<H, Option<f64>> {
        match value {
            Value::Number(number) => Ok(Some(*number)),
            Value::String(text) => {
                self.budget.spend(number::cost_of_reading(text))?;
                Ok(number::parse(text))
            }
            _ => Ok(None),
        }
    }

    pub(super) fn arithmetic(&mut self, operator: Arithmetic) -> Step<H> {
        let (right, left) = (self.pop(), self.pop());
        let (Some(one), Some(other)) = (self.as_number(&left)?, self.as_number(&right)?) else {
            let is_left = self.as_number(&left)?.is_none();
            let type_name = if is_left { left.type_name() } else { right.type_name() };
            return Err(self.fail(format_args!("attempt to perform arithmetic on a {type_name} value")));
        };
        if let Arithmetic::Modulo | Arithmetic::Power = operator {
            self.budget.spend(2)?;
        }
        self.push(Value::Number(match operator {
            Arithmetic::Add => one + other,
            Arithmetic::Subtract => one - other,
            Arithmetic::Multiply => one * other,
            Arithmetic::Divide => one / other,
            Arithmetic::Modulo => one - (one / other).floor() * other,
            Arithmetic::Power => one.powf(other),
        }))
    }

    pub(super) fn negate(&mut self) -> Step<H> {
        let value = self.pop();
        match self.as_number(&value)? {
            Some(number) => self.push(Value::Number(-number)),
            None => {
                let type_name = value.type_name();
                Err(self.fail(format_args!("attempt to perform arithmetic on a {type_name} value")))
            }
        }
    }

    pub(super) fn length(&mut self) -> Step<H> {
        let length = match self.pop() {
            Value::String(text) => text.len(),
            Value::Table(id) => self.length_of(id)?,
            Value::Library(_) => 0,
            other => {
                return Err(self.fail(format_args!("attempt to get length of a {} value", other.type_name())));
            }
        };
        self.push(Value::from(length))
    }

    pub(super) fn compare(&mut self, comparison: Comparison) -> Step<H> {
        let (right, left) = (self.pop(), self.pop());
        if let (Value::String(one), Value::String(other)) = (&left, &right) {
            self.budget.pass(one.len().min(other.len()))?;
        }
        let is_so = match comparison {
            Comparison::Equal => left == right,
            Comparison::NotEqual => left != right,
            Comparison::Less => self.order(&left, &right, |one, other| one < other)?,
            Comparison::LessOrEqual => self.order(&left, &right, |one, other| one <= other)?,
            Comparison::Greater => self.order(&right, &left, |one, other| one < other)?,
            Comparison::GreaterOrEqual => self.order(&right, &left, |one, other| one <= other)?,
        };
        self.push(Value::Bool(is_so))
    }

    /// Compares two numbers with `is_so`, or two strings by applying `is_so` to their order.
    fn order(&mut self, one: &Value, other: &Value, is_so: fn(f64, f64) -> bool) -> Step<H, bool> {
        match (one, other) {
            (Value::Number(one), Value::Number(other)) => Ok(is_so(*one, *other)),
            (Value::String(one), Value::String(other)) => Ok(is_so(f64::from(one.cmp(other) as i8), 0.0)),
            _ => Err(match (one.type_name(), other.type_name()) {
                (one, other) if one == other => {
                    self.fail(format_args!("attempt to compare two {one} values"))
                }
                (one, other) => self.fail(format_args!("attempt to compare {one} with {other}")),
            }),
        }
    }

    pub(super) fn concatenate(&mut self, slot: u16) -> Step<H> {
        let from = self.slot(slot);
        let mut text = Text::new(self.budget)?;
        for at in from..self.stack.len() {
            let value = self.stack[at].clone();
            if !text.add_value(&value, self.budget)? {
                let type_name = value.type_name();
                return Err(self.fail(format_args!("attempt to concatenate a {type_name} value")));
            }
        }
        self.stack.truncate(from);
        self.push(text.into())
    }

    /// The value of a key in an object.
    pub(super) fn index(&mut self, object: &Value, key: &Value) -> Step<H, Value> {
        let library = match object {
            Value::Table(id) => {
                self.pay_for_key(key)?;
                return Ok(self.tables[*id as usize].get(key));
            }
            Value::Library(library) => *library,
            Value::String(_) => Library::String,
            other => {
                return Err(self.fail(format_args!("attempt to index a {} value", other.type_name())));
            }
        };
        let Value::String(name) = key else { return Ok(Value::Nil) };
        self.budget.spend(4)?;
        match library.field(name) {
            Some(Meaning::Missing) => {
                Err(self.unsupported(format_args!("{}.{}", library.name(), shown(name))))
            }
            Some(meaning) => Ok(Self::value_of(meaning)),
            None => Ok(Value::Nil),
        }
    }

    /// Pays for the hash and a comparison of a key.
    pub(super) fn pay_for_key(&mut self, key: &Value) -> Step<H> {
        match key {
            Value::String(text) => Ok(self.budget.spend(1 + text.len() as u64 / 16)?),
            _ => Ok(self.budget.spend(1)?),
        }
    }

    /// Sets a key in an object.
    pub(super) fn set(&mut self, object: &Value, key: Value, value: Value) -> Step<H> {
        match object {
            Value::Table(id) => {
                self.pay_for_key(&key)?;
                match Key::new(key) {
                    Ok(key) => Ok(self.tables[*id as usize].set(key, value, self.budget)?),
                    Err(reason) => Err(self.fail(reason)),
                }
            }
            Value::Library(_) => Err(self.fail("Attempt to modify a readonly table")),
            other => Err(self.fail(format_args!("attempt to index a {} value", other.type_name()))),
        }
    }

    pub(super) fn index_top(&mut self) -> Step<H> {
        let (key, object) = (self.pop(), self.pop());
        let value = self.index(&object, &key)?;
        self.push(value)
    }

    pub(super) fn set_index(&mut self, slot: u16) -> Step<H> {
        let (at, value) = (self.slot(slot), self.pop());
        let (object, key) = (self.stack[at].clone(), self.stack[at + 1].clone());
        self.set(&object, key, value)
    }

    pub(super) fn set_item(&mut self, slot: u16) -> Step<H> {
        let (value, key) = (self.pop(), self.pop());
        let object = self.stack[self.slot(slot)].clone();
        self.set(&object, key, value)
    }

    pub(super) fn add_items(&mut self, slot: u16) -> Step<H> {
        let at = self.slot(slot);
        let Value::Table(id) = self.stack[at] else { return Ok(()) };
        Ok(self.tables[id as usize].fill(self.stack.drain(at + 1..), self.budget)?)
    }

    pub(super) fn method(&mut self, name: u32) -> Step<H> {
        let object = self.pop();
        let method = self.index(&object, &self.constant(name))?;
        self.push(method)?;
        self.push(object)
    }

    pub(super) fn no_global(&mut self, name: u32) -> Step<H> {
        let Value::String(name) = self.constant(name) else { return Ok(()) };
        let name = shown(&name);
        Err(self.fail(format_args!("Script attempted to access nonexistent global variable '{name}'")))
    }
}
