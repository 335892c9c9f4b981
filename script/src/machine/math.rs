//! `math`.

use super::arguments::Arguments;
use super::{Host, Machine, Step, Value};

impl<H: Host> Machine<'_, H> {
    pub(super) fn math(&mut self, arguments: &Arguments, function: fn(f64) -> f64) -> Step<H> {
        let number = self.number(arguments, 1)?;
        self.push(Value::Number(function(number)))
    }

    pub(super) fn math_fmod(&mut self, arguments: &Arguments) -> Step<H> {
        let (number, by) = (self.number(arguments, 1)?, self.number(arguments, 2)?);
        // The remainder takes one step for each bit by which the number is longer than the divisor.
        self.budget.spend(20)?;
        self.push(Value::Number(number % by))
    }

    /// `max` or `min`: the last number that `is_beyond` all numbers before it.
    pub(super) fn math_most(&mut self, arguments: &Arguments, is_beyond: fn(f64, f64) -> bool) -> Step<H> {
        let mut most = self.number(arguments, 1)?;
        for number in 2..=arguments.count {
            self.budget.spend(1)?;
            let other = self.number(arguments, number)?;
            if is_beyond(other, most) {
                most = other;
            }
        }
        self.push(Value::Number(most))
    }
}
