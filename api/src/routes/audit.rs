//! The audit log: the node that receives an operator's request logs a line with the target `ringfence::audit`.
//!
//! What was done, or may have been, is always logged. Of what was refused, each principal causes a hundred lines at once, and ten a second
//! from then on; the next one counts those that were left out.

use ringfence_wire::{Key, PrincipalName};

use crate::door::{Answer, Door, Visit};
use crate::problems::Failed;

/// An operator's act. It is logged however it ends, also when the connection closes first.
pub(crate) struct Act<'a> {
    pub(super) door: &'a Door,
    pub(super) visit: &'a Visit<'a>,
    subject: Subject,
    is_logged: bool,
}

/// What the act is, and what it is about.
#[derive(Default)]
pub(crate) struct Subject {
    pub(crate) act: &'static str,
    pub(crate) key: Option<Key>,
    pub(crate) token: Option<u64>,
    pub(crate) member: Option<u64>,
    pub(crate) peer: Option<String>,
    pub(crate) rules: Option<u8>,
}

impl<'a> Act<'a> {
    pub(crate) fn begin(door: &'a Door, visit: &'a Visit<'a>, subject: Subject) -> Self {
        Self { door, visit, subject, is_logged: false }
    }

    /// Logs the act with its `answer`, which it returns.
    pub(crate) fn ended(mut self, answer: Answer) -> Answer {
        match &answer {
            Ok(_) => self.log("done", None, 0),
            Err(failed) => {
                if let Some(untold) = self.take_line(failed) {
                    self.log(failed.name(), Some(failed.detail()), untold);
                }
            }
        }
        self.is_logged = true;
        answer
    }

    /// Whether this failure is logged, and how many were not before it.
    fn take_line(&self, failed: &Failed) -> Option<u64> {
        match failed.is_indeterminate() {
            false => self.door.service.take_refusal_line(self.visit.caller().principal()),
            true => Some(0),
        }
    }

    fn log(&self, outcome: &str, detail: Option<&str>, untold: u64) {
        let Subject { act, key, token, member, peer, rules } = &self.subject;
        let requester = &self.visit.report().requester;
        let (request_id, (trace_id, span_id)) = (requester.request_id(), requester.trace());
        let principal = self.visit.caller().name().map(PrincipalName::as_str);
        tracing::info!(
            target: "ringfence::audit",
            act, key = key.as_ref().map(Key::as_str), token, member, peer, rules, outcome, detail,
            principal, from = %requester.from, request_id = &*request_id, trace_id, span_id,
            untold = (untold > 0).then_some(untold),
            "operator action"
        );
    }
}

impl Drop for Act<'_> {
    fn drop(&mut self) {
        if !self.is_logged {
            self.log("indeterminate", Some("the connection closed before the response"), 0);
        }
    }
}
