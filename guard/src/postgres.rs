//! PostgreSQL, guarded within the writer's own transaction.
//!
//! The rule itself is in SQL ([`SQL`], the file `guard/sql/postgres.sql`), for any language. The file also has `protect`,
//! whose triggers refuse writes without a claim: use it with this wrapper, too. The wrapper is thin:
//!
//! ```text
//!  BEGIN ─▶ admit ─▶ SELECT … UPDATE … INSERT … ─▶ COMMIT
//!             └── the number's row is locked from here ──┘
//! ```
//! A newer holder's claim waits until the transaction has ended, and an older one's finds the number raised. A read after
//! `admit`, in the same transaction, needs no touch; [`touch`] is for other reads.
//!
//! Statements are unnamed and carry the types of their parameters: one round trip each, and nothing remains on
//! connections that a pooler shares.

use ringfence_wire::{Key, Token};
use tokio_postgres::types::{FromSql, ToSql, Type, accepts};
use tokio_postgres::{Error, GenericClient, Transaction};

use crate::{Admission, Claim, High};

/// Creates the schema `ringfence`. Run it once per database, `client.batch_execute(SQL)`, and again after an update.
pub const SQL: &str = include_str!("../sql/postgres.sql");

/// Raises the number of `key`, in a transaction of its own if `client` is not one.
pub async fn touch(client: &impl GenericClient, key: &Key, claim: Claim) -> Result<Admission, Error> {
    let sql = "SELECT accepted, high FROM ringfence.admit($1, $2, $3)";
    let (key, token, fence) = (key.as_str(), bigint(claim.token()), bigint(claim.fence()));
    let row = client
        .query_typed_one(sql, &[(&key, Type::TEXT), (&token, Type::INT8), (&fence, Type::INT8)])
        .await?;
    Ok(if row.try_get("accepted")? {
        Admission::Accepted(())
    } else {
        Admission::Stale { high: row.try_get::<_, Number>("high")?.0.token() }
    })
}

/// Admits the later writes of `transaction`. If it is accepted, they are all guarded; if not, nothing was done: roll the
/// transaction back. Call it before the transaction's first read.
pub async fn admit(transaction: &Transaction<'_>, key: &Key, claim: Claim) -> Result<Admission, Error> {
    touch(transaction, key, claim).await
}

/// The number of `key`; [`High::NEW`] if nobody has claimed it yet.
pub async fn high(client: &impl GenericClient, key: &Key) -> Result<High, Error> {
    let row = client.query_typed_one("SELECT ringfence.high($1)", &[(&key.as_str(), Type::TEXT)]).await?;
    let high: Option<Number> = row.try_get(0)?;
    Ok(high.map_or(High::NEW, |Number(high)| high))
}

/// Sets the number of `key`, to one made by [`High::reset`]. It needs the rights of the table's owner.
pub async fn reset(client: &impl GenericClient, key: &Key, high: High) -> Result<(), Error> {
    let (key, fence) = (key.as_str(), bigint(high.token()));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&key, Type::TEXT), (&fence, Type::INT8)];
    client.query_typed("SELECT ringfence.reset($1, $2)", &parameters).await.map(drop)
}

/// A number that is no token stays one that the database refuses.
fn bigint(token: Token) -> i64 {
    i64::try_from(token.0).unwrap_or(i64::MAX)
}

/// The number as the table has it.
struct Number(High);

impl<'a> FromSql<'a> for Number {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let number = u64::try_from(i64::from_sql(kind, raw)?)?;
        Ok(Self(High::new(Token(number))?))
    }

    accepts!(INT8);
}
