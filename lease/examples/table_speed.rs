//! The speed and the memory of the table: `cargo run --release -p ringfence-lease --example table_speed`.
//!
//! It measures the table alone, on one core: no log, no network, entries of up to 1,000 commands.
#![allow(clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a stopwatch decides nothing in the table")]

use std::time::{Duration, Instant};

use ringfence_lease::{Acquire, Attachment, Command, LeaseTable, Outcome, SUPPORTED};
use ringfence_wire::{Key, LeaseId, Metadata, Mode, Ttl, Wait};

const ENTRY: usize = 1_000;
const SHARED: Mode = Mode::Shared { limit: None };

fn main() {
    one_hot_key();
    many_shared_holders();
    a_million_leases();
    keys_of_a_hundred_thousand_expire();
}

fn one_hot_key() {
    let mut table = LeaseTable::new();
    let key = Key::new("jobs/the-one-that-all-want").unwrap();
    for n in 0..1_000 {
        run(&mut table, 0, vec![acquire(n, &key, Mode::Exclusive, 60_000)]);
    }
    // Each release grants the next waiter, and a new lease joins the tail.
    let rounds = 500_000;
    let spent = run_all(
        &mut table,
        0,
        (0..rounds).flat_map(|n| {
            [Command::Release { lease_id: id(n) }, acquire(n + 1_000, &key, Mode::Exclusive, 60_000)]
        }),
    );
    assert_eq!((table.live(), table.waiters()), (1, 999));
    println!("one hot key, 999 waiting: {} release + acquire a second", per_second(rounds, spent));
}

fn many_shared_holders() {
    let mut table = LeaseTable::new();
    let key = Key::new("settings/current").unwrap();
    for (from, count) in [(0, 10), (10, 9_990), (10_000, 10_000)] {
        let spent = run_all(&mut table, 0, (from..from + count).map(|n| acquire(n, &key, SHARED, 0)));
        assert_eq!(table.live() as u64, from + count);
        println!("shared key, from {from} holders on: {:?} an acquire", spent / count as u32);
    }
    let spent = run_all(&mut table, 0, (0..20_000).map(|n| Command::Release { lease_id: id(n) }));
    println!("shared key, 20,000 holders released, oldest first: {:?} a release", spent / 20_000);
}

fn a_million_leases() {
    let mut table = LeaseTable::new();
    let count = 1_000_000;
    let before = resident_bytes();
    let spent = run_all(&mut table, 0, (0..count).map(|n| acquire(n, &key(n), Mode::Exclusive, 0)));
    let bytes = resident_bytes() - before;
    assert_eq!(table.live() as u64, count);
    println!("{count} leases with keys of 32 bytes: {} acquires a second", per_second(count, spent));
    println!("    {} bytes resident a lease", bytes / count);

    let rounds = 500_000;
    let spent = run_all(
        &mut table,
        1,
        (0..rounds).flat_map(|n| {
            [
                acquire(n + count, &key(n + count), Mode::Exclusive, 0),
                Command::Release { lease_id: id(n + count) },
            ]
        }),
    );
    println!("    {} acquire + release a second among them", per_second(rounds, spent));
    let spent = run_all(&mut table, 2, (0..rounds).map(|n| Command::Renew { lease_id: id(n), ttl: None }));
    println!("    {} renewals a second among them", per_second(rounds, spent));

    // Scatter the memory as it is after some time: end every second lease, and grant others.
    run_all(&mut table, 3, (0..rounds).map(|n| Command::Release { lease_id: id(n * 7_919 % count) }));
    run_all(&mut table, 3, (LATER..LATER + rounds).map(|n| acquire(n, &key(n), Mode::Exclusive, 0)));
    run_all(&mut table, 4, (2 * LATER..2 * LATER + 1_500_000).map(|n| Command::Release { lease_id: id(n) }));
    assert_eq!((table.live(), table.remembered()), (1_000_000, 2_000_000));
    snapshots_while_grants_go_on(table);
}

/// Ids from here on belong to leases that were granted into scattered memory.
const LATER: u64 = 10_000_000;

