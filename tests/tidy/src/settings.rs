//! Settings: a flag and a variable of the program, and a key of its file.

use std::collections::BTreeSet;

use syn::punctuated::Punctuated;
use syn::visit::Visit;
use syn::{Expr, ExprLit, Lit, Meta, Token};

use crate::rust::kebab;
use crate::tree::Tree;

/// The file with the settings of a node.
const OPTIONS: &str = "src/config/options.rs";

/// Flags of other programs that documents speak of by themselves: of cargo, rustc, docker and scripts.
const NOT_OURS: [&str; 11] = [
    "--target",
    "--address",
    "--glibc",
    "--ulimit",
    "--locked",
    "--cfg",
    "--checked",
    "--cacert",
    "--oauth2-bearer",
    "--enable-threads",
    "--bench",
];

/// One option of a command.
#[derive(Debug, PartialEq)]
struct Argument {
    flag: String,
    variable: Option<String>,
}

/// Settings whose flag and variable do not have the same name, or that no command line, file or variable sets.
pub fn uneven_settings(tree: &Tree) -> Vec<String> {
    let all = arguments(tree.text(OPTIONS).unwrap_or_default());
    let expected = |flag: &str| format!("RINGFENCE_{}", flag.to_uppercase().replace('-', "_"));
    let uneven =
        all.into_iter().filter(|argument| argument.variable.as_ref() != Some(&expected(&argument.flag)));
    uneven.map(|Argument { flag, variable }| format!("{OPTIONS}: --{flag} and {variable:?}")).collect()
}

/// Flags and variables of Ringfence that documents and packages name, and that do not exist.
pub fn unknown_settings(tree: &Tree) -> Vec<String> {
    let (mut flags, mut variables) = (BTreeSet::new(), BTreeSet::new());
    for (path, text) in tree.ending(".rs") {
        for Argument { flag, variable } in arguments(text) {
            flags.insert(flag);
            variables.extend(variable);
        }
        // Variables that the program or a test reads or sets without clap.
        if !path.starts_with("tests/tidy/") {
            let words = words_with(text, "RINGFENCE_").into_iter();
            variables.extend(words.filter(|word| text.contains(&format!("\"{word}"))).map(str::to_owned));
        }
    }
    let mut found = Vec::new();
    for (path, text) in documents(tree) {
        let unknown = words_with(text, "RINGFENCE_").into_iter();
        let unknown =
            unknown.filter(|word| !variables.iter().any(|known| known == word || is_prefix(word, known)));
        found.extend(unknown.map(|word| format!("{path}: there is no variable {word}")));
        for flag in flags_of_program(text).difference(&flags) {
            found.push(format!("{path}: there is no flag --{flag}"));
        }
    }
    found
}

/// `RINGFENCE_ADVERTISE_` stands for all variables that begin so.
fn is_prefix(word: &str, known: &str) -> bool {
    word.ends_with('_') && known.starts_with(word)
}

fn documents(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let all = tree
        .under("")
        .into_iter()
        .filter(|path| path.ends_with(".md") || path.starts_with("deploy/") && !path.ends_with(".json"));
    all.filter_map(|path| Some((path, tree.text(path)?)))
}

/// The words of `text` that begin with `prefix`.
fn words_with<'a>(text: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(prefix) && word.len() > prefix.len()).collect()
}

/// The flags in a text that are the program's: those in a text in backticks that begins with the flag, and those behind `ringfence COMMAND`.
fn flags_of_program(text: &str) -> BTreeSet<String> {
    let quoted = text
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|text| text.starts_with("--"));
    let commands = text
        .lines()
        .flat_map(|line| line.split(['`', '|', ';']))
        .filter(|line| line.trim_start().trim_start_matches("$ ").starts_with("ringfence "));
    // What follows ` -- ` is another program's.
    let own = quoted.chain(commands).map(|text| text.split(" -- ").next().unwrap_or(text));
    let own = own.filter(|text| !NOT_OURS.iter().any(|flag| text.starts_with(flag)));
    let flags = own.flat_map(|text| text.split_whitespace()).filter_map(|word| word.strip_prefix("--"));
    let name = |flag: &str| -> String {
        flag.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
    };
    flags.map(name).filter(|flag| !flag.is_empty()).collect()
}

fn arguments(text: &str) -> Vec<Argument> {
    let mut fields = Fields::default();
    if text.contains("#[arg(")
        && let Ok(file) = syn::parse_file(text)
    {
        fields.visit_file(&file);
    }
    fields.found
}

#[derive(Default)]
struct Fields {
    found: Vec<Argument>,
}

impl<'ast> Visit<'ast> for Fields {
    fn visit_field(&mut self, field: &'ast syn::Field) {
        let own = field.attrs.iter().filter(|attribute| attribute.path().is_ident("arg"));
        for attribute in own {
            let parsed = attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let metas: Vec<Meta> = parsed.into_iter().flatten().collect();
            let value = |name: &str| metas.iter().find_map(|meta| text_of(meta, name));
            let is_long = metas.iter().any(|meta| meta.path().is_ident("long"));
            if is_long {
                let name = field.ident.as_ref().map(|ident| kebab(&ident.to_string().replace("r#", "")));
                let flag = value("long").or_else(|| value("id")).or(name).unwrap_or_default();
                self.found.push(Argument { flag, variable: value("env") });
            }
        }
    }
}

/// The text of `name = "…"`.
fn text_of(meta: &Meta, name: &str) -> Option<String> {
    let Meta::NameValue(pair) = meta else { return None };
    match &pair.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if pair.path.is_ident(name) => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "struct Options {\n #[arg(long, env = \"RINGFENCE_PEER\")] peer: u8,\n\
        #[arg(id = \"tls-key\", long, env = \"RINGFENCE_TLS_CERT\")] key: u8,\n #[arg(long)] slow_request: u8,\n #[arg(skip)] x: u8 }";

    #[test]
    fn a_flag_and_its_variable_have_one_name() {
        let tree = Tree::of(&[(OPTIONS, SOURCE)]);
        let expected = [
            "src/config/options.rs: --tls-key and Some(\"RINGFENCE_TLS_CERT\")",
            "src/config/options.rs: --slow-request and None",
        ];
        assert_eq!(uneven_settings(&tree), expected);
    }

    #[test]
    fn settings_that_do_not_exist_are_found() {
        let text = "`--peer ADDR`, `--door`, `RINGFENCE_PEER`, `RINGFENCE_DOOR`, `RINGFENCE_TLS_`.\n\
                    ringfence lock --slow-request 1s --wait 2s -- ls --all\ncargo --release\n";
        let tree =
            Tree::of(&[(OPTIONS, SOURCE), ("docs/a.md", text), ("deploy/deb/default", "RINGFENCE_ODD=1")]);
        let expected = [
            "deploy/deb/default: there is no variable RINGFENCE_ODD",
            "docs/a.md: there is no variable RINGFENCE_DOOR",
            "docs/a.md: there is no flag --door",
            "docs/a.md: there is no flag --wait",
        ];
        assert_eq!(unknown_settings(&tree), expected);
    }
}
