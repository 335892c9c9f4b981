//! Random, growing pauses between attempts. They grow up to the second that `Retry-After` asks for in every 503, and start
//! lower, because most elections take less time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(40);
const LONGEST: Duration = Duration::from_secs(1);

/// The pauses of one call.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    pauses: u32,
}

impl Backoff {
    /// A random pause from half to all of a time that doubles up to a second, so that clients that failed together return
    /// apart.
    pub(crate) fn next(&mut self) -> Duration {
        let most = (FIRST * 2_u32.pow(self.pauses.min(8))).min(LONGEST);
        self.pauses += 1;
        most.mul_f64(0.5 + random() / 2.0)
    }

    pub(crate) fn reset(&mut self) {
        self.pauses = 0;
    }
}

/// Picks one at random.
pub(crate) fn pick<T>(several: &[T]) -> Option<&T> {
    several.get((random() * several.len() as f64) as usize)
}

/// From 0 to less than 1. The standard library's only source of randomness is good enough for pauses.
pub(crate) fn random() -> f64 {
    let bits = RandomState::new().hash_one(()) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_second_and_differ() {
        let mut waits: Vec<Duration> = Vec::new();
        let mut backoff = Backoff::default();
        for most_ms in [40, 80, 160, 320, 640, 1_000, 1_000] {
            let wait = backoff.next();
            let most = Duration::from_millis(most_ms);
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
            waits.push(wait);
        }
        assert_ne!(waits[5], waits[6]);
        for _ in 0..100 {
            assert!(backoff.next() <= LONGEST);
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
