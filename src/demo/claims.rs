//! What the demo claims, each found true in this run before it is said.

use anyhow::ensure;
use ringfence_wire::Token;

/// The claims so far, and the largest token.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    proven: Vec<String>,
    largest: Option<Token>,
}

impl Claims {
    /// Ends the demo if this is not so.
    pub(crate) fn check(&mut self, holds: bool, claim: impl Into<String>) -> anyhow::Result<()> {
        let claim = claim.into();
        ensure!(holds, "this was not so: {claim}");
        self.proven.push(claim);
        Ok(())
    }

    /// Whether a token that was granted just now is larger than all before it.
    pub(crate) fn rises(&mut self, token: Token) -> bool {
        let rises = self.largest.is_none_or(|largest| token > largest);
        self.largest = self.largest.max(Some(token));
        rises
    }

    /// All that were checked.
    pub(crate) fn proven(&self) -> &[String] {
        &self.proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_so_ends_the_demo_and_is_named() {
        let mut claims = Claims::default();
        claims.check(true, "one").unwrap();
        assert!(claims.check(false, "two").unwrap_err().to_string().contains("two"));
        assert_eq!(claims.proven(), ["one"]);
    }

    #[test]
    fn an_equal_token_does_not_rise() {
        let mut claims = Claims::default();
        assert_eq!([2, 4, 4, 3, 5].map(|token| claims.rises(Token(token))), [true, true, false, false, true]);
    }
}
