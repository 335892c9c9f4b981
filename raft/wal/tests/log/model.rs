//! Any course of events against a plain list.

use proptest::prelude::*;
use ringfence_wal::{Options, Record, Wal};

use crate::support::{append, folder};

#[derive(Clone, Debug)]
enum Step {
    /// One call for each list of sizes, then wait for all.
    Append(Vec<Vec<usize>>),
    Forget(u8),
    Reopen {
        segment_sectors: u64,
        step_sectors: u32,
        flush_bytes: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let size = prop_oneof![4 => 0..60_usize, 2 => 400..600_usize, 1 => 0..6_000_usize];
    let call = prop::collection::vec(size, 0..6);
    prop_oneof![
        6 => prop::collection::vec(call, 1..8).prop_map(Step::Append),
        2 => any::<u8>().prop_map(Step::Forget),
        1 => (4..64_u64, 2..16_u32, 1_000..20_000_usize).prop_map(
            |(segment_sectors, step_sectors, flush_bytes)| Step::Reopen { segment_sectors, step_sectors, flush_bytes }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_log_holds_what_a_list_would(steps in prop::collection::vec(step(), 1..40)) {
        let dir = folder();
        let mut options = Options { segment_bytes: 8_192, step_bytes: 2_048, ..Options::default() };
        let mut list: Vec<Record> = Vec::new();
        let mut forgotten = 0;
        let mut wal = Some(Wal::open(dir.path(), options.clone()).unwrap().0);
        for step in steps {
            match step {
                Step::Append(calls) => {
                    let open = wal.as_ref().unwrap();
                    for sizes in calls {
                        let records: Vec<Record> = sizes.iter().zip(list.len()..).map(|(&size, number)| Record {
                            kind: number as u8,
                            payload: vec![number as u8; size].into(),
                        }).collect();
                        list.extend(records.iter().cloned());
                        prop_assert_eq!(open.append(records, None), list.len() as u64);
                    }
                    append(open, []);
                }
                Step::Forget(share) => {
                    forgotten = forgotten.max(list.len() as u64 * u64::from(share) / 255);
                    wal.as_ref().unwrap().forget(forgotten);
                }
                Step::Reopen { segment_sectors, step_sectors, flush_bytes } => {
                    options.segment_bytes = segment_sectors * 512;
                    options.step_bytes = step_sectors * 512;
                    options.flush_bytes = flush_bytes;
                    wal.take().unwrap().close().unwrap();
                    let (open, records) = Wal::open(dir.path(), options.clone()).unwrap();
                    prop_assert_eq!(open.stats().cut_bytes, 0);
                    wal = Some(open);
                    let first = records.first().map_or(list.len() as u64 + 1, |(sequence, _)| *sequence);
                    prop_assert!(first <= forgotten.max(1));
                    let expected = (first..).zip(list[first as usize - 1..].iter().cloned());
                    prop_assert!(records.into_iter().eq(expected));
                }
            }
        }
    }
}