/// With 1,000,000 leases and 2,000,000 ended ids.
fn snapshots_while_grants_go_on(mut table: LeaseTable) {
    println!("    longest of 20 entries of 1,000 renewals: {:?}", longest_renewals(&mut table));
    let (frozen, spent) = timed(|| table.freeze());
    println!("    frozen in {spent:?}");
    let before = resident_bytes();
    println!("    longest of 20 while all memory is shared: {:?}", longest_renewals(&mut table));
    println!("    {} KB copied an entry", (resident_bytes() - before) / 20_000);
    let (_, spent) = timed(|| drop(frozen));
    println!("    view dropped in {spent:?}");

    let frozen = table.freeze();
    let mut bytes = Vec::with_capacity(200_000_000);
    let (_, spent) = timed(|| frozen.write_to(&mut bytes).unwrap());
    println!("    written: {} MB in {spent:?}", bytes.len() / 1_000_000);
    drop(frozen);
    let (_, spent) = timed(|| drop(table));
    println!("    table dropped in {spent:?}");
    let (restored, spent) = timed(|| LeaseTable::restore(&bytes[..], SUPPORTED).unwrap());
    println!("    restored in {spent:?}");
    assert!(restored.snapshot() == bytes);
}

fn longest_renewals(table: &mut LeaseTable) -> Duration {
    let renew = |n| Command::Renew { lease_id: id(LATER + n), ttl: None };
    let entry = |from: usize| (0..500_000).skip(from).step_by(500).map(renew).collect();
    (0..20).map(|n| run(table, table.at_ms() + 1, entry(n * 7))).max().unwrap()
}

/// The longest apply of the best of five rounds, as other programs run too.
fn keys_of_a_hundred_thousand_expire() {
    let rounds: Vec<_> = (0..5).map(|_| longest_of_a_hundred_thousand_ends()).collect();
    let (entries, longest) = rounds.into_iter().min_by_key(|&(_, longest)| longest).unwrap();
    println!("100,000 expire in {entries} entries, the longest {longest:?}");
}

fn longest_of_a_hundred_thousand_ends() -> (usize, Duration) {
    let mut table = LeaseTable::new();
    run_all(&mut table, 0, (0..100_000).map(|n| acquire(n, &key(n), Mode::Exclusive, 0)));
    let (mut entries, mut longest) = (0, Duration::ZERO);
    while table.live() > 0 {
        longest = longest.max(run(&mut table, 86_400_001, Vec::new()));
        entries += 1;
    }
    (entries, longest)
}

fn run_all(table: &mut LeaseTable, at_ms: u64, commands: impl Iterator<Item = Command>) -> Duration {
    let mut commands = commands.peekable();
    let mut spent = Duration::ZERO;
    while commands.peek().is_some() {
        let entry = commands.by_ref().take(ENTRY).collect();
        spent += run(table, at_ms, entry);
    }
    spent
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed())
}

fn run(table: &mut LeaseTable, at_ms: u64, entry: Vec<Command>) -> Duration {
    let mut events = Vec::new();
    let start = Instant::now();
    let outcomes = table.apply(at_ms, entry, &mut events);
    let spent = start.elapsed();
    assert!(!outcomes.iter().any(|outcome| matches!(outcome, Outcome::Refused(_))));
    spent
}

fn acquire(n: u64, key: &Key, mode: Mode, wait_ms: u32) -> Command {
    Command::Acquire(Box::new(Acquire {
        lease_id: id(n),
        claims: vec![(key.clone(), mode)],
        ttl: Ttl::from_ms(86_400_000).unwrap(),
        wait: Wait::from_ms(wait_ms).unwrap(),
        keep_place: false,
        holder: None,
        metadata: Metadata::default(),
        attachment: Attachment(n),
    }))
}

/// 32 bytes, in no order.
fn key(n: u64) -> Key {
    Key::new(&format!("accounts/{:023}", mix(n))).unwrap()
}

/// As scattered as random ids.
fn id(n: u64) -> LeaseId {
    LeaseId::from_u128(u128::from(mix(n)) << 64 | u128::from(mix(!n))).unwrap()
}

/// The finalizer of splitmix64: a permutation of the numbers.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn per_second(count: u64, spent: Duration) -> u64 {
    (count as f64 / spent.as_secs_f64()) as u64
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}
