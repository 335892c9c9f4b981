//! The modules of a crate, and where the names in them lead.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item, UseTree};

use crate::tree::Tree;

/// The files that each file imports from, as pairs, with a name that it imports.
pub(crate) type Imports = BTreeMap<(String, String), String>;

/// Number of a module in [`Modules`].
type Id = usize;

/// More steps than any name takes: re-exports may lead in a circle.
const MAX_STEPS: usize = 64;

/// One module: a file, or a block within one.
pub(crate) struct Module {
    /// The file that contains it.
    pub(crate) path: String,
    parent: Option<Id>,
    children: BTreeMap<String, Id>,
    items: Vec<String>,
    /// The names that `use` brings in, with the paths that they are short for.
    names: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// The paths in its code and in its `use`s: `crate::table::Table`.
    paths: Vec<Vec<String>>,
}

/// The modules that one root file declares, directly or indirectly.
pub(crate) struct Modules {
    pub(crate) all: Vec<Module>,
    /// What could not be read.
    pub(crate) errors: Vec<String>,
}

/// What a path leads to.
enum Target {
    Module,
    Item(Id),
}

impl Modules {
    /// Reads the module tree below the file `root`.
    pub(crate) fn read(tree: &Tree, root: &str) -> Self {
        let mut modules = Self { all: Vec::new(), errors: Vec::new() };
        let folder = root.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        modules.add_file(tree, root.to_owned(), None, &folder);
        modules
    }

    /// The imports between the files. Tests within a file do not count.
    pub(crate) fn imports(&self) -> Imports {
        let mut imports = BTreeMap::new();
        for (id, module) in self.all.iter().enumerate() {
            for path in &module.paths {
                if let Some(Target::Item(owner)) = self.resolve(id, path, 0) {
                    let (from, to) = (&module.path, &self.all[owner].path);
                    if from != to {
                        imports.entry((from.clone(), to.clone())).or_insert_with(|| path.join("::"));
                    }
                }
            }
        }
        imports
    }

    fn add_file(&mut self, tree: &Tree, path: String, parent: Option<Id>, folder: &str) -> Option<Id> {
        let Some(file) = tree.text(&path).and_then(|text| syn::parse_file(text).ok()) else {
            self.errors.push(format!("{path}: is missing, or not Rust"));
            return None;
        };
        Some(self.add(tree, path, parent, folder, &file.items))
    }

    fn add(&mut self, tree: &Tree, path: String, parent: Option<Id>, folder: &str, items: &[Item]) -> Id {
        let id = self.all.len();
        self.all.push(Module {
            path: path.clone(),
            parent,
            children: BTreeMap::new(),
            items: Vec::new(),
            names: BTreeMap::new(),
            globs: Vec::new(),
            paths: Vec::new(),
        });
        for item in items.iter().filter(|item| !is_test(item)) {
            match item {
                Item::Use(item) => self.all[id].import(&item.tree, &mut Vec::new()),
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    let below = format!("{folder}{name}/");
                    let child = match (&item.content, given_path(&item.attrs)) {
                        (Some((_, items)), _) => Some(self.add(tree, path.clone(), Some(id), &below, items)),
                        (None, Some(given)) => {
                            let beside = path.rsplit_once('/').map_or("", |(dir, _)| dir);
                            self.add_file(tree, joined(beside, &given), Some(id), &below)
                        }
                        (None, None) => {
                            let old = format!("{below}mod.rs");
                            let file = if tree.has(&old) { old } else { format!("{folder}{name}.rs") };
                            self.add_file(tree, file, Some(id), &below)
                        }
                    };
                    self.all[id].children.extend(child.map(|child| (name, child)));
                }
                item => {
                    self.all[id].items.extend(name_of(item));
                    chains(item.to_token_stream(), &mut self.all[id].paths);
                }
            }
        }
        id
    }

    /// Follows `path`, as written in the module `from`, through modules, imports and re-exports.
    fn resolve(&self, from: Id, path: &[String], steps: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let module = &self.all[from];
        let start = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => module.parent?,
            _ => return self.find(from, path, steps),
        };
        if rest.is_empty() { Some(Target::Module) } else { self.resolve(start, rest, steps) }
    }

    /// Finds what the first name of `path` means in the module `within`, and goes on from there.
    fn find(&self, within: Id, path: &[String], steps: usize) -> Option<Target> {
        if steps > MAX_STEPS {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let module = &self.all[within];
        if let Some(child) = module.children.get(first) {
            return match rest {
                [] => Some(Target::Module),
                rest => self.find(*child, rest, steps + 1).or(Some(Target::Module)),
            };
        }
        if module.items.contains(first) {
            return Some(Target::Item(within));
        }
        if let Some(meant) = module.names.get(first) {
            let meant: Vec<String> = meant.iter().chain(rest).cloned().collect();
            // `use serde::Serialize` names no module of this crate, even if it has a module `serde` elsewhere.
            return if meant == path { None } else { self.resolve(within, &meant, steps + 1) };
        }
        module.globs.iter().find_map(|glob| {
            let meant: Vec<String> = glob.iter().chain(path).cloned().collect();
            self.resolve(within, &meant, steps + 1)
        })
    }
}

impl Module {
    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        let full = |prefix: &[String], name: String| [prefix, &[name]].concat();
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix)),
            UseTree::Glob(_) => self.globs.push(prefix.clone()),
            UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = prefix.last().cloned() {
                    self.names.insert(last, prefix.clone());
                }
            }
            UseTree::Name(name) => self.bring(name.ident.to_string(), full(prefix, name.ident.to_string())),
            UseTree::Rename(name) => {
                self.bring(name.rename.to_string(), full(prefix, name.ident.to_string()))
            }
        }
    }

    fn bring(&mut self, name: String, path: Vec<String>) {
        self.paths.push(path.clone());
        self.names.insert(name, path);
    }
}

/// Whether the item is compiled for tests only.
pub(crate) fn is_test(item: &Item) -> bool {
    attributes(item).iter().any(|attribute| {
        attribute.path().is_ident("cfg") && attribute.to_token_stream().to_string().contains("(test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The path of `#[path = "…"]`.
fn given_path(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    Some(pair.value.to_token_stream().to_string().trim_matches('"').to_owned())
}

fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The name that an item defines.
fn name_of(item: &Item) -> Option<String> {
    match item {
        Item::Const(item) => Some(item.ident.to_string()),
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Fn(item) => Some(item.sig.ident.to_string()),
        Item::Macro(item) => item.ident.as_ref().map(ToString::to_string),
        Item::Static(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        Item::Union(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// Collects the paths with at least two names, inside macros too.
fn chains(tokens: TokenStream, into: &mut Vec<Vec<String>>) {
    let mut chain: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            TokenTree::Ident(name) if colons == 2 && !chain.is_empty() => chain.push(name.to_string()),
            TokenTree::Ident(name) => {
                finish(&mut chain, into);
                chain.push(name.to_string());
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' && !chain.is_empty() => {
                colons += 1;
                continue;
            }
            TokenTree::Group(group) => {
                finish(&mut chain, into);
                chains(group.stream(), into);
            }
            _ => finish(&mut chain, into),
        }
        colons = 0;
    }
    finish(&mut chain, into);
}

fn finish(chain: &mut Vec<String>, into: &mut Vec<Vec<String>>) {
    if chain.len() > 1 {
        into.push(std::mem::take(chain));
    }
    chain.clear();
}
