//! The format of a guarded file or object: a line `ringfence-guard 1 4`, which is the format and the number, then the data.

use ringfence_wire::Token;

use crate::High;

const FORMAT: &str = "ringfence-guard 1 ";

/// The contents of a guarded file or object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents<D = Vec<u8>> {
    /// Every token below it is dead.
    pub high: Token,
    /// The data, as last written.
    pub data: D,
}

pub(crate) fn encode(high: High, data: &[u8]) -> Vec<u8> {
    let head = format!("{FORMAT}{}\n", high.token());
    [head.as_bytes(), data].concat()
}

/// The number, and the offset of the data; `None` if the format is another.
pub(crate) fn decode(bytes: &[u8]) -> Option<(High, usize)> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let number = str::from_utf8(&bytes[..end]).ok()?.strip_prefix(FORMAT)?.parse().ok()?;
    Some((High::new(Token(number)).ok()?, end + 1))
}
