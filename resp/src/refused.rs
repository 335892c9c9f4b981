//! Why a command is not done, in the words of the protocol.

use std::borrow::Cow;

use ringfence_service::{CannotDo, Failure};

use crate::frame::Malformed;

const TAKEN: &str = "ERR ringfence: the key is held over HTTP or by another principal, or somebody waits for it: it cannot be changed here";
const NOT_DONE: &str = "ERR ringfence: it was not done";
const INDETERMINATE: &str =
    "ERR ringfence: it may have been done, or may be done later. A lock that it took is taken back";

/// The longest text of a refusal, in bytes.
const MAX_TEXT: usize = 1 << 10;

/// Why a command is not done. Whatever came with it is not done, either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    kind: Kind,
    text: Cow<'static, str>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// What is wrong, as metrics and the log say it.
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
    /// Redis has no such command, or it is nothing that locks need.
    Unknown = "unknown-command";
    /// Redis would do it, and a lock service does not.
    Unsupported = "unsupported";
    /// An argument is missing, malformed, too large or out of range.
    Arguments = "arguments";
    /// Not now: before or after another command of the connection.
    Order = "order";
    /// A key is held by a lease that this client cannot change this way.
    Taken = "taken";
    /// A script is not known by its digest.
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
    /// Certainly not done: no leader, or the cluster's rules do not have it yet.
    Unavailable = "unavailable";
    /// Perhaps done.
    Indeterminate = "indeterminate";
}

impl Refused {
    /// `text` begins with the word in capitals that libraries look at. A script may have made it: what is very long is cut.
    pub(crate) fn new(kind: Kind, text: impl Into<Cow<'static, str>>) -> Self {
        let mut text = text.into();
        if let Some(cut) = (0..=MAX_TEXT).rev().find(|at| text.len() > MAX_TEXT && text.is_char_boundary(*at))
        {
            text.to_mut().truncate(cut);
        }
        Self { kind, text }
    }

    /// An argument is wrong.
    pub(crate) fn arguments(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Kind::Arguments, text)
    }

    /// An argument is no number.
    pub(crate) fn no_integer() -> Self {
        Self::arguments("ERR value is not an integer or out of range")
    }

    /// It is not done here, for this reason.
    pub(crate) fn unsupported(why: &str) -> Self {
        Self::new(Kind::Unsupported, format!("ERR ringfence: {why}"))
    }

    /// What is wrong.
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
                Kind::Unavailable,
                "LOADING ringfence: no leader accepted it in time: it was not done".into(),
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
