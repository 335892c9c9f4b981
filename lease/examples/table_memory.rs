//! What leases take in memory, and what the table counts for them: `cargo run --release -p ringfence-lease --example
//! table_memory`. It fails if it counts less than they take.
//!
//! Each kind of lease has a process of its own: a table takes the memory that one before it has freed.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::{Command as Process, ExitCode};
use std::{env, fs};

use ringfence_lease::{Acquire, Attachment, Command, LeaseTable};
use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Ttl, Wait};

const SHARED: Mode = Mode::Shared { limit: None };
/// Requests of each waiter in the kind that has many.
const REQUESTS: u64 = 32;

/// A kind of lease, how many are made, and the commands for the one with a number.
type Kind = (&'static str, u64, fn(u64) -> Vec<Command>);

const KINDS: [Kind; 9] = [
    ("a key of 1 to 7 bytes", 1_000_000, |n| vec![acquire(n, &[n.to_string()], Mode::Exclusive, 0, "")]),
    ("a key of 512 bytes", 300_000, |n| vec![acquire(n, &[format!("{n:0>512}")], Mode::Exclusive, 0, "")]),
    ("64 keys of 100 bytes", 10_000, |n| {
        let keys: Vec<_> = (0..64).map(|place| format!("{n:0>90}/{place:0>9}")).collect();
        vec![acquire(n, &keys, Mode::Exclusive, 0, "")]
    }),
    ("one shared key", 1_000_000, |n| vec![acquire(n, &["a".to_owned()], SHARED, 0, "")]),
    ("metadata of 4 KB", 50_000, |n| vec![acquire(n, &[n.to_string()], Mode::Exclusive, 0, "x")]),
    ("waits for 64 keys", 9_000, |n| {
        let keys: Vec<_> = (0..64).map(|place| format!("{place:0>100}")).collect();
        vec![acquire(n, &keys, Mode::Exclusive, 60_000, "")]
    }),
    ("waits for 63 keys alone", 2_000, |n| {
        let own = (0..63).map(|place| format!("{n:0>90}/{place:0>9}"));
        let keys: Vec<_> = ["hot".to_owned()].into_iter().chain(own).collect();
        vec![acquire(n, &keys, if n == 0 { Mode::Exclusive } else { SHARED }, 60_000, "")]
    }),
    ("64 keys, with another", 10_000, |n| {
        let keys: Vec<_> = (0..64).map(|place| format!("{:0>90}/{place:0>9}", n / 2)).collect();
        vec![acquire(n, &keys, SHARED, 0, "")]
    }),
    ("waits, with 32 requests", 9_000, |n| {
        let one = |_| acquire(n, &["a".to_owned()], Mode::Exclusive, 60_000, "");
        (0..REQUESTS).map(one).zip(0..).map(|(command, number)| attached(command, number)).collect()
    }),
];

fn main() -> ExitCode {
    let Some(name) = env::args().nth(1) else {
        println!("{:<24} {:>8} {:>8}", "bytes of a lease with", "taken", "counted");
        let mut is_well = true;
        for (name, ..) in KINDS {
            is_well &= Process::new(env::current_exe().unwrap()).arg(name).status().unwrap().success();
        }
        return ExitCode::from(u8::from(!is_well));
    };
    let (_, count, commands) = KINDS.into_iter().find(|(other, ..)| *other == name).unwrap();
    let mut table = LeaseTable::new();
    let before = resident_bytes();
    for n in 0..count {
        table.apply(0, commands(n), &mut Vec::new());
    }
    assert_eq!((table.live() + table.waiters()) as u64, count);
    let (taken, counted) = ((resident_bytes() - before) / count, table.bytes() / count);
    println!("{name:<24} {taken:>8} {counted:>8}");
    ExitCode::from(u8::from(counted < taken))
}

fn acquire(n: u64, keys: &[String], mode: Mode, wait_ms: u32, metadata: &str) -> Command {
    let metadata = BTreeMap::from([("m".to_owned(), metadata.repeat(4_000))]);
    Command::Acquire(Box::new(Acquire {
        lease_id: LeaseId::from_u128(
            (u128::from(n) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        )
        .unwrap(),
        claims: keys.iter().map(|key| (Key::new(key).unwrap(), mode)).collect(),
        ttl: Ttl::default(),
        wait: Wait::from_ms(wait_ms).unwrap(),
        keep_place: false,
        holder: Holder::new("host-1"),
        metadata: if metadata["m"].is_empty() {
            Metadata::default()
        } else {
            Metadata::new(metadata).unwrap()
        },
        attachment: Attachment(0),
    }))
}

fn attached(command: Command, number: u64) -> Command {
    let Command::Acquire(acquire) = command else { return command };
    Command::Acquire(Box::new(Acquire { attachment: Attachment(number), ..*acquire }))
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}
