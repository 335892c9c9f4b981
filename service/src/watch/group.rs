//! The text that all watches of one prefix share.

use std::collections::{HashSet, VecDeque};

use bytes::{Bytes, BytesMut};
use ringfence_lease::Event;
use ringfence_wire::Revision;

use super::encoder::Encoder;

/// Bytes of text kept for watches that read slowly.
pub(super) const MOST_BYTES: usize = 256 << 10;
/// This much text becomes a piece before the round is over.
const ENOUGH: usize = 32 << 10;

/// The watches of one prefix, and the text of the latest changes under it.
pub(super) struct Group {
    pub(super) numbers: HashSet<u64>,
    /// The pieces hold every change of the prefix after this one, up to the fan-out's position.
    since: Revision,
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// The next piece: its text, the change before it, and its latest change.
    text: BytesMut,
    begun: Revision,
    latest: Revision,
}

/// The changes of the prefix after one revision, up to another.
struct Piece {
    text: Bytes,
    before: Revision,
    upto: Revision,
}

/// What a group has for a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Available {
    /// Nothing, up to that change.
    Nothing(Revision),
    /// This text, which covers everything up to that change.
    Piece(Bytes, Revision),
    /// The history has it, up to that change: the pieces do not, or only together with what was sent before.
    InHistory(Revision),
}

impl Group {
    /// An empty group; the fan-out is at `position`.
    pub(super) fn new(position: Revision) -> Self {
        Self {
            numbers: HashSet::new(),
            since: position,
            pieces: VecDeque::new(),
            bytes: 0,
            text: BytesMut::new(),
            begun: position,
            latest: position,
        }
    }

    /// Bytes of text in pieces.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The end of the oldest piece.
    pub(super) fn oldest(&self) -> Option<Revision> {
        self.pieces.front().map(|piece| piece.upto)
    }

    /// Whether the next piece has no text yet.
    pub(super) fn is_fresh(&self) -> bool {
        self.text.is_empty()
    }

    /// Adds `event` in a step that covers what follows `before`. Returns the bytes added; `None` if it was added already.
    pub(super) fn add(
        &mut self,
        encoder: impl Encoder,
        event: &Event,
        prefix: &str,
        before: Revision,
    ) -> Option<usize> {
        if self.latest == event.revision {
            return None;
        }
        self.latest = event.revision;
        if self.text.is_empty() {
            self.begun = before;
        }
        let before = self.text.len();
        encoder.put_event(&mut self.text, event, prefix);
        Some(self.text.len() - before)
    }

    /// Ends a step at `upto`, and the round if it `is_last`. Returns whether that made a piece.
    pub(super) fn end_step(&mut self, upto: Revision, is_last: bool) -> bool {
        if self.text.len() < if is_last { 1 } else { ENOUGH } {
            return false;
        }
        let text = self.text.split().freeze();
        self.bytes += text.len();
        self.pieces.push_back(Piece { text, before: self.begun, upto });
        while self.bytes > MOST_BYTES {
            self.forget_first();
        }
        true
    }

    /// Drops the pieces up to `at`: all watches were sent them.
    pub(super) fn sent_up_to(&mut self, at: Revision) {
        while self.pieces.front().is_some_and(|piece| piece.upto <= at) {
            self.forget_first();
        }
    }

    /// Drops everything up to `position`.
    pub(super) fn start_after(&mut self, position: Revision) {
        let numbers = std::mem::take(&mut self.numbers);
        *self = Self { numbers, ..Self::new(position) };
    }

