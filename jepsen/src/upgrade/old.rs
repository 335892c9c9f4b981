//! An older program, built from the history of this repository.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use ringfence_patched::{git, run, workspace};

/// The last commit whose program knows no versions of rules.
pub const BEFORE_RULES: &str = "86e5701f52991e299d1e42a7d69b4dcfcd80b9b5";

/// The program at a path or, if there is none, of a commit.
pub fn program(named: &str, release: bool) -> anyhow::Result<PathBuf> {
    match Path::new(named).canonicalize() {
        Ok(path) if path.is_file() => Ok(path),
        _ => build(named, release),
    }
}

/// The program of a commit, given in full, if it is built.
pub fn built(commit: &str, release: bool) -> Option<PathBuf> {
    place(commit, release).ok().filter(|program| program.is_file())
}

fn place(commit: &str, release: bool) -> anyhow::Result<PathBuf> {
    let profile = if release { "release" } else { "debug" };
    Ok(workspace()?.join("target/old").join(commit).join(profile).join("ringfence"))
}

/// Builds `ringfence` as it was at a commit. Returns the program, `target/old/COMMIT/PROFILE/ringfence`, which is built once.
fn build(commit: &str, release: bool) -> anyhow::Result<PathBuf> {
    let commit = find(workspace()?, commit)?;
    let program = place(&commit, release)?;
    let folder = program.parent().context("a program is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    if program.is_file() {
        return Ok(program);
    }
    let (tree, archive, target) = (folder.join("tree"), folder.join("tree.tar"), folder.join("target"));
    fs::create_dir_all(&tree)?;
    run(git(workspace()?).args(["archive", "--output"]).arg(&archive).arg(&commit))?;
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&tree))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&tree).args(["build", "--quiet", "--locked", "--package", "ringfence", "--target-dir"]);
    cargo.arg(&target).args(release.then_some("--release"));
    // Nobody debugs it.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    run(&mut cargo).with_context(|| format!("cannot build ringfence of commit {commit}"))?;
    let made = target.join(if release { "release" } else { "debug" }).join("ringfence");
    fs::rename(made, &program).with_context(|| format!("cargo has built no ringfence of commit {commit}"))?;
    // A build takes more than a gigabyte, and is not needed again.
    fs::remove_dir_all(&target)?;
    fs::remove_dir_all(&tree)?;
    fs::remove_file(&archive)?;
    Ok(program)
}

/// The full name of a commit.
fn find(repository: &Path, commit: &str) -> anyhow::Result<String> {
    let parse = |what: &str| run(git(repository).args(["rev-parse", "--verify", "--quiet", what]));
    if let Ok(found) = parse(&format!("{commit}^{{commit}}")) {
        return Ok(found.trim().to_owned());
    }
    let is_shallow = run(git(repository).args(["rev-parse", "--is-shallow-repository"]))
        .with_context(|| format!("{} must be a git checkout", repository.display()))?;
    match is_shallow.trim() {
        "true" => bail!(
            "this clone is shallow, and lacks commit {commit}: run `git fetch --unshallow`, or name a program"
        ),
        _ => bail!("there is no program and no commit {commit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_found_by_its_short_name_and_a_shallow_clone_says_that_it_lacks_it() {
        let folder = tempfile::tempdir().unwrap();
        let (whole, shallow) = (folder.path().join("whole"), folder.path().join("shallow"));
        fs::create_dir(&whole).unwrap();
        let refused = find(&whole, "abc").unwrap_err();
        assert!(format!("{refused:#}").contains("must be a git checkout"), "{refused:#}");
        let author = ["-c", "user.name=a", "-c", "user.email=a@a"];
        run(git(&whole).args(["init", "-q"])).unwrap();
        for message in ["first", "second"] {
            run(git(&whole).args(author).args(["commit", "-q", "--allow-empty", "-m", message])).unwrap();
        }
        let first = run(git(&whole).args(["rev-parse", "HEAD~"])).unwrap().trim().to_owned();
        assert_eq!(find(&whole, &first[..8]).unwrap(), first);
        let refused = find(&whole, "0123456").unwrap_err();
        assert_eq!(refused.to_string(), "there is no program and no commit 0123456");

        let url = format!("file://{}", whole.display());
        run(git(folder.path()).args(["clone", "-q", "--depth=1", &url, "shallow"])).unwrap();
        let refused = find(&shallow, &first).unwrap_err();
        assert!(refused.to_string().contains("git fetch --unshallow"), "{refused}");
    }
}
