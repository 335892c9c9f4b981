//! Frames: the messages on a connection between nodes, after its preface.
//!
//! ```text
//! length u32 | crc32c u32 | kind u8 | body          little endian
//! ```
//! The length counts kind and body, the checksum covers them. A frame that is longer than its channel allows, or has a wrong
//! checksum, ends the connection: nothing after it can be trusted.

use std::io::{self, ErrorKind};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::transport::{ByteReader, ByteWriter};

const HEAD: usize = 8;

/// Reads frames. Dropping the future of [`FrameReader::next`] loses nothing.
pub(crate) struct FrameReader {
    source: ByteReader,
    buffer: BytesMut,
    max: usize,
}

impl FrameReader {
    /// Refuses frames with more than `max` bytes of kind and body.
    pub(crate) fn new(source: ByteReader, max: usize) -> Self {
        Self { source, buffer: BytesMut::with_capacity(8 << 10), max }
    }

    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Reads bytes that are no frame, before the first one.
    pub(crate) async fn read_raw(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.source.read_exact(bytes).await.map(drop)
    }

    /// The next frame, kind and body; `None` if the other side closed between two.
    pub(crate) async fn next(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.len() {
                    0 => Ok(None),
                    left => {
                        Err(closed(format!("closed in the middle of a frame, after {left} of its bytes")))
                    }
                };
            }
        }
    }

    fn buffered(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let [l0, l1, l2, l3, c0, c1, c2, c3] = *head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len == 0 || len > self.max {
            return Err(invalid(format!("a frame of {len} bytes, where at most {} are allowed", self.max)));
        }
        if self.buffer.len() < HEAD + len {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let mut body = self.buffer.split_to(len).freeze();
        if crc32c::crc32c(&body) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(invalid("a frame with a wrong checksum"));
        }
        let kind = body.get_u8();
        Ok(Some((kind, body)))
    }
}

/// Writes frames. A future that is dropped leaves the rest of its bytes queued.
pub(crate) struct FrameWriter {
    sink: ByteWriter,
    queued: BytesMut,
    /// Bytes were written that the sink may hold back: TLS does.
    is_held: bool,
}

impl FrameWriter {
    pub(crate) fn new(sink: ByteWriter) -> Self {
        Self { sink, queued: BytesMut::new(), is_held: false }
    }

    /// How many bytes are queued.
    pub(crate) fn queued(&self) -> usize {
        self.queued.len()
    }

    /// Whether all is written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.queued.is_empty() && !self.is_held
    }

    /// Queues bytes that are no frame.
    pub(crate) fn put_raw(&mut self, bytes: &[u8]) {
        self.queued.extend_from_slice(bytes);
    }

    /// Queues a frame of this kind, whose body `body` writes.
    pub(crate) fn put(&mut self, kind: u8, body: impl FnOnce(&mut BytesMut)) {
        let out = &mut self.queued;
        let start = out.len();
        out.put_bytes(0, HEAD);
        out.put_u8(kind);
        body(out);
        let crc = crc32c::crc32c(&out[start + HEAD..]);
        let len =
            u32::try_from(out.len() - start - HEAD).expect("a message between nodes is far below 4 GiB");
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        out[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
    }

    /// Writes some of what is not written yet.
    pub(crate) async fn write_some(&mut self) -> io::Result<()> {
        if !self.queued.is_empty() {
            if self.sink.write_buf(&mut self.queued).await? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            self.is_held = true;
        }
        if self.queued.is_empty() {
            self.sink.flush().await?;
            self.is_held = false;
        }
        Ok(())
    }

    /// Writes all that is queued.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        while !self.is_flushed() {
            self.write_some().await?;
        }
        Ok(())
    }
}

pub(crate) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

pub(crate) fn closed(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, what.into())
}

pub(crate) fn unexpected(kind: u8, expected: &str) -> io::Error {
    invalid(format!("a frame of kind {kind} instead of {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, body: &[u8]) -> BytesMut {
        let mut writer = FrameWriter::new(Box::new(tokio::io::sink()));
        writer.put(kind, |out| out.extend_from_slice(body));
        writer.queued
    }

    async fn read(bytes: &[u8]) -> io::Result<Vec<(u8, Bytes)>> {
        let mut reader = FrameReader::new(Box::new(io::Cursor::new(bytes.to_vec())), 100);
        let mut frames = Vec::new();
        while let Some(frame) = reader.next().await? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Builds of different versions talk to each other: these bytes must not change under this preface version.
    #[test]
    fn the_bytes_of_a_frame_are_fixed() {
        assert_eq!(frame(5, b"abc")[..], [4, 0, 0, 0, 65, 76, 47, 184, 5, b'a', b'b', b'c']);
    }

    #[tokio::test]
    async fn frames_read_back_as_they_were_written() {
        let mut bytes = frame(1, b"one");
        bytes.extend_from_slice(&frame(2, b""));
        let frames = read(&bytes).await.unwrap();
        assert_eq!(frames, [(1, Bytes::from_static(b"one")), (2, Bytes::new())]);
    }

    #[tokio::test]
    async fn every_cut_and_every_flipped_bit_is_detected() {
        let whole = frame(7, b"some body");
        for cut in 1..whole.len() {
            assert_eq!(
                read(&whole[..cut]).await.unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof,
                "cut at {cut}"
            );
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).await.is_err(), "bit {bit}");
        }
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let error = read(&u32::MAX.to_le_bytes().repeat(2)).await.unwrap_err();
        assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    }
}
