//! The first message of a connection to PostgreSQL: its length, a code, and for a start the parameters, names and values that end with a zero.
//! And what the server answers to that: a letter, the length, and what the letter stands for.

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::super::{SETTING, merged};

/// The longest that a server reads.
const MAX: u32 = 10_000;
/// Length and code.
const HEAD: u32 = 8;
const TLS: u32 = 80_877_103;
const GSS: u32 = 80_877_104;
/// The major version of the protocol in the code of a start.
const VERSION: u32 = 3;
/// What an `R` begins with that asks for SASL, before the ways that the server offers.
const SASL: [u8; 4] = [0, 0, 0, 10];
/// How many notices may stand before it.
const MAX_NOTICES: usize = 10;
/// The message that asks for TLS.
pub(super) const ASK_FOR_TLS: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// What a program has sent.
pub(super) enum Sent {
    Start(Start),
    /// Passed on as it is, such as a cancel.
    Other(Vec<u8>),
}

/// A start of a session.
pub(super) struct Start {
    code: u32,
    parameters: Vec<u8>,
}

/// Reads it. Encryption, for which a program may ask before, is declined.
pub(super) async fn first_message(
    program: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> anyhow::Result<Sent> {
    // Once for TLS, and once for GSSAPI.
    for _ in 0..3 {
        let (length, code) = (program.read_u32().await?, program.read_u32().await?);
        if length == HEAD && [TLS, GSS].contains(&code) {
            program.write_all(b"N").await?;
            continue;
        }
        ensure!(
            (HEAD..=MAX).contains(&length),
            "the first message has {length} bytes, and is none of PostgreSQL's"
        );
        let mut rest = vec![0; (length - HEAD) as usize];
        program.read_exact(&mut rest).await?;
        return Ok(match code >> 16 {
            VERSION => Sent::Start(Start { code, parameters: rest }),
            _ => Sent::Other(message(code, &rest)),
        });
    }
    bail!("it asks for encryption again and again");
}

impl Start {
    /// The message with these claims, whatever options it has.
    pub(super) fn with_claims(&self, claims: &str) -> anyhow::Result<Vec<u8>> {
        let mut others = Vec::new();
        let mut options = String::new();
        let mut texts = self.parameters.split_inclusive(|byte| *byte == 0);
        loop {
            let name = texts.next().context("the first message has no end")?;
            if name == [0] {
                break;
            }
            let value = texts.next().context("a parameter of the first message has no value")?;
            ensure!(
                !name.eq_ignore_ascii_case(b"ringfence.may_claim\0"),
                "ringfence.may_claim is a parameter of the program: claims belong into its options"
            );
            if name == b"options\0" {
                options = String::from_utf8(value.strip_suffix(&[0]).unwrap_or(value).to_vec())
                    .context("options")?;
            } else {
                others.extend([name, value].concat());
            }
        }
        let options = merged(&options, &format!("{SETTING}{claims}"));
        let parameters = [&others, b"options\0".as_slice(), options.as_bytes(), &[0, 0]].concat();
        ensure!(
            parameters.len() <= (MAX - HEAD) as usize,
            "with the claims, the first message has more than {MAX} bytes"
        );
        Ok(message(self.code, &parameters))
    }
}

/// What the server says first, without the ways to authenticate that are bound to TLS: where one is offered without TLS, libpq refuses all.
pub(super) async fn first_answer(server: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    for _ in 0..MAX_NOTICES {
        let (letter, length) = (server.read_u8().await?, server.read_u32().await?);
        ensure!((4..=MAX).contains(&length), "its first answer has {length} bytes");
        let mut text = vec![0; (length - 4) as usize];
        server.read_exact(&mut text).await?;
        if letter == b'R' && text.starts_with(&SASL) {
            let ways = text[SASL.len()..].split_inclusive(|byte| *byte == 0);
            let others = ways.filter(|way| !way.ends_with(b"-PLUS\0")).flatten();
            text = SASL.iter().chain(others).copied().collect();
        }
        all.push(letter);
        all.extend((text.len() as u32 + 4).to_be_bytes());
        all.extend(text);
        // A notice, or what the server does not know of the protocol.
        if letter != b'N' && letter != b'v' {
            return Ok(all);
        }
    }
    bail!("it does not say how to authenticate");
}

fn message(code: u32, rest: &[u8]) -> Vec<u8> {
    let length = u32::try_from(rest.len()).map_or(MAX, |length| length + HEAD);
    [&length.to_be_bytes(), &code.to_be_bytes(), rest].concat()
}

/// An error that a driver shows to its program, instead of an answer of the server.
pub(super) fn refusal(why: &str) -> Vec<u8> {
    let fields = format!("SFATAL\0VFATAL\0C08006\0M{}\0\0", why.replace('\0', " "));
    let length = u32::try_from(fields.len()).map_or(0, |length| length + 4);
    [b"E".as_slice(), &length.to_be_bytes(), fields.as_bytes()].concat()
}
