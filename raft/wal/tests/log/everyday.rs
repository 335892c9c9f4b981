//! Appending, reopening, forgetting.

use std::sync::mpsc;

use ringfence_wal::{OpenError, Options, Wal};

use crate::support::{self, append, contents, folder, record, sized, small};

#[test]
fn a_new_log_is_empty_and_starts_with_sequence_1() {
    let dir = folder();
    let (wal, records) = Wal::open(&dir.path().join("log"), Options::default()).unwrap();
    assert!(records.is_empty());
    assert_eq!(append(&wal, [record(1)]), 1);
    assert_eq!(wal.append([], None), 1);
}

#[test]
fn what_was_acknowledged_is_there_after_reopening_in_order() {
    let dir = folder();
    let mut expected = Vec::new();
    for round in 0..5 {
        let (wal, records) = Wal::open(dir.path(), small()).unwrap();
        assert_eq!(records, expected);
        for number in 0..20 {
            let record = record(round * 20 + number);
            let sequence = append(&wal, [record.clone()]);
            expected.push((sequence, record));
        }
        wal.close().unwrap();
    }
    assert_eq!(contents(dir.path()), expected);
}

#[test]
fn records_of_one_call_have_consecutive_sequences() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let wal = &wal;
            scope.spawn(move || {
                for _ in 0..50 {
                    wal.append((0..5).map(|n| record(writer * 100 + n)), None);
                }
            });
        }
    });
    wal.close().unwrap();
    let records = contents(dir.path());
    assert_eq!(records.len(), 1_000);
    for call in records.chunks(5) {
        let payloads: Vec<u64> = call.iter().map(|(_, record)| support::number(record)).collect();
        assert_eq!(payloads, (payloads[0]..payloads[0] + 5).collect::<Vec<_>>());
    }
}

#[test]
fn callbacks_come_in_the_order_of_the_appends_and_a_barrier_comes_after_all_before() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let (sender, receiver) = mpsc::channel();
    for number in 0..200 {
        let sender = sender.clone();
        let records = (number % 3 != 0).then(|| record(number));
        wal.append(records, Some(Box::new(move |outcome| sender.send((number, outcome.is_ok())).unwrap())));
    }
    drop(sender);
    let told: Vec<_> = receiver.iter().collect();
    assert_eq!(told, (0..200).map(|number| (number, true)).collect::<Vec<_>>());
}

#[test]
fn dropping_the_log_writes_what_is_queued_and_completes_the_callbacks() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let (sender, receiver) = mpsc::channel();
    for number in 0..100 {
        let sender = sender.clone();
        wal.append([record(number)], Some(Box::new(move |outcome| sender.send(outcome.is_ok()).unwrap())));
    }
    drop(wal);
    drop(sender);
    assert_eq!(receiver.iter().filter(|is_ok| *is_ok).count(), 100);
    assert_eq!(contents(dir.path()).len(), 100);
}

#[test]
fn the_last_handle_may_go_in_a_callback() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    let wal = std::sync::Arc::new(wal);
    let (sender, receiver) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let inner = std::sync::Arc::clone(&wal);
    let done = move |_| {
        gone.recv().unwrap();
        drop(inner);
        sender.send(()).unwrap();
    };
    wal.append([record(1)], Some(Box::new(done)));
    drop(wal);
    go.send(()).unwrap();
    receiver.recv().unwrap();
}

#[test]
fn a_callback_that_panics_closes_the_log_and_leaves_no_other_waiting() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    wal.append([record(1)], Some(Box::new(|_| panic!("on purpose"))));
    assert!(support::try_append(&wal, [record(2)]).1.is_err());
    assert!(wal.close().unwrap_err().to_string().contains("panicked"));
}

#[test]
fn a_payload_of_any_size_comes_back() {
    let dir = folder();
    let sizes = [0, 1, 474, 475, 476, 489, 490, 964, 65_536, 300_000];
    let records: Vec<_> = sizes.iter().map(|&size| sized(size)).collect();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    for record in &records {
        append(&wal, [record.clone()]);
    }
    append(&wal, records.clone());
    drop(wal);
    let read: Vec<_> = contents(dir.path()).into_iter().map(|(_, record)| record).collect();
    assert_eq!(read, [records.clone(), records].concat());
}

#[test]
fn one_flush_serves_all_that_wait_and_is_counted() {
    let dir = folder();
    let (sender, flushes) = mpsc::channel();
    let hook: ringfence_wal::OnFlush = std::sync::Arc::new(move |_, bytes| sender.send(bytes).unwrap());
    let (wal, _) = Wal::open(dir.path(), Options { on_flush: Some(hook), ..Options::default() }).unwrap();
    let (go, gone) = mpsc::channel::<()>();
    // While the first flush is being completed, a hundred more queue up.
    wal.append([record(0)], Some(Box::new(move |_| gone.recv().unwrap())));
    for number in 1..=100 {
        wal.append([record(number)], None);
    }
    go.send(()).unwrap();
    append(&wal, []);
    let stats = wal.stats();
    wal.close().unwrap();
    let flushes: Vec<usize> = flushes.iter().collect();
    assert!(flushes.len() <= 2 + 1, "{flushes:?}");
    assert_eq!(stats.flushes, flushes.len() as u64);
    assert_eq!(stats.bytes, flushes.iter().sum::<usize>() as u64);
}

#[test]
fn no_flush_is_larger_than_allowed_unless_one_record_is() {
    let dir = folder();
    let (sender, flushes) = mpsc::channel();
    let hook: ringfence_wal::OnFlush = std::sync::Arc::new(move |_, bytes| sender.send(bytes).unwrap());
    let options = Options { flush_bytes: 8_192, on_flush: Some(hook), ..Options::default() };
    let (wal, _) = Wal::open(dir.path(), options).unwrap();
    wal.append((0..200).map(record), None);
    wal.append([sized(20_000)], None);
    wal.append((0..200).map(record), None);
    wal.close().unwrap();
    let sizes: Vec<usize> = flushes.iter().collect();
    assert_eq!(sizes.iter().filter(|bytes| **bytes > 8_192).count(), 1, "{sizes:?}");
    assert!(sizes.iter().filter(|bytes| **bytes > 7_000).count() > 15, "{sizes:?}");
    assert_eq!(contents(dir.path()).len(), 401);
}

#[test]
fn a_second_format_version_is_refused_by_its_number() {
    let dir = folder();
    let (wal, _) = Wal::open(dir.path(), small()).unwrap();
    append(&wal, [record(1)]);
    drop(wal);
    let file = support::segments(dir.path()).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[12] = 2;
    let crc = crc32c::crc32c(&bytes[4..512]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let error = Wal::open(dir.path(), small()).err().unwrap();
    assert!(matches!(error, OpenError::UnknownVersion { found: 2, known: 1, .. }), "{error}");
}
