use serde::{Deserialize, Deserializer, Serialize, de};

/// The shortest time-to-live, in milliseconds.
pub const MIN_TTL_MS: u32 = 100;
/// The longest time-to-live, in milliseconds: a day.
pub const MAX_TTL_MS: u32 = 86_400_000;
/// The longest wait of one request, in milliseconds.
pub const MAX_WAIT_MS: u32 = 60_000;

/// A time-to-live in milliseconds, from [`MIN_TTL_MS`] to [`MAX_TTL_MS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Ttl(u32);

impl Ttl {
    /// Checks the range.
    pub fn from_ms(ms: u32) -> Option<Self> {
        (MIN_TTL_MS..=MAX_TTL_MS).contains(&ms).then_some(Self(ms))
    }

    /// The time in milliseconds.
    pub fn ms(self) -> u32 {
        self.0
    }
}

impl Default for Ttl {
    /// 15 seconds.
    fn default() -> Self {
        Self(15_000)
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_ms(u32::deserialize(deserializer)?)
            .ok_or_else(|| de::Error::custom("a time-to-live is from 100 to 86,400,000 ms"))
    }
}

/// How long one request waits, in milliseconds, from 0 (try once) to [`MAX_WAIT_MS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Wait(u32);

impl Wait {
    /// Checks the range.
    pub fn from_ms(ms: u32) -> Option<Self> {
        (ms <= MAX_WAIT_MS).then_some(Self(ms))
    }

    /// The time in milliseconds.
    pub fn ms(self) -> u32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_ms(u32::deserialize(deserializer)?)
            .ok_or_else(|| de::Error::custom("a wait is from 0 to 60,000 ms"))
    }
}
