use ringfence_wire::{Claim, ClaimError, Token};

/// The number that a resource keeps with its data: every token below it is dead.
///
/// This is the guard rule itself, for a backend of your own: hold a lock (or a transaction) from
/// [`admit`](Self::admit) to the end of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct High(Token);

/// A guard's decision on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a rejected write was not done"]
pub enum Admission<T = ()> {
    /// The operation was done, with this result.
    Accepted(T),
    /// Nothing was done: every token below `high` is dead.
    Stale {
        /// The number kept with the resource.
        high: Token,
    },
}

impl High {
    /// The number of a resource that nobody has written to yet: no token is dead.
    pub const NEW: Self = Self(Token(0));

    /// The number as read from the resource. One that no guard can have written, 2^53 or more, is an error: it would
    /// reject everybody.
    pub fn new(high: Token) -> Result<Self, ClaimError> {
        if high == Self::NEW.0 { Ok(Self::NEW) } else { high.check("high").map(|()| Self(high)) }
    }

    /// The number that an operator sets, or that a guard starts with: a fence of the key from the cluster. No fence is
    /// 0, so an answer without one is an error.
    pub fn reset(fence: Token) -> Result<Self, ClaimError> {
        fence.check("fence").map(|()| Self(fence))
    }

    /// The number.
    pub fn token(self) -> Token {
        self.0
    }

    /// The rule: rejects a token below the number, else raises the number to the fence.
    pub fn admit(&mut self, claim: Claim) -> Admission {
        if claim.token() < self.0 {
            return Admission::Stale { high: self.0 };
        }
        self.0 = self.0.max(claim.fence());
        Admission::Accepted(())
    }
}

impl<T> Admission<T> {
    /// Whether the operation was done.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(high: &mut High, token: u64, fence: u64) -> Admission {
        high.admit(Claim::new(Token(token), Token(fence)).unwrap())
    }

    #[test]
    fn an_exclusive_holder_shuts_out_all_before_it() {
        let mut high = High::NEW;
        assert_eq!(admit(&mut high, 2, 2), Admission::Accepted(()));
        assert_eq!(admit(&mut high, 4, 4), Admission::Accepted(()));
        assert_eq!(admit(&mut high, 2, 2), Admission::Stale { high: Token(4) });
        assert_eq!(admit(&mut high, 3, 3), Admission::Stale { high: Token(4) });
        assert_eq!(admit(&mut high, 4, 4), Admission::Accepted(()), "a holder writes as often as it likes");
        assert_eq!(high.token(), Token(4));
    }

    #[test]
    fn shared_holders_are_shut_out_below_the_fence_only() {
        let mut high = High::NEW;
        assert_eq!(admit(&mut high, 9, 5), Admission::Accepted(()));
        assert_eq!(admit(&mut high, 7, 5), Admission::Accepted(()), "a newer peer does not shut it out");
        assert_eq!(admit(&mut high, 4, 3), Admission::Stale { high: Token(5) });
        assert_eq!(admit(&mut high, 6, 2), Admission::Accepted(()));
        assert_eq!(high.token(), Token(5), "an older fence does not lower the number");
    }

    #[test]
    fn an_operator_cannot_set_what_would_let_nobody_in_again() {
        let timestamp_ns = Token(1_790_000_000_000_000_000);
        assert_eq!(High::reset(Token(5)), Ok(High(Token(5))));
        assert!(High::reset(timestamp_ns).is_err());
        assert!(High::reset(Token(0)).is_err());
        assert!(High::new(timestamp_ns).is_err());
        assert_eq!(High::new(Token(0)), Ok(High::NEW));
    }
}
