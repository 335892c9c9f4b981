//! Processes that are told something else by their machine: flushes that take long, names that are not found, clocks that
//! run at another rate. A small library does it, compiled by `cc` for the run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence_harness::preload;

const SOURCE: &str = include_str!("bent.c");
const BYTES: usize = 8;

/// A number that the library reads, or counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// By how many milliseconds a flush takes longer.
    FlushMs,
    /// How many milliseconds a lookup of a name in `.test` takes.
    LookupMs,
    /// Whether such lookups fail.
    LookupFails,
    /// The IPv4 address of all such names, as a number.
    Address,
    /// Another one, which is listed before; 0 for none.
    FirstAddress,
    /// Whether the clocks are bent at all; read when the process starts.
    Clocks,
    /// By how many millionths CLOCK_MONOTONIC and CLOCK_BOOTTIME are faster than real time.
    RatePpm,
    /// For how many milliseconds the machine has slept.
    AsleepMs,
    /// How many flushes took longer.
    Flushes,
    /// How many names were looked up.
    Lookups,
    /// How often a bent clock was read.
    Readings,
}

/// The number of words.
const WORDS: usize = Word::Readings as usize + 1;

/// What is bent for the processes that are [started](Bent::apply) with it.
#[derive(Debug)]
pub(super) struct Bent {
    library: PathBuf,
    block: PathBuf,
    file: File,
}

impl Bent {
    /// Nothing is bent yet. Its files are in `folder`.
    pub(super) fn new(folder: &Path, name: &str) -> anyhow::Result<Self> {
        let (library, block) = (folder.join("bent.so"), folder.join(format!("bent-{name}")));
        preload::compile(SOURCE, &library)?;
        std::fs::write(&block, [0; BYTES * WORDS])?;
        let file = File::options().read(true).write(true).open(&block)?;
        Ok(Self { library, block, file })
    }

    /// Makes the process that `command` starts, and its descendants, see what is bent.
    pub(super) fn apply(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("RINGFENCE_BENT", &self.block);
    }

    pub(super) fn set(&self, word: Word, value: i64) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&value.to_ne_bytes(), (word as usize * BYTES) as u64)?)
    }

    pub(super) fn get(&self, word: Word) -> anyhow::Result<i64> {
        let mut bytes = [0; BYTES];
        self.file.read_exact_at(&mut bytes, (word as usize * BYTES) as u64)?;
        Ok(i64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn bent(words: &[(Word, i64)]) -> (tempfile::TempDir, Bent) {
        let folder = tempfile::tempdir().unwrap();
        let bent = Bent::new(folder.path(), "test").unwrap();
        words.iter().for_each(|(word, value)| bent.set(*word, *value).unwrap());
        (folder, bent)
    }

    fn printed(bent: &Bent, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        bent.apply(command.args(arguments));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn a_flush_takes_as_long_as_the_block_says() {
        let (folder, bent) = bent(&[(Word::FlushMs, 300)]);
        let began = Instant::now();
        printed(&bent, "sync", &["--data", folder.path().to_str().unwrap()]);
        assert!(began.elapsed() >= Duration::from_millis(300));
        assert_eq!(bent.get(Word::Flushes).unwrap(), 1);
    }

    #[test]
    fn a_name_has_the_addresses_of_the_block_in_their_order() {
        let (_folder, bent) = bent(&[(Word::FirstAddress, 0x7f_00_00_09), (Word::Address, 0x7f_00_00_01)]);
        let listed = printed(&bent, "getent", &["ahostsv4", "node.test"]);
        let listed: Vec<&str> = listed.lines().filter(|line| line.contains("STREAM")).collect();
        assert!(listed[0].starts_with("127.0.0.9") && listed[1].starts_with("127.0.0.1"), "{listed:?}");
        bent.set(Word::LookupFails, 1).unwrap();
        assert_eq!(printed(&bent, "getent", &["ahostsv4", "node.test"]), "");
        assert_eq!(bent.get(Word::Lookups).unwrap(), 2);
    }
}
