//! Figures of several rounds, and how they are shown.

use std::fmt::{Display, Write as _};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::args::Output;

/// Prints figures, and writes them as JSON if `output` says so.
pub(crate) fn show(figures: &(impl Display + Serialize), output: &Output) -> Result<()> {
    println!("{figures}");
    let Some(path) = &output.json else { return Ok(()) };
    std::fs::write(path, serde_json::to_vec_pretty(figures)?).with_context(|| path.display().to_string())
}

/// One figure, measured several times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Option<f64>>")]
pub(crate) struct Figure(Vec<f64>);

impl From<Vec<Option<f64>>> for Figure {
    /// JSON has `null` for what is not a number.
    fn from(values: Vec<Option<f64>>) -> Self {
        let mut figure = Self::default();
        values.into_iter().flatten().for_each(|value| figure.push(value));
        figure
    }
}

impl Figure {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
        self.0.sort_by(f64::total_cmp);
    }

    /// `None` where it was never measured.
    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(2, 4)
    }

    /// Between two values, in proportion.
    pub(crate) fn quantile(&self, part: usize, of: usize) -> Option<f64> {
        let place = self.0.len().checked_sub(1)? * part;
        let [below, above] = [place / of, place.div_ceil(of)].map(|place| self.0.get(place));
        let (below, above) = below.zip(above)?;
        Some(below + (above - below) * (place % of) as f64 / of as f64)
    }

    /// The median, with three significant digits.
    pub(crate) fn text(&self) -> String {
        self.median().map_or_else(|| "-".to_owned(), digits)
    }

    /// The median, the quartiles, and the least and the most.
    pub(crate) fn quartiles(&self) -> [String; 3] {
        let span = |[from, to]: [Option<f64>; 2]| {
            from.zip(to)
                .map_or_else(|| "-".to_owned(), |(from, to)| format!("{} to {}", digits(from), digits(to)))
        };
        let quartiles = [1, 3].map(|part| self.quantile(part, 4));
        [self.text(), span(quartiles), span([self.0.first(), self.0.last()].map(Option::<&f64>::copied))]
    }

    /// The median, and the least and the most where it was measured more than once.
    pub(crate) fn spread(&self) -> String {
        match self.0.as_slice() {
            [least, .., most] => format!("{} ({} to {})", self.text(), digits(*least), digits(*most)),
            _ => self.text(),
        }
    }
}

/// The quotient of two medians.
pub(crate) fn ratio(figure: &Figure, to: &Figure) -> String {
    figure.median().zip(to.median()).map_or_else(|| "-".to_owned(), |(figure, to)| digits(figure / to))
}

/// With three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => {
            let whole = format!("{value:.0}");
            let mut text = String::new();
            for (place, digit) in whole.chars().enumerate() {
                if place > 0 && (whole.len() - place).is_multiple_of(3) && digit.is_ascii_digit() {
                    text.push(',');
                }
                text.push(digit);
            }
            text.replace("-,", "-")
        }
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Rows under their headings: the first column aligned to the left, the others to the right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    for row in [&headings].into_iter().chain(rows) {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_medians_with_three_digits() {
        let mut figure = Figure::default();
        assert_eq!(figure.text(), "-");
        for value in [30.0, 10.0, 20.0] {
            figure.push(value);
        }
        assert_eq!(figure.spread(), "20.0 (10.0 to 30.0)");
        assert_eq!(figure.quartiles(), ["20.0", "15.0 to 25.0", "10.0 to 30.0"]);
        figure.push(0.0);
        assert_eq!(figure.quartiles(), ["15.0", "7.50 to 22.5", "0 to 30.0"]);
        let texts = [0.0, 0.0123, 1.234, 12.34, 999.6, 1_234.5, 1_234_567.0, -123_456.0].map(digits);
        assert_eq!(texts, ["0", "0.012", "1.23", "12.3", "1,000", "1,234", "1,234,567", "-123,456"]);
    }

    #[test]
    fn columns_are_aligned_with_their_headings() {
        let rows = [vec!["a".to_owned(), "12".to_owned()], vec!["long".to_owned(), "3".to_owned()]];
        assert_eq!(table(&["", "rate"], &rows), "      rate\na       12\nlong     3\n");
    }
}
