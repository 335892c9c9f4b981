//! Random scripts: none panics, none costs more than it may.

use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

use super::corpus::corpus;
use super::fake::FakeRedis;
use super::programs::program;
use super::{ARGUMENTS, KEYS, bytes, run};
use crate::{Budget, Halt, RunError, Script};

const WORDS: [&str; 74] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while", "...", "..", "==", "~=", "<=", ">=",
    "+", "-", "*", "/", "%", "^", "#", "<", ">", "=", "(", ")", "{", "}", "[", "]", ";", ":", ",", ".", "a",
    "b", "KEYS", "ARGV", "redis", "call", "pcall", "string", "rep", "table", "insert", "unpack", "select",
    "tostring", "1", "0", "9e15", "1e308", "-1", "'a'", "\"\\0\"", "[[x]]", "--[[", "\n", "error", "next",
    "concat",
];

/// Runs a text, if it is a script, and checks that it spends no more than the budget.
fn play(text: &[u8], fuel: u64, memory: u64) {
    let Ok(script) = Script::parse(text, |_| Ok(())) else { return };
    assert!(script.size() <= 1_024 + 24 * text.len(), "{} for {}", script.size(), text.len());
    let mut budget = Budget::new(fuel, memory);
    let result = run(&script, &bytes(&KEYS), &bytes(&ARGUMENTS), &mut FakeRedis::default(), &mut budget);
    if let Err(RunError::Halted(_, Halt::Exhausted(_))) = result {
        assert!(budget.rest().0 == 0 || budget.rest().1 == 0, "a halt leaves nothing: {:?}", budget.rest());
    }
}

/// Changes, removes and repeats parts of a text.
fn mutated(mut text: Vec<u8>, changes: &[(u16, u16, u8)]) -> Vec<u8> {
    for (from, to, what) in changes {
        let length = text.len().max(1);
        let (from, to) = (usize::from(*from) % length, usize::from(*to) % length);
        let range = from.min(to)..from.max(to).min(from.min(to) + 40).min(text.len());
        match what % 4 {
            0 => drop(text.drain(range)),
            1 => {
                let part = text[range].to_vec();
                text.splice(to..to, part);
            }
            2 => {
                let word = WORDS[usize::from(*what / 4) % WORDS.len()];
                text.splice(from..from, format!(" {word} ").into_bytes());
            }
            _ => text[range.start..].iter_mut().take(1).for_each(|byte| *byte ^= what >> 2),
        }
    }
    text
}

/// Up to 300 bytes.
pub(super) fn random_bytes(seed: u64) -> Vec<u8> {
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed.to_le_bytes(); 4].concat());
    let mut bytes = vec![0; random.random_range(0..300)];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Seeds for `FUZZ_SECONDS`, or a minute.
pub(super) fn seeds_for_some_time() -> impl Iterator<Item = u64> {
    let seconds = env::var("FUZZ_SECONDS").map_or(60, |text| text.parse().expect("FUZZ_SECONDS is a number"));
    let (start, time) = (Instant::now(), Duration::from_secs(seconds));
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    (first..).take_while(move |_| start.elapsed() < time)
}

#[test]
#[ignore = "slow"]
fn many_mutated_programs_are_refused_or_run() {
    let corpus = corpus();
    let (mut played, mut parsed) = (0, 0);
    for seed in seeds_for_some_time() {
        let bytes = random_bytes(seed);
        let changes: Vec<(u16, u16, u8)> = bytes
            .chunks_exact(60)
            .map(|part| {
                (u16::from_le_bytes([part[0], part[1]]), u16::from_le_bytes([part[2], part[3]]), part[4])
            })
            .collect();
        let text = match seed % 3 {
            0 => program(&bytes).into_bytes(),
            1 => corpus[bytes.len() * 7 % corpus.len()].0.clone().into_bytes(),
            _ => {
                let words = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]);
                words.collect::<Vec<_>>().join(" ").into_bytes()
            }
        };
        let text = mutated(text, &changes);
        parsed += u64::from(Script::parse(&text, |_| Ok(())).is_ok());
        play(&text, 50_000, 200_000);
        played += 1;
    }
    println!("{played} texts, of which {parsed} are scripts");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_are_refused_or_run(text in vec(any::<u8>(), 0..200)) {
        play(&text, 10_000, 100_000);
    }

    #[test]
    fn random_words_are_refused_or_run(words in vec(0..WORDS.len(), 0..60)) {
        let text: Vec<&str> = words.into_iter().map(|word| WORDS[word]).collect();
        play(text.join(" ").as_bytes(), 10_000, 100_000);
    }

    #[test]
    fn programs_cost_what_they_may(bytes in vec(any::<u8>(), 0..200), fuel in 0..20_000u64, memory in 0..100_000u64) {
        let text = program(&bytes);
        prop_assert!(Script::parse(text.as_bytes(), |_| Ok(())).is_ok(), "{text}");
        play(text.as_bytes(), fuel, memory);
    }

    #[test]
    fn mutated_programs_are_refused_or_run(
        bytes in vec(any::<u8>(), 0..100),
        changes in vec(any::<(u16, u16, u8)>(), 1..6),
    ) {
        play(&mutated(program(&bytes).into_bytes(), &changes), 20_000, 100_000);
    }

    #[test]
    fn mutated_scripts_are_refused_or_run(which in any::<prop::sample::Index>(), changes in vec(any::<(u16, u16, u8)>(), 1..5)) {
        let corpus = corpus();
        let (script, _) = which.get(&corpus);
        play(&mutated(script.clone().into_bytes(), &changes), 20_000, 100_000);
    }
}
