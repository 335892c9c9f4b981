//! Replays the stories in `tests/stories/` and compares every answer. `UPDATE=1` writes new answers; read them, because a
//! story that was merely accepted proves nothing. README.txt there explains the script.
//!
//! Two tables replay every story side by side. The second is saved and restored before each entry.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{env, fs};

use ringfence_lease::{Command, Event, LeaseTable, Outcome, SUPPORTED};
use ringfence_wire::Token;

#[path = "stories/answers.rs"]
mod answers;
#[path = "stories/script.rs"]
mod script;

use script::{commands, id, key, name, number};

#[test]
fn every_story_replays_as_written() {
    let mut replayed = 0;
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") || path.ends_with("README.txt") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let now = replay(&text);
        replayed += text.lines().filter(|line| line.starts_with("# ")).count();
        if env::var_os("UPDATE").is_some() {
            fs::write(&path, &now).unwrap();
            continue;
        }
        for (index, (written, now)) in text.lines().zip(now.lines()).enumerate() {
            assert_eq!(written, now, "{}:{}: as written, and now", path.display(), index + 1);
        }
        assert_eq!(text, now, "{}", path.display());
    }
    assert!(replayed >= 40, "only {replayed} stories were found");
}

fn replay(text: &str) -> String {
    let mut story = Story::default();
    for line in text.lines() {
        let script = line.split("->").next().unwrap_or_default().trim_end();
        match script.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["#", ..] if line.starts_with(' ') => match &mut story.entry {
                Some(entry) => entry.push((line.to_owned(), Vec::new())),
                None => story.lines.push(line.to_owned()),
            },
            [] | ["#", ..] => {
                story.end_entry();
                story = Story { lines: story.lines, ..Story::default() };
                story.lines.push(line.trim_end().to_owned());
            }
            ["!!", ..] => {}
            ["at", at_ms, words @ ..] => {
                story.end_entry();
                story.at_ms = number(at_ms);
                story.entry = Some(vec![(script.to_owned(), commands(words))]);
            }
            words @ ["get" | "key" | "keys" | "fence" | "live" | "due" | "count", ..] => {
                story.end_entry();
                let answer = story.read(&story.table, words);
                assert_eq!(answer, story.read(&story.restored, words), "restored");
                story.answer(script, &answer);
            }
            words => story.entry.as_mut().expect(line).push((script.to_owned(), commands(words))),
        }
    }
    story.end_entry();
    story.lines.join("\n") + "\n"
}

#[derive(Default)]
struct Story {
    table: LeaseTable,
    restored: LeaseTable,
    at_ms: u64,
    /// The lines of the entry that is being read, and their commands.
    entry: Option<Vec<(String, Vec<Command>)>>,
    lines: Vec<String>,
}

impl Story {
    fn end_entry(&mut self) {
        let Some(lines) = self.entry.take() else { return };
        let commands: Vec<Command> = lines.iter().flat_map(|(_, commands)| commands.clone()).collect();
        self.restored = LeaseTable::restore(&self.restored.snapshot()[..], SUPPORTED).unwrap();
        let (mut events, mut again) = (Vec::new(), Vec::new());
        let outcomes = self.table.apply(self.at_ms, commands.clone(), &mut events);
        assert!(
            outcomes == self.restored.apply(self.at_ms, commands, &mut again),
            "restored: other outcomes"
        );
        assert!(events == again, "restored: other events");
        assert!(self.table.snapshot() == self.restored.snapshot(), "restored: another table");
        let mut outcomes = outcomes.into_iter();
        for (script, commands) in lines {
            let outcomes: Vec<Outcome> = outcomes.by_ref().take(commands.len()).collect();
            match outcomes.as_slice() {
                [] => self.lines.push(script),
                [one] => self.answer(&script, &answers::outcome(one)),
                many => self.answer(&script, &answers::counted(many.iter().map(answers::outcome_kind))),
            }
        }
        for event in describe(&events) {
            let line = format!("{:>width$} {event}", "!!", width = answers::COLUMN + 2);
            self.lines.push(line.trim_end().to_owned());
        }
    }

    fn read(&self, table: &LeaseTable, words: &[&str]) -> String {
        let now_ms = match words {
            [.., "now", ms] => Some(number(ms)),
            [.., "local"] => None,
            _ => Some(self.at_ms),
        };
        match *words {
            ["get", name, ..] => answers::state(&table.lease(id(name), now_ms)),
            ["key", name, ..] => answers::key_view(&table.key(&key(name), now_ms)),
            ["keys", limit, ref more @ ..] => {
                let prefix = more.first().and_then(|word| word.strip_suffix('*')).unwrap_or_default();
                let after = more.iter().position(|&word| word == "after").map(|at| more[at + 1]);
                answers::page(&table.keys(prefix, after, number(limit), now_ms))
            }
            ["fence", name] => table.fence(&key(name)).to_string(),
            ["live", name, token] => table.is_live(&key(name), Token(number(token))).to_string(),
            ["due"] => table.next_due_ms().map_or("never".to_owned(), |ms| ms.to_string()),
            ["count"] => answers::counts(table),
            _ => panic!("what is {words:?}?"),
        }
    }

    fn answer(&mut self, script: &str, answer: &str) {
        self.lines
            .push(format!("{script:<width$} -> {answer}", width = answers::COLUMN).trim_end().to_owned());
    }
}

/// Many changes are only counted.
fn describe(events: &[Event]) -> Vec<String> {
    match events {
        [.., last] if events.len() > 12 => {
            let kinds = answers::counted(events.iter().map(|event| answers::change(event.change)));
            vec![format!("{kinds}, up to revision {}", last.revision)]
        }
        few => few.iter().map(|event| answers::event(event, &name(event.lease_id))).collect(),
    }
}
