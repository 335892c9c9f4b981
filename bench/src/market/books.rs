//! Who owns what according to the answers that clients got, compared with Redis at the end.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;

use super::goods::{Item, Offer, User, inventory, users};

/// The money of a buyer at the start: more than it can spend.
const FUNDS: i64 = 1_000_000_000_000;
/// Items in one command.
const CHUNK: usize = 10_000;

/// Where an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Inventory(User),
    /// Offered by this seller.
    Market(User),
}

/// Where all items and all the money are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Books {
    /// The items of each seller at the start.
    stock: usize,
    places: Vec<Place>,
    funds: Vec<i64>,
}

impl Books {
    /// Sellers with `stock` items each, `offered` of them on the market, and buyers with money.
    pub(crate) fn new(sellers: usize, buyers: usize, stock: usize, offered: usize) -> Self {
        let place = |item| match (item / stock, item % stock) {
            (seller, number) if number < offered => Place::Market(seller),
            (seller, _) => Place::Inventory(seller),
        };
        let places = (0..sellers * stock).map(place).collect();
        Self { stock, places, funds: [vec![0; sellers], vec![FUNDS; buyers]].concat() }
    }

    /// The items that a seller can offer.
    pub(crate) fn to_offer(&self, seller: User) -> Vec<Item> {
        let own = seller * self.stock..(seller + 1) * self.stock;
        own.filter(|item| self.places[*item] == Place::Inventory(seller)).collect()
    }

    /// Writes all this into an empty Redis.
    pub(crate) async fn write(&self, redis: &mut MultiplexedConnection) -> Result<()> {
        for (user, funds) in self.funds.iter().enumerate() {
            let () = redis.hset(users(user), "funds", funds).await?;
            let own: Vec<Item> = self.at(Place::Inventory(user)).collect();
            for items in own.chunks(CHUNK) {
                let () = redis.sadd(inventory(user), items).await?;
            }
            let offered = self.at(Place::Market(user)).map(|item| Offer::of(item, user));
            let offered: Vec<_> = offered.map(|offer| (offer.price, offer.member())).collect();
            for offers in offered.chunks(CHUNK) {
                let () = redis.zadd_multiple("market:", offers).await?;
            }
        }
        Ok(())
    }

    fn at(&self, place: Place) -> impl Iterator<Item = Item> {
        self.places.iter().enumerate().filter(move |(_, at)| **at == place).map(|(item, _)| item)
    }

    /// A seller has listed this.
    pub(crate) fn listed(&mut self, seller: User, item: Item) -> Result<()> {
        self.moves(item, Place::Inventory(seller), Place::Market(seller))
    }

    /// A buyer has bought this.
    pub(crate) fn bought(&mut self, buyer: User, offer: Offer) -> Result<()> {
        self.moves(offer.item, Place::Market(offer.seller), Place::Inventory(buyer))?;
        self.funds[offer.seller] += offer.price;
        self.funds[buyer] -= offer.price;
        Ok(())
    }

    fn moves(&mut self, item: Item, from: Place, to: Place) -> Result<()> {
        let place = self.places.get_mut(item).with_context(|| format!("item {item} was never made"))?;
        ensure!(*place == from, "item {item} is {to} by a client's answer, but was {place} already");
        *place = to;
        Ok(())
    }

    /// Fails unless Redis agrees: each item in one place, the right one, and each user's money exact.
    pub(crate) async fn check(&self, redis: &mut MultiplexedConnection) -> Result<()> {
        let (mut found, mut funds) = (Vec::new(), Vec::new());
        for user in 0..self.funds.len() {
            let own: Vec<Item> = redis.smembers(inventory(user)).await?;
            found.extend(own.into_iter().map(|item| (item, Place::Inventory(user))));
            funds.push(redis.hget(users(user), "funds").await?);
        }
        let market: Vec<String> = redis.zrange("market:", 0, -1).await?;
        for name in market {
            let offer = Offer::parse(&name, 0)?;
            found.push((offer.item, Place::Market(offer.seller)));
        }
        self.compare(&found, &funds)
    }

    fn compare(&self, found: &[(Item, Place)], funds: &[i64]) -> Result<()> {
        let mut places = vec![None; self.places.len()];
        for &(item, place) in found {
            let known = places.get_mut(item).with_context(|| format!("item {item} was never made"))?;
            if let Some(other) = known.replace(place) {
                bail!("item {item} is in two places: {other} and {place}");
            }
        }
        for (item, (found, told)) in places.iter().zip(&self.places).enumerate() {
            let found = found.with_context(|| format!("item {item} is lost; the answers say {told}"))?;
            ensure!(found == *told, "item {item} is {found}; the answers say {told}");
        }
        let (before, after) = (self.funds.iter().sum::<i64>(), funds.iter().sum::<i64>());
        ensure!(before == after, "money is not conserved: {before} at first, {after} now");
        for (user, (found, told)) in funds.iter().zip(&self.funds).enumerate() {
            ensure!(found == told, "{} has {found}; the answers say {told}", users(user));
        }
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inventory(user) => write!(f, "in {}", inventory(*user)),
            Self::Market(seller) => write!(f, "on the market, of {}", users(*seller)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seller with items 0 to 3, 0 and 1 on the market, and two buyers, 1 and 2; the first has bought item 0.
    fn sold() -> Books {
        let mut books = Books::new(1, 2, 4, 2);
        books.bought(1, Offer::of(0, 0)).unwrap();
        books
    }

    fn found(books: &Books) -> Vec<(Item, Place)> {
        books.places.iter().copied().enumerate().collect()
    }

    fn why(books: &Books, found: &[(Item, Place)], funds: &[i64]) -> String {
        books.compare(found, funds).unwrap_err().to_string()
    }

    #[test]
    fn books_that_add_up_are_right() {
        let mut books = sold();
        assert_eq!(books.to_offer(0), [2, 3]);
        books.listed(0, 2).unwrap();
        assert_eq!(books.to_offer(0), [3]);
        books.compare(&found(&books), &books.funds).unwrap();
    }

    #[test]
    fn what_is_lost_doubled_or_misplaced_is_noticed() {
        let books = sold();
        let (right, funds) = (found(&books), &books.funds);
        assert_eq!(why(&books, &right[..3], funds), "item 3 is lost; the answers say in inventory:0");
        let doubled = [right.as_slice(), &[(0, Place::Inventory(2))]].concat();
        assert_eq!(
            why(&books, &doubled, funds),
            "item 0 is in two places: in inventory:1 and in inventory:2"
        );
        let mut unsold = right.clone();
        unsold[0].1 = Place::Market(0);
        let expected = "item 0 is on the market, of users:0; the answers say in inventory:1";
        assert_eq!(why(&books, &unsold, funds), expected);
        assert_eq!(why(&books, &[(4, Place::Market(0))], funds), "item 4 was never made");
    }

    #[test]
    fn money_made_or_moved_is_noticed() {
        let books = sold();
        let right = found(&books);
        let (mut made, mut moved) = (books.funds.clone(), books.funds.clone());
        made[0] += 1;
        assert!(why(&books, &right, &made).starts_with("money is not conserved"));
        moved[1] -= 1;
        moved[2] += 1;
        assert!(why(&books, &right, &moved).starts_with("users:1 has"));
    }

    #[test]
    fn an_item_sold_twice_is_noticed() {
        let mut books = sold();
        assert!(books.bought(2, Offer::of(0, 0)).is_err());
        assert!(books.listed(0, 1).is_err());
    }
}
