//! Finds where requests begin and end in the bytes that a client sends.
//!
//! A request is an array of strings, or a line of words that a person types at a terminal. A client announces each length before it sends the
//! bytes: the length is checked before any memory is set aside for them. When more bytes arrive, reading goes on at the last unfinished line.

use std::ops::Range;

use bytes::Bytes;

/// The longest request, in bytes.
pub(crate) const MAX_REQUEST: usize = 128 << 10;
/// The longest argument, in bytes.
pub(crate) const MAX_ARGUMENT: usize = 64 << 10;
/// The most arguments of a request, its name among them.
pub(crate) const MAX_ARGUMENTS: usize = 1_024;
/// The longest line of words, in bytes: a name and a credential fit.
const MAX_WORDS: usize = 1_024;
/// The longest line with a number, in bytes, its end included.
const MAX_NUMBER: usize = 24;

/// A request as it arrives.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    /// The bytes before this have been read.
    at: usize,
    part: Part,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Part {
    /// The first line.
    #[default]
    Start,
    /// The length of an argument. This many arguments are missing.
    Length(usize),
    /// The bytes of an argument. This many bytes, and then this many arguments, are missing.
    Argument(usize, usize),
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The name of the command, and its arguments. An empty request gets no answer.
    pub(crate) arguments: Vec<Bytes>,
    /// Whether it was a line of words.
    pub(crate) is_words: bool,
}

/// Why the bytes are no request. The rest of the stream has no meaning then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("Protocol error: invalid multibulk length")]
    Count,
    #[error("Protocol error: expected '$'")]
    NoString,
    #[error("Protocol error: invalid bulk length")]
    Length,
    #[error("Protocol error: an argument does not end where its length says")]
    End,
    #[error("Protocol error: too big inline request")]
    Words,
    #[error("ringfence: a request has at most 128 KiB")]
    Size,
    /// A web page can make a browser send a request here. It gets no answer.
    #[error("this is HTTP")]
    Http,
}

impl Frame {
    /// The length of the first request in `received`, or `None` if its end has not arrived. Until then, each call must pass the same bytes
    /// and perhaps more.
    pub(crate) fn advance(&mut self, received: &[u8]) -> Result<Option<usize>, Malformed> {
        self.read(received, |_| {})
    }

    fn read(
        &mut self,
        received: &[u8],
        mut argument: impl FnMut(Range<usize>),
    ) -> Result<Option<usize>, Malformed> {
        loop {
            let rest = &received[self.at..];
            self.part = match self.part {
                Part::Start => match rest.first() {
                    None => return Ok(None),
                    Some(b'*') => {
                        let Some((count, after)) = number(rest, Malformed::Count)? else { return Ok(None) };
                        self.at += after;
                        // As in Redis, a negative number of arguments counts as 0.
                        Part::Length(usize::try_from(count).unwrap_or(0))
                    }
                    Some(_) => {
                        let Some(line) = words_line(rest)? else { return Ok(None) };
                        words(line, argument);
                        return Ok(Some(self.finish(line.len())));
                    }
                },
                Part::Length(count) if count > MAX_ARGUMENTS => return Err(Malformed::Count),
                Part::Length(0) => return Ok(Some(self.finish(0))),
                Part::Length(count) => {
                    if rest.first().is_some_and(|first| *first != b'$') {
                        return Err(Malformed::NoString);
                    }
                    let Some((length, after)) = number(rest, Malformed::Length)? else { return Ok(None) };
                    let length = usize::try_from(length).map_err(|_| Malformed::Length)?;
                    if length > MAX_ARGUMENT {
                        return Err(Malformed::Length);
                    }
                    self.at += after;
                    if self.at + length + 2 > MAX_REQUEST {
                        return Err(Malformed::Size);
                    }
                    Part::Argument(length, count - 1)
                }
                Part::Argument(length, more) => {
                    let Some(end) = rest.get(length..length + 2) else { return Ok(None) };
                    if end != b"\r\n" {
                        return Err(Malformed::End);
                    }
                    argument(self.at..self.at + length);
                    self.at += length + 2;
                    Part::Length(more)
                }
            };
        }
    }

    /// The length of the request, which ends after `more` bytes. The next call begins a new request.
    fn finish(&mut self, more: usize) -> usize {
        let length = self.at + more;
        *self = Self::default();
        length
    }
}

impl Request {
    /// Reads `bytes`, which [`Frame::advance`] has found to be one request.
    pub(crate) fn read(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut arguments = Vec::new();
        Frame::default().read(bytes, |argument| arguments.push(bytes.slice(argument)))?;
        Ok(Self { arguments, is_words: !bytes.starts_with(b"*") })
    }
}

/// The number on the first line of `rest`, after the type byte, and where the next line begins. `None`: the end of the line has not arrived.
fn number(rest: &[u8], malformed: Malformed) -> Result<Option<(i64, usize)>, Malformed> {
    let line = &rest[..rest.len().min(MAX_NUMBER)];
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() == MAX_NUMBER { Err(malformed) } else { Ok(None) };
    };
    let digits = line[1..end.max(1)].strip_suffix(b"\r").ok_or(malformed)?;
    Ok(Some((integer(digits).ok_or(malformed)?, end + 1)))
}

/// A whole number as Redis reads it: digits, without a `+`, a leading zero or a space.
pub(crate) fn integer(digits: &[u8]) -> Option<i64> {
    if matches!(digits, [b'0'] | [b'1'..=b'9', ..] | [b'-', b'1'..=b'9', ..]) {
        str::from_utf8(digits).ok()?.parse().ok()
    } else {
        None
    }
}

/// The line of words at the beginning of `rest`, with its end. `None`: the end has not arrived.
fn words_line(rest: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let most = &rest[..rest.len().min(MAX_WORDS)];
    let line = most.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let starts =
        |start: &[u8]| line.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start));
    if starts(b"POST") || starts(b"GET") || starts(b"Host:") || line.windows(5).any(|part| part == b"HTTP/") {
        return Err(Malformed::Http);
    }
    match line.ends_with(b"\n") {
        true => Ok(Some(line)),
        false if line.len() == MAX_WORDS => Err(Malformed::Words),
        false => Ok(None),
    }
}

/// The words of a line, which ends in white space.
fn words(line: &[u8], mut word: impl FnMut(Range<usize>)) {
    let mut begin = None;
    for (at, byte) in line.iter().enumerate() {
        match (begin, byte.is_ascii_whitespace()) {
            (None, false) => begin = Some(at),
            (Some(start), true) => {
                word(start..at);
                begin = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
