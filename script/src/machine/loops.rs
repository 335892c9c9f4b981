//! Loops with a counter, and loops with an iterator.

use super::{Host, Machine, Step, Value};

impl<H: Host> Machine<'_, H> {
    pub(super) fn prepare_loop(&mut self, at: usize, step: u32) -> Step<H> {
        let mut numbers = [0.0; 3];
        for (index, what) in ["initial value", "limit", "step"].into_iter().enumerate() {
            let value = self.stack[at + index].clone();
            match self.as_number(&value)? {
                Some(number) => numbers[index] = number,
                None => return Err(self.fail(format_args!("'for' {what} must be a number"))),
            }
        }
        let [first, limit, by] = numbers;
        // The first round adds the step.
        for (index, number) in [first - by, limit, by].into_iter().enumerate() {
            self.stack[at + index] = Value::Number(number);
        }
        self.jump(step)
    }

    pub(super) fn step_loop(&mut self, at: usize, body: u32) -> Step<H> {
        let [Value::Number(last), Value::Number(limit), Value::Number(by)] = self.stack[at..at + 3] else {
            return Ok(());
        };
        let next = last + by;
        let is_within = if by > 0.0 { next <= limit } else { limit <= next };
        if is_within {
            self.stack[at] = Value::Number(next);
            self.push(Value::Number(next))?;
            self.jump(body)?;
        }
        Ok(())
    }

    pub(super) fn copy_iterator(&mut self, at: usize) -> Step<H> {
        self.make_room(3)?;
        self.stack.extend_from_within(at..at + 3);
        Ok(())
    }

    pub(super) fn test_loop(&mut self, at: usize, body: u32) -> Step<H> {
        let value = self.stack[at + 3].clone();
        if !value.is_nil() {
            self.stack[at + 2] = value;
            self.jump(body)?;
        }
        Ok(())
    }
}
