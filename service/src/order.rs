/// What an operator has the cluster do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Make the node `id`, which waits at `peer` to join, a member.
    Add {
        /// Its id.
        id: u64,
        /// Its peer address.
        peer: String,
    },
    /// Remove a member.
    Remove {
        /// Its id.
        id: u64,
        /// Also if the remaining voters may be no majority.
        force: bool,
    },
    /// Have another voter lead: this one, or the one with the most of the log.
    Transfer {
        /// Its id.
        to: Option<u64>,
    },
    /// Raise the rules.
    Upgrade {
        /// To these, or to the newest that all members support.
        to: Option<u8>,
        /// Only say whether they can be raised.
        check: bool,
    },
}
