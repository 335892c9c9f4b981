//! How fresh reads are.

/// How fresh a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The cluster's state at some instant of the call.
    #[default]
    Linearizable,
    /// The node's own state: fast, but may lag, and does not tell how long leases live.
    Local,
}

impl Consistency {
    pub(crate) fn query(self) -> &'static str {
        match self {
            Self::Linearizable => "consistency=linearizable",
            Self::Local => "consistency=local",
        }
    }
}
