//! Links from documents to lines of code: ``[`name`](../path/file.rs#L12)``. The line must contain the name.

use std::collections::BTreeMap;

use crate::tree::Tree;

/// A link to a line of a file.
struct Link<'a> {
    /// Where the number stands in its document.
    digits: std::ops::Range<usize>,
    /// The text of the link.
    text: &'a str,
    /// The file, from the root.
    file: String,
    /// The line, from 1.
    line: usize,
}

/// The links whose lines lack the names that they link, as `document:line: name: file#L12, not #L7`.
pub fn wrong_links(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (document, text) in tree.ending(".md") {
        for link in links(document, text) {
            let at = text[..link.digits.start].lines().count();
            let right = match tree.text(&link.file) {
                None => Err("there is no such file".to_owned()),
                Some(code) => line_of(code, &link),
            };
            let (file, line) = (&link.file, link.line);
            match right {
                Ok(right) if right == line => {}
                Ok(right) => {
                    found.push(format!("{document}:{at}: {}: {file}#L{right}, not #L{line}", link.text))
                }
                Err(why) => found.push(format!("{document}:{at}: {}: {file}: {why}", link.text)),
            }
        }
    }
    found
}

/// The documents in which a link's line can be corrected, with the corrected texts.
pub fn corrected(tree: &Tree) -> BTreeMap<&str, String> {
    let mut all = BTreeMap::new();
    for (document, text) in tree.ending(".md") {
        let mut corrected = text.to_owned();
        let mut links = links(document, text);
        // From the end, so that what is not corrected yet keeps its place.
        links.reverse();
        for link in links {
            if let Some(right) = tree.text(&link.file).and_then(|code| line_of(code, &link).ok()) {
                corrected.replace_range(link.digits, &right.to_string());
            }
        }
        if corrected != text {
            all.insert(document, corrected);
        }
    }
    all
}

/// All links to lines in `document`.
fn links<'a>(document: &str, text: &'a str) -> Vec<Link<'a>> {
    let folder = document.rfind('/').map_or("", |slash| &document[..slash]);
    let mut found = Vec::new();
    for (middle, _) in text.match_indices("](") {
        let target = middle + 2;
        let Some(end) = text[target..].find(')').map(|end| target + end) else { continue };
        let Some(begin) = text[..middle].rfind('[') else { continue };
        let Some((path, digits)) = text[target..end].split_once("#L") else { continue };
        let (Ok(line), false) = (digits.parse(), path.contains("://")) else { continue };
        let digits = target + path.len() + 2..end;
        found.push(Link { digits, text: &text[begin + 1..middle], file: join(folder, path), line });
    }
    found
}

/// `path`, which starts in `folder`, from the root.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The line that a link should lead to: its own if that is right, else the nearest one that is.
fn line_of(code: &str, link: &Link) -> Result<usize, String> {
    let nearest = right_lines(code, link.text).into_iter().min_by_key(|line| line.abs_diff(link.line));
    nearest.ok_or_else(|| "no line has this name".to_owned())
}

/// The lines that a link with this text may lead to. Of `` `b` ``: where it is defined, else where it is named. Of `` `A::b` ``:
/// where `b` is defined below a line that names `A`, else where it is defined.
fn right_lines(code: &str, text: &str) -> Vec<usize> {
    let mut path = text.trim_matches('`').rsplit("::");
    let (name, of) = (path.next().unwrap_or_default(), path.next());
    let (mut head, mut ranks) = ("", [vec![], vec![], vec![]]);
    for (number, line) in (1..).zip(code.lines()) {
        if line.starts_with(|c: char| c.is_alphabetic()) {
            head = line;
        }
        if has(line, name) {
            let is_of = of.is_some_and(|of| has(head, of));
            let rank = if !defines(line, name) { 2 } else { usize::from(!is_of) };
            ranks[rank].push(number);
        }
    }
    let most = if of.is_some() { 2 } else { 3 };
    ranks.into_iter().take(most).find(|lines| !lines.is_empty()).unwrap_or_default()
}

/// Whether `line` contains `name`, and not only as a part of a longer one.
fn has(line: &str, name: &str) -> bool {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let is_whole =
        |at: usize| !line[..at].ends_with(is_of_name) && !line[at + name.len()..].starts_with(is_of_name);
    !name.is_empty() && line.match_indices(name).any(|(at, _)| is_whole(at))
}

