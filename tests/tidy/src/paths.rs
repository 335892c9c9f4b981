//! Paths that documents and comments name, and names that documents look for there.

use crate::markdown::{prose, quoted};
use crate::tree::Tree;

/// What a run creates, what belongs to openraft, and a name to be replaced: no file here has these paths.
const NOT_HERE: [&str; 7] =
    ["store/", "target/", "openraft/", "core/", "progress/", "replication/", "jepsen/mutants/NAME"];

/// The paths in documents and comments that lead nowhere, as `where: path`.
///
/// A text in backticks is a path if it begins with a folder or file of the repository, or ends in `.rs`, `.patch` or `.md`. It may start at the
/// root, at the crate, at its sources, or where the text itself is.
pub fn missing_paths(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (document, text) in tree.ending(".md") {
        found.extend(missing(tree, document, quoted(text)));
    }
    for (file, text) in tree.ending(".rs") {
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        found.extend(missing(tree, file, comments.flat_map(|line| line.split('`').skip(1).step_by(2))));
    }
    found
}

fn missing<'a>(tree: &Tree, place: &str, quoted: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let paths = quoted.into_iter().filter(|text| is_path(tree, text));
    let paths =
        paths.filter(|path| !bases(tree, place).iter().any(|base| tree.has(&format!("{base}{path}"))));
    paths.map(|path| format!("{place}: {path}")).collect()
}

fn is_path(tree: &Tree, text: &str) -> bool {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let Some((first, rest)) = text.split_once('/') else { return false };
    text.chars().all(is_of_path)
        && !first.is_empty()
        && !text.contains("//")
        && !NOT_HERE.iter().any(|other| text.starts_with(other))
        && (tree.has(first) && !rest.is_empty()
            || [".rs", ".patch", ".md"].iter().any(|end| text.ends_with(end)))
}

/// Where a path in `place` may begin: the root, and each folder above it, and its sources.
fn bases(tree: &Tree, place: &str) -> Vec<String> {
    let mut bases = vec![String::new()];
    for (at, _) in place.match_indices('/') {
        bases.push(place[..=at].to_owned());
        let sources = format!("{}src/", &place[..=at]);
        bases.extend(tree.has(&sources).then_some(sources));
    }
    bases
}

/// The names that documents place in a file which lacks them, as `where: name in file`. They do so with a name in backticks, then
/// `in` or a parenthesis, then the path of a file.
pub fn misplaced_names(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (document, text) in tree.ending(".md") {
        for paragraph in prose(text).split(|line| line.is_empty()) {
            let paragraph = paragraph.join(" ");
            let parts: Vec<&str> = paragraph.split('`').collect();
            let placed = parts.windows(3).skip(1).step_by(2).filter(|at| matches!(at[1].trim(), "in" | "("));
            let misplaced = placed.filter(|at| lacks(tree, document, at[2], at[0]));
            found.extend(misplaced.map(|at| format!("{document}: {} in {}", at[0], at[2])));
        }
    }
    found
}

/// Whether `path`, as `document` names it, is a file without `name`.
fn lacks(tree: &Tree, document: &str, path: &str, name: &str) -> bool {
    let name = name.rsplit("::").next().unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(is_of_name);
    let bases = bases(tree, document);
    let mut texts = bases.iter().filter_map(|base| tree.text(&format!("{base}{path}"))).peekable();
    is_name && texts.peek().is_some() && !texts.any(|text| has_word(text, name))
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c| !is_of_name(c)).any(|other| other == word)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_its_file_lacks_is_found() {
        let document = "An arm of `Call::answer` in `src/a.rs`, of `gone` in\n`src/a.rs`, and `ans` (`src/a.rs`).\n\
            ```\nan odd `\n```\n`GET /x` in `src/a.rs`, `any` in `src/missing.rs`.";
        let tree = Tree::of(&[("b.md", document), ("src/a.rs", "fn answer() {}")]);
        assert_eq!(misplaced_names(&tree), ["b.md: gone in src/a.rs", "b.md: ans in src/a.rs"]);
    }

    #[test]
    fn a_path_that_leads_nowhere_is_found() {
        let tree = Tree::of(&[
            (
                "docs/a.md",
                "See `raft/src/lib.rs`, `raft/src/gone.rs`, `raft/`, `GET /v1/keys`, `b/c` and `store/x.rs`.",
            ),
            ("raft/README.md", "See `src/lib.rs`, `peer/link.rs` and `peer/gone.rs`."),
            ("raft/Cargo.toml", ""),
            (
                "raft/src/lib.rs",
                "//! See `peer/link.rs` and `raft/src/no.rs`.\n/// `crate/x`\nlet `raft/src/code.rs`;",
            ),
            ("raft/src/peer/link.rs", ""),
        ]);
        let expected = [
            "docs/a.md: raft/src/gone.rs",
            "raft/README.md: peer/gone.rs",
            "raft/src/lib.rs: raft/src/no.rs",
        ];
        assert_eq!(missing_paths(&tree), expected);
    }
}
