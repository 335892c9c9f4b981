//! Errors of commands, as the Redis protocol words them.

use std::borrow::Cow;

use ringfence_service::{CannotDo, Failure};

use crate::frame::Malformed;

const TAKEN: &str = "ERR ringfence: the key is held over HTTP or by another principal, or somebody waits for it: it cannot be changed here";
const NOT_DONE: &str = "ERR ringfence: it was not done";
const INDETERMINATE: &str =
    "ERR ringfence: it may have been done, or may be done later. A lock that it took is taken back";

/// The longest text of a refusal, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 10;

/// Why a command is not done. No other command of its request is done, either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    kind: Kind,
    text: Cow<'static, str>,
    call: Option<Box<Call>>,
}

/// A call of a command that is refused here, in a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The name of the command, if Redis has one of this name.
    pub(crate) command: &'static str,
    /// The line in the script, from 1.
    pub(crate) line: u32,
    /// The SHA-1 of the script.
    pub(crate) script: String,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// The kind of a refusal, for metrics and the log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// The names of all kinds.
            pub(crate) const NAMES: &[&'static str] = &[$($name,)*];

            /// Its name.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// Redis has no such command, or no lock needs it.
    Unknown = "unknown-command";
    /// Redis would do it, but Ringfence does not.
    Unsupported = "unsupported";
    /// An argument is missing, malformed, too large or out of range.
    Arguments = "arguments";
    /// It must come before or after another command of the connection.
    Order = "order";
    /// A lease that the client cannot change holds the key.
    Taken = "taken";
    /// No script with this digest is known.
    NoScript = "no-script";
    /// A script cannot be run, or it failed.
    Script = "script";
    /// A credential is not valid, or there is none.
    Unauthenticated = "unauthenticated";
    /// A right is missing.
    Forbidden = "forbidden";
    /// Too many requests.
    RateLimited = "rate-limited";
    /// There is no room.
    Overloaded = "overloaded";
    /// Certainly not done: no leader accepted it in time.
    NoLeader = "no-leader";
    /// Certainly not done: the client has hung up.
    Gone = "gone";
    /// Certainly not done: others changed its keys, or the rules of the cluster are too old.
    Unavailable = "unavailable";
    /// Perhaps done.
    Indeterminate = "indeterminate";
}

impl Refused {
    /// `text` begins with a code in capitals, which libraries look at. A long text, which a script may have made, is cut.
    pub(crate) fn new(kind: Kind, text: impl Into<Cow<'static, str>>) -> Self {
        let mut text = text.into();
        if let Some(cut) = (0..=MAX_TEXT).rev().find(|at| text.len() > MAX_TEXT && text.is_char_boundary(*at))
        {
            // Its own, so that nothing of a long text is kept.
            text = text[..cut].to_owned().into();
        }
        Self { kind, text, call: None }
    }

    /// An argument is wrong.
    pub(crate) fn arguments(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Arguments, text)
    }

    /// An argument is not an integer.
    pub(crate) fn no_integer() -> Self {
        Self::arguments("ERR value is not an integer or out of range")
    }

    /// Redis would do it, but Ringfence does not, for this reason.
    pub(crate) fn unsupported(why: &str) -> Self {
        Self::new(Kind::Unsupported, format!("ERR ringfence: {why}"))
    }

    /// The same refusal, with a text for the client that `tell` makes of the present one.
    pub(crate) fn reworded(self, tell: impl FnOnce(&str) -> String) -> Self {
        let told = Self::new(self.kind, tell(&self.text));
        Self { call: self.call, ..told }
    }

    /// Notes the call that was refused.
    pub(crate) fn of_call(self, call: Call) -> Self {
        Self { call: Some(Box::new(call)), ..self }
    }

    /// The call that was refused, if it was one of a script.
    pub(crate) fn call(&self) -> Option<&Call> {
        self.call.as_deref()
    }

    /// Whether Redis gives the same error, which a script may catch.
    pub(crate) fn is_of_redis(&self) -> bool {
        self.kind == Kind::Arguments && !self.text.starts_with("ERR ringfence")
    }

    /// The kind of the refusal.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The error, as the client gets it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl From<CannotDo> for Refused {
    fn from(cannot: CannotDo) -> Self {
        match cannot {
            CannotDo::NotNamed => {
                Self::new(Kind::Script, "ERR ringfence: a script may use the keys in its KEYS, and no others")
            }
            CannotDo::Taken => Self::new(Kind::Taken, TAKEN),
            CannotDo::Held => Self::new(Kind::Taken, "ERR ringfence: the key is held"),
        }
    }
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self::arguments(format!("ERR {malformed}"))
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let (kind, text): (Kind, Cow<'static, str>) = match &failure {
            Failure::Unauthenticated(why) => (Kind::Unauthenticated, format!("NOAUTH {why}").into()),
            Failure::Forbidden(why) => (Kind::Forbidden, format!("NOPERM {why}").into()),
            Failure::RateLimited(why) => (Kind::RateLimited, format!("ERR ringfence: {why}").into()),
            Failure::NoLeader => (
                Kind::NoLeader,
                "LOADING ringfence: no leader accepted it in time: it was not done".into(),
            ),
            Failure::Crowded => (
                Kind::Overloaded,
                "ERR ringfence: too many requests wait for the leader: it was not done".into(),
            ),
            Failure::Blocked => (
                Kind::NoLeader,
                "LOADING ringfence: the thread that decides hangs at this node: it was not done".into(),
            ),
            Failure::NotYet { rules, since } => {
                let text = format!(
                    "ERR ringfence: this cluster uses rules {rules}, and this needs rules {since}: it was not done. Once all nodes \
                     run a version that supports them, `ringfence cluster upgrade` raises the rules"
                );
                (Kind::Unavailable, text.into())
            }
            Failure::OverQuota { most, of } => {
                let text =
                    format!("OOM ringfence: the principal has all the {most} {of} that its limits allow");
                (Kind::Overloaded, text.into())
            }
            Failure::TableFull => (
                Kind::Overloaded,
                "OOM ringfence: the leases of the cluster take all the memory that they may".into(),
            ),
            Failure::Changed => (
                Kind::Unavailable,
                "ERR ringfence: others changed its keys again and again: it was not done".into(),
            ),
            Failure::Held { .. } | Failure::NotLive => (Kind::Taken, TAKEN.into()),
            Failure::NotMirrored => (
                Kind::Indeterminate,
                "ERR ringfence: the mirror did not have it in time. A lock that it took is taken back; one that it ended has ended".into(),
            ),
            failure if failure.is_certain() => (Kind::Unavailable, NOT_DONE.into()),
            _ => (Kind::Indeterminate, INDETERMINATE.into()),
        };
        Self::new(kind, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was an error that libraries raise, on a connection that stayed: a lease could not be extended in a cluster that was well.
    #[test]
    fn what_another_node_could_do_now_is_loading() {
        for failure in [Failure::NoLeader, Failure::Blocked] {
            let refused = Refused::from(failure);
            assert!(refused.text().starts_with("LOADING ") && refused.kind() == Kind::NoLeader);
        }
    }

    #[test]
    fn a_long_text_is_cut_and_not_kept() {
        let refused = Refused::new(Kind::Script, "é".repeat(MAX_TEXT));
        let Cow::Owned(text) = refused.text else { panic!("it is cut") };
        assert_eq!((text.len(), text.capacity() <= MAX_TEXT), (MAX_TEXT, true));
    }
}
