//! Tells the stories in `tests/stories/` again and compares every answer. Run with `UPDATE=1` to write the answers anew,
//! and then read them: a story that was merely accepted proves nothing. README.txt there explains the script.
//!
//! Every story is told twice side by side: by a table, and by one that is saved and restored before each entry.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::{env, fs};

use ringfence_lease::{Acquire, Attachment, Command, Event, LeaseTable, Outcome};
use ringfence_wire::{Holder, Key, LeaseId, Metadata, Mode, Revision, Token, Ttl, Wait};

#[path = "stories/words.rs"]
mod words;

#[test]
fn every_story_is_told_as_it_stands() {
    let mut told = 0;
    for file in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stories")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") || path.ends_with("README.txt") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let retold = retell(&text);
        told += text.lines().filter(|line| line.starts_with("# ")).count();
        if env::var_os("UPDATE").is_some() {
            fs::write(&path, &retold).unwrap();
            continue;
        }
        for (index, (stands, is_now)) in text.lines().zip(retold.lines()).enumerate() {
            assert_eq!(stands, is_now, "{}:{}: as it stands, and as it is now", path.display(), index + 1);
        }
        assert_eq!(text, retold, "{}", path.display());
    }
    assert!(told >= 40, "only {told} stories were found");
}

fn retell(text: &str) -> String {
    let mut story = Story::default();
    for line in text.lines() {
        let script = line.split("->").next().unwrap_or_default().trim_end();
        let mut words = script.split_whitespace().peekable();
        match words.peek().copied() {
            Some("#") if line.starts_with(' ') => match &mut story.entry {
                Some(entry) => entry.push((line.to_owned(), Vec::new())),
                None => story.told.push(line.to_owned()),
            },
            None | Some("#") => {
                story.end_entry();
                story = Story { told: story.told, ..Story::default() };
                story.told.push(line.trim_end().to_owned());
            }
            Some("!!") => {}
            Some("at") => {
                story.end_entry();
                story.at_ms = number(words.nth(1));
                let commands = story.commands(&words.collect::<Vec<_>>());
                story.entry = Some(vec![(script.to_owned(), commands)]);
            }
            Some("get" | "key" | "keys" | "fence" | "live" | "due" | "count") => {
                story.end_entry();
                let answer = story.read(&words.collect::<Vec<_>>());
                story.answer(script, &answer);
            }
            Some(_) => {
                let commands = story.commands(&words.collect::<Vec<_>>());
                story.entry.as_mut().expect(line).push((script.to_owned(), commands));
            }
        }
    }
    story.end_entry();
    story.told.join("\n") + "\n"
}

#[derive(Default)]
struct Story {
    table: LeaseTable,
    restored: LeaseTable,
    at_ms: u64,
    /// The lines of the entry that is being read, and what they ask for.
    entry: Option<Vec<(String, Vec<Command>)>>,
    names: BTreeMap<LeaseId, String>,
    told: Vec<String>,
}

impl Story {
    /// `each 1..3 COMMAND` is the command three times, with the number in place of `#`.
    fn commands(&mut self, words: &[&str]) -> Vec<Command> {
        match words {
            [] => Vec::new(),
            ["each", range, command @ ..] => {
                let (from, to) = range.split_once("..").expect("each FROM..TO");
                let numbers = number::<u64>(Some(from))..=number(Some(to));
                let with =
                    |n: u64| command.iter().map(|word| word.replace('#', &n.to_string())).collect::<Vec<_>>();
                numbers
                    .map(|n| self.command(&with(n).iter().map(|word| &**word).collect::<Vec<_>>()))
                    .collect()
            }
            command => vec![self.command(command)],
        }
    }

    fn command(&mut self, words: &[&str]) -> Command {
        let option = |name| words.iter().position(|&word| word == name).map(|at| words.get(at + 1).copied());
        let ttl = option("ttl").map(|ms| Ttl::from_ms(number(ms)).unwrap());
        match words[0] {
            "start" => Command::Start { revision: Revision(number(words.get(1).copied())) },
            "renew" => Command::Renew { lease_id: self.id(words[1]), ttl },
            "release" => Command::Release { lease_id: self.id(words[1]) },
            "revoke" => Command::Revoke { key: key(words[1]), token: Token(number(words.get(2).copied())) },
            "detach" => Command::Detach {
                lease_id: self.id(words[1]),
                attachment: Attachment(number(words.get(2).copied())),
            },
            "acquire" => Command::Acquire(Box::new(Acquire {
                lease_id: self.id(words[1]),
                claims: words[2..]
                    .iter()
                    .take_while(|word| !words::OPTIONS.contains(word))
                    .map(|w| claim(w))
                    .collect(),
                ttl: ttl.unwrap_or_default(),
                wait: option("wait").map_or(Wait::default(), |ms| Wait::from_ms(number(ms)).unwrap()),
                keep_place: option("keep").is_some(),
                holder: option("by").flatten().and_then(Holder::new),
                metadata: option("with").map_or(Metadata::default(), |pair| metadata(pair.unwrap())),
                attachment: Attachment(option("as").map_or(0, number)),
            })),
            other => panic!("no command is called {other}"),
        }
    }

