use std::fmt::{self, Debug, Formatter, Write};

use sha2::{Digest as _, Sha256};

/// The digest of a credential, as it stands in the file after `sha256:`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `credential`.
    pub fn of(credential: &[u8]) -> Self {
        Self(Sha256::digest(credential).into())
    }

    /// Reads `sha256:` and 64 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("sha256:")?.as_bytes();
        let (pairs, []) = digits.as_chunks::<2>() else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|&[high, low]| u8::try_from(digit(high)? << 4 | digit(low)?).ok()).collect();
        bytes?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Debug for Digest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new credential: `rfc_` and 64 hexadecimal digits, which scanners for leaked secrets can recognize.
pub struct Credential(String);

impl Credential {
    /// A new one.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        Ok(Self::of(random))
    }

    pub(crate) fn of(random: [u8; 32]) -> Self {
        let mut text = String::from("rfc_");
        for byte in random {
            write!(text, "{byte:02x}").expect("writing to a string does not fail");
        }
        Self(text)
    }

    /// The secret.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the file has of it.
    pub fn digest(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Credential::of([7; 32]).digest();
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        // The digest of "abc" in FIPS 180-4.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        for wrong in [
            "",
            "sha256:",
            &abc[7..],
            &abc[..70],
            &format!("{abc}0"),
            &format!("{abc}00"),
            &abc.replace('b', "g"),
        ] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
