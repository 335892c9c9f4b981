use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many grants are remembered.
const MOST: usize = 1 << 14;

/// The last grants of this node whose responses were sent, by their numbers.
///
/// If the response was not sent, the client may not know its lease, and the node that granted it takes it back ([`Unsent`](crate::Unsent)).
/// No other node does. So once the response was sent, nobody takes the lease back, and this node can tell the token again at no cost.
/// Other nodes cannot know this, nor can the next start of this one: they keep the lease by a command.
pub(crate) struct Told(Box<[AtomicU64]>);

impl Default for Told {
    fn default() -> Self {
        // Each place begins with a number that belongs to another place.
        Self((1..=MOST as u64).map(AtomicU64::new).collect())
    }
}

impl Told {
    /// Notes that the response with this grant was sent.
    pub(crate) fn add(&self, number: u64) {
        self.place(number).store(number, Relaxed);
    }

    /// Whether the response with this grant was sent. A grant of long ago may be forgotten.
    pub(crate) fn contains(&self, number: u64) -> bool {
        self.place(number).load(Relaxed) == number
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.0[number as usize % MOST]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_added_is_known_and_the_oldest_is_forgotten() {
        let told = Told::default();
        let many = MOST as u64;
        let numbers = [0, 1, many - 1, many, u64::MAX];
        assert!(numbers.iter().all(|number| !told.contains(*number)));
        for number in [1, u64::MAX] {
            told.add(number);
        }
        assert!(told.contains(1) && told.contains(u64::MAX) && !told.contains(0) && !told.contains(many + 1));
        told.add(many + 1);
        assert!(!told.contains(1));
    }
}