    fn id(&mut self, name: &str) -> LeaseId {
        let bits = name.bytes().fold(0, |bits, byte| bits << 8 | u128::from(byte));
        let id = LeaseId::from_u128(bits).unwrap();
        self.names.insert(id, name.to_owned());
        id
    }

    fn end_entry(&mut self) {
        let Some(lines) = self.entry.take() else { return };
        let commands: Vec<Command> = lines.iter().flat_map(|(_, commands)| commands.clone()).collect();
        self.restored = LeaseTable::restore(&self.restored.snapshot()).unwrap();
        let (mut events, mut again) = (Vec::new(), Vec::new());
        let mut outcomes = self.table.apply(self.at_ms, commands.clone(), &mut events).into_iter();
        assert!(
            outcomes.as_slice() == self.restored.apply(self.at_ms, commands, &mut again),
            "restored: other outcomes"
        );
        assert!(events == again, "restored: other events");
        assert!(self.table.snapshot() == self.restored.snapshot(), "restored: another table");
        for (script, commands) in lines {
            let outcomes: Vec<Outcome> = outcomes.by_ref().take(commands.len()).collect();
            match outcomes.as_slice() {
                [] => self.told.push(script),
                [one] => self.answer(&script, &words::outcome(one)),
                many => self.answer(&script, &words::counted(many.iter().map(words::outcome_kind))),
            }
        }
        for event in self.tell(&events) {
            self.told.push(format!("{:>width$} {event}", "!!", width = words::COLUMN + 2));
        }
    }

    fn tell(&self, events: &[Event]) -> Vec<String> {
        match events {
            [.., last] if events.len() > 12 => {
                let kinds = words::counted(events.iter().map(|event| words::change(event.change)));
                vec![format!("{kinds}, up to revision {}", last.revision)]
            }
            few => few.iter().map(|event| words::event(event, &self.names[&event.lease_id])).collect(),
        }
    }

    fn read(&mut self, words: &[&str]) -> String {
        let now = match words {
            [.., "now", ms] => Some(number(Some(ms))),
            [.., "local"] => None,
            _ => Some(self.at_ms),
        };
        let table = &self.table;
        match *words {
            ["get", name, ..] => {
                let id = self.id(name);
                words::state(&self.table.lease(id, now))
            }
            ["key", name, ..] => words::key_view(&table.key(&key(name), now)),
            ["keys", limit, ref more @ ..] => {
                let prefix = more.first().and_then(|word| word.strip_suffix('*')).unwrap_or_default();
                let after = more.iter().position(|&word| word == "after").map(|at| more[at + 1]);
                let (page, next) = table.keys(prefix, after, number(Some(limit)), now);
                let page: Vec<_> = page.iter().map(|view| view.key.as_str()).collect();
                format!(
                    "{}{}",
                    page.join(" "),
                    next.map_or(String::new(), |next| format!(", more after {next}"))
                )
            }
            ["fence", name] => table.fence(&key(name)).to_string(),
            ["live", name, token] => table.is_live(&key(name), Token(number(Some(token)))).to_string(),
            ["due"] => table.next_due_ms().map_or("never".to_owned(), |ms| ms.to_string()),
            ["count"] => {
                let (live, waiters, ended, keys) =
                    (table.live(), table.waiters(), table.remembered(), table.keys_len());
                format!(
                    "{live} live, {waiters} waiting, {ended} remembered, {keys} keys; at {}, revision {}",
                    table.at_ms(),
                    table.revision()
                )
            }
            _ => panic!("what is {words:?}?"),
        }
    }

    fn answer(&mut self, script: &str, answer: &str) {
        self.told.push(format!("{script:<width$} -> {answer}", width = words::COLUMN).trim_end().to_owned());
    }
}

fn number<T: std::str::FromStr>(word: Option<&str>) -> T {
    word.and_then(|word| word.replace('_', "").parse().ok()).unwrap_or_else(|| panic!("no number: {word:?}"))
}

fn key(word: &str) -> Key {
    Key::new(word).unwrap()
}

/// `a`, `a=shared` or `a=shared/2`.
fn claim(word: &str) -> (Key, Mode) {
    match word.split_once('=') {
        None => (key(word), Mode::Exclusive),
        Some((name, mode)) => {
            let limit = mode.split_once('/').and_then(|(_, limit)| NonZeroU32::new(number(Some(limit))));
            (key(name), Mode::Shared { limit })
        }
    }
}

fn metadata(pair: &str) -> Metadata {
    let (name, value) = pair.split_once('=').expect("NAME=VALUE");
    Metadata::new(BTreeMap::from([(name.to_owned(), value.to_owned())])).unwrap()
}
