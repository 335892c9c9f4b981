//! Calls, results, caught errors, and captured variables.

use std::mem;

use super::arguments::Arguments;
use super::{Captured, Closure, Constant, Frame, Function, Host, Machine, Meaning, Step, Stop, Table, Value};
use crate::code::{ALL, Capture};
use crate::names::Builtin;

/// The most calls that have not returned.
const MAX_CALLS: usize = 64;

impl<H: Host> Machine<'_, H> {
    pub(super) fn frame(&self) -> &Frame {
        self.frames.last().expect("a step belongs to a function that was called")
    }

    /// The place of a slot on the stack.
    pub(super) fn slot(&self, slot: u16) -> usize {
        self.frame().base + usize::from(slot)
    }

    pub(super) fn make_room(&mut self, values: usize) -> Step<H> {
        Ok(self.budget.reserve(&mut self.stack, values)?)
    }

    pub(super) fn push(&mut self, value: Value) -> Step<H> {
        Ok(self.budget.push(&mut self.stack, value)?)
    }

    pub(super) fn push_nils(&mut self, count: usize) -> Step<H> {
        self.budget.spend(count as u64 / 4)?;
        self.make_room(count)?;
        self.stack.resize(self.stack.len() + count, Value::Nil);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Value {
        self.stack.pop().unwrap_or(Value::Nil)
    }

    pub(super) fn constant(&self, id: u32) -> Value {
        match self.code.constants[id as usize] {
            Constant::Number(number) => Value::Number(number),
            Constant::String { start, end } => {
                Value::String(self.code.text.slice(start as usize..end as usize))
            }
        }
    }

    pub(super) fn value_of(meaning: Meaning) -> Value {
        match meaning {
            Meaning::Builtin(builtin) => Value::Builtin(builtin),
            Meaning::Library(library) => Value::Library(library),
            Meaning::Number(number) => Value::Number(number),
            Meaning::Keys => Value::Table(super::KEYS),
            Meaning::Arguments => Value::Table(super::ARGUMENTS),
            Meaning::Missing => Value::Nil,
        }
    }

    pub(super) fn jump(&mut self, to: u32) -> Step<H> {
        if let Some(frame) = self.frames.last_mut() {
            frame.next = to;
        }
        Ok(())
    }

    /// Jumps if the last value is as `if_true` says, and pops it otherwise.
    pub(super) fn jump_or_drop(&mut self, to: u32, if_true: bool) -> Step<H> {
        match self.stack.last().is_some_and(Value::is_true) == if_true {
            true => self.jump(to),
            false => {
                self.stack.pop();
                Ok(())
            }
        }
    }

    /// Calls the value at `at` with all values after it. The results replace the function and its arguments.
    pub(super) fn call(&mut self, at: usize, wanted: u16) -> Step<H> {
        let mut callee = at;
        let mut protections = 0;
        while matches!(self.stack.get(callee), Some(Value::Builtin(Builtin::Pcall))) {
            self.budget.spend(1)?;
            callee += 1;
            protections += 1;
        }
        self.is_called_by_script = protections == 0;
        let done = self.begin(callee, at, wanted, protections);
        self.is_called_by_script = true;
        match done {
            Err(Stop::Raised(error)) if protections > 0 => self.caught(at, wanted, protections, error),
            done => done,
        }
    }

    fn begin(&mut self, callee: usize, at: usize, wanted: u16, protections: u32) -> Step<H> {
        match self.stack.get(callee) {
            Some(Value::Function(id)) => self.enter(*id, callee, at, wanted, protections),
            Some(Value::Builtin(builtin)) => {
                let (builtin, end) = (*builtin, self.stack.len());
                self.budget.spend(2)?;
                self.run_builtin(&Arguments { builtin, first: callee + 1, count: end - callee - 1 })?;
                self.finish(at, end, wanted, protections)
            }
            Some(other) => {
                let type_name = other.type_name();
                Err(self.fail(format_args!("attempt to call a {type_name} value")))
            }
            None => Err(self.fail("bad argument #1 to 'pcall' (value expected)")),
        }
    }

    fn enter(&mut self, closure: u32, callee: usize, at: usize, wanted: u16, protections: u32) -> Step<H> {
        if self.frames.len() == MAX_CALLS {
            return Err(self.unsupported(format_args!("a nesting of more than {MAX_CALLS} calls")));
        }
        let function = self.closures[closure as usize].function;
        let Function { parameters, has_varargs, .. } = self.code.functions[function as usize];
        let (parameters, first) = (usize::from(parameters), callee + 1);
        let given = self.stack.len() - first;
        let varargs = if has_varargs { given.saturating_sub(parameters) } else { 0 };
        self.budget.spend(1 + parameters as u64 / 4)?;
        self.make_room(parameters)?;
        if varargs > 0 {
            self.budget.spend(given as u64 / 4)?;
            self.stack[first..].rotate_left(parameters);
        }
        let base = first + varargs;
        self.stack.resize(base + parameters, Value::Nil);
        let frame = Frame { function, closure, next: 0, base, at, wanted, varargs, protections };
        Ok(self.budget.push(&mut self.frames, frame)?)
    }

    pub(super) fn push_varargs(&mut self, wanted: u16) -> Step<H> {
        let Frame { base, varargs, .. } = *self.frame();
        let count = if wanted == ALL { varargs } else { varargs.min(wanted.into()) };
        self.budget.spend(count as u64)?;
        let missing = if wanted == ALL { 0 } else { usize::from(wanted) - count };
        self.make_room(count)?;
        let first = base - varargs;
        self.stack.extend_from_within(first..first + count);
        self.push_nils(missing)
    }

    /// Returns all values from the slot on from the innermost function.
    pub(super) fn finish_function(&mut self, slot: u16) -> Step<H> {
        let from = self.slot(slot);
        let Some(Frame { base, at, wanted, protections, .. }) = self.leave() else { return Ok(()) };
        self.keep_captured(base);
        self.finish(at, from, wanted, protections)
    }

    /// Ends the call of the innermost function.
    fn leave(&mut self) -> Option<Frame> {
        if self.frames.len() == 1 {
            self.last_line = self.line();
        }
        self.frames.pop()
    }

    /// Moves the results, which begin at `from`, to `at`.
    fn finish(&mut self, at: usize, from: usize, wanted: u16, protections: u32) -> Step<H> {
        self.budget.spend((self.stack.len() - from) as u64 / 8)?;
        let successes = std::iter::repeat_n(Value::Bool(true), protections as usize);
        drop(self.stack.splice(at..from, successes));
        self.adjust(at, wanted)
    }

    /// Drops values from `at` on, or adds nils, until `wanted` are left.
    fn adjust(&mut self, at: usize, wanted: u16) -> Step<H> {
        if wanted != ALL {
            let end = at + usize::from(wanted);
            self.stack.truncate(end);
            self.push_nils(end - self.stack.len())?;
        }
        Ok(())
    }

    /// Makes the innermost `pcall` return the error. Without a `pcall`, returns the error itself.
    pub(super) fn catch(&mut self, error: Value) -> Step<H> {
        while let Some(frame) = self.leave() {
            if frame.protections > 0 {
                return self.caught(frame.at, frame.wanted, frame.protections, error);
            }
        }
        Err(Stop::Raised(error))
    }

    /// Makes a `pcall` return an error. Of several nested in one call, the innermost fails, and the outer ones succeed.
    fn caught(&mut self, at: usize, wanted: u16, protections: u32, error: Value) -> Step<H> {
        self.close(at)?;
        self.make_room(protections as usize + 2)?;
        self.stack.extend(std::iter::repeat_n(Value::Bool(true), protections as usize - 1));
        self.stack.push(Value::Bool(false));
        // As in Redis, the script gets the field `err` of a table: instead of the table, if it is a text.
        let field = self.error_field(&error)?;
        if !matches!(field, Some(Value::String(_) | Value::Number(_))) {
            self.stack.push(error);
        }
        self.stack.extend(field);
        self.adjust(at, wanted)
    }

    /// Pops all values from this place on. Closures keep the variables that they have captured.
    pub(super) fn close(&mut self, from: usize) -> Step<H> {
        self.keep_captured(from);
        self.stack.truncate(from);
        Ok(())
    }

    fn keep_captured(&mut self, from: usize) {
        while let Some((place, id)) = self.on_stack.pop_if(|(place, _)| *place >= from) {
            let value = mem::replace(&mut self.stack[place], Value::Nil);
            self.captured[id as usize] = Captured::Kept(value);
        }
    }

    pub(super) fn captured(&self, index: u16) -> &Value {
        match &self.captured[self.captured_id(index)] {
            Captured::OnStack(place) => &self.stack[*place],
            Captured::Kept(value) => value,
        }
    }

    pub(super) fn captured_mut(&mut self, index: u16) -> &mut Value {
        let id = self.captured_id(index);
        match &mut self.captured[id] {
            Captured::OnStack(place) => &mut self.stack[*place],
            Captured::Kept(value) => value,
        }
    }

    fn captured_id(&self, index: u16) -> usize {
        self.closures[self.frame().closure as usize].captured[usize::from(index)] as usize
    }

    /// Pushes a new closure of a function of the script.
    pub(super) fn push_closure(&mut self, function: u32) -> Step<H> {
        let captures = &self.code.functions[function as usize].captures;
        let mut captured = Vec::new();
        self.budget.spend(captures.len() as u64)?;
        self.budget.reserve(&mut captured, captures.len())?;
        for capture in captures {
            captured.push(match capture {
                Capture::Local(slot) => self.capture(self.slot(*slot))?,
                Capture::Captured(index) => self.captured_id(*index) as u32,
            });
        }
        self.new_closure(function, captured)
    }

    pub(super) fn new_closure(&mut self, function: u32, captured: Vec<u32>) -> Step<H> {
        self.budget.push(&mut self.closures, Closure { function, captured })?;
        self.push(Value::Function((self.closures.len() - 1) as u32))
    }

    /// The number of the captured variable at this place.
    fn capture(&mut self, place: usize) -> Step<H, u32> {
        let index = self.on_stack.partition_point(|(other, _)| *other < place);
        if let Some((found, id)) = self.on_stack.get(index)
            && *found == place
        {
            return Ok(*id);
        }
        let id = self.captured.len() as u32;
        self.budget.push(&mut self.captured, Captured::OnStack(place))?;
        self.budget.spend(1 + (self.on_stack.len() - index) as u64 / 32)?;
        self.budget.reserve(&mut self.on_stack, 1)?;
        self.on_stack.insert(index, (place, id));
        Ok(id)
    }

    pub(super) fn new_table(&mut self) -> Step<H, u32> {
        self.budget.spend(2)?;
        self.budget.push(&mut self.tables, Table::default())?;
        Ok((self.tables.len() - 1) as u32)
    }

    pub(super) fn push_new_table(&mut self) -> Step<H> {
        let id = self.new_table()?;
        self.push(Value::Table(id))
    }
}
