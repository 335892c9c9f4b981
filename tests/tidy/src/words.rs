//! Words that the glossary replaces by others.

use crate::markdown::table;
use crate::tree::Tree;

const GLOSSARY: &str = "docs/glossary.md";

/// Places of words that the table in the glossary says not to use, as `path:line: word (use …)`.
///
/// A word is found in names too: `door thread` in `door_threads` and in `--door-threads`.
pub fn replaced_words(tree: &Tree) -> Vec<String> {
    let rows = table(tree.text(GLOSSARY).unwrap_or_default(), "not");
    let words: Vec<(Vec<String>, &str)> = rows.iter().map(|row| (parts(row[0]), row[1])).collect();
    let mut found = Vec::new();
    let all = tree.under("").into_iter().filter(|path| {
        [".rs", ".md", ".js", ".html"].iter().any(|end| path.ends_with(end))
            && *path != GLOSSARY
            && !path.starts_with("tests/tidy/")
    });
    for path in all {
        for (number, line) in tree.text(path).unwrap_or_default().lines().enumerate() {
            // A word does not go on behind a sign.
            let phrases = line.split(|c: char| !c.is_alphanumeric() && !" _-".contains(c)).map(parts);
            for phrase in phrases.filter(|phrase| !phrase.is_empty()) {
                let used = words
                    .iter()
                    .filter(|(word, _)| phrase.windows(word.len()).any(|part| is_word(part, word)));
                found.extend(used.map(|(word, instead)| {
                    format!("{path}:{}: {} (use {instead})", number + 1, word.join(" "))
                }));
            }
        }
    }
    found
}

/// Terms of the glossary that do not stand in the order of the alphabet, and those without a place.
pub fn disordered_glossary(tree: &Tree) -> Vec<String> {
    let text = tree.text(GLOSSARY).unwrap_or_default();
    let entries: Vec<&str> = text.split("\n- **").skip(1).collect();
    let term = |entry: &str| entry.split("**").next().unwrap_or_default().to_lowercase();
    let unsorted = entries.windows(2).filter(|pair| term(pair[0]) >= term(pair[1]));
    let mut found: Vec<String> =
        unsorted.map(|pair| format!("{} stands before {}", term(pair[0]), term(pair[1]))).collect();
    let placeless =
        entries.iter().filter(|entry| !entry.split("\n\n").next().unwrap_or_default().contains("(`"));
    found.extend(placeless.map(|entry| format!("{} has no place", term(entry))));
    found
}

/// Whether `part` is `word`, or several of them.
fn is_word(part: &[String], word: &[String]) -> bool {
    let singular = part.last().and_then(|last| last.strip_suffix('s'));
    part == word
        || part.split_last().map(|(_, rest)| rest) == word.split_last().map(|(_, rest)| rest)
            && singular.is_some()
            && singular == word.last().map(String::as_str)
}

/// The words of a text in lower case. Names like `doorThreads` and `DOOR_THREADS` are two words.
fn parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let mut last_is_lower = false;
        let mut from = 0;
        for (at, c) in word.char_indices() {
            if c.is_uppercase() && last_is_lower {
                parts.push(word[from..at].to_lowercase());
                from = at;
            }
            last_is_lower = c.is_lowercase();
        }
        parts.push(word[from..].to_lowercase());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_word_is_found_in_text_and_in_names() {
        let glossary = "| not | but |\n|---|---|\n| door thread | HTTP thread |\n| lanes | batching |\n";
        let tree = Tree::of(&[
            (GLOSSARY, glossary),
            (
                "a.rs",
                "// A door. Thread (door, thread)\n// A door thread.\nfn door_thread() {}\nstruct DoorThreads;\nlet x = DOOR_THREAD;",
            ),
            ("b.md", "Threads of the door; planes\nUse Lanes"),
        ]);
        let at = |line: u8| format!("a.rs:{line}: door thread (use HTTP thread)");
        let expected = [at(2), at(3), at(4), at(5), "b.md:2: lanes (use batching)".to_owned()];
        assert_eq!(replaced_words(&tree), expected);
    }

    #[test]
    fn a_term_out_of_order_and_one_without_a_place_are_found() {
        let glossary = "# G\n\n- **key** – a name (`a.rs`).\n- **fence** – a number (`b.rs`).\n- **lease** – a right.\n\n(`c.rs`)";
        let tree = Tree::of(&[(GLOSSARY, glossary)]);
        assert_eq!(disordered_glossary(&tree), ["key stands before fence", "lease has no place"]);
    }
}
