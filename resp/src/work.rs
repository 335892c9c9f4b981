//! The commands and scripts of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ringfence_script::{Budget, Halt, RunError, Script, Turns};
use ringfence_service::{BYTES_OF_A_REQUEST, CannotDo, Keys, Seen, Transaction};
use ringfence_wire::{Key, Token};

use crate::calls::Calls;
use crate::frame::integer;
use crate::key_name::Naming;
use crate::measure;
use crate::refused::{Call, Kind, MAX_TEXT, Refused};
use crate::reply::Reply;
use crate::requester::Visit;
use crate::scripts::Digest;
use crate::verbs::{self, Answer, Context, Signals, Verb};

/// Scripts with more bytes than this take much memory. Those of lock libraries have a few KiB.
pub(crate) const LARGE: usize = 32 << 10;
/// To compile this many bytes of text takes about as long as a request without a script.
const COMPILED_LIKE_A_REQUEST: usize = 1 << 10;

/// A command or a script, ready to run.
#[derive(Debug)]
pub(crate) enum Work {
    Verb(Verb),
    Script(Run),
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Run {
    script: Arc<Script>,
    digest: Digest,
    /// The names of the keys, as the client sent them.
    names: Vec<Bytes>,
    keys: Vec<Key>,
    arguments: Vec<Bytes>,
    naming: Naming,
    is_read_only: bool,
}

/// The state of a key when it was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    Free,
    Own(Token),
    Taken,
}

/// Where a command comes from.
pub(crate) struct From<'a> {
    pub(crate) visit: &'a mut Visit,
    pub(crate) naming: Naming,
    pub(crate) context: Context,
}

impl Work {
    /// Reads a command or a script. The first argument is the name of the command.
    pub(crate) fn read(arguments: &[Bytes], from: &mut From<'_>) -> Result<Self, Refused> {
        let is = |name: &str| arguments[0].eq_ignore_ascii_case(name.as_bytes());
        let work = match () {
            () if is("eval") => Self::Script(Run::read(arguments, from, false, Run::of_text)?),
            () if is("eval_ro") => Self::Script(Run::read(arguments, from, true, Run::of_text)?),
            () if is("evalsha") => Self::Script(Run::read(arguments, from, false, Run::of_digest)?),
            () if is("evalsha_ro") => Self::Script(Run::read(arguments, from, true, Run::of_digest)?),
            () => Self::Verb(Verb::read(arguments, from.context, from.naming)?),
        };
        if work.keys().len() > Keys::MOST {
            return Err(too_many_keys());
        }
        Ok(work)
    }

    /// The keys that the request names.
    pub(crate) fn keys(&self) -> &[Key] {
        match self {
            Self::Verb(verb) => verb.keys(),
            Self::Script(run) => &run.keys,
        }
    }

    /// Whether it keeps much memory while it waits.
    pub(crate) fn is_large(&self) -> bool {
        self.script_bytes() > LARGE
    }

    /// The bytes of its script.
    pub(crate) fn script_bytes(&self) -> usize {
        if let Self::Script(run) = self { run.script.size() } else { 0 }
    }

    pub(crate) async fn run(
        &self,
        transaction: &mut Transaction,
        budget: &mut Budget,
        turns: &mut impl Turns<Refused>,
    ) -> Answer {
        match self {
            Self::Verb(verb) => verb.run(transaction),
            Self::Script(run) => run.run(transaction, budget, turns).await,
        }
    }
}

/// The bytes of the scripts of all `works` together. A script that is there many times counts once.
pub(crate) fn bytes_of_scripts<'a>(works: impl IntoIterator<Item = &'a Work>) -> usize {
    let script = |work: &'a Work| match work {
        Work::Script(run) => Some((Arc::as_ptr(&run.script), run.script.size())),
        Work::Verb(_) => None,
    };
    works.into_iter().filter_map(script).collect::<BTreeMap<_, _>>().into_values().sum()
}

