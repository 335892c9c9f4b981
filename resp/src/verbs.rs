//! The commands on keys. Each of them reads and changes a [`Transaction`].
//!
//! All arguments of all commands of a request are checked before the first command runs. So the keys of a request are known before it begins,
//! and a wrong argument leaves nothing half done.
//!
//! - **A key that is set is a lease**, with the value as its secret. Setting the key to another value ends the lease and acquires a new one.
//!   Setting it to the same value gives the lease a longer or a shorter time.
//! - **A key that is held over HTTP, or by another principal, cannot be changed.** `GET` answers a placeholder for it.

mod end;
mod expire;
mod plain;
mod read;
mod refusals;
mod set;
mod signal;
#[cfg(test)]
mod tests;
mod token;
mod words;

use std::fmt;

use bytes::Bytes;
use ringfence_service::Transaction;
use ringfence_wire::Key;

use crate::key_name::Naming;
use crate::measure::OTHER;
use crate::refused::{Kind, Refused};
use crate::reply::Reply;

pub(crate) use signal::Signals;
pub(crate) use words::Context;

use words::Words;

/// The outcome of a command.
pub(crate) type Answer = Result<Reply, Refused>;

/// A command on keys, ready to run.
pub(crate) struct Verb {
    name: &'static str,
    keys: Vec<Key>,
    step: Box<Step>,
}

type Step = dyn Fn(&mut Transaction) -> Answer + Send + Sync;

/// A name, the fewest and the most arguments, and the function that reads them.
type Row = (&'static str, usize, usize, fn(&Words) -> Result<Verb, Refused>);

const ANY: usize = usize::MAX;

/// The commands that scripts of EVAL_RO may call.
const READS: &[Row] = &[
    ("get", 1, 1, read::get),
    ("getrange", 3, 3, read::getrange),
    ("mget", 1, ANY, read::mget),
    ("exists", 1, ANY, read::exists),
    ("type", 1, 1, read::kind),
    ("ttl", 1, 1, read::ttl),
    ("pttl", 1, 1, read::pttl),
    ("ringfence.token", 2, 2, token::token),
    ("ping", 0, 1, plain::ping),
    ("echo", 1, 1, plain::echo),
    ("select", 1, 1, plain::select),
];

const WRITES: &[Row] = &[
    ("set", 2, ANY, set::set),
    ("setex", 3, 3, set::setex),
    ("psetex", 3, 3, set::psetex),
    ("setnx", 2, 2, set::setnx),
    ("expire", 2, ANY, expire::expire),
    ("pexpire", 2, ANY, expire::pexpire),
    ("persist", 1, 1, expire::persist),
    ("getex", 1, ANY, expire::getex),
    ("getdel", 1, 1, end::getdel),
    ("del", 1, ANY, end::del),
    ("unlink", 1, ANY, end::del),
    ("delex", 1, 3, end::delex),
    ("delifeq", 2, 2, end::delifeq),
    ("publish", 2, 2, signal::publish),
    ("lpush", 2, ANY, signal::push),
    ("rpush", 2, ANY, signal::push),
];

impl Verb {
    /// Reads a command in this context. The first argument is its name.
    pub(crate) fn read(arguments: &[Bytes], context: Context, naming: Naming) -> Result<Self, Refused> {
        let (name, arguments) = arguments.split_first().ok_or_else(|| refusals::unknown(b""))?;
        let Some(&(name, fewest, most, read)) = entry(name) else { return Err(refusals::unknown(name)) };
        if !(fewest..=most).contains(&arguments.len()) {
            return Err(match context {
                Context::Script => {
                    Refused::arguments("ERR Wrong number of args calling Redis command from script")
                }
                Context::Alone | Context::Queued => wrong_number(name),
            });
        }
        Ok(Self { name, ..read(&Words { name, arguments, context, naming })? })
    }

    fn new(
        keys: impl Into<Vec<Key>>,
        step: impl Fn(&mut Transaction) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self { name: "", keys: keys.into(), step: Box::new(step) }
    }

    /// Reads a command in a script that may change nothing.
    pub(crate) fn read_only(arguments: &[Bytes], naming: Naming) -> Result<Self, Refused> {
        let is_write = arguments.first().is_some_and(|name| find(WRITES, name).is_some());
        if is_write {
            return Err(Refused::new(
                Kind::Script,
                "ERR Write commands are not allowed from read-only scripts.",
            ));
        }
        Self::read(arguments, Context::Script, naming)
    }

    /// The keys of its arguments.
    pub(crate) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Runs the command. If it fails, it has changed nothing.
    pub(crate) fn run(&self, transaction: &mut Transaction) -> Answer {
        (self.step)(transaction)
    }
}

impl fmt::Debug for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verb").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// The name of a command on keys, as metrics have it. `None`: there is no such command.
pub(crate) fn name(name: &[u8]) -> Option<&'static str> {
    entry(name).map(|(name, ..)| *name)
}

/// Why scripts cannot call the command with this name.
pub(crate) fn check(name: &[u8]) -> Result<(), Refused> {
    entry(name).map(|_| ()).ok_or_else(|| refusals::unknown(name))
}

/// The name of a command that scripts call, as in the metrics and in the log.
pub(crate) fn called(name: &[u8]) -> &'static str {
    self::name(name).or_else(|| Some(refusals::reason(name)?.0)).unwrap_or(OTHER)
}

/// The error for a command that has too few arguments or too many.
pub(crate) fn wrong_number(name: &str) -> Refused {
    Refused::arguments(format!("ERR wrong number of arguments for '{name}' command"))
}

fn entry(name: &[u8]) -> Option<&'static Row> {
    find(READS, name).or_else(|| find(WRITES, name))
}

fn find(entries: &'static [Row], name: &[u8]) -> Option<&'static Row> {
    entries.iter().find(|(own, ..)| own.as_bytes().eq_ignore_ascii_case(name))
}
