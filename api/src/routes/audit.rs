//! The audit log: the node that receives an operator's request logs a line with the target `ringfence::audit`.

use ringfence_wire::Key;

use crate::door::Answer;
use crate::request::requester::Requester;

/// An operator's act. It is logged however it ends, also when the connection closes first.
pub(crate) struct Act<'a> {
    requester: &'a Requester,
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
    pub(crate) fn begin(requester: &'a Requester, subject: Subject) -> Self {
        Self { requester, subject, is_logged: false }
    }

    /// Logs the act with its `answer`, which it returns.
    pub(crate) fn ended(mut self, answer: Answer) -> Answer {
        match &answer {
            Ok(_) => self.log("done", None),
            Err(failed) => self.log(failed.name(), Some(failed.detail())),
        }
        self.is_logged = true;
        answer
    }

    fn log(&self, outcome: &str, detail: Option<&str>) {
        let Subject { act, key, token, member, peer, rules } = &self.subject;
        let (request_id, (trace_id, span_id)) = (self.requester.request_id(), self.requester.trace());
        tracing::info!(
            target: "ringfence::audit",
            act, key = key.as_ref().map(Key::as_str), token, member, peer, rules, outcome, detail,
            principal = self.requester.name(), from = %self.requester.from, request_id = &*request_id, trace_id, span_id,
            "operator action"
        );
    }
}

impl Drop for Act<'_> {
    fn drop(&mut self) {
        if !self.is_logged {
            self.log("indeterminate", Some("the connection closed before the response"));
        }
    }
}
