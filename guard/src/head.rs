//! What stands before the data where number and data are one file or one object: `ringfence-guard 1 4⏎`, the format and
//! the number.

use ringfence_wire::Token;

use crate::High;

const FORMAT: &str = "ringfence-guard 1 ";

/// The head, and the data after it.
pub(crate) fn encode(high: High, data: &[u8]) -> Vec<u8> {
    let head = format!("{FORMAT}{}\n", high.token());
    [head.as_bytes(), data].concat()
}

/// The number, and where the data begin; `None` where there is no such head.
pub(crate) fn decode(bytes: &[u8]) -> Option<(High, usize)> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let number = str::from_utf8(&bytes[..end]).ok()?.strip_prefix(FORMAT)?.parse().ok()?;
    Some((High::new(Token(number)).ok()?, end + 1))
}
