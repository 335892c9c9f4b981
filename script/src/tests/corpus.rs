//! Scripts with the answers of Redis, in `corpus.txt`.

use super::answer;

/// The scripts and their answers.
pub(super) fn corpus() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut script = Vec::new();
    for line in include_str!("corpus.txt").lines() {
        match line.strip_prefix("--> ") {
            Some(answer) => found.push((std::mem::take(&mut script).join("\n"), answer.to_owned())),
            None if line.is_empty() && script.is_empty() => {}
            None => script.push(line),
        }
    }
    found
}

/// An answer without the parts of errors that differ: Redis also names the variable, and words syntax errors differently.
pub(super) fn normal(answer: &str) -> String {
    if let Some((before, after)) = answer.split_once("compiling script") {
        let line = after.split(": ").nth(1).unwrap_or_default();
        return format!("{before}compiling script {line}");
    }
    let mut text = answer.to_owned();
    for kind in ["local", "global", "field", "upvalue", "method", "constant"] {
        while let Some(at) = text.find(&format!(" {kind} '")) {
            let Some((_, rest)) = text[at..].split_once("' (") else { break };
            text = match rest.split_once(')') {
                Some((inner, after)) => format!("{} {inner}{after}", &text[..at]),
                None => break,
            };
        }
    }
    text
}

#[test]
fn scripts_answer_as_in_redis() {
    let corpus = corpus();
    assert!(corpus.len() > 500, "only {} scripts were found", corpus.len());
    let mut wrong = Vec::new();
    for (script, expected) in corpus {
        let found = answer(script.as_bytes());
        if normal(&found) != normal(&expected) {
            wrong.push(format!("{script}\n  Redis: {expected}\n  found: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
}
