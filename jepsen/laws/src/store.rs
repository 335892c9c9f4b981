//! What is kept of a run, in a folder of its own:
//!
//! - `history.json`: the whole [`History`]. [`read`] loads it, so that later versions of the checkers can judge it again.
//! - `results.json`: the [`Results`].
//! - `index.html`: the page for people; see [`report`](crate::report).

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::Context;

use crate::check::Results;
use crate::history::History;
use crate::report;

/// Writes a run into `folder`, which is created if it is missing.
pub fn write(folder: &Path, history: &History, results: &Results) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write_file(&folder.join("history.json"), |out| Ok(serde_json::to_writer(out, history)?))?;
    write_file(&folder.join("results.json"), |out| Ok(serde_json::to_writer_pretty(out, results)?))?;
    write_file(&folder.join("index.html"), |out| report::write(history, results, out))
}

/// Reads the history that is stored in `folder`.
pub fn read(folder: &Path) -> anyhow::Result<History> {
    let path = folder.join("history.json");
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    serde_json::from_reader(BufReader::new(file)).with_context(|| format!("cannot read {}", path.display()))
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
    use crate::report::tests::invented;

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
    fn a_truncated_history_is_refused_and_the_error_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let history = invented::history(3, 10);
        write(folder.path(), &history, &invented::results(&history)).unwrap();
        let path = folder.path().join("history.json");
        let whole = std::fs::read_to_string(&path).unwrap();
        for text in ["".to_owned(), whole[..whole.len() - 1].to_owned(), whole.repeat(2)] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(folder.path()).unwrap_err());
            assert!(error.contains("history.json: ") && error.contains("line 1"), "{error}");
        }
    }
}
