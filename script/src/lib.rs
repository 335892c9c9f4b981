//! An interpreter of the part of Lua 5.1 that lock libraries write their scripts for Redis in. It knows no leases and no connections.
//!
//! ```text
//!  text ──▶ lexer ──▶ parser ──▶ code (Script) ──▶ machine ──▶ Reply
//!                                                    │  ▲
//!                                     redis.call     ▼  │
//!                                                   Host
//! ```
//! A stranger's script runs in the process that holds the locks, so the interpreter is our own:
//!
//! - The Lua that Redis embeds is written in C, and scripts have exploited memory errors in it, such as CVE-2025-49844.
//! - Interpreters in Rust speak newer dialects. There, `10/2` is `5.0`, which would become part of a key.
//! - None of them bounds the memory and the time that its libraries spend on a long string or table.
//!
//! The cost of every script is bounded:
//!
//! - **The cost of loading grows with the length of the text**, of 64 KiB at most, so whoever loads it can count it before. The text is
//!   read once, and its numbers, which can take long, cost no more than the rest. Statements and expressions are nested at most 100 levels deep.
//! - **A run costs at most its [`Budget`]**, which all scripts of a request share: 200,000 steps, and 1 MiB. The machine pays for each
//!   step, for each pass over bytes or items, for long arithmetic, and for memory before it uses them. Memory is never given back.
//! - **A run lets others go on.** After 20,000 steps, half a millisecond at most, it waits for another of its [`Turns`]. What is one step
//!   for the script, such as a search, is not divided, and may take longer: then it waits for as many turns as it took.
//! - **Nesting in a script hardly deepens the stack of the thread.** Calls, iterators and caught errors are frames of the machine,
//!   at most 64. Tables have numbers, so a table that contains itself is dropped like any other. Only the parser and the conversion
//!   of replies call themselves, at most 100 and 32 levels deep.
//!
//! **What it knows** of Lua 5.1: all statements and operators; all kinds of values but threads and user data; closures and
//! variable arguments; the library functions in `script/src/names.rs`. Numbers and their texts are those of Redis. So are error
//! messages, but they do not name variables, and those about the syntax have other words. A name that only Redis has is an error when
//! the script is loaded, with the name and the line. Any other unknown name is an error when the script reaches it, as in Redis.
//!
//! **What Redis does and this interpreter does not ends the script**, with the line and the reason. No `pcall` catches it: a script that went on
//! could take it for an answer. So ends the use of a pattern in `string.find`, of a format such as `%e`, of a name that only Redis has
//! and that is made at run time, of `table.insert` below position 1, of the length of a table with holes, which in Redis depends on how
//! the table was built, and of calls or replies that are nested too deep. A table has holes if a nil lies before an item. What Redis refuses is an error as there.
//!
//! **What differs**: `pairs` goes through the sequence first, and then through the other keys in the order of their insertion.
//! `a + f()` reads `a` before it calls `f`; in Redis, it sees what `f` sets. So do `a == f()`, `a[f()]`, and `a[b] = f()`.
//! `return f()` is a call like any other, and counts. A method with a name that only the strings of Redis have, such as `t:match()`, is
//! refused when the script is loaded, even if `t` is a table. A status or an error in a reply does not end before a NUL.

mod budget;
mod code;
mod lexer;
mod machine;
mod names;
mod number;
mod parser;
mod reply;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::fmt::{self, Display, Formatter};
use std::mem;

use bytes::Bytes;

pub use budget::{Budget, Exhausted};
pub use reply::{MAX_NESTING, Reply};

/// The longest text of a script, in bytes.
pub const MAX_TEXT: usize = 64 << 10;

/// A script, ready to run.
#[derive(Debug)]
pub struct Script {
    code: code::Code,
}

/// Runs the commands that scripts call.
pub trait Host {
    /// Why the host does not run a command.
    type Refusal;

    /// Runs a command, which the script calls in this line. The first argument is its name. A command that answers with an error has
    /// changed nothing: the script may catch the error and go on.
    ///
    /// Pays from `budget` for what the command costs besides its arguments and its answer. A reply is nested at most [`MAX_NESTING`]
    /// levels deep.
    ///
    /// # Errors
    /// The script must stop, and cannot catch it.
    fn call(
        &mut self,
        arguments: Vec<Bytes>,
        line: u32,
        budget: &mut Budget,
    ) -> Result<Reply, Halt<Self::Refusal>>;
}

/// What comes between the turns in which a script runs.
pub trait Turns<R> {
    /// Waits for another turn of a run; `budget` says what it has cost so far.
    ///
    /// # Errors
    /// The script must stop: there is no room for the memory that it keeps while it waits.
    fn next(&mut self, budget: &Budget) -> impl Future<Output = Result<(), R>> + Send;
}

/// Why a script cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// From 1.
    pub line: u32,
    /// For people.
    pub reason: String,
    /// The refused command, if that is the reason.
    pub command: Option<Vec<u8>>,
}

/// Why a script cannot call the command with this name, for people.
pub type Check = fn(&[u8]) -> Result<(), String>;

/// Why a run has no reply. `R` is the refusal of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError<R> {
    /// The script failed with this error for the client, which begins with a code.
    Failed(Bytes),
    /// The script was stopped in this line, from 1. It had reached it, or returned there what cannot be a reply.
    Halted(u32, Halt<R>),
}

/// Why a script was stopped. A script cannot catch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt<R> {
    /// It costs more than it may.
    Exhausted(Exhausted),
    /// Redis would do it, but this interpreter does not: what, for people. A script that caught this could go on as if Redis had failed.
    Unsupported(String),
    /// The host refused a command. Redis might have run it, and a script that caught this could go on as if it had.
    Refused(Box<R>),
    /// There was no other turn for it.
    NoTurn(Box<R>),
}

impl Script {
    /// Compiles a text. Checks each command that the text names by a constant: once a lock is granted, it would be too late.
    ///
    /// # Errors
    /// The text is too long, is no script, or has a name that only Redis has or that `check` refuses.
    pub fn parse(text: &[u8], check: Check) -> Result<Self, LoadError> {
        if text.len() > MAX_TEXT {
            return Err(LoadError::new(1, format!("the script is longer than {MAX_TEXT} bytes")));
        }
        if text.starts_with(b"#!") {
            return Err(LoadError::new(1, "a line with #! is not supported here"));
        }
        Ok(Self { code: parser::compile(text, check)? })
    }

    /// How many bytes of memory it takes: at most about 20 for each byte of its text.
    pub fn size(&self) -> usize {
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

/// Runs a script with these `KEYS` and `ARGV`, in as many `turns` as it takes.
///
/// # Errors
/// The script failed or was stopped. The host may have run some of its commands.
pub async fn run<H: Host>(
    script: &Script,
    keys: &[Bytes],
    arguments: &[Bytes],
    host: &mut H,
    budget: &mut Budget,
    turns: &mut impl Turns<H::Refusal>,
) -> Result<Reply, RunError<H::Refusal>> {
    machine::run(&script.code, keys, arguments, host, budget, turns).await
}

impl LoadError {
    fn new(line: u32, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into(), command: None }
    }
}

impl Display for LoadError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "user_script:{}: {}", self.line, self.reason)
    }
}

impl<R> Halt<R> {
    /// The host refuses a command.
    pub fn refused(refusal: R) -> Self {
        Self::Refused(Box::new(refusal))
    }
}

impl<R> From<Exhausted> for Halt<R> {
    fn from(why: Exhausted) -> Self {
        Self::Exhausted(why)
    }
}
