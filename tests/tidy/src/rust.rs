//! What the checks read out of Rust sources.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::Item;

use crate::tree::Tree;

/// The names of the variants of the enum `name` in the file at `path`, in kebab case, as clap shows them.
pub(crate) fn variants(tree: &Tree, path: &str, name: &str) -> BTreeSet<String> {
    let items =
        tree.text(path).and_then(|text| syn::parse_file(text).ok()).map_or(Vec::new(), |file| file.items);
    let variants = items.into_iter().filter_map(|item| match item {
        Item::Enum(item) if item.ident == name => Some(item.variants),
        _ => None,
    });
    variants.flatten().map(|variant| kebab(&variant.ident.to_string())).collect()
}

/// `MirrorMode` as `mirror-mode`, and `mirror_mode` too.
pub(crate) fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for (at, c) in name.char_indices() {
        if c.is_ascii_uppercase() && at > 0 {
            kebab.push('-');
        }
        kebab.push(if c == '_' { '-' } else { c.to_ascii_lowercase() });
    }
    kebab
}

/// The tokens of a file, without the items that are compiled for tests only.
pub(crate) fn tokens(text: &str) -> TokenStream {
    let items = syn::parse_file(text).map_or(Vec::new(), |file| file.items);
    items
        .into_iter()
        .filter(|item| !crate::modules::is_test(item))
        .map(|item| item.to_token_stream())
        .collect()
}

/// The text of a string literal.
pub(crate) fn string(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else { return None };
    let literal: syn::LitStr = syn::parse_str(&literal.to_string()).ok()?;
    Some(literal.value())
}

/// All string literals among the tokens.
pub(crate) fn strings(tokens: TokenStream) -> Vec<String> {
    let inner = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Group(group) => strings(group.stream()),
        token => string(&token).into_iter().collect(),
    });
    inner.collect()
}

/// The arguments of all calls of macros with a first argument `target: "…"`, by that target.
pub(crate) fn lines_of_target(tokens: TokenStream, into: &mut Vec<(String, Vec<Vec<TokenTree>>)>) {
    for token in tokens {
        let TokenTree::Group(group) = token else { continue };
        let all: Vec<TokenTree> = group.stream().into_iter().collect();
        if let [TokenTree::Ident(key), TokenTree::Punct(_), target, ..] = &all[..]
            && key == "target"
            && let Some(target) = string(target)
        {
            let is_comma =
                |token: &TokenTree| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',');
            into.push((target, all.split(is_comma).skip(1).map(<[_]>::to_vec).collect()));
        }
        lines_of_target(group.stream(), into);
    }
}
