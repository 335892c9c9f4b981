//! A snapshot on disk: one file, `snapshot`, replaced whole.
//!
//! Layout: magic, format version, checksum of the rest; then the last log id, the membership with its log id, and the
//! lease table as that crate encodes it. The file is written beside, synced, renamed, and the folder synced: a crash
//! leaves the old one or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::consensus::{Snapshot, SnapshotMeta, StoredMembership};
use crate::record::{RecordError, membership_bytes, put_option_log_id, read_membership, read_option_log_id};

const NAME: &str = "snapshot";
const MAGIC: &[u8; 8] = b"RINGSNAP";
const FORMAT: u16 = 1;

/// Writes the snapshot to `dir`; when this returns, it is on disk.
pub(crate) fn save(dir: &Path, meta: &SnapshotMeta, table: &[u8]) -> io::Result<()> {
    let mut body = BytesMut::new();
    put_meta(&mut body, meta);
    body.extend_from_slice(table);
    let mut head = BytesMut::new();
    head.extend_from_slice(MAGIC);
    head.put_u16_le(FORMAT);
    head.put_u32_le(crc32c::crc32c(&body));
    let beside = dir.join("snapshot.new");
    let mut file = File::create(&beside)?;
    file.write_all(&head)?;
    file.write_all(&body)?;
    file.sync_all()?;
    fs::rename(&beside, dir.join(NAME))?;
    File::open(dir)?.sync_all()
}

/// The snapshot in `dir`; `None` where there is none. A damaged one is an error, never taken for none.
pub(crate) fn load(dir: &Path) -> io::Result<Option<Snapshot>> {
    let path = dir.join(NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    decode(bytes).map(Some).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} cannot be read: {error}", path.display()))
    })
}

#[derive(Debug, thiserror::Error)]
enum SnapshotError {
    #[error("it is no snapshot of ringfence")]
    Magic,
    #[error("it has format {0}, which this version of ringfence does not know")]
    Format(u16),
    #[error("its checksum is wrong: it is damaged")]
    Checksum,
    #[error(transparent)]
    Record(#[from] RecordError),
}

fn decode(mut bytes: Bytes) -> Result<Snapshot, SnapshotError> {
    if bytes.len() < 14 || &bytes[..8] != MAGIC {
        return Err(SnapshotError::Magic);
    }
    bytes.advance(8);
    let format = bytes.get_u16_le();
    if format != FORMAT {
        return Err(SnapshotError::Format(format));
    }
    if bytes.get_u32_le() != crc32c::crc32c(&bytes) {
        return Err(SnapshotError::Checksum);
    }
    let meta = read_meta(&mut bytes)?;
    Ok(Snapshot { meta, snapshot: bytes })
}

pub(crate) fn put_meta(out: &mut BytesMut, meta: &SnapshotMeta) {
    put_option_log_id(out, meta.last_log_id.as_ref());
    put_option_log_id(out, meta.last_membership.log_id().as_ref());
    let membership = membership_bytes(meta.last_membership.membership());
    out.put_u32_le(membership.len() as u32);
    out.extend_from_slice(&membership);
}

pub(crate) fn read_meta(bytes: &mut Bytes) -> Result<SnapshotMeta, RecordError> {
    let last_log_id = read_option_log_id(bytes)?;
    let membership_log_id = read_option_log_id(bytes)?;
    let len = bytes.try_get_u32_le().map_err(|_| RecordError::Short)? as usize;
    if len > bytes.len() {
        return Err(RecordError::Short);
    }
    let membership = read_membership(&bytes.split_to(len))?;
    Ok(SnapshotMeta { last_log_id, last_membership: StoredMembership::new(membership_log_id, membership) })
}
