//! Lists in the tour that are to be complete: calls between nodes, and locks.

use crate::tree::Tree;

const TOUR: &str = "docs/tour.md";
const CALLS: &str = "raft/src/peer/message.rs";
/// The crates of a node.
const NODE: [&str; 14] = [
    "access/",
    "api/",
    "aside/",
    "dial/",
    "http/",
    "lease/",
    "metric/",
    "mirror/",
    "raft/",
    "raft/wal/",
    "room/",
    "service/",
    "src/",
    "tls/",
];

/// The calls between nodes and the locks of a node that the tour does not link.
pub fn unlisted(tree: &Tree) -> Vec<String> {
    let tour = tree.text(TOUR).unwrap_or_default();
    let calls = variants(tree.text(CALLS).unwrap_or_default(), "enum Call {");
    let calls = calls.into_iter().filter(|call| !tour.contains(&format!("`Call::{call}`")));
    let mut found: Vec<String> = calls.map(|call| format!("{CALLS}: Call::{call}")).collect();
    let of_node = |path: &str| {
        NODE.iter().any(|folder| {
            path.strip_prefix(folder).is_some_and(|rest| *folder == "src/" || rest.starts_with("src/"))
        })
    };
    for (path, text) in tree.ending(".rs").filter(|(path, _)| of_node(path) && !path.ends_with("/tests.rs")) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in (1..).zip(code.lines()).filter(|(_, line)| holds_lock(line)) {
            if !tour.contains(&format!("../{path}#L{number})")) {
                found.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    found
}

/// The variants of the enum that begins with `head`.
fn variants<'a>(code: &'a str, head: &str) -> Vec<&'a str> {
    let body = code.split(head).nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = lines.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default());
    names.filter(|name| !name.is_empty()).collect()
}

/// Whether a field, a tuple or a static with a lock is declared on this line.
fn holds_lock(line: &str) -> bool {
    let line = line.trim();
    let is_type = ["Mutex<", "RwLock<"].iter().any(|lock| line.contains(lock));
    let is_other = ["//", "let ", "type ", "use "].iter().any(|other| line.starts_with(other));
    is_type && !is_other && !line.contains("fn ") && line.ends_with([',', ';'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_locks_that_are_not_listed_are_found() {
        let code = "pub enum Call {\n    /// Why.\n    Vote(u8),\n    Order {\n        id: u8,\n    },\n}\n\nstruct A {\n    lock: Arc<Mutex<u8>>,\n}\nstruct B(RwLock<u8>);\nfn f() {\n    let lock: Mutex<u8> = new();\n}\n#[cfg(test)]\nmod tests {\n    static L: Mutex<u8> = new();\n}\n";
        let tour = format!("[`Call::Vote`](../{CALLS}#L3), [`B`](../{CALLS}#L12)");
        let tree = Tree::of(&[(TOUR, &tour), (CALLS, code), ("client/src/lib.rs", code)]);
        assert_eq!(
            unlisted(&tree),
            [format!("{CALLS}: Call::Order"), format!("{CALLS}:10: lock: Arc<Mutex<u8>>,")]
        );
        let all = format!("{tour} [`Call::Order`](../{CALLS}#L4) [`A::lock`](../{CALLS}#L10)");
        assert!(unlisted(&Tree::of(&[(TOUR, &all), (CALLS, code)])).is_empty());
    }
}
