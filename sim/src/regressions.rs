//! Seeds that once failed.
//!
//! A seed repeats its failure only while the code draws the same: after that it is a schedule that is worth another look.

use anyhow::Context;

/// A line of the file: a seed, and what it showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// The seed.
    pub seed: u64,
    /// What it showed.
    pub what: String,
}

/// The seeds of the file `sim/seeds`.
///
/// # Errors
/// If a line has no seed, or does not say what it showed.
pub fn all() -> anyhow::Result<Vec<Regression>> {
    read(include_str!("../seeds"))
}

fn read(text: &str) -> anyhow::Result<Vec<Regression>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let regressions = lines.map(|line| {
        let (seed, what) =
            line.split_once(' ').with_context(|| format!("what did this seed show? {line:?}"))?;
        let seed = seed.parse().with_context(|| format!("seed {seed:?}"))?;
        Ok(Regression { seed, what: what.trim().to_owned() })
    });
    regressions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_and_lines_without_a_reason_are_not() {
        all().unwrap();
        let known = read("# seeds\n\n12 a lost grant\n").unwrap();
        assert_eq!(known, [Regression { seed: 12, what: "a lost grant".to_owned() }]);
        for wrong in ["12", "twelve a lost grant"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
