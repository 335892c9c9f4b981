use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Error;
use crate::program::complete;

/// A shell session in a document: the commands, and the output that it shows.
#[derive(Clone, Debug)]
pub struct Shown {
    script: String,
    expected: Vec<String>,
}

impl Shown {
    /// The blocks marked `sh` of `document` from the text `from` up to the text `to`. Lines that begin with `#> ` are the
    /// output, in which `…` stands for anything.
    pub fn new(document: &str, from: &str, to: &str) -> Self {
        let begin = document.find(from).expect("the document has this part");
        let part = &document[begin..];
        let part = &part[..part.find(to).expect("the part has this end")];
        let blocks = part.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
        let script: String = blocks.collect();
        let expected =
            script.lines().filter_map(|line| line.strip_prefix("#> ")).map(str::to_owned).collect();
        Self { script, expected }
    }

    /// Runs all of it in `folder` with these variables. Fails if the output differs, apart from blank lines and what
    /// PostgreSQL adds to an error.
    pub async fn play(
        &self,
        folder: &Path,
        variables: &[(&str, &str)],
        within: Duration,
    ) -> Result<(), Error> {
        let mut command = Command::new("bash");
        command.arg("-c").arg(&self.script).current_dir(folder).envs(variables.iter().copied());
        let seen = complete(command, within).await?.output;
        let added = ["HINT:", "CONTEXT:", "PL/pgSQL ", "SQL "];
        let lines: Vec<_> = seen
            .lines()
            .filter(|line| !line.trim().is_empty() && !added.iter().any(|added| line.starts_with(added)))
            .collect();
        let as_shown = lines.len() == self.expected.len()
            && lines.iter().zip(&self.expected).all(|(line, expected)| is_as(line, expected));
        match as_shown {
            true => Ok(()),
            false => Err(Error::Failed(format!("shown: {:#?}; seen:\n{seen}", self.expected))),
        }
    }
}

fn is_as(line: &str, expected: &str) -> bool {
    match expected.split_once('…') {
        None => line == expected,
        Some((begin, end)) => line.starts_with(begin) && line.ends_with(end),
    }
}
