//! What is kept of a run, in a folder of its own:
//!
//! - `history.jsonl`: all of the [`History`], one object a line: `about`, then each `call`, `fault`, `sight`, `lag` and
//!   `mirror` sight, and `end` last. [`read`] has it back, to be judged again by checkers that are better by then.
//! - `history.edn`: its calls and faults as Jepsen writes them; see [`edn`](crate::edn).
//! - `results.json`: the [`Results`].
//! - `index.html`: the page for people; see [`report`](crate::report).

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::check::Results;
use crate::history::{About, Call, End, Fault, History, LagSight, MirrorSight, Sight};
use crate::{edn, report};

/// A line of `history.jsonl`.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    About(About),
    Call(Call),
    Fault(Fault),
    Sight(Sight),
    Lag(LagSight),
    Mirror(MirrorSight),
    End(Box<End>),
}

/// The same, to be written.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum LineOf<'a> {
    About(&'a About),
    Call(&'a Call),
    Fault(&'a Fault),
    Sight(&'a Sight),
    Lag(&'a LagSight),
    Mirror(&'a MirrorSight),
    End(&'a End),
}

/// Writes all of them into `folder`, which is made if it is not there.
pub fn write(folder: &Path, history: &History, results: &Results) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write_file(&folder.join("history.jsonl"), |out| write_lines(history, out))?;
    write_file(&folder.join("results.json"), |out| {
        serde_json::to_writer_pretty(&mut *out, results)?;
        Ok(writeln!(out)?)
    })?;
    write_file(&folder.join("history.edn"), |out| Ok(edn::write(history, out)?))?;
    write_file(&folder.join("index.html"), |out| report::write(history, results, out))
}

/// Reads the history that stands in `folder`.
pub fn read(folder: &Path) -> anyhow::Result<History> {
    let path = folder.join("history.jsonl");
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut history = History::default();
    let (mut begun, mut ended) = (false, false);
    for (index, text) in BufReader::new(file).lines().enumerate() {
        let place = || format!("{}, line {}", path.display(), index + 1);
        let line = serde_json::from_str(&text.with_context(place)?).with_context(place)?;
        ensure!(!ended, "{}: something stands behind the end", place());
        ensure!(begun || matches!(line, Line::About(_)), "{}: it does not begin with what was run", place());
        match line {
            Line::About(about) => {
                ensure!(!begun, "{}: a second run begins", place());
                (history.about, begun) = (about, true);
            }
            Line::Call(call) => history.calls.push(call),
            Line::Fault(fault) => history.faults.push(fault),
            Line::Sight(sight) => history.sights.push(sight),
            Line::Lag(sight) => history.lags.push(sight),
            Line::Mirror(sight) => history.mirror.push(sight),
            Line::End(end) => (history.end, ended) = (*end, true),
        }
    }
    ensure!(ended, "{}: it is cut off, as its end is not there", path.display());
    Ok(history)
}

fn write_lines(history: &History, out: &mut impl Write) -> anyhow::Result<()> {
    let lines = std::iter::once(LineOf::About(&history.about))
        .chain(history.calls.iter().map(LineOf::Call))
        .chain(history.faults.iter().map(LineOf::Fault))
        .chain(history.sights.iter().map(LineOf::Sight))
        .chain(history.lags.iter().map(LineOf::Lag))
        .chain(history.mirror.iter().map(LineOf::Mirror))
        .chain(std::iter::once(LineOf::End(&history.end)));
    for line in lines {
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}

fn write_file(
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        content(&mut out)?;
        Ok::<_, anyhow::Error>(out.flush()?)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::invented;

    #[test]
    fn a_history_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let history = invented::history(3, 1_000);
        let results = invented::results(&history);
        write(&folder.path().join("store/run"), &history, &results).unwrap();
        let read = read(&folder.path().join("store/run")).unwrap();
        for (name, written, read) in [
            ("calls", history.calls.len(), read.calls.len()),
            ("faults", history.faults.len(), read.faults.len()),
            ("sights", history.sights.len(), read.sights.len()),
            ("lags", history.lags.len(), read.lags.len()),
            ("mirror", history.mirror.len(), read.mirror.len()),
            ("changes", history.end.changes.len(), read.end.changes.len()),
        ] {
            assert!(written > 0, "the invented history has {name}");
            assert_eq!(written, read, "{name}");
        }
        assert!(serde_json::to_value(&history).unwrap() == serde_json::to_value(&read).unwrap());
        let text = std::fs::read_to_string(folder.path().join("store/run/results.json")).unwrap();
        let again: Results = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&results).unwrap(), serde_json::to_value(&again).unwrap());
    }

    #[test]
    fn a_history_that_is_cut_off_is_refused_and_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let history = invented::history(3, 10);
        write(folder.path(), &history, &invented::results(&history)).unwrap();
        let path = folder.path().join("history.jsonl");
        let whole = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = whole.lines().collect();
        let refusal = |text: String| {
            std::fs::write(&path, text).unwrap();
            format!("{:#}", read(folder.path()).unwrap_err())
        };
        assert!(refusal(lines[..lines.len() - 1].join("\n")).contains("it is cut off"));
        assert!(refusal(whole[..lines[0].len() + 20].to_owned()).contains("line 2"));
        assert!(refusal(lines[1..].join("\n")).contains("does not begin"));
        assert!(refusal(format!("{whole}{whole}")).contains("behind the end"));
        assert!(refusal(String::new()).contains("it is cut off"));
    }
}
