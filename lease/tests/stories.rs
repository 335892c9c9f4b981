//! Replays the stories in `tests/stories/` and compares every answer. `UPDATE=1` writes new answers; read them, because a
//! story that was merely accepted proves nothing. README.txt there explains the script.
//!
//! Two tables replay every story side by side. The second is saved and restored before each entry.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::{env, fs};

use ringfence_lease::{Event, LeaseTable, Outcome, Request, SUPPORTED};
use ringfence_wire::{Revision, Token};

#[path = "stories/answers.rs"]
mod answers;
#[path = "stories/script.rs"]
mod script;

use script::{id, key, name, number, principal, request};

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
                Some(entry) => entry.push((line.to_owned(), Vec::new().into())),
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
                story.entry = Some(vec![(script.to_owned(), request(words))]);
            }
            ["rules", rules] => {
                story.end_entry();
                story.table.raise_rules(number(rules));
                story.restored.raise_rules(number(rules));
                story.lines.push(line.to_owned());
            }
            ["floor", revision] => {
                story.end_entry();
                let floor = Revision(number(revision));
                story.table.raise_revision(floor);
                story.restored.raise_revision(floor);
                story.lines.push(line.to_owned());
            }
            ["room", bytes] => {
                story.end_entry();
                story.max_bytes = Some(number(bytes));
                story.lines.push(line.to_owned());
            }
            words @ ["get" | "key" | "keys" | "fence" | "live" | "due" | "count" | "found", ..] => {
                story.end_entry();
                let answer = story.read(&story.table, words);
                assert_eq!(answer, story.read(&story.restored, words), "restored");
                story.answer(script, &answer);
            }
            words => story.entry.as_mut().expect(line).push((script.to_owned(), request(words))),
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
    /// The room for all leases, if the story limits it.
    max_bytes: Option<u64>,
    /// The lines of the entry that is being read, and their commands.
    entry: Option<Vec<(String, Request)>>,
    lines: Vec<String>,
}

impl Story {
    fn end_entry(&mut self) {
        let Some(lines) = self.entry.take() else { return };
        let requests: Vec<Request> = lines.iter().map(|(_, request)| request.clone()).collect();
        self.restored = LeaseTable::restore(&self.restored.snapshot()[..], SUPPORTED).unwrap();
        for table in [&mut self.table, &mut self.restored] {
            table.limit_bytes(self.max_bytes.unwrap_or(u64::MAX));
        }
        let (mut events, mut again) = (Vec::new(), Vec::new());
        let outcomes = self.table.apply_requests(self.at_ms, requests.clone(), &mut events);
        assert!(
            outcomes == self.restored.apply_requests(self.at_ms, requests, &mut again),
            "restored: other outcomes"
        );
        assert!(events == again, "restored: other events");
        assert!(self.table.snapshot() == self.restored.snapshot(), "restored: another table");
        let mut outcomes = outcomes.into_iter();
        for (script, request) in lines {
            let outcomes: Vec<Outcome> = outcomes.by_ref().take(request.commands.len()).collect();
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
            ["get", name, ..] => {
                let by = words.iter().position(|&word| word == "of").map(|at| principal(words[at + 1]));
                answers::state(&table.lease(by.as_ref(), id(name), now_ms))
            }
            ["found", name, ..] => {
                let by = words.iter().position(|&word| word == "of").map(|at| principal(words[at + 1]));
                answers::found(&table.found(by.as_ref(), &key(name), now_ms.unwrap_or(0)), script::name)
            }
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
