//! What a holder shows to a guard.

use crate::Token;

/// Tokens are below 2^53, so that every JSON reader keeps them exact.
const END: u64 = 1 << 53;

/// What a holder shows to a guard: its token, and the fence that its grant or last renewal gave for the key.
///
/// The fence is never above the token: a holder whose token is below the fence is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    token: Token,
    fence: Token,
}

/// Why numbers are not a [`Claim`] or a fence. It names the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No grant ever had this number: it is 0, or 2^53 or more, as a timestamp in nanoseconds is.
    #[error("{field}: {number} is no token: those are from 1 to 2^53 - 1")]
    OutOfRange {
        /// `token`, `fence` or `high`.
        field: &'static str,
        /// The number.
        number: u64,
    },
    /// No live lease has a token below the fence of its key.
    #[error("fence: a live token, {token}, is not below its fence, {fence}")]
    FenceAboveToken {
        /// The token.
        token: Token,
        /// The fence.
        fence: Token,
    },
}

impl Claim {
    /// The claim of an exclusive holder: its fence is its token.
    pub fn exclusive(token: Token) -> Result<Self, ClaimError> {
        Self::new(token, token)
    }

    /// The claim of any holder, with the fence that its grant or last renewal gave for the key.
    pub fn new(token: Token, fence: Token) -> Result<Self, ClaimError> {
        token.check("token")?;
        fence.check("fence")?;
        if fence > token {
            return Err(ClaimError::FenceAboveToken { token, fence });
        }
        Ok(Self { token, fence })
    }

    /// The holder's token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The lowest token that may still have been alive when the claim was issued.
    pub fn fence(&self) -> Token {
        self.fence
    }
}

impl Token {
    /// Checks that a grant can have this number. `field` is where it stands.
    pub fn check(self, field: &'static str) -> Result<(), ClaimError> {
        match self.0 {
            1..END => Ok(()),
            number => Err(ClaimError::OutOfRange { field, number }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_two_numbers_that_a_grant_can_have() {
        assert_eq!(Claim::exclusive(Token(7)), Claim::new(Token(7), Token(7)));
        assert!(Claim::new(Token(END - 1), Token(1)).is_ok());
        for (token, fence, why) in [
            (0, 0, "token: 0 is no token: those are from 1 to 2^53 - 1"),
            (END, 4, "token: 9007199254740992 is no token: those are from 1 to 2^53 - 1"),
            (4, 0, "fence: 0 is no token: those are from 1 to 2^53 - 1"),
            (4, u64::MAX, "fence: 18446744073709551615 is no token: those are from 1 to 2^53 - 1"),
            (4, 5, "fence: a live token, 4, is not below its fence, 5"),
        ] {
            assert_eq!(Claim::new(Token(token), Token(fence)).unwrap_err().to_string(), why);
        }
    }
}
