//! Who asks for proposals, as far as turns go.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

/// Who counts as one where requests wait: a host, or a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(u64);

/// Nobody can choose names that count as one. So a host is another asker at each node, unlike a principal: the leader knows its name.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Asker {
    /// This node itself.
    pub(crate) const NODE: Self = Self(0);
    /// All who say nothing of themselves together.
    pub const UNNAMED: Self = Self(1);

    /// Who is named by this.
    pub fn of(name: &(impl Hash + ?Sized)) -> Self {
        Self(KEY.hash_one(name))
    }

    /// As another node calls it, whose hosts are others.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// What another node calls by this number.
    pub(crate) fn from_number(number: u64) -> Self {
        Self(number)
    }
}
