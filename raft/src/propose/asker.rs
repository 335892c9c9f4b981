//! Askers, which take turns where requests wait for the log.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

/// Who counts as one where requests wait: a host, or a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(u64);

/// Random: nobody can choose names that count as one. So a host is another asker at each node. Of principals, the leader knows the name.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Asker {
    /// This node itself.
    pub(crate) const NODE: Self = Self(0);
    /// All together that do not say who they are.
    pub const UNNAMED: Self = Self(1);

    /// The asker with this name.
    pub fn of(name: &(impl Hash + ?Sized)) -> Self {
        Self(KEY.hash_one(name))
    }

    /// For another node, whose own hosts have other numbers.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The asker to which another node gives this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}
