//! Runs compiled scripts.

mod arguments;
mod base;
mod calls;
mod convert;
mod format;
mod library;
mod loops;
mod math;
mod operate;
mod redis;
mod strings;
mod tables;
mod text;

use bytes::Bytes;

use super::budget::{Budget, Exhausted};
use super::code::{Code, Constant, Function, Op};
use super::names::Meaning;
use super::table::Table;
use super::value::Value;
use super::{Halt, Host, Reply, RunError, Turns};

/// The state of a run.
pub(super) struct Machine<'a, H> {
    code: &'a Code,
    host: &'a mut H,
    budget: &'a mut Budget,
    stack: Vec<Value>,
    /// The functions that were called and have not returned, the innermost last.
    frames: Vec<Frame>,
    /// The line in which the last function returned or failed.
    last_line: u32,
    /// All tables of this run.
    tables: Vec<Table>,
    closures: Vec<Closure>,
    captured: Vec<Captured>,
    /// The places of captured variables that are on the stack, the highest last, and their numbers.
    on_stack: Vec<(usize, u32)>,
    /// Whether a function of the script called the built-in function that runs, and not `pcall`.
    is_called_by_script: bool,
    /// Whether the script asked for replies of version 3.
    is_new_protocol: bool,
}

/// A function that was called.
struct Frame {
    function: u32,
    closure: u32,
    /// The next step.
    next: u32,
    /// Where its slots begin on the stack.
    base: usize,
    /// Where the caller wants its results, and how many.
    at: usize,
    wanted: u16,
    /// How many variable arguments lie before `base`.
    varargs: usize,
    /// How many nested `pcall`s called it.
    protections: u32,
}

/// A function with the variables that it has captured.
struct Closure {
    function: u32,
    captured: Vec<u32>,
}

/// A captured variable.
enum Captured {
    /// Its place on the stack.
    OnStack(usize),
    Kept(Value),
}

/// Why a step stops the script.
enum Stop<H: Host> {
    /// The script failed with this value, and may catch it.
    Raised(Value),
    Halted(Halt<H::Refusal>),
}

type Step<H, T = ()> = Result<T, Stop<H>>;

impl<H: Host> From<Exhausted> for Stop<H> {
    fn from(why: Exhausted) -> Self {
        Self::Halted(why.into())
    }
}

/// The numbers of the tables `KEYS` and `ARGV`.
const KEYS: u32 = 0;
const ARGUMENTS: u32 = 1;

/// Runs a script with these `KEYS` and `ARGV`.
pub(super) async fn run<H: Host>(
    code: &Code,
    keys: &[Bytes],
    arguments: &[Bytes],
    host: &mut H,
    budget: &mut Budget,
    turns: &mut impl Turns<H::Refusal>,
) -> Result<Reply, RunError<H::Refusal>> {
    let mut machine = Machine {
        code,
        host,
        budget,
        stack: Vec::new(),
        frames: Vec::new(),
        last_line: 1,
        tables: Vec::new(),
        closures: Vec::new(),
        captured: Vec::new(),
        on_stack: Vec::new(),
        is_called_by_script: true,
        is_new_protocol: false,
    };
    match machine.run(keys, arguments, turns).await {
        Ok(reply) => Ok(reply),
        Err(Stop::Halted(why)) => Err(RunError::Halted(machine.line(), why)),
        Err(Stop::Raised(error)) => Err(machine.failure(&error)),
    }
}

