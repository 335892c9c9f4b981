//! A durable, ordered record stream under a Raft log.
//!
//! A record is a kind and some bytes; the log does not know what they mean. Its one promise: a record that
//! was acknowledged is never lost silently. Either it is there at the next opening, or the log refuses to
//! open and says in which file and at which byte something is wrong.
//!
//! ```no_run
//! # use ringfence_wal::{Options, Record, Wal};
//! let (wal, records) = Wal::open("log".as_ref(), Options::default())?;
//! let record = Record { kind: 1, payload: "hello".into() };
//! let sequence = wal.append([record], Some(Box::new(|outcome| println!("on disk: {outcome:?}"))));
//! # Ok::<(), ringfence_wal::OpenError>(())
//! ```
//!
//! # How a record gets to disk
//! ```text
//!  append ─┐                     flusher thread
//!  append ─┼─▶ queue ─▶ drain all ─▶ one buffer ─▶ one pwrite ─▶ one fdatasync ─▶ all callbacks, in order
//!  append ─┘            (≤ 16 MiB)   of sectors
//! ```
//! The write bypasses the page cache if the file system can do that (`O_DIRECT`), in blocks of 4 KiB.
//! Appending never waits for the disk: while one flush is under way the next one gathers. So the queue grows
//! for as long as a disk hangs; [`Wal::queued_bytes`] and [`Stats::flushing`] tell the owner when to stop.
//! A flush is written only after the one before is on disk, so only the last one can ever be cut short.
//!
//! A full segment is followed by another as soon as there are descriptors for it; until then it grows.
//! Nothing else that an open log does takes a new descriptor.
//!
//! All of this goes through [`disk`], so that a simulator can run the same code on a disk of its own, and
//! step the flusher itself.
//!
//! An I/O error is final: the callbacks of that flush and of everything later get it, and nothing is
//! retried. [`Wal::failure`] tells it to an owner that waits for no flush. After a failed `fsync` the
//! kernel may call pages clean that never reached the disk, so a second `fsync` that succeeds proves
//! nothing.
//!
//! # What is on disk
//! A power cut during a flush, before it is acknowledged, leaves a *torn tail*, which has to be cut off. A
//! flipped bit or a lost block in acknowledged data looks much like it, and must not be cut off. To
//! distinguish the two, even if the disk wrote the last flush out of order, the log is laid out in sectors
//! of 512 bytes, the unit that a disk writes whole or not at all:
//!
//! ```text
//! 00000000000000000001.wal                         named by its first record; 64 MiB
//! | header | flush 1      | flush 2 | flush 3           … | note: rolled  | zeros |
//!          | 0/2  | 1/2   | 0/1     | 0/3   | 1/3  | 2/3  |
//!
//! 00000000000000004711.wal
//! | header | flush 9 | zeros, to the end of the step                             |
//! ```
//! - Each sector carries its checksum, the number of its flush, its part of how many, and ends in a byte that
//!   is not zero. It is *whole*; or *unwritten*, if its last byte is zero: it was not written to its end, and
//!   no single flipped bit makes it look so; or else *damaged*.
//! - The bodies of the sectors of a flush, joined, are frames that tile it exactly: length, kind, sequence,
//!   payload. Sequences rise by one through the whole log. Numbers of flushes rise.
//! - The first sector of a segment is its header: format version, log, first sequence, first flush. A segment
//!   is created under a temporary name, synced, and renamed, so its header is always whole.
//! - A file is zeroed and synced some MiB ahead of its use, with real zeros: an `fdatasync` then has no
//!   metadata to commit, and the file is never shorter than its contents rounded up to the step.
//! - Before the first flush goes to a new segment, a note at the end of the old one says that the log
//!   continues. Before segments are deleted, a note says with which record the log will start. So the loss of
//!   the last segment, or of the first, is noticed like that of one in the middle.
//!
//! # What opening does
//! It reads everything. The end of the log is *torn*, and is cut off with a warning, if and only if the last
//! flush of the last segment lacks sectors, its other sectors are all whole and in their places, and there is
//! no other written sector behind it. Everything else that is not as described above is refused with an
//! [`OpenError`]: a damaged sector anywhere, an unwritten one with a later flush behind it, a segment that is
//! missing, too short, misnamed or of another log, a record out of sequence. A refused log is left as it was.
//! In space that was never written, a flipped bit is wiped with a warning, unless it hits the last byte of a
//! sector: that is refused, though nothing is lost, to keep the rule simple.
//!
//! Then it writes the last flush and the zeros behind it again and syncs every file and the directory, before
//! it returns anything: what was read may have been in the page cache only. Flushes are numbered on from the
//! torn one, so that no sector of it can ever pass for one of a new flush.
//!
//! # What it cannot see
//! - The loss of whole flushes at the very end of the last segment, if zeros stand in their place (or the
//!   file ends there, and a step ends there too): the log looked like that before they were written. The same
//!   holds for a part of the very last flush: a power cut leaves that.
//! - The loss of the whole directory, or of its contents: that is a new log. The owner has to know.
//! - Damage that a 32-bit checksum misses, and a disk that reports a sync it has not done.
//!
//! If a disk tears a single sector, end before beginning, the sector counts as damaged: such a log refuses to
//! open although nothing acknowledged is lost.

mod blocks;
mod dir;
pub mod disk;
mod error;
mod flush;
mod flusher;
mod frame;
mod header;
mod options;
mod queue;
mod record;
mod recover;
mod scan;
mod sector;
mod segment;
mod segments;
mod wal;

pub use error::{OpenError, lacks_descriptors};
pub use options::{OnFlush, Options};
pub use queue::Stats;
pub use record::{Done, MAX_PAYLOAD, Record, Records};
pub use recover::read;
pub use wal::Wal;
