//! Watches: the changes of the table as server-sent events.
//!
//! ```text
//!  apply ─▶ History ─▶ round ─▶ Group of each prefix: recent changes as text ─▶ Stream of each watch ─▶ hyper
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
//! A client whose prefix is quiet still needs a number that the history has not dropped. So quiet connections are kept alive
//! by an `id` without data, not by a comment: it sets the `Last-Event-ID` and is no event
//! ([HTML, 9.2.6](https://html.spec.whatwg.org/multipage/server-sent-events.html)). A stream begins with one, too. A node sends
//! them only while it has [contact] with a leader, because its clients take them for news.

mod contact;
mod fanout;
mod frame;
mod group;
mod state;
mod watchers;

pub(crate) use contact::Moment;
pub(crate) use watchers::Watchers;

#[cfg(test)]
mod tests {
    use ringfence_lease::{Change, Event};
    use ringfence_wire::{Key, LeaseId, Mode, Revision, Token};

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
