//! The links from documents to lines of code, tested on this repository. `UPDATE=1` corrects them.

use std::path::Path;
use std::{env, fs};

use ringfence_tidy::links::{corrected, wrong_links};
use ringfence_tidy::tour::unlisted;
use ringfence_tidy::tree::Tree;

/// One test, so that a list is read after its links were corrected.
#[test]
fn links_to_lines_lead_to_what_they_name_and_the_lists_of_the_tour_are_complete() {
    let tree = Tree::of_repository().unwrap();
    if env::var_os("UPDATE").is_some() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (document, text) in corrected(&tree) {
            fs::write(root.join(document), text).unwrap();
        }
    }
    let tree = Tree::of_repository().unwrap();
    let wrong = wrong_links(&tree);
    assert!(
        wrong.is_empty(),
        "correct these links by hand, or their lines with UPDATE=1:\n{}",
        wrong.join("\n")
    );
    let unlisted = unlisted(&tree);
    assert!(unlisted.is_empty(), "add these to docs/tour.md:\n{}", unlisted.join("\n"));
}
