//! The contents of a log entry: the rules to decide by, a time, a bound on all leases, a floor of the revision, and requests.
//!
//! The first byte is the version of the rules. An entry raises the rules of the table to its own, so the
//! format of an entry always matches the rules in use. Builds from before the rules had
//! versions wrote 1 here, as a format, and stop at any other number.
//!
//! A command of the Redis protocol may have the same value in each of its changes. So since rules 5, large commands are compressed: the
//! highest bit of the first byte says so, and the size that they had follows it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use ringfence_lease::{Command, Event, LeaseTable, Outcome, Owner, Request, UnsupportedRules};
use ringfence_wire::{Revision, RulesRange};
use serde::{Deserialize, Serialize};

use crate::consensus::EncodedBatch;

/// Requests, the cluster time at which they are applied, and the rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) rules: u8,
    pub(crate) at_ms: u64,
    /// How many bytes all leases may take. Under rules 1, entries have no bound.
    pub(crate) max_bytes: u64,
    /// What the revision is raised to. Under rules 1 and 2, entries have no floor.
    pub(crate) floor: Revision,
    /// Under rules 1, entries have no owners, and all commands are in one request.
    pub(crate) requests: Vec<Request>,
}

/// What follows the version of the rules since rules 2. An owner stands in the entry once, however many requests it has.
#[derive(Serialize, Deserialize)]
struct Contents<C, R> {
    at_ms: u64,
    max_bytes: u64,
    owners: C,
    /// Each with the number of its owner, from 1; 0 if it has none.
    requests: R,
}

/// The rules whose entries have a time and commands only.
const FIRST: u8 = 1;
/// The first rules whose entries have a floor, before the [`Contents`].
const FLOOR: u8 = 3;
/// The first rules whose entries may be compressed.
const COMPRESSED: u8 = 5;
/// Of the first byte: the rest is compressed with LZ4.
const IS_COMPRESSED: u8 = 0x80;
/// The average size of a command beyond which an entry is compressed. Smaller ones are mostly random ids, which stay as large.
const LARGE: usize = 512;
/// LZ4 makes nothing smaller than by this factor, so an entry that claims more is malformed.
const MOST_COMPRESSED: usize = 255;

