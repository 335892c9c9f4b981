//! The steps, blocks and variables of a function that is being compiled.

use crate::code::{ALL, Capture, Function, Op};

/// The slot of the variable `arg`, which every function with `...` has in Lua 5.1, but not here.
pub(super) const NOWHERE: u16 = u16::MAX;

/// A function that is being compiled.
#[derive(Debug, Default)]
pub(crate) struct Scope<'t> {
    pub(super) ops: Vec<Op>,
    pub(super) lines: Vec<u16>,
    pub(super) captures: Vec<Captured>,
    pub(super) blocks: Vec<Block>,
    /// The variables of all open blocks.
    pub(super) names: Vec<&'t [u8]>,
    /// How many slots are used at this step.
    pub(super) depth: u16,
    pub(super) parameters: u16,
    pub(super) has_varargs: bool,
}

/// A block of statements.
#[derive(Debug)]
pub(super) struct Block {
    /// The slots that were used before it.
    pub(super) depth: u16,
    /// The variables of the function before it.
    pub(super) names: usize,
    /// Whether a closure has captured one of its variables.
    pub(super) is_captured: bool,
    /// The jumps out of it, if it is a loop.
    pub(super) breaks: Option<Vec<usize>>,
}

/// A variable of an outer function, and how a function gets it.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) variable: Variable,
    pub(super) capture: Capture,
}

/// A local variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    /// How many functions surround its function.
    pub(super) level: usize,
    /// The number of its block in the function.
    pub(super) block: usize,
    pub(super) slot: u16,
}

impl Scope<'_> {
    /// The number of the next step.
    pub(super) fn here(&self) -> usize {
        self.ops.len()
    }

    /// Makes the jump at `from` lead to the step `to`.
    pub(super) fn patch(&mut self, from: usize, to: usize) {
        if let Some(
            Op::Jump(target)
            | Op::JumpIfNot(target)
            | Op::And(target)
            | Op::Or(target)
            | Op::ForPrepare { step: target, .. },
        ) = self.ops.get_mut(from)
        {
            *target = to as u32;
        }
    }

    /// Makes the call at this step give this number of values. One of them was counted already.
    pub(super) fn want(&mut self, call: usize, values: u16) {
        if let Some(Op::Call { wanted, .. } | Op::Varargs(wanted)) = self.ops.get_mut(call) {
            *wanted = values;
            self.depth -= 1;
            if values != ALL {
                self.depth += values;
            }
        }
    }

    pub(super) fn captured(&self, variable: Variable) -> Option<u16> {
        let found = self.captures.iter().position(|captured| captured.variable == variable);
        found.map(|index| index as u16)
    }

    pub(super) fn finish(self) -> Function {
        Function {
            ops: self.ops.into(),
            lines: self.lines.into(),
            captures: self.captures.into_iter().map(|captured| captured.capture).collect(),
            parameters: self.parameters,
            has_varargs: self.has_varargs,
        }
    }
}
