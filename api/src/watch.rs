//! Watches: the changes of the table as server-sent events.
//!
//! ```text
//!  apply ─▶ History ─▶ round ─▶ Group of each prefix: the latest changes as text ─▶ Stream of each watch ─▶ hyper
//!              │       (20 ms)  encoded once                                               ▲
//!              └────────────────────────────── a watch that is further behind reads by itself ┘
//! ```
//! The changes are numbered without a gap and are the same on every node, so a watch is no more than a number, and goes on
//! at any node from the last one that was told. What follows on it the watch finds in its group, if it is recent, and else
//! in the history, as fast as its client reads. It is cut off only when the history has gone past it, and the last event
//! says so.
//!
//! A round takes what is new, finds the prefixes of each key that somebody watches (one look for each length that such a
//! prefix has, however many watch), and encodes each change once for each of them. It gathers for a moment, because to
//! wake a watch costs more than all else. Those who read the history by themselves do so by turns: they share what is left
//! to them of the thread that makes the rounds, too. There is one task for all, and only while anybody watches.
//!
//! A client that is told nothing, as nothing happens under its prefix, still needs a number to go on from that the history
//! has not gone past. So what keeps a quiet connection alive is no comment but an `id` without data: it sets the
//! `Last-Event-ID` and is no event ([HTML, 9.2.6](https://html.spec.whatwg.org/multipage/server-sent-events.html)). A
//! stream begins with one, too.

mod frame;
mod group;
mod rounds;
mod watchers;

pub(crate) use watchers::Watchers;

#[cfg(test)]
mod tests {
    use ringfence_lease::{Change, Event};
    use ringfence_wire::{Key, LeaseId, Mode, Revision, Token};

    pub(super) fn event(revision: u64, keys: &[&str]) -> Event {
        Event {
            revision: Revision(revision),
            lease_id: LeaseId::from_u128(1).unwrap(),
            change: Change::Granted,
            token: Some(Token(revision)),
            keys: keys.iter().map(|key| (Key::new(key).unwrap(), Mode::Exclusive, Token(1))).collect(),
            holder: None,
        }
    }
}
