//! `ladder.svg`: the table as a picture, on a background of its own; its parts, for pictures like it.

use std::fmt::Write as _;

use super::{CHECKED, Report, cells_in, meaning};
use crate::cell::Cell;
use crate::fault::Fault;

/// The width of the names.
pub const NAMES: usize = 292;
/// The width of a cell, and of all.
const CELL: usize = 46;
const WIDTH: usize = NAMES + 11 * CELL + 16;
/// The height of a row.
pub const ROW: usize = 28;
/// The height of the column heads, and of the head of a family.
const HEAD: usize = 200;
const FAMILY: usize = 30;
/// What the colours say: background, text, meaning.
const KINDS: [(&str, &str, &str, &str); 5] = [
    ("lost", "#b3261e", "#ffffff", "data lost"),
    ("stuck", "#f3c969", "#3a2a00", "stuck"),
    ("fenced", "#2b67a8", "#ffffff", "write rejected"),
    ("well", "#dff0e6", "#1d5c40", "nothing went wrong"),
    ("none", "#f1efe9", "#5c626a", "does not apply"),
];

impl Report<'_> {
    pub(super) fn picture(&self) -> String {
        let mut body = String::new();
        for (place, column) in self.columns.iter().enumerate() {
            let x = NAMES + place * CELL + CELL / 2;
            let (letters, name, y) = (column.letters(), column.name(), HEAD - 12);
            let turned = format!("translate({} {}) rotate(40)", x, y - 20);
            let _ = writeln!(
                body,
                "<text transform=\"{turned}\" text-anchor=\"end\" fill=\"#4c525a\">{name}</text>"
            );
            let _ = writeln!(
                body,
                "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" font-weight=\"bold\">{letters}</text>"
            );
        }
        let mut y = HEAD;
        for (family, rungs) in self.families() {
            let base = y + FAMILY - 9;
            let _ = writeln!(body, "<text x=\"16\" y=\"{base}\" font-weight=\"bold\">{family}</text>");
            y += FAMILY;
            for rung in rungs {
                body += &row(rung.number, rung.name, self.cells, (NAMES, CELL), y);
                y += ROW;
            }
        }
        body += &legend(y + 34);
        svg("Locks under faults", WIDTH, y + 84, &body)
    }
}

/// A picture of this size.
pub fn svg(title: &str, width: usize, height: usize, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-size=\"13\" \
         font-family=\"system-ui, 'DejaVu Sans', sans-serif\" fill=\"#22262b\">\n<title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// The name of a rung, and a cell of this width for each column, the first one at `x`.
pub(super) fn row(number: u8, name: &str, cells: &[Cell], (x, width): (usize, usize), y: usize) -> String {
    let base = y + 18;
    let mut row =
        format!("<text x=\"36\" y=\"{base}\" text-anchor=\"end\" fill=\"#5c626a\">{number}</text>\n");
    let _ = writeln!(row, "<text x=\"46\" y=\"{base}\">{name}</text>");
    if CHECKED.contains(&number) {
        let (x, y) = (NAMES - 14, y + 13);
        row += &dot(x, y);
    }
    row += &mark(number, &cells_in(cells, number, Fault::None), x, y, 11 * width);
    for (place, column) in Fault::COLUMNS.into_iter().enumerate() {
        row += &mark(number, &cells_in(cells, number, column), x + place * width, y, width);
    }
    row
}

/// The worst mark of a cell and its variants gives the colour.
fn mark(rung: u8, cells: &[&Cell], x: usize, y: usize, width: usize) -> String {
    let Some(worst) = cells.iter().map(|cell| cell.measured).min() else { return String::new() };
    let kind = KINDS.iter().find(|(kind, ..)| *kind == meaning(worst).1);
    let (_, fill, ink, _) = kind.unwrap_or(&("", "#ffffff", "#b3261e", ""));
    let (mut text, letters) = (Report::shown(cells), cells[0].fault.letters());
    if cells[0].fault == Fault::None {
        text += " with no fault at all";
    }
    let (left, top, width, middle, base) = (x + 2, y + 1, width - 4, x + width / 2, y + 18);
    format!(
        "<g id=\"{rung}-{letters}\"><rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{}\" rx=\"4\" fill=\"{fill}\"/>\
         <text x=\"{middle}\" y=\"{base}\" text-anchor=\"middle\" font-weight=\"bold\" fill=\"{ink}\">{text}</text></g>\n",
        ROW - 2
    )
}

/// Beside a lock whose storage checks.
fn dot(x: usize, y: usize) -> String {
    format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"#2b67a8\"/>\n")
}

/// What the colours and the dot say, in two lines.
pub fn legend(y: usize) -> String {
    let mut legend = String::new();
    let mut x = 16;
    for (_, fill, _, means) in KINDS {
        let (top, text) = (y - 13, x + 23);
        let _ = write!(
            legend,
            "<rect x=\"{x}\" y=\"{top}\" width=\"16\" height=\"16\" rx=\"3\" fill=\"{fill}\"/>"
        );
        let _ = writeln!(legend, "<text x=\"{text}\" y=\"{y}\">{means}</text>");
        x = text + 8 * means.len() + 24;
    }
    legend
        + &dot(24, y + 24)
        + &format!("<text x=\"39\" y=\"{}\">the storage checks each write</text>\n", y + 29)
}