/// Why a log entry cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error("a log entry cannot be read: {0}")]
    Rules(#[from] UnsupportedRules),
    #[error("a log entry is malformed: {0}")]
    Malformed(#[from] postcard::Error),
    #[error("a log entry cannot be decompressed")]
    Compressed,
    #[error("a log entry names an owner that it does not have")]
    NoOwner,
    #[error("a log entry is empty")]
    Empty,
}

impl Batch {
    pub(crate) fn encode(&self) -> EncodedBatch {
        let start = vec![self.rules];
        let bytes = if self.rules == FIRST {
            let commands: Vec<&Command> =
                self.requests.iter().flat_map(|request| &request.commands).collect();
            postcard::to_extend(&(self.at_ms, commands), start)
        } else {
            let mut owners = Vec::<&Owner>::new();
            let mut numbers = BTreeMap::new();
            let mut requests = Vec::<(u32, Vec<&Command>)>::new();
            for Request { by, commands } in &self.requests {
                let number = by.as_ref().map_or(0, |owner| {
                    *numbers.entry((&owner.name, owner.quota)).or_insert_with(|| {
                        owners.push(owner);
                        owners.len() as u32
                    })
                });
                match requests.last_mut().filter(|(last, _)| *last == number) {
                    Some((_, last)) => last.extend(commands),
                    None => requests.push((number, commands.iter().collect())),
                }
            }
            let Self { rules, at_ms, max_bytes, floor, .. } = *self;
            let contents = Contents { at_ms, max_bytes, owners, requests };
            match rules < FLOOR {
                true => postcard::to_extend(&contents, start),
                false => postcard::to_extend(&(floor, contents), start),
            }
        };
        let bytes = bytes.expect("commands contain nothing that postcard cannot encode");
        let commands = self.requests.iter().map(|request| request.commands.len()).sum::<usize>();
        let is_large = bytes.len() > LARGE * commands.max(1);
        let compressed = (is_large && self.rules >= COMPRESSED).then(|| compress(&bytes));
        let smaller = compressed.filter(|compressed| compressed.len() < bytes.len());
        EncodedBatch(Bytes::from(smaller.unwrap_or(bytes)))
    }

    /// The rules of an entry.
    pub(crate) fn rules_of(encoded: &EncodedBatch) -> Option<u8> {
        encoded.0.first().map(|first| rules_of(*first))
    }

    /// Reads an entry whose rules are `supported`. Requests with the same owner that follow each other are one by now.
    pub(crate) fn decode(encoded: &EncodedBatch, supported: RulesRange) -> Result<Self, DecodeError> {
        let (&first, rest) = encoded.0.split_first().ok_or(DecodeError::Empty)?;
        let rules = rules_of(first);
        UnsupportedRules::check(rules, supported)?;
        let rest = if rules == first { Cow::Borrowed(rest) } else { Cow::Owned(decompress(rest)?) };
        let rest = rest.as_ref();
        if rules == FIRST {
            let (at_ms, commands): (u64, Vec<Command>) = postcard::from_bytes(rest)?;
            let (max_bytes, floor) = (u64::MAX, Revision(0));
            return Ok(Self { rules, at_ms, max_bytes, floor, requests: vec![commands.into()] });
        }
        let (floor, rest) = match rules < FLOOR {
            true => (Revision(0), rest),
            false => postcard::take_from_bytes(rest)?,
        };
        let contents: Contents<Vec<Owner>, Vec<(u32, Vec<Command>)>> = postcard::from_bytes(rest)?;
        let Contents { at_ms, max_bytes, owners, requests } = contents;
        let request = |(number, commands): (u32, Vec<Command>)| {
            let by = match number.checked_sub(1) {
                None => None,
                Some(index) => Some(owners.get(index as usize).cloned().ok_or(DecodeError::NoOwner)?),
            };
            Ok(Request { by, commands })
        };
        let requests = requests.into_iter().map(request).collect::<Result<_, DecodeError>>()?;
        Ok(Self { rules, at_ms, max_bytes, floor, requests })
    }

    /// Applies it to `table`, as every replica does. Returns one outcome per command, and appends the changes to `events`.
    pub(crate) fn apply(self, table: &mut LeaseTable, events: &mut Vec<Event>) -> Vec<Outcome> {
        table.raise_rules(self.rules);
        table.limit_bytes(self.max_bytes);
        table.raise_revision(self.floor);
        table.apply_requests(self.at_ms, self.requests, events)
    }
}

/// What the first byte of an entry says. Before rules 5, all of it is the rules.
fn rules_of(first: u8) -> u8 {
    let rules = first & !IS_COMPRESSED;
    if rules >= COMPRESSED { rules } else { first }
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let (&rules, rest) = bytes.split_first().expect("an entry begins with its rules");
    [&[rules | IS_COMPRESSED][..], &lz4_flex::compress_prepend_size(rest)].concat()
}

fn decompress(rest: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (size, compressed) = lz4_flex::block::uncompressed_size(rest).map_err(|_| DecodeError::Compressed)?;
    if size > compressed.len().saturating_mul(MOST_COMPRESSED) {
        return Err(DecodeError::Compressed);
    }
    let bytes = lz4_flex::decompress(compressed, size).map_err(|_| DecodeError::Compressed)?;
    if bytes.len() == size { Ok(bytes) } else { Err(DecodeError::Compressed) }
}

#[cfg(test)]
mod tests {
    use ringfence_lease::{Attachment, Condition, Conditional, KeyChange, Quota, Value};
    use ringfence_wire::{Holder, Key, LeaseId, PrincipalName, Token, Ttl};

    use super::*;

    fn release(id: u128) -> Command {
        Command::Release { lease_id: LeaseId::from_u128(id).unwrap() }
    }

    /// Builds of different versions read each other's logs: these bytes must not change.
    #[test]
    fn the_bytes_of_an_entry_under_the_first_rules_are_fixed() {
        let requests = vec![vec![release(7)].into()];
        let batch = Batch { rules: 1, at_ms: 300, max_bytes: u64::MAX, floor: Revision(0), requests };
        let mut golden = vec![1, 0xac, 2, 1, 3, 16];
        golden.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(batch.encode().0, golden);
        let supported = RulesRange { oldest: 1, newest: 1 };
        assert_eq!(Batch::decode(&batch.encode(), supported).unwrap(), batch);
        let refused = Batch::decode(&Batch { rules: 2, ..batch }.encode(), supported).unwrap_err();
        assert!(matches!(refused, DecodeError::Rules(UnsupportedRules { found: 2, .. })), "{refused}");
        let empty = Batch::decode(&EncodedBatch(Bytes::new()), supported).unwrap_err();
        assert!(matches!(empty, DecodeError::Empty), "{empty}");
    }

    const NEW: RulesRange = RulesRange { oldest: 1, newest: 5 };

    fn of(name: &str, leases: Option<u32>, commands: Vec<Command>) -> Request {
        let quota = Quota { leases, ..Quota::default() };
        Request { by: Some(Owner { name: PrincipalName::new(name).unwrap(), quota }), commands }
    }

    /// An owner costs an entry its name once, and each run of its requests two bytes.
    #[test]
    fn the_bytes_of_an_entry_with_owners_are_fixed() {
        let requests = vec![
            of("ann", Some(9), vec![release(1), release(2)]),
            vec![release(3)].into(),
            of("ann", Some(9), vec![release(4)]),
            of("ann", None, vec![release(5)]),
        ];
        let batch = Batch { rules: 2, at_ms: 300, max_bytes: 1_000, floor: Revision(0), requests };
        let command = |id: u8| [&[3, 16][..], &[0; 15], &[id]].concat();
        let golden = [
            &[2, 0xac, 2, 0xe8, 7, 2][..],
            &[3, b'a', b'n', b'n', 1, 9, 0, 0],
            &[3, b'a', b'n', b'n', 0, 0, 0],
            &[4, 1, 2],
            &[command(1), command(2)].concat(),
            &[0, 1],
            &command(3),
            &[1, 1],
            &command(4),
            &[2, 1],
            &command(5),
        ];
        assert_eq!(batch.encode().0, golden.concat());
        assert_eq!(Batch::decode(&batch.encode(), NEW).unwrap(), batch);
    }

    #[test]
    fn the_bytes_of_an_entry_with_a_floor_are_fixed() {
        let requests = vec![vec![release(7)].into()];
        let batch = Batch { rules: 3, at_ms: 300, max_bytes: 1_000, floor: Revision(400), requests };
        let golden = [&[3, 0x90, 3, 0xac, 2, 0xe8, 7, 0, 1, 0, 1, 3, 16][..], &[0; 15], &[7]].concat();
        assert_eq!(batch.encode().0, golden);
        assert_eq!(Batch::decode(&batch.encode(), NEW).unwrap(), batch);
    }

    #[test]
    fn the_bytes_of_an_entry_with_the_commands_of_rules_4_are_fixed() {
        let key = |name| Key::new(name).unwrap();
        let token = Token(300);
        let conditions = vec![
            (key("a"), Condition::Free),
            (key("b"), Condition::Taken),
            (key("c"), Condition::Held { token, until_ms: None }),
            (key("d"), Condition::Held { token, until_ms: Some(9) }),
        ];
        let ttl = Ttl::from_ms(300).unwrap();
        let acquire = KeyChange::Acquire {
            key: key("a"),
            lease_id: LeaseId::from_u128(7).unwrap(),
            ttl,
            value: Value::new(&[0xff, 0]).unwrap(),
            holder: Holder::new("h"),
            attachment: Attachment(8),
        };
        let changes = vec![
            acquire,
            KeyChange::Keep { key: key("b"), token },
            KeyChange::Expire { key: key("c"), token, ttl },
            KeyChange::End { key: key("d"), token },
        ];
        let conditional = Conditional::new(conditions, changes).unwrap();
        let lease_id = LeaseId::from_u128(7).unwrap();
        let take_back = Command::TakeBack { lease_id, attachment: Attachment(8) };
        let requests = vec![vec![Command::Conditional(Box::new(conditional)), take_back].into()];
        let batch = Batch { rules: 4, at_ms: 1, max_bytes: 2, floor: Revision(3), requests };
        let golden = [
            &[4, 3, 1, 2, 0, 1, 0, 2, 6][..],
            &[4, 1, b'a', 0, 1, b'b', 1, 1, b'c', 2, 0xac, 2, 0, 1, b'd', 2, 0xac, 2, 1, 9],
            &[4, 0, 1, b'a', 16],
            &[0; 15],
            &[7, 0xac, 2, 2, 0xff, 0, 1, 1, b'h', 8],
            &[1, 1, b'b', 0xac, 2, 2, 1, b'c', 0xac, 2, 0xac, 2, 3, 1, b'd', 0xac, 2],
            &[7, 16],
            &[0; 15],
            &[7, 8],
        ];
        assert_eq!(batch.encode().0, golden.concat());
        assert_eq!(Batch::decode(&batch.encode(), NEW).unwrap(), batch);
    }

    #[test]
    fn requests_of_one_owner_in_a_row_become_one() {
        let alone = |id| of("ann", None, vec![release(id)]);
        let batch = |requests| Batch { rules: 2, at_ms: 1, max_bytes: 1, floor: Revision(0), requests };
        let written =
            batch(vec![alone(1), alone(2), vec![release(3)].into(), vec![release(4)].into()]).encode();
        let joined = vec![of("ann", None, vec![release(1), release(2)]), vec![release(3), release(4)].into()];
        assert_eq!(Batch::decode(&written, NEW).unwrap(), batch(joined));
    }

    #[test]
    fn an_entry_that_names_an_owner_that_it_does_not_have_is_refused() {
        let encoded = EncodedBatch(Bytes::from_static(&[2, 1, 1, 0, 1, 1, 0]));
        assert!(matches!(Batch::decode(&encoded, NEW), Err(DecodeError::NoOwner)));
    }

    fn with_value(value: &[u8]) -> Batch {
        with_id(7, value)
    }

    fn with_id(id: u128, value: &[u8]) -> Batch {
        let acquire = KeyChange::Acquire {
            key: Key::new("a").unwrap(),
            lease_id: LeaseId::from_u128(id).unwrap(),
            ttl: Ttl::from_ms(300).unwrap(),
            value: Value::new(value).unwrap(),
            holder: None,
            attachment: Attachment(8),
        };
        let conditional = Conditional::new(Vec::new(), vec![acquire]).unwrap();
        let requests = vec![vec![Command::Conditional(Box::new(conditional))].into()];
        Batch { rules: 5, at_ms: 1, max_bytes: 2, floor: Revision(3), requests }
    }

    #[test]
    fn the_bytes_of_a_compressed_entry_are_fixed() {
        let batch = with_value(&[b'v'; 600]);
        let golden = [
            // The size before: 600 bytes of the value, 36 of the rest.
            &[5 | IS_COMPRESSED, 124, 2, 0, 0][..],
            &[
                0x80, 3, 1, 2, 0, 1, 0, 1, 6, 5, 0, b':', b'a', 16, 0, 1, 0, b'o', 7, 0xac, 2, 0xd8, 4, b'v',
                1, 0,
            ],
            &[0xff, 0xff, b'B', b'`', b'v', b'v', b'v', b'v', 0, 8],
        ];
        assert_eq!(Batch::decode(&EncodedBatch(Bytes::from(golden.concat())), NEW).unwrap(), batch);
        assert_eq!(Batch::decode(&batch.encode(), NEW).unwrap(), batch);
    }

    #[test]
    fn only_large_commands_that_become_smaller_are_compressed() {
        let small = with_value(&[b'v'; 400]);
        assert_eq!(small.encode().0[0], 5);
        let random: Vec<u8> = (0..20).flat_map(|n: u32| *blake3::hash(&n.to_le_bytes()).as_bytes()).collect();
        let id = u128::from_le_bytes(*random.first_chunk().unwrap());
        assert_eq!(with_id(id, &random).encode().0[0], 5);
        let older = Batch { rules: 4, ..with_value(&[b'v'; 600]) };
        assert_eq!(older.encode().0[0], 4);
        assert_eq!(Batch::decode(&older.encode(), NEW).unwrap(), older);
    }

    /// Otherwise a few bytes could ask for gigabytes.
    #[test]
    fn a_compressed_entry_has_the_size_that_it_claims() {
        let encoded = with_value(&[b'v'; 600]).encode().0;
        for size in [0_u32, 635, 637, 1 << 20, u32::MAX] {
            let mut bytes = encoded.to_vec();
            bytes[1..5].copy_from_slice(&size.to_le_bytes());
            let decoded = Batch::decode(&EncodedBatch(Bytes::from(bytes)), NEW);
            assert!(matches!(decoded, Err(DecodeError::Compressed)), "{size}: {decoded:?}");
        }
        for end in 1..encoded.len() {
            let decoded = Batch::decode(&EncodedBatch(encoded.slice(..end)), NEW);
            assert!(matches!(decoded, Err(DecodeError::Compressed)), "{end}: {decoded:?}");
        }
    }

    /// What an older program finds in the first byte.
    #[test]
    fn rules_without_compression_have_no_bit_for_it() {
        let encoded = EncodedBatch(Bytes::from_static(&[4 | IS_COMPRESSED, 0, 0, 0, 0]));
        let refused = Batch::decode(&encoded, NEW).unwrap_err();
        assert!(matches!(refused, DecodeError::Rules(UnsupportedRules { found: 132, .. })), "{refused}");
    }
}
