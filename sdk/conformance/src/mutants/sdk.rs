//! The client libraries that mutants are made of: where their source is, and how an adapter is made of a copy.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tempfile::TempDir;
use tokio::process::Command;

use super::{Mutant, go, java, python, python_threads, typescript};
use crate::adapter::Recipe;
use crate::scenario::{SCENARIOS, Scenario};

const ASYNCIO_LACKS: &[&str] = &["on_lost_block", "interrupt"];

/// A client library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sdk {
    /// `sdk/python`, with asyncio.
    Python,
    /// `sdk/python` with threads, for what only threads offer.
    PythonThreads,
    /// `sdk/typescript`, which is compiled for each mutant. Its tools have to be installed: its `test` does that.
    #[value(name = "typescript")]
    TypeScript,
    /// `sdk/go`, which is compiled for each mutant.
    Go,
    /// `sdk/java`, which is compiled for each mutant by a JDK alone.
    Java,
}

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Python => "python",
            Self::PythonThreads => "python-threads",
            Self::TypeScript => "typescript",
            Self::Go => "go",
            Self::Java => "java",
        })
    }
}

impl Sdk {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Python, Self::PythonThreads, Self::TypeScript, Self::Go, Self::Java];

    /// Its mutants.
    pub fn mutants(self) -> &'static [Mutant] {
        match self {
            Self::Python => python::MUTANTS,
            Self::PythonThreads => python_threads::MUTANTS,
            Self::TypeScript => typescript::MUTANTS,
            Self::Go => go::MUTANTS,
            Self::Java => java::MUTANTS,
        }
    }

    /// Its folder in this workspace.
    fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(match self {
            Self::Python | Self::PythonThreads => "python",
            Self::TypeScript => "typescript",
            Self::Go => "go",
            Self::Java => "java",
        })
    }

    /// The folder of the files that mutants change.
    pub fn source(self) -> PathBuf {
        self.folder().join(match self {
            Self::Python | Self::PythonThreads => "src/ringfence",
            Self::TypeScript => "src",
            Self::Go => "",
            Self::Java => "client/src/main/java/dev/ringfence",
        })
    }

    /// The abilities that it does not offer. A process of Node.js cannot fork, ends only once its calls have, and has one thread for
    /// callbacks and renewals; nothing interrupts its code. In asyncio, Ctrl-C cancels a task and ends the loop: `cancel` and `exit` play
    /// that. A thread cannot be cancelled, and the thread that renews goes on while another one is blocked. The same is true of goroutines,
    /// which nothing interrupts; a program of Go ends with its main function, whatever is pending. Neither Go nor Java can fork.
    fn lacks(self) -> &'static [&'static str] {
        match self {
            Self::Python => ASYNCIO_LACKS,
            Self::PythonThreads => &["cancel", "block"],
            Self::Java => &["cancel", "block", "fork"],
            Self::TypeScript => &["fork", "exit", "on_lost_block", "interrupt"],
            Self::Go => &["block", "fork", "exit", "interrupt"],
        }
    }

    /// The scenarios that it cannot offer.
    pub fn not_offered(self) -> impl Iterator<Item = &'static Scenario> {
        SCENARIOS.iter().filter(move |scenario| scenario.needs.iter().any(|need| self.lacks().contains(need)))
    }

    /// Whether a mutant must fail this scenario. The clients for Python share an engine: threads have mutants for what only they offer.
    fn is_to_fail(self, scenario: &Scenario) -> bool {
        self != Self::PythonThreads || scenario.needs.iter().any(|need| ASYNCIO_LACKS.contains(need))
    }

    /// The scenarios that it offers, and that no mutant of it is said to fail.
    pub fn untested(self) -> Vec<&'static str> {
        let failed = self.mutants().iter().flat_map(|mutant| mutant.fails).copied();
        let without = self.not_offered().map(|scenario| scenario.name);
        let all: BTreeSet<&str> = failed.chain(without).collect();
        let to_fail = SCENARIOS.iter().filter(|scenario| self.is_to_fail(scenario));
        to_fail.map(|scenario| scenario.name).filter(|name| !all.contains(name)).collect()
    }

    /// An adapter of a copy of the library, and the folder of that copy.
    pub(super) async fn adapter(self, mutant: Option<&Mutant>) -> anyhow::Result<(Recipe, TempDir)> {
        let copy = tempfile::tempdir()?;
        match self {
            Self::Python | Self::PythonThreads => {
                self.copy_source(mutant, &copy.path().join("ringfence"))?;
            }
            Self::TypeScript => {
                self.copy_source(mutant, &copy.path().join("src"))?;
                self.compile(copy.path()).await?;
            }
            // Their `adapters` compile.
            Self::Go | Self::Java => self.copy_source(mutant, &copy.path().join("src"))?,
        }
        let output = Command::new(self.folder().join("adapters")).arg(copy.path()).output().await?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "there is no adapter of {self}: {said}");
        let number = usize::from(self == Self::PythonThreads);
        let command = said.lines().nth(number).with_context(|| format!("there is no adapter of {self}"))?;
        Ok((Recipe::parse(command)?, copy))
    }

    fn copy_source(self, mutant: Option<&Mutant>, copy: &Path) -> anyhow::Result<()> {
        fs::create_dir(copy)?;
        for entry in fs::read_dir(self.source())? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                fs::copy(entry.path(), copy.join(entry.file_name()))?;
            }
        }
        let Some(mutant) = mutant else { return Ok(()) };
        let file = copy.join(mutant.file);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(fs::write(&file, mutant.applied(&text)?)?)
    }

    /// Compiles a copy of the TypeScript client, and its adapter. A fault may leave names unused, so nothing is checked.
    async fn compile(self, copy: &Path) -> anyhow::Result<()> {
        for file in ["conformance-adapter.ts", "package.json", "tsconfig.json"] {
            fs::copy(self.folder().join(file), copy.join(file))?;
        }
        let modules = fs::canonicalize(self.folder().join("node_modules"))
            .context("sdk/typescript/node_modules: install it with `npm ci`, or with sdk/typescript/test")?;
        symlink(&modules, copy.join("node_modules"))?;
        let mut compiler = Command::new(modules.join(".bin/tsc"));
        let output = compiler.arg("--noCheck").current_dir(copy).kill_on_drop(true).output().await?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "a copy of the TypeScript client cannot be compiled: {said}");
        Ok(())
    }
}
