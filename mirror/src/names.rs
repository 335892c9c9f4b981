//! What the keys in Redis are called, and in which slot of a Redis Cluster they are.

use std::collections::HashSet;

use ringfence_wire::Key;

/// How many names a marker may have.
const MARKERS: usize = 3;
/// The slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

/// The slots that one master has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots(Vec<(u16, u16)>);

impl Names {
    /// The prefix has neither braces nor what SCAN takes for a pattern.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &Key) -> String {
        format!("{}:{{{key}}}", self.prefix)
    }

    /// The pattern that all hashes and markers match.
    pub(crate) fn everything(&self) -> String {
        format!("{}:*", self.prefix)
    }

    /// The pattern that all hashes match.
    pub(crate) fn pattern(&self) -> String {
        format!("{}:{{*", self.prefix)
    }

    /// The key whose hash has this name; `None` where the name is none of ours.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name).ok()?;
        let key = name.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
        Key::new(key).ok()
    }

    /// Whether the hash of this key is in these slots.
    pub(crate) fn is_in(&self, slots: &Slots, key: &Key) -> bool {
        slots.have(slot(&self.hash(key)))
    }

    /// Whether a marker may have this name.
    pub(crate) fn is_marker(&self, name: &[u8]) -> bool {
        let number =
            name.strip_prefix(self.prefix.as_bytes()).and_then(|rest| rest.strip_prefix(b":marker:{"));
        number
            .and_then(|rest| rest.strip_suffix(b"}"))
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
    }

    /// What the marker on the master with these slots may be called: the first names that belong there, so that every
    /// cluster finds the same. Each is in another slot: while one moves, the next serves. Empty for a master without
    /// slots.
    pub(crate) fn markers(&self, slots: &Slots) -> Vec<String> {
        let name = |number| format!("{}:marker:{{{number}}}", self.prefix);
        let mut taken = HashSet::new();
        // Of ten times as many names as there are slots, each slot has one for certain.
        let names = (0..u32::from(SLOTS) * 10).map(name);
        names
            .filter(|name| slots.have(slot(name)) && taken.insert(slot(name)))
            .take(MARKERS.min(slots.count()))
            .collect()
    }
}

impl Slots {
    pub(crate) fn all() -> Self {
        Self(vec![(0, SLOTS - 1)])
    }

    /// From ranges that include their ends.
    pub(crate) fn new(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        // Neighbours are one.
        ranges.dedup_by(|next, range| {
            let joins = u32::from(next.0) <= u32::from(range.1) + 1;
            range.1 = if joins { range.1.max(next.1) } else { range.1 };
            joins
        });
        Self(ranges)
    }

    /// Whether all of these are among `others`.
    pub(crate) fn are_among(&self, others: &Self) -> bool {
        let is_among = |(first, last)| others.0.iter().any(|(from, to)| from <= first && last <= to);
        self.0.iter().map(|(first, last)| (first, last)).all(is_among)
    }

    pub(crate) fn have(&self, slot: u16) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= slot);
        after > 0 && slot <= self.0[after - 1].1
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }
}

/// The slot of a name: that of the text between its first `{` and the `}` after it, if there is any.
pub(crate) fn slot(name: &str) -> u16 {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(name).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_redis_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("{user1000}.following"), slot("{user1000}.followers"));
        assert_eq!(slot("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot("foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot("foo{bar}{zap}"), slot("bar"));
    }

    #[test]
    fn a_name_leads_back_to_its_key_and_no_other_does() {
        let names = Names::new("ringfence");
        for key in ["a", "orders/42", "odd}key", "}", "{", "ä/ö ü"] {
            let key = Key::new(key).unwrap();
            assert_eq!(names.key(names.hash(&key).as_bytes()), Some(key));
        }
        for foreign in
            ["ringfence:{a//b}", "ringfence:{a", "ringfence:marker:{0}", "other:{a}", "ringfence:{}"]
        {
            assert_eq!(names.key(foreign.as_bytes()), None, "{foreign}");
            assert_eq!(names.is_marker(foreign.as_bytes()), foreign.contains("marker"), "{foreign}");
        }
    }

    #[test]
    fn slots_are_told_apart_by_what_they_are_not_by_how_they_are_listed() {
        let slots = Slots::new(vec![(8, 9), (0, 3), (4, 5)]);
        assert_eq!(slots, Slots::new(vec![(0, 5), (8, 9)]));
        assert_eq!((0..12).filter(|slot| slots.have(*slot)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 8, 9]);
        assert!(Slots::new(vec![(1, 5), (9, 9)]).are_among(&slots));
        assert!(!Slots::new(vec![(5, 6)]).are_among(&slots) && !Slots::new(vec![(5, 8)]).are_among(&slots));
    }

    #[test]
    fn a_marker_is_on_its_master_even_if_that_has_one_slot() {
        let names = Names::new("p");
        for slots in [Slots::all(), Slots::new(vec![(0, 0)]), Slots::new(vec![(16_383, 16_383), (7, 7)])] {
            let markers = names.markers(&slots);
            assert_eq!(markers.len(), MARKERS.min(slots.count()));
            assert!(markers.iter().all(|name| slots.have(slot(name))));
        }
        assert!(names.markers(&Slots::new(vec![])).is_empty());
        assert_eq!(names.markers(&Slots::all())[0], "p:marker:{0}");
    }
}
