//! Scripts: an interpreter of the part of Lua 5.1 that lock libraries write their scripts in.
//!
//! ```text
//!  text ──▶ lexer ──▶ parser ──▶ code (Script) ──▶ machine ──▶ Reply
//!                                                    │  ▲
//!                                     redis.call     ▼  │
//!                                                   Host
//! ```
//! It is an interpreter of our own because a stranger's program runs in the process that holds the locks:
//!
//! - The Lua that Redis embeds is C, and scripts have reached faults of its memory: CVE-2025-49844 is one.
//! - Interpreters in Rust speak newer dialects. There, `10/2` is `5.0`, which would become part of a key.
//! - None of them bounds the memory and the time of what its libraries do with a long string or table.
//!
//! What a script can cost is bounded, whatever it says:
//!
//! - **A text costs by its length.** It is read once. Statements and expressions are nested at most 100 levels deep.
//! - **A run costs at most its [`Budget`].** Each step and each pass over bytes or items is paid before it is done, and so
//!   is memory, which is never given back.
//! - **No text drives the stack of the thread.** Calls, and the iterators and errors in them, are frames of the machine, at
//!   most 64. Tables have numbers, so a table that contains itself is dropped as any other.
//!
//! **What it knows** of Lua 5.1: all statements, operators and kinds of values but threads and user data; closures and
//! variable arguments; of the libraries, what [`names`] lists. Numbers, their texts and messages of errors are those of
//! Redis. What Redis has and this has not is refused when the script is loaded, with its name and line. What is unknown to
//! Redis, too, fails as there, when it is reached.
//!
//! **What differs**, where Lua leaves it open: `pairs` goes through a sequence, and then through other keys as they were
//! inserted. The length of a table with holes can be another one. `a + f()` reads `a` before it calls `f`. `return f()` is
//! a call as any other, and counts.

mod budget;
mod code;
mod lexer;
mod machine;
mod names;
mod number;
mod parser;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::fmt::{self, Display, Formatter};
use std::mem;

use bytes::Bytes;

pub(crate) use budget::{Budget, Halt};

use crate::reply::Reply;

/// The longest text of a script, in bytes.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// A script, ready to run.
#[derive(Debug)]
pub(crate) struct Script {
    code: code::Code,
}

/// What runs the commands of scripts.
pub(crate) trait Host {
    /// Runs a command with its arguments, the first of which is its name. One that answers with an error has changed nothing: a
    /// script may catch it and go on.
    ///
    /// Pays from `budget` for what the command costs beyond its arguments and its answer. A reply is nested at most
    /// [`MAX_NESTING`](crate::reply::MAX_NESTING) levels deep.
    fn call(&mut self, arguments: Vec<Bytes>, budget: &mut Budget) -> Result<Reply, Halt>;
}

/// Why a text is no script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadError {
    /// From 1.
    pub(crate) line: u32,
    pub(crate) reason: String,
}

/// Why a run has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunError {
    /// The script failed. This is the text of the error for the client, which begins with a code.
    Failed(Bytes),
    /// It was stopped.
    Halted(Halt),
}

impl Script {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, LoadError> {
        if text.len() > MAX_TEXT {
            let reason = format!("the script is longer than {MAX_TEXT} bytes");
            return Err(LoadError { line: 1, reason });
        }
        if text.starts_with(b"#!") {
            return Err(LoadError { line: 1, reason: "a line with #! is not supported here".to_owned() });
        }
        Ok(Self { code: parser::compile(text)? })
    }

    /// How many bytes of memory it takes: at most about 20 for each byte of its text.
    pub(crate) fn size(&self) -> usize {
        let code::Code { functions, constants, text } = &self.code;
        let of_functions = functions.iter().map(|function| {
            mem::size_of_val(&*function.ops)
                + mem::size_of_val(&*function.lines)
                + mem::size_of_val(&*function.captures)
        });
        mem::size_of::<Self>()
            + mem::size_of_val(&**functions)
            + of_functions.sum::<usize>()
            + mem::size_of_val(&**constants)
            + text.len()
    }
}

/// Runs a script with these `KEYS` and `ARGV`.
pub(crate) fn run(
    script: &Script,
    keys: &[Bytes],
    arguments: &[Bytes],
    host: &mut dyn Host,
    budget: &mut Budget,
) -> Result<Reply, RunError> {
    machine::run(&script.code, keys, arguments, host, budget)
}

impl Display for LoadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "user_script:{}: {}", self.line, self.reason)
    }
}

impl From<Halt> for RunError {
    fn from(halt: Halt) -> Self {
        Self::Halted(halt)
    }
}