/// Whether `line` defines `name`: an item, a variant or a field.
fn defines(line: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!"];
    let mut words = line
        .split_whitespace()
        .skip_while(|word| *word == "pub" || word.starts_with("pub(") || ["async", "unsafe"].contains(word));
    let Some(first) = words.next() else { return false };
    let starts = |word: &str| {
        word.strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['(', '<', '{', ':', ',', ';']))
    };
    if KEYWORDS.contains(&first) { words.next().is_some_and(starts) } else { starts(first) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "use a::Name;\n\nstruct Name {\n    field: u8,\n}\n\nenum Other {\n    Variant(Name),\n}\n\nfn name() {}\nlet x = name();\n";

    fn tree(document: &str) -> Tree {
        Tree::of(&[("docs/tour.md", document), ("a/src/lib.rs", CODE)])
    }

    #[test]
    fn a_link_to_a_line_without_its_name_is_found_and_corrected_to_the_definition() {
        for (link, right) in [
            ("[`Name`](../a/src/lib.rs#L2)", "docs/tour.md:2: `Name`: a/src/lib.rs#L3, not #L2"),
            (
                "[`Other::Variant`](../a/src/lib.rs#L99)",
                "docs/tour.md:2: `Other::Variant`: a/src/lib.rs#L8, not #L99",
            ),
            (
                "[`Name::field`](../a/src/lib.rs#L0)",
                "docs/tour.md:2: `Name::field`: a/src/lib.rs#L4, not #L0",
            ),
            ("[`name`](../a/src/lib.rs#L1)", "docs/tour.md:2: `name`: a/src/lib.rs#L11, not #L1"),
        ] {
            let document = format!("See\n{link}.\n");
            let tree = tree(&document);
            assert_eq!(wrong_links(&tree), [right]);
            let (_, line) = right.split_once("#L").unwrap();
            let (line, _) = line.split_once(',').unwrap();
            let (before, _) = document.split_once("#L").unwrap();
            let corrected = &corrected(&tree)["docs/tour.md"];
            assert_eq!(*corrected, format!("{before}#L{line}).\n"));
        }
    }

    #[test]
    fn two_links_in_one_line_are_corrected_both() {
        let tree = tree(
            "[`Name`](../a/src/lib.rs#L1000), [`name`](../a/src/lib.rs#L1) and [`Name`](../a/src/lib.rs#L3).",
        );
        let right =
            "[`Name`](../a/src/lib.rs#L3), [`name`](../a/src/lib.rs#L11) and [`Name`](../a/src/lib.rs#L3).";
        assert_eq!(corrected(&tree)["docs/tour.md"], right);
    }

    #[test]
    fn a_right_link_stays_and_a_name_or_file_that_is_gone_is_named() {
        assert!(
            wrong_links(&tree("[`Name`](../a/src/lib.rs#L3) [x](../a/src/lib.rs) [y](https://z/#L7)"))
                .is_empty()
        );
        assert_eq!(
            wrong_links(&tree("[`Gone`](../a/src/lib.rs#L1) [`Name`](../a/src/gone.rs#L1)")),
            [
                "docs/tour.md:1: `Gone`: a/src/lib.rs: no line has this name",
                "docs/tour.md:1: `Name`: a/src/gone.rs: there is no such file",
            ]
        );
        assert!(corrected(&tree("[`Gone`](../a/src/lib.rs#L1)")).is_empty());
    }

    #[test]
    fn a_path_leads_to_the_definition_below_the_first_name() {
        let code = "/// See Sent.\nenum Call {\n    Sent,\n}\nenum Answer {\n    Sent(u8),\n}\nimpl Answer {\n    fn sent() { Sent }\n}\n";
        for (text, right) in [
            ("`Call::Sent`", 3),
            ("`Answer::Sent`", 6),
            ("`a::Sent`", 3),
            ("`Answer::sent`", 9),
            ("`See`", 1),
        ] {
            assert_eq!(right_lines(code, text)[0], right, "{text}");
        }
        assert_eq!(right_lines(code, "`Sent`"), [3, 6]);
        assert_eq!(right_lines(code, "`Call::See`"), [0; 0]);
        assert_eq!(right_lines("struct A {\n    pub(crate) public: u8,\n}\n", "`A::public`"), [2]);
    }

    #[test]
    fn a_part_of_a_name_is_not_the_name() {
        assert!(has("fn name(", "name") && has("A::name", "name"));
        assert!(!has("fn rename(", "name") && !has("name_of()", "name"));
    }
}
