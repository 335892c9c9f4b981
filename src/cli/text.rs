//! Words and tables for people.

use std::num::NonZeroU32;

use ringfence_wire::ModeName;

/// Lines in columns.
pub(crate) struct Table<const N: usize>(Vec<[String; N]>);

impl<const N: usize> Table<N> {
    pub(crate) fn new(head: [&str; N]) -> Self {
        Self(vec![head.map(str::to_owned)])
    }

    pub(crate) fn add(&mut self, line: [String; N]) {
        self.0.push(line);
    }

    /// Each column as wide as its widest text; nothing behind the last.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| self.0.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let line = |line: &[String; N]| {
            let columns = line.iter().enumerate().map(|(column, text)| format!("{text:<0$}", width(column)));
            columns.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        self.0.iter().map(line).collect()
    }
}

/// As `12.3 s`; a dash where it is not known.
pub(crate) fn seconds(ms: Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), |ms| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100))
}

/// As `shared(3)`.
pub(crate) fn mode(mode: ModeName, limit: Option<NonZeroU32>) -> String {
    let name = match mode {
        ModeName::Exclusive => "exclusive",
        ModeName::Shared => "shared",
    };
    limit.map_or_else(|| name.to_owned(), |limit| format!("{name}({limit})"))
}
