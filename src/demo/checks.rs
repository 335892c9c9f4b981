//! The demo's claims, each verified in this run before it is printed.

use anyhow::ensure;
use ringfence_client::Token;

/// The verified claims, and the largest token so far.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    verified: Vec<String>,
    largest: Option<Token>,
}

impl Checks {
    /// Ends the demo if `claim` does not hold.
    pub(crate) fn check(&mut self, holds: bool, claim: impl Into<String>) -> anyhow::Result<()> {
        let claim = claim.into();
        ensure!(holds, "this does not hold: {claim}");
        self.verified.push(claim);
        Ok(())
    }

    /// Ends the demo if `token`, just granted, is not larger than all before it.
    pub(crate) fn check_largest(&mut self, token: Token, claim: impl Into<String>) -> anyhow::Result<()> {
        let is_largest = self.is_largest(token);
        self.check(is_largest, claim)
    }

    /// Whether a token, just granted, is larger than all before it.
    pub(crate) fn is_largest(&mut self, token: Token) -> bool {
        let rises = self.largest.is_none_or(|largest| token > largest);
        self.largest = self.largest.max(Some(token));
        rises
    }

    pub(crate) fn verified(&self) -> &[String] {
        &self.verified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_does_not_hold_ends_the_demo() {
        let mut checks = Checks::default();
        checks.check(true, "one").unwrap();
        assert!(checks.check(false, "two").unwrap_err().to_string().contains("two"));
        assert_eq!(checks.verified(), ["one"]);
    }

    #[test]
    fn an_equal_token_is_not_larger() {
        let mut checks = Checks::default();
        assert_eq!(
            [2, 4, 4, 3, 5].map(|token| checks.is_largest(Token(token))),
            [true, true, false, false, true]
        );
    }
}
