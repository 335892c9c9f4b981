//! Pairs of a token and a fence, as texts; `None` is NULL.

pub(crate) type Pair = (Option<&'static str>, Option<&'static str>);

/// Those that no holder has.
pub(crate) const BAD: [Pair; 21] = [
    (None, None),
    (None, Some("4")),
    (Some("0"), None),
    (Some("0"), Some("0")),
    (Some("-9"), None),
    (Some("-9"), Some("-9")),
    (Some("9007199254740992"), None),
    (Some("9007199254740992"), Some("5")),
    (Some("1152921504606846976"), Some("5")),
    (Some("9223372036854775807"), Some("9223372036854775807")),
    (Some("9"), Some("0")),
    (Some("9"), Some("-9")),
    (Some("9"), Some("10")),
    (Some("9"), Some("9007199254740991")),
    // As scripts send them whose variables are not set.
    (Some(""), None),
    (Some(""), Some("")),
    (Some("9"), Some("")),
    (Some("NaN"), None),
    (Some("NaN"), Some("NaN")),
    (Some("abc"), Some("abc")),
    (Some("false"), Some("false")),
];

/// Those of holders, whose tokens are not stale where the number is at most 5.
pub(crate) const GOOD: [Pair; 7] = [
    (Some("5"), None),
    (Some("5"), Some("5")),
    (Some("9"), None),
    (Some("9"), Some("7")),
    (Some("9"), Some("1")),
    (Some("9007199254740991"), Some("1")),
    (Some("9007199254740991"), Some("9007199254740991")),
];

/// The number that a good pair leaves.
pub(crate) fn raised(high: i64, (token, fence): Pair) -> i64 {
    fence.or(token).unwrap().parse::<i64>().unwrap().max(high)
}
