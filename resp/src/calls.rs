//! Commands that scripts call.

use bytes::Bytes;
use ringfence_script::{Budget, Halt, Host};
use ringfence_service::Transaction;
use ringfence_wire::Key;

use crate::key_name::Naming;
use crate::refused::{Call, Kind, Refused};
use crate::reply::Reply;
use crate::scripts::Digest;
use crate::verbs::{self, Answer, Place, Signals, Verb};

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
        // Each argument may be a key, and is compared with those of the script.
        let bytes: usize = arguments.iter().map(|argument| argument.len().min(Key::MAX_BYTES)).sum();
        budget.spend((arguments.len() * (1 + self.keys.len() / 8) + bytes) as u64)?;
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
            false => Verb::read(arguments, Place::Script, self.naming)?,
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
