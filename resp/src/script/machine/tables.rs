//! `table`.

use super::arguments::Arguments;
use super::text::Text;
use super::{Machine, Step, Value};

impl Machine<'_> {
    fn item(&mut self, table: u32, position: i64) -> Step<Value> {
        self.budget.spend(1)?;
        Ok(self.tables[table as usize].get(&Value::Number(position as f64)))
    }

    fn set_position(&mut self, table: u32, position: i64, value: Value) -> Step {
        self.set(&Value::Table(table), Value::Number(position as f64), value)
    }

    pub(super) fn table_getn(&mut self, arguments: &Arguments) -> Step {
        let table = self.table(arguments, 1)?;
        self.push(Value::from(self.tables[table as usize].len()))
    }

    pub(super) fn table_concat(&mut self, arguments: &Arguments) -> Step {
        let table = self.table(arguments, 1)?;
        let separator = match self.argument(arguments, 2) {
            Value::Nil => bytes::Bytes::new(),
            _ => self.string(arguments, 2)?,
        };
        let from = self.integer_or(arguments, 3, 1)?;
        let to = self.integer_or(arguments, 4, self.tables[table as usize].len() as i64)?;
        let mut text = Text::new(self.budget)?;
        for position in from..=to {
            if position > from {
                text.add(&separator, self.budget)?;
            }
            let value = self.item(table, position)?;
            if !text.add_value(&value, self.budget)? {
                let type_name = value.type_name();
                let place = format!("invalid value ({type_name}) at index {position} in table for 'concat'");
                return Err(self.fail(place));
            }
        }
        self.push(text.into())
    }

    pub(super) fn table_insert(&mut self, arguments: &Arguments) -> Step {
        let table = self.table(arguments, 1)?;
        let end = self.tables[table as usize].len() as i64 + 1;
        let (position, value) = match arguments.count {
            2 => (end, self.argument(arguments, 2)),
            3 => (self.integer(arguments, 2)?, self.argument(arguments, 3)),
            _ => return Err(self.fail("wrong number of arguments to 'insert'")),
        };
        for free in (position + 1..=end).rev() {
            let moved = self.item(table, free - 1)?;
            self.set_position(table, free, moved)?;
        }
        self.set_position(table, position, value)
    }

    pub(super) fn table_remove(&mut self, arguments: &Arguments) -> Step {
        let table = self.table(arguments, 1)?;
        let end = self.tables[table as usize].len() as i64;
        let position = self.integer_or(arguments, 2, end)?;
        if position < 1 || position > end {
            return Ok(());
        }
        let removed = self.item(table, position)?;
        for free in position..end {
            let moved = self.item(table, free + 1)?;
            self.set_position(table, free, moved)?;
        }
        self.set_position(table, end, Value::Nil)?;
        self.push(removed)
    }
}
