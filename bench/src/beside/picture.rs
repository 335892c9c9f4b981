//! The table as a picture, in the style of the ladder's.

use std::fmt::Write as _;

use ringfence_ladder::Fault;
use ringfence_ladder::picture::{NAMES, ROW, legend, svg};

use super::{Beside, shown};

/// Where the times to the next holder and the cells begin.
const TIMES: usize = NAMES + 170;
const CELLS: usize = TIMES + 3 * TIME;
/// The widths of a time, a cell, and all.
const TIME: usize = 56;
const CELL: usize = 40;
const WIDTH: usize = CELLS + 11 * CELL + 16;
/// The width of the longest bar, and the height of the column heads.
const BAR: f64 = 110.0;
const HEAD: usize = 64;

impl Beside {
    pub(super) fn picture(&self) -> String {
        let mut body = self.heads();
        let per_s = self.rows.iter().filter_map(|row| row.per_s.median());
        let most = per_s.fold(1.0, f64::max);
        let mut y = HEAD;
        for row in &self.rows {
            let (top, base) = (y + 5, y + 18);
            let long = (row.per_s.median().unwrap_or(0.0) / most * BAR).round();
            let _ = writeln!(
                body,
                "<rect class=\"bar\" x=\"{NAMES}\" y=\"{top}\" width=\"{long}\" height=\"18\" rx=\"2\" fill=\"#8a94a0\"/>"
            );
            body += &text(NAMES as f64 + long + 6.0, base, "start", &row.per_s.text());
            for (place, time) in row.beyond_s.into_iter().enumerate() {
                body += &text(end_of_time(place), base, "end", &shown(time));
            }
            body += &self.ladder.row(row.rung, &row.name, CELLS, CELL, y);
            y += ROW;
        }
        body += &legend(y + 34);
        let ttl_s = self.ttl_s;
        let times = format!(
            "next holder: beyond the time to live of {ttl_s} s; holder gone, and the leader killed or stopped as well"
        );
        let versions = format!("under faults: {}", self.ladder.versions().join(", "));
        for (line, words) in [times, versions].iter().enumerate() {
            body += &text(NAMES as f64, y + 63 + 24 * line, "start", words);
        }
        svg("Locks: their speed, and what they lose under faults", WIDTH, y + 108, &body)
    }

    fn heads(&self) -> String {
        let bold =
            |x: usize, words: &str| format!("<text x=\"{x}\" y=\"28\" font-weight=\"bold\">{words}</text>\n");
        let mut heads = bold(NAMES, &format!("cycles/s, {} clients", self.clients));
        heads += &bold(TIMES + 20, "next holder after, s");
        heads += &bold(CELLS + 20, "under faults");
        for (place, loss) in ["gone", "killed", "stopped"].into_iter().enumerate() {
            heads += &text(end_of_time(place), HEAD - 12, "end", loss);
        }
        for (place, column) in Fault::COLUMNS.into_iter().enumerate() {
            let x = CELLS + place * CELL + CELL / 2;
            heads += &text(x as f64, HEAD - 12, "middle", column.letters());
        }
        heads
    }
}

fn end_of_time(place: usize) -> f64 {
    (TIMES + (place + 1) * TIME - 12) as f64
}

fn text(x: f64, y: usize, anchor: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>\n")
}
