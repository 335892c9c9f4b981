//! Commands that scripts call.

use bytes::Bytes;
use ringfence_script::{Budget, Halt, Host};
use ringfence_service::Transaction;
use ringfence_wire::Key;

use crate::key_name::Naming;
use crate::refused::{Call, Kind, Refused};
use crate::reply::Reply;
use crate::scripts::Digest;
use crate::verbs::{self, Answer, Context, Signals, Verb};

/// The cost of an argument, which may be a key: of reading it, of looking for it, and of a change. Each mention counts.
const ARGUMENT: usize = 16;

/// What a script may do.
pub(crate) struct Calls<'a> {
    pub(crate) transaction: &'a mut Transaction,
    /// The keys that the request names.
    pub(crate) keys: &'a [Key],
    pub(crate) naming: Naming,
    pub(crate) is_read_only: bool,
    pub(crate) signals: Signals,
    /// The SHA-1 of the script.
    pub(crate) script: Digest,
}

impl Host for Calls<'_> {
    type Refusal = Refused;

    fn call(
        &mut self,
        arguments: Vec<Bytes>,
        line: u32,
        budget: &mut Budget,
    ) -> Result<Reply, Halt<Refused>> {
        // Each argument may be a key, and is compared with those of the script, also if it is there many times.
        let bytes: usize = arguments.iter().map(|argument| argument.len().min(Key::MAX_BYTES)).sum();
        budget.spend((arguments.len() * (ARGUMENT + self.keys.len() / 8) + bytes) as u64)?;
        match self.answer(&arguments) {
            Err(refused) if refused.is_of_redis() => Ok(Reply::error(refused.text())),
            Err(refused) => Err(Halt::refused(self.place(refused, &arguments[0], line))),
            Ok(reply) => Ok(reply),
        }
    }
}

impl Calls<'_> {
    /// Names the command that was refused, and where the script calls it.
    fn place(&self, refused: Refused, name: &[u8], line: u32) -> Refused {
        let (command, script) = (verbs::called(name), self.script.to_string());
        let placed = refused.reworded(|text| {
            format!("{text} ({}, user_script:{line}, script {script})", command.to_uppercase())
        });
        match placed.kind() {
            // This depends on who holds the key, and not on the script.
            Kind::Taken => placed,
            _ => placed.of_call(Call { command, line, script }),
        }
    }

    fn answer(&mut self, arguments: &[Bytes]) -> Answer {
        let verb = match self.is_read_only {
            true => Verb::read_only(arguments, self.naming)?,
            false => Verb::read(arguments, Context::Script, self.naming)?,
        };
        if let Some(key) = verb.keys().iter().find(|key| !self.keys.contains(key)) {
            let text =
                format!("ERR ringfence: a script may use the keys in its KEYS, and {key} is not one of them");
            return Err(Refused::new(Kind::Script, text));
        }
        self.signals
            .answer(&verb, arguments.len().saturating_sub(2))
            .unwrap_or_else(|| verb.run(self.transaction))
    }
}

#[cfg(test)]
mod tests {
    use ringfence_lease::Found;

    use super::*;

    /// A repeated key once cost hardly more than its bytes.
    #[test]
    fn each_mention_of_a_key_is_paid_for() {
        let keys = &[Key::new("k").unwrap()];
        let naming = Naming { database: 0, rules: ringfence_lease::NAMES };
        let transaction = &mut Transaction::new([(keys[0].clone(), Found::Free)].into_iter());
        let (signals, script) = (Signals::default(), Digest::of(b""));
        let mut calls = Calls { transaction, keys, naming, is_read_only: false, signals, script };
        for name in ["del", "exists", "mget", "unlink"] {
            let (mut budget, mut call) = (Budget::of_request(), vec![Bytes::from(name)]);
            call.resize(4_001, Bytes::from("k"));
            assert!(calls.call(call, 1, &mut budget).is_ok());
            assert!(budget.spent_requests() >= 30, "{name}: {}", budget.spent_requests());
        }
    }
}