    /// What follows `at`, with the fan-out at `position`.
    pub(super) fn after(&self, at: Revision, position: Revision) -> Available {
        if at < self.since {
            return Available::InHistory(self.since);
        }
        let sent = self.pieces.partition_point(|piece| piece.upto <= at);
        match self.pieces.get(sent) {
            None if self.text.is_empty() => Available::Nothing(position),
            None => Available::Nothing(self.begun),
            Some(piece) if at <= piece.before => Available::Piece(piece.text.clone(), piece.upto),
            Some(piece) => Available::InHistory(piece.upto),
        }
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.pieces.pop_front() {
            self.bytes -= first.text.len();
            self.since = first.upto;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, event};
    use super::*;

    /// A group with pieces of the steps from 4 to 6 and from 8 to 9.
    fn group() -> Group {
        let mut group = Group::new(Revision(2));
        for (before, found, upto) in [(2, &[][..], 4), (4, &[5, 6], 6), (6, &[], 8), (8, &[9], 9)] {
            for revision in found {
                assert!(group.add(Plain, &event(*revision, &["a"]), "", Revision(before)) > Some(0));
            }
            assert_eq!(group.end_step(Revision(upto), true), !found.is_empty());
        }
        group
    }

    fn upto(available: Available) -> Option<(bool, u64)> {
        match available {
            Available::Nothing(upto) => {
                assert_eq!(upto, Revision(10));
                None
            }
            Available::Piece(text, upto) => {
                assert!(text.ends_with(b"\n\n"));
                Some((true, upto.0))
            }
            Available::InHistory(upto) => Some((false, upto.0)),
        }
    }

    #[test]
    fn a_watch_gets_a_piece_only_if_it_was_sent_no_part_of_it() {
        let mut group = group();
        let available = |group: &Group| {
            (0..11).map(|at| upto(group.after(Revision(at), Revision(10)))).collect::<Vec<_>>()
        };
        let (history, piece) = (|upto| Some((false, upto)), |upto| Some((true, upto)));
        let first = [history(2), history(2), piece(6), piece(6), piece(6), history(6)];
        let second = [piece(9), piece(9), piece(9), None, None];
        assert_eq!(available(&group), [&first[..], &second].concat());
        group.sent_up_to(Revision(5));
        assert_eq!(available(&group), [&first[..], &second].concat(), "a piece is dropped as a whole");
        group.sent_up_to(Revision(6));
        assert_eq!(available(&group), [&[history(6); 6][..], &second].concat());
        group.start_after(Revision(10));
        assert_eq!(available(&group), [&[history(10); 10][..], &[None]].concat());
    }

    #[test]
    fn the_oldest_pieces_are_dropped_first() {
        let mut group = Group::new(Revision(0));
        let long = "k".repeat(512);
        let mut revision = 0;
        while group.since == Revision(0) {
            revision += 1;
            group.add(Plain, &event(revision, &[&long]), "", Revision(revision - 1));
            group.end_step(Revision(revision), true);
        }
        assert_eq!(upto(group.after(Revision(0), Revision(10))), Some((false, 1)));
        assert!(group.bytes <= MOST_BYTES && group.bytes > MOST_BYTES - 2_000, "{}", group.bytes);
        group.sent_up_to(Revision(revision));
        assert_eq!((group.bytes, group.pieces.len()), (0, 0));
    }

    #[test]
    fn a_round_is_one_piece_unless_it_is_large() {
        let mut group = Group::new(Revision(0));
        let add = |group: &mut Group, revision: u64, keys: &[&str]| {
            group.add(Plain, &event(revision, keys), "", Revision(revision - 1));
        };
        add(&mut group, 1, &["a"]);
        assert!(!group.end_step(Revision(1), false));
        assert!(!group.end_step(Revision(2), false));
        assert_eq!(
            group.after(Revision(0), Revision(2)),
            Available::Nothing(Revision(0)),
            "it is not a piece yet"
        );
        add(&mut group, 3, &["a"]);
        assert!(group.end_step(Revision(4), true));
        let Available::Piece(text, upto) = group.after(Revision(0), Revision(4)) else { panic!("no piece") };
        assert_eq!((text.windows(2).filter(|two| two == b"\n\n").count(), upto), (2, Revision(4)));
        add(&mut group, 5, &["k".repeat(512).as_str(); 64]);
        assert!(group.end_step(Revision(5), false));
        assert!(!group.end_step(Revision(6), true), "nothing new");
    }
}
