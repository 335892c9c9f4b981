//! A frame: one record in the byte stream that the sectors of a flush carry.
//!
//! `length u32 | kind u16 | sequence u64 | payload`. Kinds up to 255 are the owner's; those above are notes
//! of the log itself. A note takes no sequence number: it carries that of the next record.

use crate::sector::{u16_at, u32_at, u64_at};

/// Bytes before the payload.
pub(crate) const FRAME_HEAD: usize = 14;
/// The segments before the sequence in the payload may be missing.
pub(crate) const NOTE_FORGOTTEN: u16 = 256;
/// The log continues in the next segment. Always alone in the last flush of its segment.
pub(crate) const NOTE_ROLLED: u16 = 257;

/// A frame, its payload still in the stream.
pub(crate) struct Frame<'a> {
    pub(crate) kind: u16,
    pub(crate) sequence: u64,
    pub(crate) payload: &'a [u8],
}

/// The bytes before a payload.
pub(crate) fn head(kind: u16, sequence: u64, length: usize) -> [u8; FRAME_HEAD] {
    let length = u32::try_from(length).expect("payloads are limited to MAX_PAYLOAD");
    let mut head = [0; FRAME_HEAD];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..6].copy_from_slice(&kind.to_le_bytes());
    head[6..].copy_from_slice(&sequence.to_le_bytes());
    head
}

/// Takes the first frame off the stream; `None` if the stream is cut short.
pub(crate) fn split<'a>(stream: &mut &'a [u8]) -> Option<Frame<'a>> {
    let head = stream.get(..FRAME_HEAD)?;
    let length = u32_at(head, 0) as usize;
    let payload = stream.get(FRAME_HEAD..FRAME_HEAD.checked_add(length)?)?;
    *stream = &stream[FRAME_HEAD + length..];
    Some(Frame { kind: u16_at(head, 4), sequence: u64_at(head, 6), payload })
}
