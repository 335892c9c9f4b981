//! Compiled scripts: steps of a machine with a stack.
//!
//! The *frame* of a function is the part of the stack from its first parameter on. A *slot* is a place in the frame. The
//! compiler knows at each step how many slots are used, so the steps name slots.

use bytes::Bytes;

use super::names::{Builtin, Library};

/// All results, however many. They end at the top of the stack.
pub(super) const ALL: u16 = u16::MAX;

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Pushes this number of nils.
    Nil(u16),
    Bool(bool),
    Constant(u32),
    Builtin(Builtin),
    Library(Library),
    Keys,
    Arguments,
    /// Fails: there is no global variable with this name.
    NoGlobal(u32),
    /// Fails: global variables cannot be set.
    SetGlobal,
    Local(u16),
    SetLocal(u16),
    Captured(u16),
    SetCaptured(u16),
    /// Pushes an empty table.
    Table,
    /// Pops a value and a key, and sets them in the table at the slot.
    Item(u16),
    /// Pops all values after the slot, and appends them to the table there.
    Items(u16),
    /// Pops a key and a table, and pushes the value.
    Index,
    /// Pops a value, and sets it in the table at the slot. The key is in the slot after that.
    SetIndex(u16),
    /// Pops an object, and pushes its method with this name, and the object.
    Method(u32),
    Negate,
    Not,
    Length,
    Arithmetic(Arithmetic),
    Compare(Comparison),
    /// Joins all values from the slot on.
    Concatenate(u16),
    Jump(u32),
    /// Pops a condition, and jumps if it is false.
    JumpIfNot(u32),
    /// Jumps if the last value is false, and pops it otherwise.
    And(u32),
    /// Jumps if the last value is true, and pops it otherwise.
    Or(u32),
    /// Pushes a closure of this function.
    Function(u32),
    /// Calls the function at the slot with all values after it. The results replace the function and its arguments.
    Call {
        at: u16,
        wanted: u16,
    },
    /// Returns all values from the slot on.
    Return(u16),
    /// Pushes the variable arguments of the function.
    Varargs(u16),
    /// Pops all values from the slot on.
    Drop(u16),
    /// Pops all values from the slot on, but closures keep the variables that they have captured.
    Close(u16),
    /// The start of a numeric loop: counter, limit and step are at the slot.
    ForPrepare {
        at: u16,
        step: u32,
    },
    /// The next round of a numeric loop: if there is one, pushes the variable and jumps.
    ForStep {
        at: u16,
        body: u32,
    },
    /// Pushes copies of the iterator and its two arguments, which are at the slot.
    ForCall(u16),
    /// Jumps if the iterator has given a value.
    ForTest {
        at: u16,
        body: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A constant: a number, or a part of [`Code::text`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Constant {
    Number(f64),
    String { start: u32, end: u32 },
}

/// A variable of an outer function that a function uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// A variable in this slot of the function that makes the closure.
    Local(u16),
    /// A variable that this function has captured, too.
    Captured(u16),
}

/// A compiled function.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) ops: Box<[Op]>,
    /// The line of each step, at most 65,535.
    pub(super) lines: Box<[u16]>,
    pub(super) captures: Box<[Capture]>,
    pub(super) parameters: u16,
    pub(super) has_varargs: bool,
}

/// A compiled script. The last function is the script itself.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) functions: Box<[Function]>,
    pub(super) constants: Box<[Constant]>,
    /// The strings of the constants, one after the other.
    pub(super) text: Bytes,
}
