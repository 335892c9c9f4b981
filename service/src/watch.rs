//! Watches: the changes of the table as a stream, in the words of a door ([`Encoder`]).
//!
//! ```text
//!  apply ─▶ History ─▶ round ─▶ Group of each prefix: recent changes as text ─▶ Stream of each watch ─▶ door
//!              │       (20 ms)  encoded once                                         ▲
//!              └──────────────────────────── a watch that lags reads by itself ──────┘
//! ```
//! Changes are numbered in order, and are the same on every node. So a watch is only a number, and a client resumes at any node
//! from the last number it got. A watch takes recent changes from its group and older ones from the history, as
//! fast as its client reads. It is cut off only when the history has dropped its place, or this node has had no contact with a
//! leader for 30 s; the last event says so.
//!
//! A round takes the new changes, finds the watched prefixes of each key (one lookup for each length that a watched prefix
//! has, however many watches there are), and encodes each change once for each prefix. It waits a moment for changes to gather,
//! because waking a watch costs more than everything else. Lagging watches take turns to read the history, within a budget.
//! One task serves all watches, and runs only while there are any.
//!
//! A client whose prefix is quiet still needs a number that the history has not dropped. So it is sent *bookmarks*: numbers without an
//! event. A node sends them only while it has [contact] with a leader, because its clients take them for news.

mod contact;
mod encoder;
mod fanout;
mod group;
mod state;
mod watchers;

pub use encoder::Encoder;
pub use watchers::{Stream, Watchers};

#[cfg(test)]
mod tests {
    use bytes::{BufMut, Bytes, BytesMut};
    use ringfence_lease::{Change, Event};
    use ringfence_wire::{CutOff, Key, LeaseId, Mode, Revision, Token};

    use super::Encoder;

    /// Revisions, and keys of events.
    #[derive(Clone, Copy, Default)]
    pub(super) struct Plain;

    impl Encoder for Plain {
        fn head(self, after: Revision) -> Bytes {
            self.bookmark(after)
        }

        fn bookmark(self, revision: Revision) -> Bytes {
            format!("id: {revision}\n\n").into()
        }

        fn cut_off(self, CutOff { revision, reason }: CutOff) -> Bytes {
            format!("end: {revision} {reason:?}\n\n").into()
        }

        fn put_event(self, text: &mut BytesMut, event: &Event, prefix: &str) {
            let keys = event.keys.iter().map(|(key, ..)| key.as_str()).filter(|key| key.starts_with(prefix));
            let keys = keys.collect::<Vec<_>>().join(" ");
            if !keys.is_empty() {
                text.put_slice(format!("id: {}\ndata: {keys}\n\n", event.revision).as_bytes());
            }
        }
    }

    pub(super) fn event(revision: u64, keys: &[&str]) -> Event {
        Event {
            revision: Revision(revision),
            lease_id: LeaseId::from_u128(1).unwrap(),
            by: None,
            change: Change::Granted,
            token: Some(Token(revision)),
            keys: keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive, Token(1))).collect(),
            holder: None,
        }
    }
}
