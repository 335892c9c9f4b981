//! Server-sent events as text.
//!
//! A bookmark is an `id` without data, not a comment: it sets the `Last-Event-ID` and is no event
//! ([HTML, 9.2.6](https://html.spec.whatwg.org/multipage/server-sent-events.html)). A stream begins with one, too.

use bytes::{BufMut, Bytes, BytesMut};
use ringfence_lease::{Change, Event};
use ringfence_service::Encoder;
use ringfence_wire::{CutOff, EndReason, Revision, WatchEvent, WatchEventName, WatchedKey};
use serde::Serialize;

/// How long a browser waits before it reconnects, in milliseconds.
const RETRY_MS: u32 = 1_000;

/// Watches as server-sent events.
#[derive(Clone, Copy, Default)]
pub(crate) struct Frames;

impl Encoder for Frames {
    fn head(self, after: Revision) -> Bytes {
        format!("retry: {RETRY_MS}\nid: {after}\n\n").into()
    }

    fn bookmark(self, revision: Revision) -> Bytes {
        format!("id: {revision}\n\n").into()
    }

    /// It needs no `id`: the client resumes from the last one it got.
    fn cut_off(self, cut_off: CutOff) -> Bytes {
        let mut text = BytesMut::from(format!("event: {}\n", CutOff::NAME).as_bytes());
        put_data(&mut text, &cut_off);
        text.freeze()
    }

    fn put_event(self, text: &mut BytesMut, event: &Event, prefix: &str) {
        let keys = event.keys.iter().filter(|(key, ..)| key.as_str().starts_with(prefix));
        let keys = keys.map(|(key, mode, fence)| WatchedKey {
            key: key.clone(),
            mode: mode.name(),
            limit: mode.limit(),
            fence: *fence,
        });
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            return;
        }
        let (name, reason) = name(event.change);
        let data = WatchEvent {
            revision: event.revision,
            keys,
            token: event.token,
            holder: event.holder.clone(),
            by: event.by.clone(),
            reason,
        };
        text.put_slice(format!("event: {}\nid: {}\n", name.as_str(), event.revision).as_bytes());
        put_data(text, &data);
    }
}

fn name(change: Change) -> (WatchEventName, Option<EndReason>) {
    let ended = |reason| match reason {
        EndReason::Released | EndReason::Abandoned => WatchEventName::Released,
        EndReason::Expired => WatchEventName::Expired,
        EndReason::Revoked => WatchEventName::Revoked,
    };
    match change {
        Change::Granted => (WatchEventName::Granted, None),
        Change::Queued => (WatchEventName::Queued, None),
        Change::Ended(reason) => (ended(reason), Some(reason)),
        Change::Left(reason) => (WatchEventName::Left, reason),
    }
}

fn put_data(text: &mut BytesMut, data: &impl Serialize) {
    text.put_slice(b"data: ");
    serde_json::to_writer(text.writer(), data).expect("every event is valid JSON");
    text.put_slice(b"\n\n");
}
