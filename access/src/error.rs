/// Why rules cannot be used: a sentence for an operator, which quotes no values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Error {
    /// The line in the file, from 1.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}
