//! The names of keys in Redis, and their slots in a Redis Cluster.

use std::collections::HashSet;

use ringfence_wire::Key;

/// The most names that a marker has.
const MARKERS: usize = 3;
/// The slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// The names under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    prefix: String,
}

/// The slots of one master, as sorted ranges that include their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slots(Vec<(u16, u16)>);

impl Names {
    /// The prefix must not contain braces or SCAN's pattern characters.
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &Key) -> String {
        format!("{}:{{{key}}}", self.prefix)
    }

    /// The pattern of all hashes and markers.
    pub(crate) fn all_pattern(&self) -> String {
        format!("{}:*", self.prefix)
    }

    /// The pattern of all hashes.
    pub(crate) fn hash_pattern(&self) -> String {
        format!("{}:{{*", self.prefix)
    }

    /// The key whose hash has this name; `None` if the mirror never makes such a name.
    pub(crate) fn key(&self, name: &[u8]) -> Option<Key> {
        let name = std::str::from_utf8(name).ok()?;
        let key = name.strip_prefix(&self.prefix)?.strip_prefix(":{")?.strip_suffix('}')?;
        Key::new(key).ok()
    }

    /// Whether the hash of this key is in these slots.
    pub(crate) fn is_in(&self, slots: &Slots, key: &Key) -> bool {
        slots.contain(slot(&self.hash(key)))
    }

    /// Whether this is the name of a marker.
    pub(crate) fn is_marker(&self, name: &[u8]) -> bool {
        let number = name
            .strip_prefix(self.prefix.as_bytes())
            .and_then(|rest| rest.strip_prefix(b":marker:{")?.strip_suffix(b"}"));
        number.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
    }

    /// The possible names of the marker on the master with these slots: the first ones that hash there, so that every
    /// cluster finds the same. Each is in another slot; while one slot moves, the next name serves. Empty for a master
    /// without slots.
    pub(crate) fn markers(&self, slots: &Slots) -> Vec<String> {
        let mut taken = HashSet::new();
        // Ten times as many names as slots reach every slot.
        (0..u32::from(SLOTS) * 10)
            .map(|number| format!("{}:marker:{{{number}}}", self.prefix))
            .filter(|name| slots.contain(slot(name)) && taken.insert(slot(name)))
            .take(MARKERS.min(slots.count()))
            .collect()
    }
}

impl Slots {
    pub(crate) fn all() -> Self {
        Self(vec![(0, SLOTS - 1)])
    }

    /// From ranges that include their ends. Adjacent ranges become one.
    pub(crate) fn new(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, range| {
            let joins = u32::from(next.0) <= u32::from(range.1) + 1;
            range.1 = if joins { range.1.max(next.1) } else { range.1 };
            joins
        });
        Self(ranges)
    }

    pub(crate) fn is_subset(&self, of: &Self) -> bool {
        self.0.iter().all(|(first, last)| of.0.iter().any(|(from, to)| from <= first && last <= to))
    }

    fn contain(&self, slot: u16) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= slot);
        after > 0 && slot <= self.0[after - 1].1
    }

    fn count(&self) -> usize {
        self.0.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }
}

/// The slot of a name: of the text between its first `{` and the next `}`, or of the whole name if that is empty or
/// missing.
fn slot(name: &str) -> u16 {
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
    fn only_the_name_of_a_hash_has_a_key() {
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
    fn slots_listed_in_different_ranges_are_equal() {
        let slots = Slots::new(vec![(8, 9), (0, 3), (4, 5)]);
        assert_eq!(slots, Slots::new(vec![(0, 5), (8, 9)]));
        assert_eq!((0..12).filter(|slot| slots.contain(*slot)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 8, 9]);
        assert!(Slots::new(vec![(1, 5), (9, 9)]).is_subset(&slots));
        assert!(!Slots::new(vec![(5, 6)]).is_subset(&slots) && !Slots::new(vec![(5, 8)]).is_subset(&slots));
    }

    #[test]
    fn a_marker_is_on_its_master_even_if_that_has_one_slot() {
        let names = Names::new("p");
        for slots in [Slots::all(), Slots::new(vec![(0, 0)]), Slots::new(vec![(16_383, 16_383), (7, 7)])] {
            let markers = names.markers(&slots);
            assert_eq!(markers.len(), MARKERS.min(slots.count()));
            assert!(markers.iter().all(|name| slots.contain(slot(name))));
        }
        assert!(names.markers(&Slots::new(vec![])).is_empty());
        assert_eq!(names.markers(&Slots::all())[0], "p:marker:{0}");
    }
}
