//! Statements of the documents, about the account 42, whose balance is the number.

use ringfence_guard::Claim;

/// `sql` for a holder with this claim, which writes `number`. What it does not mention is not needed.
pub(crate) fn filled(sql: &str, claim: Claim, number: u64) -> String {
    sql.replace(":token", &claim.token().0.to_string())
        .replace(":fence", &claim.fence().0.to_string())
        .replace(":balance", &number.to_string())
        .replace(":id", "42")
}
