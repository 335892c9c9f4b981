//! Server-sent events as text.

use bytes::{BufMut, Bytes, BytesMut};
use ringfence_lease::{Change, Event};
use ringfence_wire::{CutOff, EndReason, Revision, WatchEvent, WatchEventName, WatchedKey};
use serde::Serialize;

/// How long a browser waits before it reconnects, in milliseconds.
const RETRY_MS: u32 = 1_000;

/// The beginning of a stream.
pub(super) fn head(after: Revision) -> Bytes {
    format!("retry: {RETRY_MS}\nid: {after}\n\n").into()
}

/// A position to resume from, without an event.
pub(super) fn bookmark(revision: Revision) -> Bytes {
    format!("id: {revision}\n\n").into()
}

/// The last event of a stream that is cut off. It needs no `id`: the client resumes from the last one it got.
pub(super) fn cut_off(cut_off: CutOff) -> Bytes {
    let mut text = BytesMut::from(format!("event: {}\n", CutOff::NAME).as_bytes());
    put_data(&mut text, &cut_off);
    text.freeze()
}

/// Appends `event` with its keys that start with `prefix`, if there are any.
pub(super) fn put_event(text: &mut BytesMut, event: &Event, prefix: &str) {
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