impl<H: Host> Machine<'_, H> {
    async fn run(
        &mut self,
        keys: &[Bytes],
        arguments: &[Bytes],
        turns: &mut impl Turns<H::Refusal>,
    ) -> Step<H, Reply> {
        for list in [keys, arguments] {
            self.budget.spend(1 + list.len() as u64 / 4)?;
            let items = list.iter().map(|item| Value::String(item.clone()));
            let table = Table::of(items, self.budget)?;
            self.budget.push(&mut self.tables, table)?;
        }
        let main = self.code.functions.len() - 1;
        self.new_closure(main as u32, Vec::new())?;
        self.call(0, super::code::ALL)?;
        while !self.go_on()? {
            // A long step may have taken several turns.
            while self.budget.is_turn_over() {
                let turn = turns.next(self.budget).await;
                turn.map_err(|refusal| Stop::Halted(Halt::NoTurn(Box::new(refusal))))?;
                self.budget.begin_turn();
            }
        }
        let result = self.stack.drain(..).next().unwrap_or(Value::Nil);
        self.reply(&result)
    }

    /// The reply to the client after an error that no `pcall` caught.
    fn failure(&mut self, error: &Value) -> RunError<H::Refusal> {
        match self.error_text(error) {
            Ok(text) => RunError::Failed(text),
            Err(Stop::Halted(why)) => RunError::Halted(self.line(), why),
            Err(Stop::Raised(_)) => RunError::Failed(Bytes::from_static(b"ERR the script failed")),
        }
    }

    /// Goes on until the script has returned or the turn is over. Returns whether the script has returned.
    fn go_on(&mut self) -> Step<H, bool> {
        while let Some(op) = self.fetch() {
            let done = self.budget.spend(1).map_err(Stop::from).and_then(|()| self.step(op));
            if let Err(Stop::Raised(error)) = done {
                self.catch(error)?;
            } else {
                done?;
            }
            if self.budget.is_turn_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next step, or `None` if the script has returned.
    fn fetch(&mut self) -> Option<Op> {
        let frame = self.frames.last_mut()?;
        let op = self.code.functions[frame.function as usize].ops.get(frame.next as usize)?;
        frame.next += 1;
        Some(*op)
    }

    fn step(&mut self, op: Op) -> Step<H> {
        match op {
            Op::Nil(count) => self.push_nils(count.into()),
            Op::Bool(value) => self.push(Value::Bool(value)),
            Op::Constant(id) => self.push(self.constant(id)),
            Op::Builtin(builtin) => self.push(Value::Builtin(builtin)),
            Op::Library(library) => self.push(Value::Library(library)),
            Op::Keys => self.push(Value::Table(KEYS)),
            Op::Arguments => self.push(Value::Table(ARGUMENTS)),
            Op::NoGlobal(name) => self.no_global(name),
            Op::SetGlobal => Err(self.fail("Attempt to modify a readonly table")),
            Op::Local(slot) => self.push(self.stack[self.slot(slot)].clone()),
            Op::SetLocal(slot) => {
                let slot = self.slot(slot);
                self.stack[slot] = self.pop();
                Ok(())
            }
            Op::Captured(index) => self.push(self.captured(index).clone()),
            Op::SetCaptured(index) => {
                let value = self.pop();
                *self.captured_mut(index) = value;
                Ok(())
            }
            Op::Table => self.push_new_table(),
            Op::Item(slot) => self.set_item(slot),
            Op::Items(slot) => self.add_items(slot),
            Op::Index => self.index_top(),
            Op::SetIndex(slot) => self.set_index(slot),
            Op::Method(name) => self.method(name),
            Op::Negate => self.negate(),
            Op::Not => {
                let value = self.pop();
                self.push(Value::Bool(!value.is_true()))
            }
            Op::Length => self.length(),
            Op::Arithmetic(operator) => self.arithmetic(operator),
            Op::Compare(comparison) => self.compare(comparison),
            Op::Concatenate(slot) => self.concatenate(slot),
            Op::Jump(to) => self.jump(to),
            Op::JumpIfNot(to) => match self.pop().is_true() {
                true => Ok(()),
                false => self.jump(to),
            },
            Op::And(to) => self.jump_or_drop(to, false),
            Op::Or(to) => self.jump_or_drop(to, true),
            Op::Function(id) => self.push_closure(id),
            Op::Call { at, wanted } => self.call(self.slot(at), wanted),
            Op::Return(slot) => self.finish_function(slot),
            Op::Varargs(wanted) => self.push_varargs(wanted),
            Op::Drop(slot) => {
                self.stack.truncate(self.slot(slot));
                Ok(())
            }
            Op::Close(slot) => self.close(self.slot(slot)),
            Op::ForPrepare { at, step } => self.prepare_loop(self.slot(at), step),
            Op::ForStep { at, body } => self.step_loop(self.slot(at), body),
            Op::ForCall(at) => self.copy_iterator(self.slot(at)),
            Op::ForTest { at, body } => self.test_loop(self.slot(at), body),
        }
    }
}
