//! Numbers as text, as the C library writes and reads them.

/// The digits of a number that becomes a string.
pub(super) const DIGITS: usize = 14;

/// `%.14g`: how a number becomes a string.
pub(super) fn to_string(number: f64) -> String {
    general(number, DIGITS)
}

/// `%.{precision}g`.
pub(super) fn general(number: f64, precision: usize) -> String {
    if let Some(text) = not_finite(number) {
        return text.to_owned();
    }
    let digits = precision.max(1);
    let scientific = format!("{:.*e}", digits - 1, number);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    without_zeros(&format!("{number:.decimals$}")).to_owned()
}

const TWO_TO_63: f64 = (1u64 << 63) as f64;

/// The integer of a number. As in C on x86, a number beyond 64 bits becomes the smallest integer.
pub(super) fn to_integer(number: f64) -> i64 {
    let is_integer = (-TWO_TO_63..TWO_TO_63).contains(&number);
    if is_integer { number as i64 } else { i64::MIN }
}

/// The unsigned integer of a number, as in C on x86: a negative one wraps around.
pub(super) fn to_unsigned(number: f64) -> u64 {
    match number >= TWO_TO_63 {
        true => to_integer(number - TWO_TO_63) as u64 ^ 1 << 63,
        false => to_integer(number) as u64,
    }
}

/// The lowest byte of the integer of a number. As in C on x86, it is 0 beyond 32 bits.
pub(super) fn to_byte(number: f64) -> u8 {
    if number.abs() < 2f64.powi(31) { number as i32 as u8 } else { 0 }
}

/// The cost of reading a number from this text. Many digits or an exponent can take long arithmetic, but with at most 800 digits.
pub(super) fn cost_of_reading(text: &[u8]) -> u64 {
    let is_easy = text.len() <= 15 && !text.iter().any(|byte| matches!(byte, b'e' | b'E'));
    let length = text.len() as u64;
    if is_easy { 4 } else { 250 + 12 * length.min(800) + length / 4 }
}

/// The cost of writing this many digits of a number. It can take long arithmetic, with a number as long as the exponent is large.
pub(super) fn cost_of_writing(number: f64, digits: usize) -> u64 {
    let exponent = (number.to_bits() >> 52 & 0x7ff).abs_diff(1_023);
    6 + digits as u64 * (1 + if number == 0.0 { 0 } else { exponent / 64 })
}

/// `%.{precision}f`.
pub(super) fn fixed(number: f64, precision: usize) -> String {
    not_finite(number).map_or_else(|| format!("{number:.precision$}"), str::to_owned)
}

fn not_finite(number: f64) -> Option<&'static str> {
    match (number.is_nan(), number.is_infinite(), number.is_sign_negative()) {
        (true, _, false) => Some("nan"),
        (true, _, true) => Some("-nan"),
        (_, true, false) => Some("inf"),
        (_, true, true) => Some("-inf"),
        _ => None,
    }
}

fn without_zeros(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

/// Reads a decimal number, or a hexadecimal one after `0x`. White space may surround it.
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(trim(text)).ok()?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1.0, digits),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => hexadecimal(digits).map(|number| sign * number),
        None => text.parse().ok(),
    }
}

/// Reads an integer in a base from 2 to 36. A negative one wraps around, as in C.
pub(super) fn parse_in(text: &[u8], base: u32) -> Option<f64> {
    let text = trim(text);
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let digits = match digits {
        [b'0', b'x' | b'X', digits @ ..] if base == 16 => digits,
        digits => digits,
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: u64 = 0;
    let mut is_too_large = false;
    for digit in digits {
        let digit = char::from(*digit).to_digit(base)?;
        match number.checked_mul(u64::from(base)).and_then(|number| number.checked_add(u64::from(digit))) {
            Some(next) => number = next,
            None => is_too_large = true,
        }
    }
    let number = match (is_too_large, is_negative) {
        (true, _) => u64::MAX,
        (false, true) => number.wrapping_neg(),
        (false, false) => number,
    };
    Some(number as f64)
}

fn hexadecimal(text: &str) -> Option<f64> {
    let (digits, exponent) = match text.split_once(['p', 'P']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?.clamp(-10_000, 10_000)),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (mut bits, mut exponent) = (0, exponent - 4 * fraction.len() as i32);
    for digit in whole.chars().chain(fraction.chars()) {
        let digit = u64::from(digit.to_digit(16)?);
        if bits >> 60 == 0 {
            bits = bits << 4 | digit;
        } else {
            // Of what does not fit, only matters whether it is zero.
            bits |= u64::from(digit != 0);
            exponent += 4;
        }
    }
    Some(rounded(bits, exponent))
}

/// `bits * 2^exponent`, rounded once, to even if it lies in the middle.
fn rounded(bits: u64, exponent: i32) -> f64 {
    let length = 64 - bits.leading_zeros() as i32;
    let extra = (length - 53).max(-1_074 - exponent).clamp(0, 127);
    let shifted = u128::from(bits) << 64 >> extra;
    let (kept, rest) = ((shifted >> 64) as u64, shifted as u64);
    let is_up = rest > 1 << 63 || rest == 1 << 63 && kept % 2 == 1;
    // In two halves, because the smallest numbers are smaller than the inverse of the largest.
    let exponent = (exponent + extra).min(2_000);
    (kept + u64::from(is_up)) as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
}

/// The text without white space around it. As in C, it ends before a NUL.
fn trim(text: &[u8]) -> &[u8] {
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let from = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let to = text.iter().rposition(|byte| !is_space(byte)).map_or(from, |last| last + 1);
    &text[from..to]
}
