//! `string.format`.

use super::arguments::Arguments;
use super::text::Text;
use super::{Machine, Step};
use crate::script::number;

/// The most flags, as in Lua.
const MAX_FLAGS: usize = 5;

/// The flags, width and precision between `%` and the letter.
#[derive(Default)]
struct Spec {
    is_left: bool,
    is_signed: bool,
    is_spaced: bool,
    is_zeroed: bool,
    width: usize,
    precision: Option<usize>,
}

impl Machine<'_> {
    pub(super) fn string_format(&mut self, arguments: &Arguments) -> Step {
        let format = self.string(arguments, 1)?;
        self.budget.pass(format.len())?;
        let mut text = Text::new(self.budget)?;
        let mut rest = &format[..];
        let mut next = 2;
        while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
            text.add(&rest[..at], self.budget)?;
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(b"%") {
                text.add(b"%", self.budget)?;
                rest = after;
                continue;
            }
            if next > arguments.count {
                return Err(self.bad_argument(arguments, next, "no value"));
            }
            let Some((spec, letter, after)) = Spec::read(rest) else {
                return Err(self.fail("invalid format (width or precision too long)"));
            };
            rest = after;
            let value = self.formatted(arguments, next, &spec, letter)?;
            text.add(&value, self.budget)?;
            next += 1;
        }
        text.add(rest, self.budget)?;
        self.push(text.into())
    }

    fn formatted(&mut self, arguments: &Arguments, number: usize, spec: &Spec, letter: u8) -> Step<Vec<u8>> {
        self.budget.spend(40)?;
        let body = match letter {
            b's' => {
                let text = self.string(arguments, number)?;
                self.budget.pass(text.len())?;
                self.budget.take(text.len())?;
                let text = &text[..spec.precision.unwrap_or(text.len()).min(text.len())];
                return Ok(spec.pad(text.to_vec(), false));
            }
            b'c' => vec![self.integer(arguments, number)? as u8],
            b'd' | b'i' => spec.digits((self.number(arguments, number)? as i64).to_string()),
            b'u' => spec.digits(self.unsigned(arguments, number)?.to_string()),
            b'x' => spec.digits(format!("{:x}", self.unsigned(arguments, number)?)),
            b'X' => spec.digits(format!("{:X}", self.unsigned(arguments, number)?)),
            b'f' => {
                let number = self.number(arguments, number)?;
                let precision = spec.precision.unwrap_or(6);
                // Many digits take long arithmetic.
                self.budget.spend(2 * (precision as u64 + number.abs().log10().clamp(0.0, 400.0) as u64))?;
                spec.signed(number::fixed(number, precision))
            }
            b'g' => {
                let precision = spec.precision.unwrap_or(6);
                self.budget.spend(2 * precision as u64)?;
                spec.signed(number::general(self.number(arguments, number)?, precision))
            }
            other => {
                let option = other.escape_ascii();
                return Err(self.fail(format_args!("invalid option '%{option}' to 'format'")));
            }
        };
        // As in C, an integer with a precision is not padded with zeros.
        let is_zeroed = spec.is_zeroed && !(spec.precision.is_some() && b"diuxX".contains(&letter));
        Ok(spec.pad(body, is_zeroed))
    }

    /// An unsigned integer. A negative number wraps around, as in C.
    fn unsigned(&mut self, arguments: &Arguments, number: usize) -> Step<u64> {
        let number = self.number(arguments, number)?;
        Ok(if number < 0.0 { number as i64 as u64 } else { number as u64 })
    }
}

impl Spec {
    /// Reads up to the letter, and returns the letter and the text after it.
    fn read(text: &[u8]) -> Option<(Self, u8, &[u8])> {
        let mut spec = Self::default();
        let mut rest = text;
        for _ in 0..MAX_FLAGS {
            let Some((flag, after)) = rest.split_first() else { break };
            match flag {
                b'-' => spec.is_left = true,
                b'+' => spec.is_signed = true,
                b' ' => spec.is_spaced = true,
                b'0' => spec.is_zeroed = true,
                _ => break,
            }
            rest = after;
        }
        (spec.width, rest) = two_digits(rest)?;
        if let [b'.', after @ ..] = rest {
            let (precision, after) = two_digits(after)?;
            spec.precision = Some(precision);
            rest = after;
        }
        let (letter, after) = rest.split_first()?;
        Some((spec, *letter, after))
    }

    /// A sign and digits, with zeros up to the precision.
    fn digits(&self, number: String) -> Vec<u8> {
        let (sign, digits) = match number.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", &*number),
        };
        self.signed(format!("{sign}{digits:0>precision$}", precision = self.precision.unwrap_or(1)))
    }

    fn signed(&self, number: String) -> Vec<u8> {
        let sign = match (number.starts_with('-'), self.is_signed, self.is_spaced) {
            (true, ..) | (_, false, false) => "",
            (_, true, _) => "+",
            (_, false, true) => " ",
        };
        [sign.as_bytes(), number.as_bytes()].concat()
    }

    fn pad(&self, body: Vec<u8>, with_zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(body.len());
        if self.is_left {
            return [body, vec![b' '; missing]].concat();
        }
        if with_zeros && !body.ends_with(b"inf") && !body.ends_with(b"nan") {
            let (sign, digits) = body.split_at(usize::from(!body[0].is_ascii_hexdigit()));
            return [sign, &vec![b'0'; missing], digits].concat();
        }
        [vec![b' '; missing], body].concat()
    }
}

/// Reads at most two digits, and refuses a third one.
fn two_digits(text: &[u8]) -> Option<(usize, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = text[..digits]
        .iter()
        .fold(0usize, |number, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')));
    (digits <= 2).then_some((number, &text[digits..]))
}
