//! Counts calls of refused commands in scripts, and logs the first such call of each script: a library with such a script cannot be used
//! here as it is.

use std::collections::BTreeSet;
use std::sync::Mutex;

use ringfence_service::{Caller, Lines};

use crate::measure;
use crate::refused::Refused;

/// How many scripts are remembered as logged. When there are more, scripts are logged again.
const MAX_TOLD: usize = 1_000;

#[derive(Default)]
pub(crate) struct RefusedCalls {
    lines: Lines,
    /// The scripts that were logged.
    told: Mutex<BTreeSet<String>>,
}

impl RefusedCalls {
    /// Counts and logs a refusal if a call in a script is the reason.
    pub(crate) fn tell(&self, refused: &Refused, caller: &Caller) {
        let Some(call) = refused.call() else { return };
        measure::call_refused(call.command);
        let mut told = self.told.lock().expect("nothing panics while this is locked");
        if told.contains(&call.script) {
            return;
        }
        // One that finds no line is told of the next time.
        let Some(untold) = self.lines.take() else { return };
        if told.len() == MAX_TOLD {
            told.clear();
        }
        told.insert(call.script.clone());
        drop(told);
        let principal = caller.name().map(|name| name.as_str());
        tracing::warn!(
            target: "ringfence::requests",
            command = call.command, line = call.line, script = call.script, principal, error = refused.text(),
            untold = (untold > 0).then_some(untold),
            "a script calls a command that is refused here"
        );
    }
}
