//! Files of a crate that import each other, directly or indirectly.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Imports, Modules};
use crate::tree::Tree;

/// The circles of imports in all crates. Each names its imports as `file → file (name)`.
///
/// A module and files of its own folder may import each other: they are parts of one thing. Two parts may not. Tests within a file do not count.
pub fn circles(tree: &Tree) -> Vec<String> {
    roots(tree).iter().flat_map(|root| circles_of(&Modules::read(tree, root))).collect()
}

/// The files that a compiler starts from.
pub(crate) fn roots(tree: &Tree) -> Vec<String> {
    let mut roots = Vec::new();
    for folder in tree.crates() {
        let own = ["src/lib.rs", "src/main.rs"].map(|root| format!("{folder}{root}"));
        roots.extend(own.into_iter().filter(|root| tree.has(root)));
        for kind in ["src/bin/", "tests/", "examples/"] {
            let folder = format!("{folder}{kind}");
            let inside = tree.under(&folder).into_iter().filter(|path| {
                let name = &path[folder.len()..];
                let is_other_crate = name
                    .split_once('/')
                    .is_some_and(|(dir, _)| tree.has(&format!("{folder}{dir}/Cargo.toml")));
                !is_other_crate
                    && name.ends_with(".rs")
                    && (!name.contains('/') || name.ends_with("/main.rs") && name.matches('/').count() == 1)
            });
            roots.extend(inside.map(str::to_owned));
        }
    }
    roots
}

fn circles_of(modules: &Modules) -> Vec<String> {
    let imports = modules.imports();
    let files: BTreeSet<&str> = imports.keys().flat_map(|(from, to)| [&from[..], &to[..]]).collect();
    let circles = tied(&imports, &files);
    let named = circles.iter().map(|circle| {
        let within =
            imports.iter().filter(|((from, to), _)| circle.contains(&from[..]) && circle.contains(&to[..]));
        let lines: Vec<String> =
            within.map(|((from, to), name)| format!("  {from} → {to} ({name})")).collect();
        format!("{} files import each other:\n{}", circle.len(), lines.join("\n"))
    });
    modules.errors.iter().cloned().chain(named).collect()
}

/// The largest sets of `files` that import each other and are not parts of one thing.
fn tied<'a>(imports: &Imports, files: &BTreeSet<&'a str>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&'a str>> = BTreeMap::new();
    for (from, to) in imports.keys() {
        if let (Some(from), Some(to)) = (files.get(&from[..]), files.get(&to[..])) {
            next.entry(from).or_default().insert(to);
        }
    }
    let reached: BTreeMap<&'a str, BTreeSet<&'a str>> =
        files.iter().map(|file| (*file, reachable(&next, file))).collect();
    let mut found = Vec::new();
    let mut done = BTreeSet::new();
    for (file, far) in &reached {
        if far.contains(file) && !done.contains(file) {
            let circle: BTreeSet<&str> =
                far.iter().copied().filter(|other| reached[other].contains(file)).collect();
            done.extend(circle.iter().copied());
            match without_its_module(&circle) {
                // What is left without the module must be in order by itself.
                Some(parts) => found.extend(tied(imports, &parts)),
                None => found.push(circle),
            }
        }
    }
    found
}

fn reachable<'a>(next: &BTreeMap<&str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        open.extend(next.get(file).into_iter().flatten().filter(|to| reached.insert(**to)));
    }
    reached
}

/// The files without the module whose folder has all others, if there is one.
fn without_its_module<'a>(circle: &BTreeSet<&'a str>) -> Option<BTreeSet<&'a str>> {
    let is_module_of_all = |module: &&&str| {
        let folder = folder_of(module);
        circle.iter().all(|file| file == *module || file.starts_with(&folder))
    };
    let module = circle.iter().find(is_module_of_all)?;
    Some(circle.iter().filter(|file| *file != module).copied().collect())
}

/// The folder of a module's parts.
fn folder_of(module: &str) -> String {
    let stem = module.trim_end_matches(".rs");
    let root = ["/lib", "/main"].iter().find_map(|name| stem.strip_suffix(name));
    format!("{}/", root.unwrap_or(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("a/Cargo.toml", "")];
        all.extend(files);
        circles(&Tree::of(&all))
    }

    #[test]
    fn a_circle_is_found_through_uses_paths_macros_and_re_exports() {
        let root = ("a/src/lib.rs", "mod one; mod two; mod three;");
        for (one, two, three) in [
            ("use crate::two::B; pub struct A;", "use super::one::A; pub struct B;", ""),
            ("use crate::two; fn a() { two::b() }", "pub fn b() { crate::one::a() }", ""),
            ("fn a() { println!(\"{}\", crate::two::b()) }", "pub fn b() { crate::one::a() }", ""),
            (
                "use crate::three::*; pub struct A(B);\nfn x() { B::new(); }",
                "use crate::one::A; pub struct B;",
                "pub use crate::two::B;",
            ),
            (
                "use crate::three::C; pub struct A;",
                "use crate::one::A; pub struct B;",
                "pub(crate) use crate::two::B as C;",
            ),
        ] {
            let found =
                found(&[root, ("a/src/one.rs", one), ("a/src/two.rs", two), ("a/src/three.rs", three)]);
            assert_eq!(found.len(), 1, "{one} {two} {three}: {found:?}");
            assert!(
                found[0].starts_with("2 files import each other:\n  a/src/one.rs → a/src/two.rs"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn parts_of_one_thing_tests_and_one_way_imports_are_no_circle() {
        let one_way = [
            ("a/src/lib.rs", "mod one; mod two;"),
            ("a/src/one.rs", "use crate::two::B; use serde::A; pub struct A;"),
            ("a/src/two.rs", "pub struct B; #[cfg(test)] mod tests { use crate::one::A; }"),
        ];
        assert_eq!(found(&one_way), Vec::<String>::new());
        let parts = [
            ("a/src/lib.rs", "mod one;"),
            ("a/src/one.rs", "mod two; mod three; use two::B; pub struct A;"),
            ("a/src/one/two.rs", "use super::A; use super::three::C; pub struct B;"),
            ("a/src/one/three.rs", "use super::A; pub struct C;"),
        ];
        assert_eq!(found(&parts), Vec::<String>::new());
        // Not so beyond the module's folder.
        let parts = [parts[0], parts[1], ("a/src/one/two.rs", "use crate::far::D; pub struct B;"), parts[3]];
        let far =
            [("a/src/lib.rs", "mod one; mod far;"), ("a/src/far.rs", "use crate::one::A; pub struct D;")];
        assert_eq!(found(&[&parts[1..], &far].concat()).len(), 1);
    }

    #[test]
    fn a_missing_file_is_named() {
        let found = found(&[("a/src/lib.rs", "mod gone;")]);
        assert_eq!(found, ["a/src/gone.rs: is missing, or not Rust"]);
    }
}
