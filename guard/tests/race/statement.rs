//! Statements from the documents. They are about account 42, and its balance is the number that is raced for.

use ringfence_guard::Claim;

/// `sql` for a holder with this claim that writes `number`. Placeholders that `sql` does not have are ignored.
pub(crate) fn filled(sql: &str, claim: Claim, number: u64) -> String {
    sql.replace(":token", &claim.token().0.to_string())
        .replace(":fence", &claim.fence().0.to_string())
        .replace(":balance", &number.to_string())
        .replace(":id", "42")
}
