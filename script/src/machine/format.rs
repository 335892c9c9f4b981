//! `string.format`.

use super::arguments::Arguments;
use super::text::Text;
use super::{Host, Machine, Step};
use crate::number;

/// The most flags, as in Lua.
const MAX_FLAGS: usize = 5;
/// From this length on, `%s` writes the bytes as they are.
const LONG: usize = 100;
/// The letters that can have flags.
const KNOWN: &[u8] = b"cdifgsuxX";

/// The flags, width and precision between `%` and the letter.
#[derive(Default)]
struct Spec {
    is_left: bool,
    is_signed: bool,
    is_spaced: bool,
    is_zeroed: bool,
    has_hash: bool,
    width: usize,
    precision: Option<usize>,
}

impl<H: Host> Machine<'_, H> {
    pub(super) fn string_format(&mut self, arguments: &Arguments) -> Step<H> {
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
            let (spec, letter, after) = match Spec::read(rest) {
                Ok(read) => read,
                Err(reason) => return Err(self.fail(format_args!("invalid format ({reason})"))),
            };
            rest = after;
            let value = self.formatted(arguments, next, &spec, letter)?;
            text.add(&value, self.budget)?;
            next += 1;
        }
        text.add(rest, self.budget)?;
        self.push(text.into())
    }

    fn formatted(
        &mut self,
        arguments: &Arguments,
        number: usize,
        spec: &Spec,
        letter: u8,
    ) -> Step<H, Vec<u8>> {
        self.budget.spend(40)?;
        let body = match letter {
            b'e' | b'E' | b'G' | b'o' | b'q' => {
                return Err(self.unsupported(format_args!("%{} in string.format", char::from(letter))));
            }
            _ if spec.has_hash && KNOWN.contains(&letter) => {
                return Err(self.unsupported("the flag # in string.format"));
            }
            b's' => {
                let text = self.string(arguments, number)?;
                self.budget.pass(text.len())?;
                self.budget.take(text.len())?;
                return Ok(spec.pad(spec.part(&text).to_vec(), false));
            }
            b'c' => {
                let byte = number::to_byte(self.number(arguments, number)?);
                return Ok(up_to_nul(&spec.pad(vec![byte], false)).to_vec());
            }
            b'd' | b'i' => {
                let number = number::to_integer(self.number(arguments, number)?);
                spec.signed(spec.digits(number.to_string()))
            }
            b'u' => spec.digits(self.unsigned(arguments, number)?.to_string()),
            b'x' => spec.digits(format!("{:x}", self.unsigned(arguments, number)?)),
            b'X' => spec.digits(format!("{:X}", self.unsigned(arguments, number)?)),
            b'f' => {
                let number = self.number(arguments, number)?;
                let precision = spec.precision.unwrap_or(6);
                let digits = precision + number.abs().log10().clamp(0.0, 400.0) as usize;
                self.budget.spend(number::cost_of_writing(number, digits))?;
                spec.signed(number::fixed(number, precision))
            }
            b'g' => {
                let number = self.number(arguments, number)?;
                let precision = spec.precision.unwrap_or(6);
                self.budget.spend(number::cost_of_writing(number, precision))?;
                spec.signed(number::general(number, precision))
            }
            other => {
                let option = [other];
                let option = up_to_nul(&option).escape_ascii();
                return Err(self.fail(format_args!("invalid option '%{option}' to 'format'")));
            }
        };
        // As in C, an integer with a precision is not padded with zeros.
        let is_zeroed = spec.is_zeroed && !(spec.precision.is_some() && b"diuxX".contains(&letter));
        Ok(spec.pad(body.into_bytes(), is_zeroed))
    }

    fn unsigned(&mut self, arguments: &Arguments, number: usize) -> Step<H, u64> {
        Ok(number::to_unsigned(self.number(arguments, number)?))
    }
}

impl Spec {
    /// Reads up to the letter, and returns the letter and the text after it. The letter is NUL if there is none.
    fn read(text: &[u8]) -> Result<(Self, u8, &[u8]), &'static str> {
        let count = text.iter().take(MAX_FLAGS + 1).take_while(|byte| b"-+ #0".contains(byte)).count();
        if count > MAX_FLAGS {
            return Err("repeated flags");
        }
        let (flags, mut rest) = text.split_at(count);
        let mut spec = Self {
            is_left: flags.contains(&b'-'),
            is_signed: flags.contains(&b'+'),
            is_spaced: flags.contains(&b' '),
            is_zeroed: flags.contains(&b'0'),
            has_hash: flags.contains(&b'#'),
            ..Self::default()
        };
        (spec.width, rest) = two_digits(rest)?;
        if let [b'.', after @ ..] = rest {
            let (precision, after) = two_digits(after)?;
            spec.precision = Some(precision);
            rest = after;
        }
        let (letter, after) = rest.split_first().unwrap_or((&0, &[]));
        Ok((spec, *letter, after))
    }

    /// The part of a text that `%s` writes: up to the first NUL, but all of a long text without a precision, as in Lua.
    fn part<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        match self.precision {
            None if text.len() >= LONG => text,
            precision => {
                let text = up_to_nul(text);
                &text[..precision.unwrap_or(text.len()).min(text.len())]
            }
        }
    }

    /// A sign and digits, with zeros up to the precision. With the precision 0, zero has no digits.
    fn digits(&self, number: String) -> String {
        if number == "0" && self.precision == Some(0) {
            return String::new();
        }
        let (sign, digits) = match number.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", &*number),
        };
        format!("{sign}{digits:0>precision$}", precision = self.precision.unwrap_or(1))
    }

    fn signed(&self, number: String) -> String {
        let sign = match (number.starts_with('-'), self.is_signed, self.is_spaced) {
            (true, ..) | (_, false, false) => "",
            (_, true, _) => "+",
            (_, false, true) => " ",
        };
        format!("{sign}{number}")
    }

    fn pad(&self, body: Vec<u8>, with_zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(body.len());
        if self.is_left {
            return [body, vec![b' '; missing]].concat();
        }
        if with_zeros && !body.ends_with(b"inf") && !body.ends_with(b"nan") {
            let (sign, digits) =
                body.split_at(usize::from(body.first().is_some_and(|first| !first.is_ascii_hexdigit())));
            return [sign, &vec![b'0'; missing], digits].concat();
        }
        [vec![b' '; missing], body].concat()
    }
}

/// The text that C sees.
fn up_to_nul(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or(text)
}

/// Reads at most two digits, and refuses a third one.
fn two_digits(text: &[u8]) -> Result<(usize, &[u8]), &'static str> {
    let digits = text.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
    let number = text[..digits].iter().fold(0, |number, digit| 10 * number + usize::from(digit - b'0'));
    if digits > 2 { Err("width or precision too long") } else { Ok((number, &text[digits..])) }
}
