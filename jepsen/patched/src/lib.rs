//! Builds programs from a patched copy of the workspace, so that deliberate bugs are patch files and the product holds none.

pub mod program;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The dependencies that a patch may change: openraft, and where it counts quorums. Paths in such a patch begin with the name.
const DEPENDENCIES: [&str; 2] = ["openraft", "quorum-set"];

/// Builds `package` with `patches` applied in their order. Returns the program, `target/mutants/NAME/PACKAGE`, with the
/// file names of the patches, or `clean`.
pub fn build(package: &str, patches: &[&Path]) -> anyhow::Result<PathBuf> {
    build_with(package, patches, "debug", |cargo| {
        // Faster than a debug build, with its assertions, and small: there is one program per patch.
        cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "0");
    })
}

/// The same in `profile`, with `flags` for the compiler.
pub fn build_in(profile: &str, flags: &str, package: &str, patches: &[&Path]) -> anyhow::Result<PathBuf> {
    build_with(package, patches, profile, |cargo| {
        cargo.args(["--profile", profile]).env("RUSTFLAGS", flags);
    })
}

fn build_with(
    package: &str,
    patches: &[&Path],
    profile: &str,
    options: impl FnOnce(&mut Command),
) -> anyhow::Result<PathBuf> {
    let folder = workspace()?.join("target/mutants");
    let names = patches.iter().map(|patch| patch.file_stem().and_then(OsStr::to_str));
    let names: Vec<_> = names.collect::<Option<_>>().context("a patch has a name")?;
    let name = if names.is_empty() { "clean".to_owned() } else { names.join("+") };
    let (tree, target, output) = (folder.join("tree"), folder.join("target"), folder.join(&name));
    fs::create_dir_all(&output).with_context(|| format!("cannot make the folder {}", output.display()))?;
    // All builds share one tree and one target, so that cargo builds only what a patch changes.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    copy_workspace(&tree, patches)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&tree).args(["build", "--quiet", "--package", package, "--target-dir"]).arg(&target);
    options(&mut cargo);
    run(&mut cargo).with_context(|| format!("cannot build {package} as {name}"))?;
    // Renamed, because a process may still run the one before.
    let (new, program) = (output.join("new"), output.join(package));
    fs::copy(target.join(profile).join(package), &new)
        .and_then(|_| fs::rename(&new, &program))
        .with_context(|| format!("cannot copy {package} to {}", program.display()))?;
    Ok(program)
}

/// The folder of this workspace.
pub fn workspace() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("jepsen/patched/ is in the workspace")
}

/// Makes `tree` a copy of the workspace with `patches` applied in their order.
fn copy_workspace(tree: &Path, patches: &[&Path]) -> anyhow::Result<()> {
    copy_tracked(workspace()?, tree)?;
    for patch in patches {
        if let Some(name) = dependency(patch)? {
            copy_dependency(name, tree)
                .with_context(|| format!("cannot copy {name} to {}", tree.display()))?;
        }
        apply(patch, git(tree).arg("apply"))?;
    }
    Ok(())
}

/// Whether `patch` applies to the workspace, or to the dependency that it changes. Changes nothing.
pub fn check(patch: &Path) -> anyhow::Result<()> {
    match dependency(patch)? {
        Some(name) => apply(patch, git(&source(name)?).args(["apply", "--check", "-p2"])),
        None => apply(patch, git(workspace()?).args(["apply", "--check"])),
    }
}

/// The dependency that `patch` changes, if it is not for the workspace.
fn dependency(patch: &Path) -> anyhow::Result<Option<&'static str>> {
    let text = fs::read_to_string(patch).with_context(|| format!("cannot read {}", patch.display()))?;
    Ok(DEPENDENCIES.into_iter().find(|name| text.contains(&format!("\n--- a/{name}/"))))
}

