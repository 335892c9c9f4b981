//! The crates that each crate may use.

use std::collections::{BTreeMap, BTreeSet};

use crate::lists::differences;
use crate::markdown::{quoted, table};
use crate::tree::Tree;

const DESIGN: &str = "docs/design.md";

/// Dependencies between the crates of the repository that the table in `docs/design.md` does not allow, the reverse, and crates
/// in no folder that has a row.
///
/// If a row names several folders, each of them may use what the row allows. A row that speaks of all crates is not compared.
pub fn uses(tree: &Tree) -> Vec<String> {
    let folders: BTreeMap<String, &str> = tree
        .crates()
        .into_iter()
        .filter_map(|folder| {
            let name = folder.trim_end_matches('/').rsplit('/').next()?;
            (!name.is_empty()).then(|| (name.to_owned(), folder))
        })
        .collect();
    let rows = table(tree.text(DESIGN).unwrap_or_default(), "directory");
    let listed: Vec<&str> = rows.iter().flat_map(|row| quoted(row[0])).collect();
    let missing = folders.values().filter(|folder| !listed.iter().any(|row| folder.starts_with(row)));
    let mut found: Vec<String> = missing.map(|folder| format!("{DESIGN} has no row for {folder}")).collect();
    for row in rows {
        let places: Vec<&str> = quoted(row[0]);
        let Some(rule) = row.get(2).filter(|rule| !rule.contains("all of these")) else { continue };
        let allowed: BTreeSet<String> = quoted(rule).into_iter().map(|name| last(name).to_owned()).collect();
        let used = places.iter().filter_map(|place| tree.text(&format!("{place}Cargo.toml"))).flat_map(used);
        let used =
            used.filter(|name| folders.contains_key(name) && !places.iter().any(|place| last(place) == name));
        let of = row[0].replace('`', "");
        found.extend(differences(DESIGN, &format!("crate that {of} uses:"), &allowed, &used.collect()));
    }
    found
}

fn last(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// The crates of the repository in the section `[dependencies]`.
fn used(manifest: &str) -> Vec<String> {
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.strip_prefix("ringfence-"));
    names.map(|line| line.split(['.', ' ', '=']).next().unwrap_or(line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_compared_in_both_directions() {
        let table = "| directory | contains | may use |\n|---|---|---|\n| `wire/` | x | – |\n| `lease/` | x | `wire`, `tls` |\n| `src/` | x | all of these |\n";
        let lease = "[package]\n\n[dependencies]\nringfence-wire.workspace = true\nringfence-raft = { path = \"x\" }\n\n[dev-dependencies]\nringfence-tls.workspace = true\n";
        let tree = Tree::of(&[
            (DESIGN, table),
            ("Cargo.toml", ""),
            ("wire/Cargo.toml", "[package]\n"),
            ("tls/Cargo.toml", ""),
            ("raft/Cargo.toml", ""),
            ("lease/Cargo.toml", lease),
        ]);
        let expected = [
            "docs/design.md has no row for raft/",
            "docs/design.md has no row for tls/",
            "docs/design.md does not list the crate that lease/ uses: raft",
            "docs/design.md: there is no crate that lease/ uses: tls",
        ];
        assert_eq!(uses(&tree), expected);
    }
}
