//! What operators do, told to the log: a line for each act, of the target `ringfence::audit`, by the node that was asked.

use ringfence_wire::{Key, Token};

use crate::door::Answer;
use crate::request::asker::Asker;

/// What an operator wants.
pub(crate) enum Wish {
    Revoke { key: Key, token: Token },
    AddMember { id: u64, peer: String },
    RemoveMember { id: u64, force: bool },
    Transfer { to: Option<u64> },
}

/// An act that has begun. It is told of however it ends: also when the connection closes first.
pub(crate) struct Act {
    asker: Asker,
    wish: Wish,
    is_told: bool,
}

impl Act {
    pub(crate) fn begin(asker: Asker, wish: Wish) -> Self {
        Self { asker, wish, is_told: false }
    }

    /// Gives the answer back.
    pub(crate) fn ended(mut self, answer: Answer) -> Answer {
        match &answer {
            Ok(_) => self.tell("done", None),
            Err(failed) => self.tell(failed.name(), Some(failed.detail())),
        }
        self.is_told = true;
        answer
    }

    fn tell(&self, outcome: &str, detail: Option<&str>) {
        let (mut key, mut token, mut member, mut peer) = (None, None, None, None);
        let act = match &self.wish {
            Wish::Revoke { key: on, token: with } => {
                (key, token) = (Some(on.as_str()), Some(with.0));
                "revoke"
            }
            Wish::AddMember { id, peer: at } => {
                (member, peer) = (Some(*id), Some(at.as_str()));
                "add-member"
            }
            Wish::RemoveMember { id, force } => {
                member = Some(*id);
                if *force { "force-remove-member" } else { "remove-member" }
            }
            Wish::Transfer { to } => {
                member = *to;
                "transfer"
            }
        };
        let (request_id, (trace_id, span_id)) = (self.asker.request_id(), self.asker.trace());
        tracing::info!(
            target: "ringfence::audit",
            act, key, token, member, peer, outcome, detail,
            from = %self.asker.from, %request_id, trace_id, span_id,
            "an operator's act"
        );
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        if !self.is_told {
            self.tell("indeterminate", Some("the connection closed before the answer"));
        }
    }
}
