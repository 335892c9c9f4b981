//! Reads the text of a script word by word.

use std::borrow::Cow;

use super::LoadError;
use super::number;

/// A word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'t> {
    Name(&'t [u8]),
    String(Cow<'t, [u8]>),
    Number(f64),
    /// A keyword or an operator.
    Sign(&'static str),
    End,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Longer ones first.
const OPERATORS: [&str; 24] = [
    "...", "..", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(", ")", "{",
    "}", "]", ";", ":", ",",
];

/// What the numbers of a text may cost together, by [`number::cost_of_reading`], and how much more for each of its bytes: about as
/// much as to compile the rest.
const MAX_SPENT: u64 = 2_000;
const MAX_SPENT_BY_A_BYTE: u64 = 3;

/// Reads a text word by word.
pub(super) struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    line: u32,
    spent: u64,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t [u8]) -> Self {
        Self { text, at: 0, line: 1, spent: 0 }
    }

    /// The line of the last word, from 1.
    pub(super) fn line(&self) -> u32 {
        self.line
    }

    pub(super) fn next(&mut self) -> Result<Token<'t>, LoadError> {
        self.skip_space()?;
        let rest = &self.text[self.at..];
        let Some(first) = rest.first() else { return Ok(Token::End) };
        match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => Ok(self.name()),
            b'0'..=b'9' => self.number(),
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => self.number(),
            b'"' | b'\'' => self.string(*first),
            b'[' => match self.bracket() {
                Some(level) => self.long_string(level).map(Token::String),
                None => Ok(self.sign("[")),
            },
            _ => match OPERATORS.into_iter().find(|operator| rest.starts_with(operator.as_bytes())) {
                Some(operator) => Ok(self.sign(operator)),
                None if *first == b'.' => Ok(self.sign(".")),
                None => Err(self.error(format!("unexpected symbol near '{}'", first.escape_ascii()))),
            },
        }
    }

    pub(super) fn error(&self, reason: impl Into<String>) -> LoadError {
        LoadError::new(self.line, reason)
    }

    fn sign(&mut self, sign: &'static str) -> Token<'t> {
        self.at += sign.len();
        Token::Sign(sign)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Takes the bytes up to the first that does not meet the condition.
    fn take(&mut self, condition: impl Fn(u8) -> bool) -> &'t [u8] {
        let from = self.at;
        while self.peek().is_some_and(&condition) {
            self.at += 1;
        }
        &self.text[from..self.at]
    }

    /// Skips an end of line, which may have two bytes.
    fn skip_line_end(&mut self) {
        let first = self.peek();
        self.at += 1;
        if matches!((first, self.peek()), (Some(b'\r'), Some(b'\n')) | (Some(b'\n'), Some(b'\r'))) {
            self.at += 1;
        }
        self.line += 1;
    }

    fn skip_space(&mut self) -> Result<(), LoadError> {
        loop {
            match self.peek() {
                Some(b'\n' | b'\r') => self.skip_line_end(),
                Some(b' ' | b'\t' | b'\x0b' | b'\x0c') => self.at += 1,
                Some(b'-') if self.text[self.at..].starts_with(b"--") => {
                    self.at += 2;
                    match self.bracket() {
                        Some(level) => drop(self.long_string(level)?),
                        None => drop(self.take(|byte| byte != b'\n' && byte != b'\r')),
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    fn name(&mut self) -> Token<'t> {
        let name = self.take(is_name);
        match KEYWORDS.into_iter().find(|keyword| keyword.as_bytes() == name) {
            Some(keyword) => Token::Sign(keyword),
            None => Token::Name(name),
        }
    }

    fn number(&mut self) -> Result<Token<'t>, LoadError> {
        let from = self.at;
        self.take(|byte| byte.is_ascii_digit() || byte == b'.');
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
        }
        self.take(is_name);
        let text = &self.text[from..self.at];
        self.spent += number::cost_of_reading(text);
        if self.spent > MAX_SPENT + MAX_SPENT_BY_A_BYTE * self.text.len() as u64 {
            return Err(self.error("the numbers of the script take too long to read"));
        }
        let number = Some(text).filter(|text| text.len() <= 200).and_then(number::parse);
        number
            .map(Token::Number)
            .ok_or_else(|| self.error(format!("malformed number near '{}'", shown(text))))
    }

    fn string(&mut self, quote: u8) -> Result<Token<'t>, LoadError> {
        self.at += 1;
        let mut value = Cow::Borrowed(&[][..]);
        loop {
            append(&mut value, self.take(|byte| byte != quote && !matches!(byte, b'\\' | b'\n' | b'\r')));
            match self.peek() {
                Some(b'\\') => self.escape(value.to_mut())?,
                Some(byte) if byte == quote => break,
                _ => return Err(self.error("unfinished string")),
            }
        }
        self.at += 1;
        Ok(Token::String(value))
    }

    fn escape(&mut self, value: &mut Vec<u8>) -> Result<(), LoadError> {
        self.at += 1;
        let Some(byte) = self.peek() else { return Err(self.error("unfinished string")) };
        if byte.is_ascii_digit() {
            let rest = &self.text[self.at..];
            let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit());
            let code = digits.clone().fold(0u32, |code, digit| 10 * code + u32::from(digit - b'0'));
            self.at += digits.count();
            value.push(u8::try_from(code).map_err(|_| self.error("escape sequence too large"))?);
            return Ok(());
        }
        if matches!(byte, b'\n' | b'\r') {
            self.skip_line_end();
            value.push(b'\n');
            return Ok(());
        }
        self.at += 1;
        value.push(match byte {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            other => other,
        });
        Ok(())
    }

    /// The number of signs in `[==[`, if a long bracket begins here.
    fn bracket(&self) -> Option<usize> {
        let inside = self.text[self.at..].strip_prefix(b"[")?;
        let level = inside.iter().take_while(|byte| **byte == b'=').count();
        (inside.get(level) == Some(&b'[')).then_some(level)
    }

    /// Reads from one long bracket to the other, without a line end right behind the first.
    fn long_string(&mut self, level: usize) -> Result<Cow<'t, [u8]>, LoadError> {
        self.at += level + 2;
        if matches!(self.peek(), Some(b'\n' | b'\r')) {
            self.skip_line_end();
        }
        let mut value = Cow::Borrowed(&[][..]);
        loop {
            append(&mut value, self.take(|byte| !matches!(byte, b']' | b'\n' | b'\r')));
            match self.peek() {
                None => return Err(self.error("unfinished long string or comment")),
                Some(b']') => {
                    let from = self.at;
                    self.at += 1;
                    let signs = self.take(|byte| byte == b'=').len();
                    if signs == level && self.peek() == Some(b']') {
                        self.at += 1;
                        return Ok(value);
                    }
                    append(&mut value, &self.text[from..self.at]);
                }
                Some(_) => {
                    self.skip_line_end();
                    append(&mut value, b"\n");
                }
            }
        }
    }
}

/// Appends to a string, which is not copied if it is one part of the text.
fn append<'t>(value: &mut Cow<'t, [u8]>, part: &'t [u8]) {
    match value.is_empty() {
        true => *value = Cow::Borrowed(part),
        false if part.is_empty() => {}
        false => value.to_mut().extend_from_slice(part),
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// The text as an error message quotes it.
pub(super) fn shown(text: &[u8]) -> String {
    text[..text.len().min(40)].escape_ascii().to_string()
}
