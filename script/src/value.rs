//! The values of the language.

use std::hash::{Hash, Hasher};

use bytes::Bytes;

use super::names::{Builtin, Library};

/// A value. A copy is cheap, and refers to the same table or function.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Nil,
    Bool(bool),
    Number(f64),
    String(Bytes),
    /// The number of a table of the run.
    Table(u32),
    /// The number of a closure of the run.
    Function(u32),
    Builtin(Builtin),
    /// A table of built-in functions, which is never written to.
    Library(Library),
}

/// A value as the key of a table: neither nil nor NaN.
#[derive(Clone, Debug)]
pub(super) struct Key(Value);

impl Value {
    pub(super) fn is_nil(&self) -> bool {
        matches!(self, Self::Nil)
    }

    /// Whether a condition holds: all but nil and false are true.
    pub(super) fn is_true(&self) -> bool {
        !matches!(self, Self::Nil | Self::Bool(false))
    }

    /// The result of `type`.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Table(_) | Self::Library(_) => "table",
            Self::Function(_) | Self::Builtin(_) => "function",
        }
    }

    /// The position in a sequence that a number names, from 1.
    pub(super) fn as_position(&self) -> Option<usize> {
        match self {
            Self::Number(number) if *number >= 1.0 && *number <= f64::from(u32::MAX) => {
                let position = *number as usize;
                (position as f64 == *number).then_some(position)
            }
            _ => None,
        }
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Number(count as f64)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nil, Self::Nil) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Number(one), Self::Number(other)) => one == other,
            (Self::String(one), Self::String(other)) => one == other,
            (Self::Table(one), Self::Table(other)) | (Self::Function(one), Self::Function(other)) => {
                one == other
            }
            (Self::Builtin(one), Self::Builtin(other)) => one == other,
            (Self::Library(one), Self::Library(other)) => one == other,
            _ => false,
        }
    }
}

impl Key {
    /// The value as a key, or why it cannot be one.
    pub(super) fn new(value: Value) -> Result<Self, &'static str> {
        match value {
            Value::Nil => Err("table index is nil"),
            Value::Number(number) if number.is_nan() => Err("table index is NaN"),
            // 0 and -0 are the same key.
            Value::Number(0.0) => Ok(Self(Value::Number(0.0))),
            value => Ok(Self(value)),
        }
    }

    /// A position in a sequence.
    pub(super) fn position(position: usize) -> Self {
        Self(Value::from(position))
    }

    pub(super) fn value(&self) -> &Value {
        &self.0
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

/// A key is never NaN.
impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Value::Nil => 0u8.hash(state),
            Value::Bool(value) => value.hash(state),
            Value::Number(number) => number.to_bits().hash(state),
            Value::String(text) => text.hash(state),
            Value::Table(id) | Value::Function(id) => id.hash(state),
            Value::Builtin(builtin) => builtin.hash(state),
            Value::Library(library) => library.hash(state),
        }
    }
}