type Find = fn(&Bytes, &mut From<'_>) -> Result<(Digest, Arc<Script>), Refused>;

impl Run {
    /// `EVAL script numkeys key … argument …`
    fn read(
        arguments: &[Bytes],
        from: &mut From<'_>,
        is_read_only: bool,
        find: Find,
    ) -> Result<Self, Refused> {
        let [_, script, count, rest @ ..] = arguments else { return Err(verbs::wrong_number("eval")) };
        let count = integer(count).ok_or_else(Refused::no_integer)?;
        let count =
            usize::try_from(count).map_err(|_| Refused::arguments("ERR Number of keys can't be negative"))?;
        let (names, arguments) = rest
            .split_at_checked(count)
            .ok_or_else(|| Refused::arguments("ERR Number of keys can't be greater than number of args"))?;
        if names.len() > Keys::MOST {
            return Err(too_many_keys());
        }
        let keys = names.iter().map(|name| from.naming.key(name)).collect::<Result<_, _>>()?;
        let (digest, script) = find(script, from)?;
        Ok(Self {
            script,
            digest,
            names: names.to_vec(),
            keys,
            arguments: arguments.to_vec(),
            naming: from.naming,
            is_read_only,
        })
    }

    fn of_text(text: &Bytes, from: &mut From<'_>) -> Result<(Digest, Arc<Script>), Refused> {
        load(text, from)
    }

    fn of_digest(digest: &Bytes, from: &mut From<'_>) -> Result<(Digest, Arc<Script>), Refused> {
        let digest = Digest::parse(digest);
        digest
            .and_then(|digest| Some((digest, find(from.visit, digest)?)))
            .ok_or_else(|| Refused::new(Kind::NoScript, "NOSCRIPT No matching script. Please use EVAL."))
    }

    async fn run(
        &self,
        transaction: &mut Transaction,
        budget: &mut Budget,
        turns: &mut impl Turns<Refused>,
    ) -> Answer {
        let Self { script, digest, names, keys, arguments, naming, is_read_only } = self;
        let (naming, is_read_only) = (*naming, *is_read_only);
        let (signals, script_digest) = (Signals::default(), *digest);
        let mut calls = Calls { transaction, keys, naming, is_read_only, signals, script: script_digest };
        let refused = match ringfence_script::run(script, names, arguments, &mut calls, budget, turns).await {
            // A script that returns an error has changed nothing, as one that fails.
            Ok(Reply::Error(text)) | Err(RunError::Failed(text)) => {
                let text = String::from_utf8_lossy(&text[..text.len().min(MAX_TEXT)]);
                Refused::new(Kind::Script, text.into_owned())
            }
            Ok(reply) => return Ok(reply),
            Err(RunError::Halted(line, why)) => match why {
                Halt::Exhausted(why) => {
                    Refused::new(Kind::Script, format!("ERR ringfence: user_script:{line}: {why}"))
                }
                Halt::Unsupported(why) => Refused::unsupported(&format!("user_script:{line}: {why}")),
                // It names the line already.
                Halt::Refused(refused) => *refused,
                Halt::NoTurn(refused) => refused.reworded(|text| format!("{text} (user_script:{line})")),
            },
        };
        measure::script_failed();
        Err(refused)
    }
}

/// Finds the script of `text`, or compiles it and remembers it. Compiling takes as long as several requests, so they are counted before.
pub(crate) fn load(text: &[u8], from: &mut From<'_>) -> Result<(Digest, Arc<Script>), Refused> {
    let (digest, visit) = (Digest::of(text), &mut *from.visit);
    if let Some(script) = find(visit, digest) {
        return Ok((digest, script));
    }
    // Its bytes were counted when they arrived.
    visit.add(text.len().div_ceil(COMPILED_LIKE_A_REQUEST) - text.len() / BYTES_OF_A_REQUEST)?;
    let script = Script::parse(text, may_call).map_err(|error| {
        measure::script_refused();
        let text = format!("ERR Error compiling script (new function): {error} (script {digest})");
        let refused = Refused::new(Kind::Script, text);
        match error.command {
            Some(name) => {
                let (command, line, script) = (verbs::called(&name), error.line, digest.to_string());
                refused.of_call(Call { command, line, script })
            }
            None => refused,
        }
    })?;
    let script = Arc::new(script);
    visit.report().door.scripts.add(visit.caller().name(), digest, Arc::clone(&script));
    Ok((digest, script))
}

/// Why no script can call the command with this name.
fn may_call(name: &[u8]) -> Result<(), String> {
    verbs::check(name).map_err(|refused| refused.text().trim_start_matches("ERR ").to_owned())
}

/// The script of the caller with this digest.
fn find(visit: &Visit, digest: Digest) -> Option<Arc<Script>> {
    visit.report().door.scripts.get(visit.caller().name(), digest)
}

impl Watched {
    /// The state of `key`.
    pub(crate) fn look(transaction: &mut Transaction, key: &Key) -> Result<Self, CannotDo> {
        if let Some(token) = transaction.lease(key)? {
            return Ok(Self::Own(token));
        }
        Ok(if transaction.see(key)? == Seen::Free { Self::Free } else { Self::Taken })
    }
}

/// These keys, without repetition.
pub(crate) fn keys_of<'a>(all: impl IntoIterator<Item = &'a Key>) -> Result<Keys, Refused> {
    let keys: BTreeSet<&Key> = all.into_iter().collect();
    Keys::new(keys.into_iter().cloned().collect()).ok_or_else(too_many_keys)
}

fn too_many_keys() -> Refused {
    Refused::arguments(format!("ERR ringfence: a request has at most {} keys", Keys::MOST))
}
