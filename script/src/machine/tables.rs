//! `table`.

use super::arguments::Arguments;
use super::text::Text;
use super::{Host, Machine, Step, Value};

impl<H: Host> Machine<'_, H> {
    fn item(&mut self, table: u32, position: i64) -> Step<H, Value> {
        self.budget.spend(1)?;
        Ok(self.tables[table as usize].get(&Value::Number(position as f64)))
    }

    /// The length of a table, as `#` and the functions with tables see it.
    pub(super) fn length_of(&self, table: u32) -> Step<H, usize> {
        let length = self.tables[table as usize].len();
        length.ok_or_else(|| self.unsupported("the length of a table with holes"))
    }

    pub(super) fn table_getn(&mut self, arguments: &Arguments) -> Step<H> {
        let table = self.table(arguments, 1)?;
        let length = self.length_of(table)?;
        self.push(Value::from(length))
    }

    pub(super) fn table_concat(&mut self, arguments: &Arguments) -> Step<H> {
        let table = self.table(arguments, 1)?;
        let separator = match self.argument(arguments, 2) {
            Value::Nil => bytes::Bytes::new(),
            _ => self.string(arguments, 2)?,
        };
        let from = self.int_or(arguments, 3, 1)?;
        let to = match self.argument(arguments, 4) {
            Value::Nil => self.length_of(table)? as i64,
            _ => self.int(arguments, 4)?,
        };
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

    pub(super) fn table_insert(&mut self, arguments: &Arguments) -> Step<H> {
        let table = self.table(arguments, 1)?;
        let end = self.length_of(table)? as i64 + 1;
        let (position, value) = match arguments.count {
            2 => (end, self.argument(arguments, 2)),
            3 => (self.int(arguments, 2)?, self.argument(arguments, 3)),
            _ => return Err(self.fail("wrong number of arguments to 'insert'")),
        };
        if position < 1 {
            return Err(self.unsupported("table.insert at a position below 1"));
        }
        if position > end {
            return self.set(&Value::Table(table), Value::Number(position as f64), value);
        }
        Ok(self.tables[table as usize].insert(position as usize, value, self.budget)?)
    }

    pub(super) fn table_remove(&mut self, arguments: &Arguments) -> Step<H> {
        let table = self.table(arguments, 1)?;
        let end = self.length_of(table)? as i64;
        let position = self.int_or(arguments, 2, end)?;
        if position < 1 || position > end {
            return Ok(());
        }
        let removed = self.tables[table as usize].remove(position as usize, self.budget)?;
        self.push(removed)
    }
}
