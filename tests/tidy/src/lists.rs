//! Lists of the documents, compared with what the sources define: each name in one is in the other.

use std::collections::BTreeSet;

use proc_macro2::TokenTree;

use crate::markdown::{quoted, section, table};
use crate::rust::{lines_of_target, strings, tokens, variants};
use crate::tree::Tree;

const JEPSEN: &str = "jepsen/README.md";
const DEPLOY: &str = "deploy/README.md";

/// Workloads, nemeses and laws of `jepsen/README.md` that do not exist, and the reverse.
pub fn fault_injection(tree: &Tree) -> Vec<String> {
    let text = tree.text(JEPSEN).unwrap_or_default();
    let first_cells = |header: &str| -> BTreeSet<String> {
        table(text, header).iter().flat_map(|row| quoted(row[0])).map(str::to_owned).collect()
    };
    let mut laws = BTreeSet::new();
    for path in tree.under("jepsen/laws/src/check/").into_iter().filter(|path| !path.contains("/tests/")) {
        let text = tree.text(path).unwrap_or_default();
        let named = text
            .split("Checker {")
            .skip(1)
            .filter_map(|rest| rest.split("name: \"").nth(1)?.split('"').next());
        laws.extend(named.map(str::to_owned));
    }
    [
        ("workload", first_cells("workload"), variants(tree, "jepsen/src/workload.rs", "Workload")),
        ("nemesis", first_cells("nemeses"), variants(tree, "jepsen/src/nemesis.rs", "Nemesis")),
        ("law", first_cells("laws, as the report names them"), laws),
    ]
    .into_iter()
    .flat_map(|(what, listed, defined)| differences(JEPSEN, what, &listed, &defined))
    .collect()
}

/// Fields and acts of the log for programs that `deploy/README.md` does not list, and the reverse.
pub fn log_lines(tree: &Tree) -> Vec<String> {
    let text = tree.text(DEPLOY).and_then(|text| section(text, "The log")).unwrap_or_default();
    let (mut fields, mut values) = (BTreeSet::new(), BTreeSet::new());
    for (path, text) in product(tree) {
        let mut lines = Vec::new();
        if text.contains("\"ringfence::") {
            lines_of_target(tokens(text), &mut lines);
        }
        let arguments =
            lines.iter().filter(|(target, _)| target.starts_with("ringfence::")).flat_map(|line| &line.1);
        fields.extend(arguments.filter_map(|argument| field(argument)));
        if path.contains("audit") {
            values.extend(tokens(text).into_iter().flat_map(|token| strings(token.into())));
        }
        let acts =
            text.split([';', '\n']).filter(|part| part.contains("act: \"") || part.contains("let act = if"));
        values.extend(acts.flat_map(|part| part.split('"').skip(1).step_by(2)).map(str::to_owned));
    }
    let acts: BTreeSet<String> = values.iter().filter(|value| is_act(value)).cloned().collect();
    let said: BTreeSet<String> = quoted(text).into_iter().map(str::to_owned).collect();
    let listed: BTreeSet<String> =
        table(text, "target").iter().flat_map(|row| quoted(row[2])).map(str::to_owned).collect();
    let defined: BTreeSet<String> = fields.union(&acts).cloned().collect();
    let undocumented =
        defined.difference(&said).map(|name| format!("{DEPLOY} does not name the field or act {name}"));
    let unknown = listed.difference(&defined).map(|name| format!("{DEPLOY}: no line of the log has {name}"));
    undocumented.chain(unknown).collect()
}

/// The texts of an audit file that are neither targets, messages nor fields.
fn is_act(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c == '-')
}

/// The name of a field among the arguments of a line of the log.
fn field(argument: &[TokenTree]) -> Option<String> {
    let is_sigil =
        |token: &&TokenTree| matches!(token, TokenTree::Punct(punct) if "?%".contains(punct.as_char()));
    let mut tokens = argument.iter().skip_while(is_sigil);
    let TokenTree::Ident(name) = tokens.next()? else { return None };
    match tokens.next() {
        None => Some(name.to_string()),
        Some(TokenTree::Punct(punct)) if punct.as_char() == '=' => Some(name.to_string()),
        Some(_) => None,
    }
}

/// The sources of the product, without tests.
pub(crate) fn product(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    const NOT_PRODUCT: [&str; 4] = ["tests/", "jepsen/", "bench/", "sim/"];
    tree.ending(".rs").filter(|(path, _)| {
        !NOT_PRODUCT.iter().any(|dir| path.starts_with(dir))
            && (path.starts_with("src/") || path.contains("/src/"))
            && !path.ends_with("/tests.rs")
    })
}

/// The names that only one of both sets has.
pub(crate) fn differences(
    document: &str,
    what: &str,
    listed: &BTreeSet<String>,
    defined: &BTreeSet<String>,
) -> Vec<String> {
    let missing =
        defined.difference(listed).map(|name| format!("{document} does not list the {what} {name}"));
    let unknown = listed.difference(defined).map(|name| format!("{document}: there is no {what} {name}"));
    missing.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_fault_injection_are_compared_in_both_directions() {
        let readme = "| laws, as the report names them | meaning |\n|---|---|\n| `tokens`, `old` | x |\n\n\
                      | workload | what |\n|---|---|\n| `lease` | x |\n\n| nemeses | what |\n|---|---|\n| `kill`, `gone` | x |\n";
        let tree = Tree::of(&[
            (JEPSEN, readme),
            ("jepsen/src/workload.rs", "enum Workload { Lease, LockedSet }"),
            ("jepsen/src/nemesis.rs", "enum Nemesis { Kill }"),
            ("jepsen/laws/src/check/a.rs", "const A: Checker = Checker { name: \"tokens\" };"),
            ("jepsen/laws/src/check/b.rs", "const B: Checker = Checker {\n name: \"fresh\" };"),
        ]);
        let expected = [
            "jepsen/README.md does not list the workload locked-set",
            "jepsen/README.md: there is no nemesis gone",
            "jepsen/README.md does not list the law fresh",
            "jepsen/README.md: there is no law old",
        ];
        assert_eq!(fault_injection(&tree), expected);
    }

    #[test]
    fn lines_of_the_log_are_compared_in_both_directions() {
        let readme = "## The log\n\n| target | when | fields |\n|---|---|---|\n\
                      | `ringfence::audit` | x | `act` (`grant`, `lost`), `key`, `gone` |\n\nAll have `from`.\n";
        let source = "fn f() { let act = if x { \"grant\" } else { \"force\" };\n\
                      tracing::info!(target: \"ringfence::audit\", act, key = key.x(), by = 1, from = %a.b, \"done, twice\"); }";
        let tree = Tree::of(&[(DEPLOY, readme), ("api/src/a.rs", source)]);
        let expected = [
            "deploy/README.md does not name the field or act by",
            "deploy/README.md does not name the field or act force",
            "deploy/README.md: no line of the log has gone",
            "deploy/README.md: no line of the log has lost",
        ];
        assert_eq!(log_lines(&tree), expected);
    }
}
