//! Words that the glossary replaces by others.

use syn::Item;

use crate::markdown::table;
use crate::modules::{Modules, is_test};
use crate::tree::Tree;

const GLOSSARY: &str = "docs/glossary.md";
/// The crates that a node consists of. The others have words of their own: those of Lua, of tests, of arguments of commands.
const OF_NODES: [&str; 13] = [
    "access", "api", "dial", "http", "lease", "metric", "mirror", "raft", "raft/wal", "resp", "service",
    "tls", "wire",
];

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

/// Types of a node that have the name of a term of the glossary, if there are several of that name, as `path name: …`. The one that the
/// glossary is about stands in the place that it names, or below it.
pub fn types_with_two_meanings(tree: &Tree) -> Vec<String> {
    let terms = entries(tree).into_iter().flat_map(|entry| {
        let place = entry.split("(`").nth(1).and_then(|rest| rest.split('`').next()).unwrap_or_default();
        let names = entry.split(" – ").next().unwrap_or_default().split("**").step_by(2);
        names.map(move |name| (parts(name).iter().map(|word| capitalized(word)).collect::<String>(), place))
    });
    let types = OF_NODES.iter().flat_map(|name| types(tree, &format!("{name}/src/lib.rs")));
    let types: Vec<(String, String)> = types.collect();
    let mut found = Vec::new();
    for (term, place) in terms {
        let all: Vec<&str> =
            types.iter().filter(|(name, _)| *name == term).map(|(_, path)| &**path).collect();
        let is_other = |path: &&&str| !path.starts_with(place.trim_end_matches(".rs"));
        if all.len() > 1 {
            found.extend(all.iter().filter(is_other).map(|path| format!("{path} {term}: see {place}")));
        }
    }
    found
}

/// The types of a crate, each with its path. A short name for a type that ends in the same name is none.
fn types(tree: &Tree, root: &str) -> Vec<(String, String)> {
    let mut paths: Vec<String> =
        Modules::read(tree, root).all.into_iter().map(|module| module.path).collect();
    paths.sort();
    paths.dedup();
    let mut types = Vec::new();
    for path in paths {
        let items = tree
            .text(&path)
            .and_then(|text| syn::parse_file(text).ok())
            .map_or(Vec::new(), |file| file.items);
        let names = items.iter().filter(|item| !is_test(item)).filter_map(|item| match item {
            Item::Enum(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident).filter(|name| !is_short_for(name, &item.ty)),
            _ => None,
        });
        types.extend(names.map(|name| (name.to_string(), path.clone())));
    }
    types
}

fn is_short_for(name: &syn::Ident, full: &syn::Type) -> bool {
    let syn::Type::Path(full) = full else { return false };
    full.path.segments.last().is_some_and(|last| last.ident == *name)
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The entries of the glossary, each behind the `**` of its term.
fn entries(tree: &Tree) -> Vec<&str> {
    tree.text(GLOSSARY).unwrap_or_default().split("\n- **").skip(1).collect()
}

/// Terms of the glossary that do not stand in the order of the alphabet, and those without a place.
pub fn disordered_glossary(tree: &Tree) -> Vec<String> {
    let entries = entries(tree);
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
    fn two_types_with_the_name_of_one_term_are_found() {
        let glossary = "# G\n\n- **leader**, **lease id** – a role\n  (`lease/src/leader.rs`).\n- **place** – x (`wire/`).";
        let tree = Tree::of(&[
            (GLOSSARY, glossary),
            ("lease/src/lib.rs", "mod leader;\nmod other;\npub struct Place;"),
            ("lease/src/leader.rs", "mod below;\npub struct Leader<T>(T);"),
            ("lease/src/leader/below.rs", "pub(crate) trait Leader {}"),
            (
                "lease/src/other.rs",
                "type Leader = crate::leader::Leader<u8>;\ntype LeaseId = u8;\n#[cfg(test)] struct Place;",
            ),
            ("http/src/lib.rs", "enum LeaseId {}\ntype Leader = u8;"),
            ("sim/src/lib.rs", "struct Leader;\nstruct Place;"),
        ]);
        assert_eq!(
            types_with_two_meanings(&tree),
            [
                "http/src/lib.rs Leader: see lease/src/leader.rs",
                "http/src/lib.rs LeaseId: see lease/src/leader.rs",
                "lease/src/other.rs LeaseId: see lease/src/leader.rs",
            ]
        );
    }

    #[test]
    fn a_term_out_of_order_and_one_without_a_place_are_found() {
        let glossary = "# G\n\n- **key** – a name (`a.rs`).\n- **fence** – a number (`b.rs`).\n- **lease** – a right.\n\n(`c.rs`)";
        let tree = Tree::of(&[(GLOSSARY, glossary)]);
        assert_eq!(disordered_glossary(&tree), ["key stands before fence", "lease has no place"]);
    }
}
