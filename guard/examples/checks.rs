//! The speed of the in-memory guard, on one core: `cargo run --release -p ringfence-guard --example checks`.
//!
//! A check finds the key, locks it, compares and raises the number.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use ringfence_guard::{Claim, ClaimError, High, MemoryGuard};
use ringfence_wire::{Key, Token};

const CHECKS: usize = 10_000_000;

fn main() {
    the_rule();
    for keys in [1, 1_000, 100_000, 1_000_000] {
        a_guard(keys);
    }
}

fn the_rule() {
    let mut high = High::NEW;
    let start = Instant::now();
    for number in 0..CHECKS {
        assert!(high.admit(black_box(claim(number))).is_accepted());
    }
    println!("the rule alone: {} checks/s", per_second(start));
}

fn a_guard(keys: usize) {
    let keys: Vec<Key> = (0..keys).map(|n| format!("accounts/{n:09}/balance").parse().unwrap()).collect();
    // Each shard's newer generation, half of its room, must hold its share of the keys, however they hash.
    let guard = MemoryGuard::new(4 * keys.len());
    let before = resident_bytes();
    for key in &keys {
        guard.key_or_ask(key, |_| Ok::<_, ClaimError>(Token(1))).unwrap();
    }
    let bytes = resident_bytes().saturating_sub(before) / keys.len();
    assert_eq!(guard.known_keys(), keys.len());
    let start = Instant::now();
    let mut written = 0_usize;
    for number in 0..CHECKS {
        // In an order that no CPU cache predicts.
        let key = &keys[number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys.len()];
        let known = guard.key(key).unwrap();
        assert!(known.write(claim(number), || written += 1).is_accepted());
    }
    assert_eq!(written, CHECKS);
    let size = if keys.len() > 10_000 { format!(", {bytes} bytes a key") } else { String::new() };
    println!("a guard of {} keys: {} checks/s{size}", keys.len(), per_second(start));
}

fn claim(number: usize) -> Claim {
    Claim::exclusive(Token(number as u64 + 1)).unwrap()
}

fn per_second(start: Instant) -> u64 {
    (CHECKS as f64 / start.elapsed().as_secs_f64()) as u64
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4_096
}
