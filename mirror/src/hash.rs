//! The hash of a key: its fields as they should be, and what to think of what was read.

use ringfence_wire::{ModeName, Revision};

use crate::KeyState;

/// The fields, in the order in which they are read and written.
pub(crate) const FIELDS: [&str; 6] = ["rev", "fence", "token", "state", "mode", "holder"];
/// Numbers that a double, and so a script, holds exactly are below this.
const NUMBERS_END: u64 = 1 << 53;

/// The values of the [`FIELDS`]. One that is missing is empty.
pub(crate) type Fields = [Vec<u8>; 6];

/// What was read under the name of a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing.
    Absent,
    /// Something that is no hash.
    WrongType,
    /// A hash.
    Hash(Box<Fields>),
    /// It could not be read here, as while its slot moves to another master: what stands is not known.
    Unread,
}

/// What a hash that was read is, beside the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// What it should be.
    Right,
    /// Behind: to be written.
    Behind,
    /// It cannot have been written from a table as old as this one.
    Ahead,
}

impl KeyState {
    /// The fields, as a table of this revision has them.
    pub(crate) fn fields(&self, revision: Revision) -> Fields {
        let mode = match self.mode {
            Some(ModeName::Exclusive) => "exclusive",
            Some(ModeName::Shared) => "shared",
            None => "",
        };
        let state = if self.is_held() { "held" } else { "free" };
        let holder = self.holder.as_ref().map_or("", |holder| holder.as_str());
        let text = |text: &str| text.as_bytes().to_vec();
        let number = |number: u64| number.to_string().into_bytes();
        [
            number(revision.0),
            number(self.fence.0),
            number(self.token.0),
            text(state),
            text(mode),
            text(holder),
        ]
    }

    /// Compares what stands in Redis with this state, of a table of this revision.
    ///
    /// The state of a key that is held stands as it was first written, whatever the table's revision has become since;
    /// that of a free key, with the revision and the fence that it was freed at.
    pub(crate) fn judge(&self, standing: &Standing, revision: Revision) -> Judgement {
        let fields = match standing {
            // Absent is not wrong: it says nothing.
            Standing::Absent if !self.is_held() => return Judgement::Right,
            Standing::Unread if !self.is_held() => return Judgement::Right,
            Standing::Absent | Standing::WrongType | Standing::Unread => return Judgement::Behind,
            Standing::Hash(fields) => fields,
        };
        let (Some(rev), Some(fence)) = (number(&fields[0]), number(&fields[1])) else {
            return Judgement::Behind;
        };
        let wanted = self.fields(revision);
        let fits = if self.is_held() {
            fields[1..] == wanted[1..]
        } else {
            fields[2..] == wanted[2..] && fence == rev + 1
        };
        match () {
            () if rev > revision.0 => Judgement::Ahead,
            () if fits => Judgement::Right,
            // Two tables of one revision are the same.
            () if rev == revision.0 => Judgement::Ahead,
            () => Judgement::Behind,
        }
    }
}

/// As the scripts read a number.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.len() <= 16 && bytes.iter().all(u8::is_ascii_digit);
    let number = digits.then(|| std::str::from_utf8(bytes).ok()?.parse().ok()).flatten();
    number.filter(|number| *number < NUMBERS_END)
}

#[cfg(test)]
mod tests {
    use ringfence_wire::{Holder, Key, Token};

    use super::*;

    fn held() -> KeyState {
        KeyState {
            key: Key::new("a").unwrap(),
            fence: Token(5),
            token: Token(7),
            mode: Some(ModeName::Shared),
            holder: Holder::new("h"),
        }
    }

    fn hash(fields: [&str; 6]) -> Standing {
        Standing::Hash(Box::new(fields.map(|field| field.as_bytes().to_vec())))
    }

    #[test]
    fn a_held_hash_is_right_at_any_revision_up_to_the_tables() {
        let judge = |fields| held().judge(&hash(fields), Revision(9));
        assert_eq!(judge(["7", "5", "7", "held", "shared", "h"]), Judgement::Right);
        assert_eq!(judge(["9", "5", "7", "held", "shared", "h"]), Judgement::Right);
        assert_eq!(judge(["10", "5", "7", "held", "shared", "h"]), Judgement::Ahead);
        assert_eq!(judge(["8", "4", "7", "held", "shared", "h"]), Judgement::Behind);
        assert_eq!(judge(["9", "4", "7", "held", "shared", "h"]), Judgement::Ahead);
        for garbage in ["", "-1", "0x8", "1e3", "9007199254740992", "99999999999999999"] {
            assert_eq!(judge([garbage, "5", "7", "held", "shared", "h"]), Judgement::Behind, "{garbage}");
            assert_eq!(judge(["99", garbage, "7", "held", "shared", "h"]), Judgement::Behind, "{garbage}");
        }
        assert_eq!(held().judge(&Standing::Absent, Revision(9)), Judgement::Behind);
        assert_eq!(held().judge(&Standing::WrongType, Revision(9)), Judgement::Behind);
        assert_eq!(held().judge(&Standing::Unread, Revision(9)), Judgement::Behind);
    }

    #[test]
    fn a_free_hash_keeps_the_revision_it_was_freed_at() {
        let free = KeyState { fence: Token(10), token: Token(0), mode: None, holder: None, ..held() };
        let judge = |fields| free.judge(&hash(fields), Revision(9));
        assert_eq!(judge(["8", "9", "0", "free", "", ""]), Judgement::Right);
        assert_eq!(judge(["8", "10", "0", "free", "", ""]), Judgement::Behind);
        assert_eq!(judge(["8", "5", "7", "held", "shared", "h"]), Judgement::Behind);
        assert_eq!(judge(["12", "13", "0", "free", "", ""]), Judgement::Ahead);
        assert_eq!(free.judge(&Standing::Absent, Revision(9)), Judgement::Right);
        assert_eq!(free.judge(&Standing::Unread, Revision(9)), Judgement::Right);
        assert_eq!(free.judge(&Standing::WrongType, Revision(9)), Judgement::Behind);
    }
}
