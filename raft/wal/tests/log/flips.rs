//! One flipped bit anywhere.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ringfence_wal::{OpenError, Wal};

use crate::support::{contents, copy, segments, small, twenty};

/// Other logs that were tested this way silently cut off acknowledged records; this one must not.
#[test]
#[ignore = "slow"]
fn no_flipped_bit_loses_an_acknowledged_record_silently() {
    let (dir, ends) = twenty();
    let used = ends.last().unwrap().1;
    let expected = contents(dir.path());
    assert_eq!(expected.len(), 20);
    // The used part, and a page of the zeros behind it.
    let bytes = used + 4_096;
    std::thread::scope(|scope| {
        for half in [0..bytes / 2, bytes / 2..bytes] {
            let dir = copy(dir.path());
            let expected = &expected;
            scope.spawn(move || {
                let path = segments(dir.path()).remove(0);
                let file = File::options().read(true).write(true).open(&path).unwrap();
                for at in half {
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, at).unwrap();
                    for bit in 0..8 {
                        file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
                        let is_end_mark = at % 512 == 511;
                        match Wal::open(dir.path(), small()) {
                            Err(OpenError::Damaged { file, offset, .. }) => {
                                assert_eq!((&file, offset), (&path, at / 512 * 512), "byte {at} bit {bit}");
                                assert!(at < used || is_end_mark, "byte {at} bit {bit}: refused needlessly");
                            }
                            // In a sector never written, only its last byte counts: the rest is wiped.
                            Ok((wal, records)) => {
                                assert!(at >= used && !is_end_mark, "byte {at} bit {bit}: not noticed");
                                assert_eq!(&records, expected, "byte {at} bit {bit}");
                                assert!(wal.stats().cut_bytes > 0, "byte {at} bit {bit}: not wiped");
                            }
                            Err(other) => panic!("byte {at} bit {bit}: {other}"),
                        }
                        file.write_all_at(&byte, at).unwrap();
                    }
                }
            });
        }
    });
}
