//! Source files that no module declares. No compiler reads them, so their tests never run, and nobody says so.

use crate::circles::roots;
use crate::tree::Tree;

/// The files of Rust that no other file declares with `mod`, and that no crate starts from.
pub fn undeclared_files(tree: &Tree) -> Vec<String> {
    let roots = roots(tree);
    let files = tree.ending(".rs").map(|(path, _)| path);
    files
        .filter(|path| !path.ends_with("build.rs") && !roots.iter().any(|root| root == path))
        .filter(|path| !is_declared(tree, path))
        .map(|path| format!("{path}: no file declares this module"))
        .collect()
}

fn is_declared(tree: &Tree, path: &str) -> bool {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let (folder, name) = module.rsplit_once('/').unwrap_or(("", module));
    let declaration = format!("mod {name};");
    let is_declaration = |line: &str| !line.starts_with("//") && line.ends_with(&declaration);
    let declares = |text: &str| text.lines().map(str::trim).any(is_declaration);
    let beside = [".rs", "/lib.rs", "/main.rs", "/mod.rs"].map(|end| format!("{folder}{end}"));
    let given = format!("{}\"]", &path[folder.len()..]);
    beside.iter().any(|file| tree.text(file).is_some_and(declares))
        || tree.ending(".rs").any(|(_, text)| text.contains("#[path = ") && text.contains(&given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_declared_beside_it_or_in_the_root_of_its_folder() {
        let tree = Tree::of(&[
            ("a/Cargo.toml", ""),
            ("a/build.rs", ""),
            ("a/src/lib.rs", "pub(crate) mod b;\n#[path = \"../shared/given.rs\"]\nmod given;\n// mod lost;"),
            ("a/src/b.rs", "#[cfg(test)]\nmod tests;"),
            ("a/src/b/tests.rs", ""),
            ("a/src/b/gone.rs", ""),
            ("a/src/lost.rs", ""),
            ("a/src/bin/other.rs", ""),
            ("a/shared/given.rs", ""),
            ("a/tests/alone.rs", ""),
            ("a/tests/all/main.rs", "mod support;"),
            ("a/tests/all/support/mod.rs", ""),
            ("a/tests/all/forgotten.rs", ""),
        ]);
        let found = undeclared_files(&tree);
        let paths: Vec<_> = found.iter().map(|finding| finding.split_once(':').unwrap().0).collect();
        assert_eq!(paths, ["a/src/b/gone.rs", "a/src/lost.rs", "a/tests/all/forgotten.rs"]);
    }
}