/// Where cargo keeps the source of a dependency.
fn source(name: &str) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let output = run(cargo.current_dir(workspace()?).args(["metadata", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&output)?;
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    let manifest =
        packages.find(|package| package["name"] == name).and_then(|it| it["manifest_path"].as_str());
    let folder = manifest.and_then(|manifest| Path::new(manifest).parent());
    Ok(folder.with_context(|| format!("cargo does not name the source of {name}"))?.to_owned())
}

/// Has the workspace in `tree` use a copy of the dependency in a folder of its name there.
fn copy_dependency(name: &str, tree: &Path) -> anyhow::Result<()> {
    copy_folder(&source(name)?, &tree.join(name))?;
    let manifest = tree.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    Ok(fs::write(manifest, format!("{text}\n[patch.crates-io]\n{name} = {{ path = \"{name}\" }}\n"))?)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &to)?,
            false => copy(&entry.path(), &to)?,
        }
    }
    Ok(())
}

fn apply(patch: &Path, git: &mut Command) -> anyhow::Result<()> {
    run(git.arg(patch)).with_context(|| format!("{} does not apply", patch.display()))?;
    Ok(())
}

/// Gives `tree` the files that git tracks in `checkout`, as they are in its working tree, and no others. Writes only those
/// that differ.
fn copy_tracked(checkout: &Path, tree: &Path) -> anyhow::Result<()> {
    let tracked = run(git(checkout).args(["ls-files", "-z"]))
        .with_context(|| format!("{} must be a git checkout", checkout.display()))?;
    let mut copies = BTreeSet::new();
    for file in tracked.split_terminator('\0') {
        let (from, to) = (checkout.join(file), tree.join(file));
        // A file that was deleted may still be tracked.
        if from.is_file() {
            copy(&from, &to)
                .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
            copies.insert(to);
        }
    }
    remove_others(tree, &copies).with_context(|| format!("cannot clean {}", tree.display()))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::read(to).is_ok_and(|old| fs::read(from).is_ok_and(|new| new == old)) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map(drop)
}

fn remove_others(folder: &Path, kept: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Git, in a folder that it never takes for a part of a repository around it: there, `git apply` would skip every file.
pub fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder).env("GIT_CEILING_DIRECTORIES", folder.parent().unwrap_or(folder));
    git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE");
    git
}

/// What a command that succeeds prints.
pub fn run(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patched_tree_is_the_checkout_with_the_patch_and_only_what_differs_is_written() {
        let folder = tempfile::tempdir().unwrap();
        // Inside the checkout, as the real one is.
        let (checkout, tree) = (folder.path().join("checkout"), folder.path().join("checkout/target/tree"));
        let write = |file: &Path, text: &str| {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for (file, text) in [("a/one", "old\n"), ("two", "2\n"), ("three", "3\n")] {
            write(&checkout.join(file), text);
        }
        let refused = copy_tracked(&checkout, &tree).unwrap_err();
        assert!(format!("{refused:#}").contains("must be a git checkout"), "{refused:#}");
        run(git(&checkout).args(["init", "-q"])).unwrap();
        run(git(&checkout).args(["add", "a", "two", "three"])).unwrap();
        write(&checkout.join("untracked"), "");
        let patch = folder.path().join("bug.patch");
        write(&patch, "A bug.\n\n--- a/a/one\n+++ b/a/one\n@@ -1 +1 @@\n-old\n+new\n");

        copy_tracked(&checkout, &tree).unwrap();
        let written = |file: &str| fs::metadata(tree.join(file)).unwrap().modified().unwrap();
        let before = written("two");
        apply(&patch, git(&tree).arg("apply")).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a/one")).unwrap(), "new\n");
        let twice = apply(&patch, git(&tree).arg("apply")).unwrap_err();
        assert!(format!("{twice:#}").contains("bug.patch does not apply"), "{twice:#}");

        fs::remove_file(checkout.join("three")).unwrap();
        write(&tree.join("b/made"), "by a patch");
        copy_tracked(&checkout, &tree).unwrap();
        assert_eq!(fs::read_to_string(tree.join("a/one")).unwrap(), "old\n");
        assert_eq!(written("two"), before);
        assert!(["three", "b/made", "untracked"].iter().all(|file| !tree.join(file).exists()));
    }
}
