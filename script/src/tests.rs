//! Tests of scripts.

mod bounds;
mod corpus;
mod fake;
mod locks;
mod programs;
mod random;
mod redis;
mod refusals;
mod tables;

use bytes::Bytes;
use futures_util::FutureExt;

use super::{Budget, Halt, Host, Reply, RunError, Script, Turns};
use fake::FakeRedis;

/// Turns that come at once.
#[derive(Default)]
struct AtOnce(usize);

impl<R> Turns<R> for AtOnce {
    async fn next(&mut self, _: &Budget) -> Result<(), R> {
        self.0 += 1;
        Ok(())
    }
}

/// Runs a script, however many turns it takes.
fn run<H: Host>(
    script: &Script,
    keys: &[Bytes],
    arguments: &[Bytes],
    host: &mut H,
    budget: &mut Budget,
) -> Result<Reply, RunError<H::Refusal>> {
    let mut turns = AtOnce::default();
    let run = super::run(script, keys, arguments, host, budget, &mut turns);
    run.now_or_never().expect("each turn comes at once")
}

const KEYS: [&str; 2] = ["key1", "key2"];
const ARGUMENTS: [&str; 3] = ["one", "2", "3.5"];

/// What a text answers, as a short text.
fn answer(text: &[u8]) -> String {
    answer_of(text, &KEYS, &ARGUMENTS, &mut FakeRedis::default())
}

fn answer_of(text: &[u8], keys: &[&str], arguments: &[&str], host: &mut FakeRedis) -> String {
    match Script::parse(text, |_| Ok(())) {
        Ok(script) => match run(&script, &bytes(keys), &bytes(arguments), host, &mut Budget::of_request()) {
            Ok(reply) => shown(&reply),
            Err(RunError::Failed(text)) => shown(&Reply::Error(text)),
            Err(RunError::Halted(line, Halt::Exhausted(why))) => format!("! {line}: {why}"),
            Err(RunError::Halted(line, Halt::Unsupported(why))) => format!("! {line}: {why}"),
            Err(RunError::Halted(_, Halt::Refused(never) | Halt::NoTurn(never))) => match *never {},
        },
        Err(error) => shown(&Reply::error(format!("ERR Error compiling script (new function): {error}"))),
    }
}

fn bytes(texts: &[&str]) -> Vec<Bytes> {
    texts.iter().map(|text| Bytes::from((*text).to_owned())).collect()
}

/// A reply as a short text.
fn shown(reply: &Reply) -> String {
    let line = |text: &[u8]| {
        text.escape_ascii().to_string().replace("\\r", " ").replace("\\n", " ").replace("\\'", "'")
    };
    match reply {
        Reply::Status(text) => format!("+{}", line(text)),
        Reply::Error(text) => format!("-{}", line(text)),
        Reply::Integer(number) => number.to_string(),
        Reply::Bulk(text) => format!("\"{}\"", text.escape_ascii().to_string().replace("\\'", "'")),
        Reply::Null => "nil".to_owned(),
        Reply::NullArray => "nil array".to_owned(),
        Reply::Bool(value) => i64::from(*value).to_string(),
        Reply::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Reply::Map(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| format!("{}: {}", shown(key), shown(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}
