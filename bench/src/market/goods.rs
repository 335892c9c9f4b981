//! Items, users and offers, and their names in Redis.

use anyhow::{Context, Result};

/// The number of an item.
pub(crate) type Item = usize;
/// The number of a user: the sellers come first.
pub(crate) type User = usize;

/// An item on the market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) item: Item,
    pub(crate) seller: User,
    pub(crate) price: i64,
}

impl Offer {
    /// The offer of an item at its price.
    pub(crate) fn of(item: Item, seller: User) -> Self {
        Self { item, seller, price: 1 + (item * 37 % 100) as i64 }
    }

    /// Its name on the market.
    pub(crate) fn member(self) -> String {
        format!("{}.{}", self.item, self.seller)
    }

    /// The offer with this name on the market.
    pub(crate) fn parse(member: &str, price: i64) -> Result<Self> {
        let (item, seller) = member.split_once('.').with_context(|| format!("{member} is not an item"))?;
        Ok(Self { item: item.parse()?, seller: seller.parse()?, price })
    }
}

pub(crate) fn users(user: User) -> String {
    format!("users:{user}")
}

pub(crate) fn inventory(user: User) -> String {
    format!("inventory:{user}")
}
