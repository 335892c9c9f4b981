//! Converts replies to values, and values to replies.

use bytes::Bytes;

use super::text::Text;
use super::{Host, Machine, Step, Stop, Table, Value};
use crate::number;
use crate::reply::{MAX_NESTING, Reply};

/// The fields by which a script returns kinds of replies that are not supported here.
const OTHER_REPLIES: [&str; 5] = ["double", "map", "set", "big_number", "verbatim_string"];

impl<H: Host> Machine<'_, H> {
    /// Converts a value to a reply.
    pub(super) fn reply(&mut self, value: &Value) -> Step<H, Reply> {
        self.nested_reply(value, MAX_NESTING)
    }

    fn nested_reply(&mut self, value: &Value, depth: usize) -> Step<H, Reply> {
        self.budget.spend(1)?;
        Ok(match value {
            Value::Nil | Value::Function(_) | Value::Builtin(_) => Reply::Null,
            Value::Bool(value) if self.is_new_protocol => Reply::Bool(*value),
            Value::Bool(true) => Reply::Integer(1),
            Value::Bool(false) => Reply::Null,
            Value::Number(number) => Reply::Integer(number::to_integer(*number)),
            Value::String(text) => Reply::Bulk(text.clone()),
            Value::Library(_) => Reply::Array(Vec::new()),
            Value::Table(id) => return self.reply_of_table(*id, depth),
        })
    }

    fn reply_of_table(&mut self, id: u32, depth: usize) -> Step<H, Reply> {
        if let Some(text) = self.field(id, "err")? {
            return Ok(Reply::Error(text));
        }
        if let Some(text) = self.field(id, "ok")? {
            return Ok(Reply::Status(text));
        }
        for name in OTHER_REPLIES {
            self.budget.spend(1)?;
            if !self.tables[id as usize].get(&key(name)).is_nil() {
                return Err(self.unsupported(format_args!("a reply with the field {name}")));
            }
        }
        if depth == 0 {
            return Err(self.too_deep());
        }
        let mut items = Vec::new();
        for position in 1.. {
            let item = self.tables[id as usize].get(&Value::from(position));
            if item.is_nil() {
                break;
            }
            let reply = self.nested_reply(&item, depth - 1)?;
            self.budget.push(&mut items, reply)?;
        }
        Ok(Reply::Array(items))
    }

    /// The string in a field of a table.
    fn field(&mut self, id: u32, name: &'static str) -> Step<H, Option<Bytes>> {
        self.budget.spend(1)?;
        match self.tables[id as usize].get(&key(name)) {
            Value::String(text) => Ok(Some(text)),
            _ => Ok(None),
        }
    }

    /// The field `err`, if the error is a table.
    pub(super) fn error_field(&mut self, error: &Value) -> Step<H, Option<Value>> {
        self.budget.spend(1)?;
        Ok(match error {
            Value::Table(id) => Some(self.tables[*id as usize].get(&key("err"))),
            _ => None,
        })
    }

    /// The text of an error for the client.
    pub(super) fn error_text(&mut self, error: &Value) -> Step<H, Bytes> {
        if let Some(Value::String(text)) = self.error_field(error)? {
            return Ok(text);
        }
        let mut text = Text::new(self.budget)?;
        text.add(b"ERR ", self.budget)?;
        let reason = self.text_of(error)?;
        text.add(&reason, self.budget)?;
        Ok(text.into_bytes())
    }

    /// Converts a reply to a command to a value.
    pub(super) fn value_from(&mut self, reply: Reply) -> Step<H, Value> {
        self.nested_value(reply, MAX_NESTING)
    }

    fn nested_value(&mut self, reply: Reply, depth: usize) -> Step<H, Value> {
        self.budget.spend(1)?;
        match reply {
            Reply::Status(text) => {
                let text = self.received(text)?;
                self.table_with("ok", text)
            }
            Reply::Error(text) => {
                let text = self.received(text)?;
                self.table_with("err", text)
            }
            Reply::Integer(number) => Ok(Value::Number(number as f64)),
            Reply::Bulk(text) => self.received(text),
            Reply::Null | Reply::NullArray if self.is_new_protocol => Ok(Value::Nil),
            Reply::Null | Reply::NullArray => Ok(Value::Bool(false)),
            Reply::Bool(value) if self.is_new_protocol => Ok(Value::Bool(value)),
            Reply::Bool(value) => Ok(Value::Number(f64::from(u8::from(value)))),
            Reply::Array(_) | Reply::Map(_) if depth == 0 => Err(self.too_deep()),
            Reply::Array(items) => self.sequence(items.into_iter(), depth - 1),
            Reply::Map(pairs) if self.is_new_protocol => {
                let map = Value::Table(self.new_table()?);
                for (name, value) in pairs {
                    let (name, value) =
                        (self.nested_value(name, depth - 1)?, self.nested_value(value, depth - 1)?);
                    self.set(&map, name, value)?;
                }
                self.table_with("map", map)
            }
            Reply::Map(pairs) => {
                let mut items = Vec::new();
                self.budget.reserve(&mut items, 2 * pairs.len())?;
                items.extend(pairs.into_iter().flat_map(|(name, value)| [name, value]));
                self.sequence(items.into_iter(), depth - 1)
            }
        }
    }

    fn too_deep(&self) -> Stop<H> {
        self.unsupported(format_args!("a reply that is nested more than {MAX_NESTING} levels deep"))
    }

    /// A string from a reply, after paying for it.
    fn received(&mut self, text: Bytes) -> Step<H, Value> {
        self.budget.take(64 + text.len())?;
        self.budget.pass(text.len())?;
        Ok(Value::String(text))
    }

    fn sequence(&mut self, items: impl ExactSizeIterator<Item = Reply>, depth: usize) -> Step<H, Value> {
        let mut values = Vec::new();
        self.budget.reserve(&mut values, items.len())?;
        for item in items {
            values.push(self.nested_value(item, depth)?);
        }
        let id = self.new_table()?;
        self.tables[id as usize] = Table::of(values.into_iter(), self.budget)?;
        Ok(Value::Table(id))
    }
}

fn key(name: &'static str) -> Value {
    Value::String(Bytes::from_static(name.as_bytes()))
}
