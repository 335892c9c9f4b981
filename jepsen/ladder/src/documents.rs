//! What the documents say of cells is what is expected of them.

use crate::{Fault, Mark, expected};

const README: &str = include_str!("../../../README.md");
const DEBATE: &str = include_str!("../../../docs/debate.md");
const PICTURE: &str = include_str!("../../../docs/ladder.svg");

/// A fault under which a rung is played, and the mark that is expected.
fn cell(rung: &str, letters: &str) -> (Fault, Mark) {
    let cells = expected::cells(rung.parse().unwrap());
    let cell = cells.into_iter().find(|(fault, _)| fault.is_called(letters));
    cell.unwrap_or_else(|| panic!("there is no cell {rung} {letters}"))
}

#[test]
fn the_debate_names_cells_that_its_commands_play_and_their_marks() {
    let sections: Vec<_> = DEBATE.split("\nladder --only ").skip(1).collect();
    assert!(sections.len() >= 10, "{} commands", sections.len());
    for section in sections {
        let (command, text) = section.split_once('\n').unwrap();
        let (rungs, faults) = command.split_once(" --fault ").unwrap();
        let (rungs, faults): (Vec<_>, Vec<_>) = (rungs.split(',').collect(), faults.split(',').collect());
        for rung in &rungs {
            for letters in &faults {
                cell(rung, letters);
            }
        }
        let mut named = 0;
        for span in text.split('`') {
            let [rung, letters, "=", mark] = span.split(' ').collect::<Vec<_>>()[..] else { continue };
            let (fault, expected) = cell(rung, letters);
            assert_eq!(mark, expected.to_string(), "{span}");
            assert!(
                rungs.contains(&rung) && faults.iter().any(|it| fault.is_called(it)),
                "{span}: {command}"
            );
            named += 1;
        }
        assert!(named > 0, "no cell is named after {command}");
    }
}

/// The name of a column ends with the letters of its fault. A cell begins with the mark for this fault; marks for variants follow.
#[test]
fn the_table_of_the_readme_is_as_expected() {
    let (_, section) = README.split_once("## From SETNX").unwrap();
    let rows: Vec<Vec<_>> = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let (columns, rows) = (&rows[0][1..], &rows[2..]);
    assert_eq!((columns.len(), rows.len()), (5, 10));
    for row in rows {
        let rung = row[0].split(' ').next().unwrap();
        for (column, shown) in columns.iter().zip(&row[1..]) {
            let column = column.rsplit(' ').next().unwrap();
            let (fault, mark) = cell(rung, column);
            let mut shown = shown.split('/');
            assert_eq!(shown.next(), Some(&*mark.to_string()), "{row:?} {column}");
            for variant in shown {
                let cells = expected::cells(rung.parse().unwrap());
                let mut of_column =
                    cells.iter().filter(|(other, _)| other.column() == fault && *other != fault);
                assert!(of_column.any(|(_, mark)| mark.to_string() == variant), "{row:?} {column}");
            }
        }
    }
}

#[test]
fn the_picture_shows_each_mark_as_expected() {
    let cells: Vec<_> = PICTURE.split("<g id=\"").skip(1).collect();
    assert!(cells.len() > 100, "{} cells", cells.len());
    for text in cells {
        let (rung, rest) = text.split_once('-').unwrap();
        let (letters, rest) = rest.split_once('"').unwrap();
        let shown = rest.split("</text>").next().unwrap().rsplit('>').next().unwrap();
        let (_, mark) = cell(rung, letters);
        assert_eq!(shown.split(['/', ' ']).next(), Some(&*mark.to_string()), "{rung} {letters}");
    }
}
