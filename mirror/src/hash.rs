//! The hash of a key: its fields, and how a hash read from Redis compares with the table.

use ringfence_wire::{ModeName, Revision};

use crate::KeyState;

/// The fields, in the order in which they are read and written.
pub(crate) const FIELDS: [&str; 6] = ["rev", "fence", "token", "state", "mode", "holder"];
/// Scripts hold numbers as doubles, exact below this.
const NUMBERS_END: u64 = 1 << 53;

/// The values of [`FIELDS`]. A missing one is empty; all are empty for a value that is not a hash.
pub(crate) type Fields = [Vec<u8>; 6];

/// A hash read from Redis, compared with the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It says what the table says, or there is nothing to say.
    Current,
    /// It must be written.
    Behind,
    /// It cannot have been written from a table as old as this one.
    Ahead,
}

impl KeyState {
    /// The fields, from a table at this revision.
    pub(crate) fn fields(&self, revision: Revision) -> Fields {
        let mode = match self.mode {
            Some(ModeName::Exclusive) => "exclusive",
            Some(ModeName::Shared) => "shared",
            None => "",
        };
        let state = if self.is_held() { "held" } else { "free" };
        let holder = self.holder.as_ref().map_or("", |holder| holder.as_str());
        let [rev, fence, token] = [revision.0, self.fence.0, self.token.0].map(|number| number.to_string());
        [rev.as_str(), &fence, &token, state, mode, holder].map(|text| text.as_bytes().to_vec())
    }

    /// Compares a hash with this state of a table at this revision. `None` is a hash that is absent, or that cannot be
    /// read now, as while its slot moves.
    ///
    /// The hash of a held key stays as first written, whatever the table's revision becomes; that of a free key keeps the
    /// revision and the fence at which it was freed.
    pub(crate) fn compare(&self, hash: Option<&Fields>, revision: Revision) -> Verdict {
        let Some(fields) = hash else {
            // An absent hash says nothing, which is right for a free key.
            return if self.is_held() { Verdict::Behind } else { Verdict::Current };
        };
        let (Some(rev), Some(fence)) = (number(&fields[0]), number(&fields[1])) else {
            return Verdict::Behind;
        };
        let wanted = self.fields(revision);
        let fits = if self.is_held() {
            fields[1..] == wanted[1..]
        } else {
            fields[2..] == wanted[2..] && fence == rev + 1
        };
        match () {
            () if rev > revision.0 => Verdict::Ahead,
            () if fits => Verdict::Current,
            // Tables at one revision are equal.
            () if rev == revision.0 => Verdict::Ahead,
            () => Verdict::Behind,
        }
    }
}

/// Parses a number as the scripts do.
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

    fn hash(fields: [&str; 6]) -> Fields {
        fields.map(|field| field.as_bytes().to_vec())
    }

    #[test]
    fn a_held_hash_is_current_at_any_revision_up_to_the_tables() {
        let compare = |fields| held().compare(Some(&hash(fields)), Revision(9));
        assert_eq!(compare(["7", "5", "7", "held", "shared", "h"]), Verdict::Current);
        assert_eq!(compare(["9", "5", "7", "held", "shared", "h"]), Verdict::Current);
        assert_eq!(compare(["10", "5", "7", "held", "shared", "h"]), Verdict::Ahead);
        assert_eq!(compare(["8", "4", "7", "held", "shared", "h"]), Verdict::Behind);
        assert_eq!(compare(["9", "4", "7", "held", "shared", "h"]), Verdict::Ahead);
        for garbage in ["", "-1", "0x8", "1e3", "9007199254740992", "99999999999999999"] {
            assert_eq!(compare([garbage, "5", "7", "held", "shared", "h"]), Verdict::Behind, "{garbage}");
            assert_eq!(compare(["99", garbage, "7", "held", "shared", "h"]), Verdict::Behind, "{garbage}");
        }
        assert_eq!(held().compare(None, Revision(9)), Verdict::Behind);
        assert_eq!(held().compare(Some(&Fields::default()), Revision(9)), Verdict::Behind);
    }

    #[test]
    fn a_free_hash_keeps_the_revision_it_was_freed_at() {
        let free = KeyState { fence: Token(10), token: Token(0), mode: None, holder: None, ..held() };
        let compare = |fields| free.compare(Some(&hash(fields)), Revision(9));
        assert_eq!(compare(["8", "9", "0", "free", "", ""]), Verdict::Current);
        assert_eq!(compare(["8", "10", "0", "free", "", ""]), Verdict::Behind);
        assert_eq!(compare(["8", "5", "7", "held", "shared", "h"]), Verdict::Behind);
        assert_eq!(compare(["12", "13", "0", "free", "", ""]), Verdict::Ahead);
        assert_eq!(free.compare(None, Revision(9)), Verdict::Current);
        assert_eq!(free.compare(Some(&Fields::default()), Revision(9)), Verdict::Behind);
    }
}
