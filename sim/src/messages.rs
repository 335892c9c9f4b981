//! Messages between nodes, in plain words.

/// What each connection begins with, before its messages.
pub(crate) const PREFACE: usize = 10;
/// Length and checksum of a message.
pub(crate) const HEAD: usize = 8;
/// Where in the first message the channel is: after its kind and group.
pub(crate) const CHANNEL_AT: usize = HEAD + 2;
/// The channel of log entries.
pub(crate) const APPENDS: u8 = 3;
/// The kind of the message that ends a snapshot.
pub(crate) const SNAPSHOT_END: u8 = 50;
/// The kind of the answer to a whole snapshot.
pub(crate) const INSTALLED: u8 = 51;

const CHANNELS: [&str; 7] = ["founding", "votes", "forwards", "appends", "heartbeats", "snapshots", "mirror"];
const CALLS: [&str; 10] = [
    "asks for its vote",
    "asks whether it would vote",
    "asks it to take over the leadership",
    "forwards commands",
    "asks up to where to read",
    "asks who it is",
    "asks it to belong to a cluster",
    "forwards an operator's order",
    "asks what the mirror shows",
    "asks whether it still leads",
];
const ANSWERS: [&str; 12] = [
    "answers about its vote",
    "answers about taking over the leadership",
    "answers the commands",
    "has not done it",
    "does not know whether it is done",
    "says up to where to read",
    "says who it is",
    "belongs to the cluster now",
    "refuses",
    "has done the order",
    "says what the mirror shows",
    "confirms, or denies, the leadership",
];

/// The kind of a message, and its body.
pub(crate) fn split(message: &[u8]) -> Option<(u8, &[u8])> {
    let frame = if message.starts_with(b"RINGPEER") { message.get(PREFACE..)? } else { message };
    let (kind, body) = frame.get(HEAD..)?.split_first()?;
    Some((*kind, body))
}

/// The name of a channel.
pub(crate) fn channel_name(channel: u8) -> String {
    CHANNELS
        .get(usize::from(channel))
        .map_or_else(|| format!("channel {channel}"), |name| format!("the {name} channel"))
}

/// What a message says, as in "node 1 to node 2: …".
pub(crate) fn describe(channel: Option<u8>, message: &[u8]) -> String {
    let channel = channel.and_then(|channel| CHANNELS.get(usize::from(channel))).unwrap_or(&"unknown");
    let told = split(message).and_then(|(kind, body)| told(kind, body));
    format!("{} ({channel}, {} bytes)", told.unwrap_or_else(|| "something unknown".to_owned()), message.len())
}

fn told(kind: u8, body: &[u8]) -> Option<String> {
    let numbered = |names: &[&str]| {
        Some(format!("{} (number {})", names.get(usize::from(*body.get(8)?))?, u64_at(body, 0)?))
    };
    Some(match kind {
        1 => "opens a channel".to_owned(),
        2 => "welcomes it".to_owned(),
        3 => "refuses the connection".to_owned(),
        16 => numbered(&CALLS)?,
        17 => numbered(&ANSWERS)?,
        32 | 34 => append(body)?,
        33 => appended(body)?,
        48 => "begins to send a snapshot".to_owned(),
        49 => "sends a part of the snapshot".to_owned(),
        SNAPSHOT_END => "has sent the whole snapshot".to_owned(),
        INSTALLED => "has installed the snapshot".to_owned(),
        _ => return None,
    })
}

fn append(mut body: &[u8]) -> Option<String> {
    let term = u64_at(body, 0)?;
    body = body.get(17..)?;
    let before = take_log_id(&mut body)?;
    let committed = take_log_id(&mut body)?;
    let mut count = 0;
    while let Some(length) = body.get(1..5) {
        let length = u32::from_le_bytes(*length.first_chunk()?) as usize;
        body = body.get(5 + length..)?;
        count += 1;
    }
    let entries = match count {
        0 => "sends no entries".to_owned(),
        1 => format!("sends 1 entry after {}", position(before.as_ref())),
        _ => format!("sends {count} entries after {}", position(before.as_ref())),
    };
    Some(format!("{entries} as the leader of term {term}; committed up to {}", position(committed.as_ref())))
}

fn appended(body: &[u8]) -> Option<String> {
    let (outcome, mut rest) = body.split_first()?;
    Some(match outcome {
        0 => format!("has all entries up to {}", position(take_log_id(&mut rest)?.as_ref())),
        1 => format!("has another entry at {}", position(take_log_id(&mut rest)?.as_ref())),
        _ => format!("knows a newer vote, of term {}", u64_at(rest, 0)?),
    })
}

fn position(id: Option<&(u64, u64)>) -> String {
    id.map_or_else(|| "nothing".to_owned(), |(term, index)| format!("{index} of term {term}"))
}

fn take_log_id(body: &mut &[u8]) -> Option<Option<(u64, u64)>> {
    let (is_some, rest) = body.split_first()?;
    if *is_some == 0 {
        *body = rest;
        return Some(None);
    }
    let id = (u64_at(rest, 0)?, u64_at(rest, 8)?);
    *body = &rest[16..];
    Some(Some(id))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[&[u8]]) -> Vec<u8> {
        [&[0; HEAD][..], &[kind], &body.concat()].concat()
    }

    #[test]
    fn an_append_and_its_answer_are_told() {
        let word = |number: u64| number.to_le_bytes();
        let after: &[u8] = &[&[1][..], &word(2), &word(8)].concat();
        let entry: &[u8] = &[&[1, 16, 0, 0, 0][..], &word(3), &word(9)].concat();
        let append = message(32, &[&word(3), &word(2), &[1], after, &[0], entry]);
        assert_eq!(
            describe(Some(APPENDS), &append),
            "sends 1 entry after 8 of term 2 as the leader of term 3; committed up to nothing (appends, 65 bytes)"
        );
        let answer = message(33, &[&[0], after]);
        assert_eq!(describe(Some(APPENDS), &answer), "has all entries up to 8 of term 2 (appends, 27 bytes)");
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_no_panic() {
        for message in
            [&[][..], &[0; HEAD], &[0; 9], b"RINGPEER", &message(32, &[&[7; 20]]), &message(99, &[])]
        {
            assert!(describe(None, message).starts_with("something unknown"), "{message:?}");
        }
    }
}
