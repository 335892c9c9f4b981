//! How long files and functions are.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::Visit;

use crate::tree::Tree;

/// The most lines of a file.
pub const FILE_LINES: usize = 400;
/// The most lines of a function, from its signature to its last brace.
pub const FUNCTION_LINES: usize = 60;

/// The Rust files that are longer than allowed, as `path: lines`.
pub fn long_files(tree: &Tree) -> Vec<String> {
    let counted = tree.ending(".rs").map(|(path, text)| (path, text.lines().count()));
    counted.filter(|(_, lines)| *lines > FILE_LINES).map(|(path, lines)| format!("{path}: {lines}")).collect()
}

/// The functions that are longer than allowed, as `path name: lines`.
pub fn long_functions(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.ending(".rs").filter(|(_, text)| text.lines().count() > FUNCTION_LINES) {
        let Ok(file) = syn::parse_file(text) else {
            found.push(format!("{path}: is not Rust"));
            continue;
        };
        Functions { path, found: &mut found }.visit_file(&file);
    }
    found
}

struct Functions<'a> {
    path: &'a str,
    found: &'a mut Vec<String>,
}

impl Functions<'_> {
    fn see(&mut self, signature: &syn::Signature, end: Span) {
        let lines = end.end().line + 1 - signature.span().start().line;
        if lines > FUNCTION_LINES {
            self.found.push(format!("{} {}: {lines}", self.path, signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.see(&function.sig, function.block.span());
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.see(&function.sig, function.block.span());
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.see(&function.sig, block.span());
        }
        syn::visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_beyond_the_limit_are_long() {
        let (full, long) = ("//\n".repeat(FILE_LINES), "//\n".repeat(FILE_LINES + 1));
        let tree = Tree::of(&[("full.rs", &full), ("long.rs", &long), ("long.md", &long)]);
        assert_eq!(long_files(&tree), ["long.rs: 401"]);
    }

    #[test]
    fn only_functions_beyond_the_limit_are_long() {
        let of = |name: &str, lines: usize| format!("fn {name}() {{\n{}}}\n", "();\n".repeat(lines - 2));
        let text = [
            of("full", FUNCTION_LINES),
            of("long", FUNCTION_LINES + 1),
            format!("impl X {{\n /// Documented.\n{}}}", of("method", FUNCTION_LINES + 1)),
            format!("trait T {{\n{}}}", of("given", FUNCTION_LINES + 1)),
        ];
        let tree = Tree::of(&[("a.rs", &text.concat())]);
        assert_eq!(long_functions(&tree), ["a.rs long: 61", "a.rs method: 61", "a.rs given: 61"]);
    }
}
