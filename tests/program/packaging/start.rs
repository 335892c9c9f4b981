//! How a manifest starts a node, and whether the program accepts that.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::PROGRAM;
use super::yaml::words;

/// The path of the program in the image and in the package.
pub(crate) const INSTALLED: &str = "/usr/bin/ringfence";
pub(crate) type Variables = BTreeMap<String, String>;

/// How a manifest starts a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) command: Vec<String>,
    pub(crate) variables: Variables,
}

impl Start {
    /// The same with other arguments and more variables, as for a container of an image.
    pub(crate) fn with(&self, arguments: &Value, variables: Variables) -> Self {
        let mut start = self.clone();
        if !arguments.is_null() {
            start.command.truncate(1);
            start.command.extend(words(arguments));
        }
        start.variables.extend(variables);
        start
    }

    /// Checks that the program accepts it.
    pub(crate) fn check(&self) -> Result<(), String> {
        let [program, command, flags @ ..] = self.command.as_slice() else {
            return Err(format!("no command: {self:?}"));
        };
        if program != INSTALLED || command != "serve" {
            return Err(format!("not {INSTALLED} serve: {self:?}"));
        }
        // The program ignores variables that it does not know.
        let known = known_variables();
        let ours = self.variables.keys().filter(|name| name.starts_with("RINGFENCE_"));
        if let Some(unknown) = ours.into_iter().find(|name| !known.contains(name)) {
            return Err(format!("the program does not know the variable {unknown}"));
        }
        let mut command = Command::new(PROGRAM);
        let secret = self.variables.get("RINGFENCE_ID").map(|id| secret(id));
        let inside = |value: &String| match &secret {
            Some(secret) => value.replace("/etc/ringfence", secret.path().to_str().unwrap()),
            None => value.clone(),
        };
        let variables = self.variables.iter().map(|(name, value)| (name, inside(value)));
        command.args(["serve", "--check"]).args(flags).env_clear().envs(variables);
        let checked = command.output().unwrap();
        match checked.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&checked.stderr).into_owned()),
        }
    }

    pub(crate) fn is_accepted(&self) {
        self.check().unwrap_or_else(|error| panic!("{self:?}: {error}"));
    }
}

/// What a node finds in its `/etc/ringfence`, under the names of the unit and of the pods.
fn secret(id: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for words in [&["authorities"][..], &["node", "--hosts=localhost", "--id", id]] {
        let made = Command::new(PROGRAM).arg("cert").args(words).current_dir(dir.path()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
    for end in [".pem", ".key", "-peer.pem", "-peer.key"] {
        fs::copy(dir.path().join(format!("node-{id}{end}")), dir.path().join(format!("node{end}"))).unwrap();
    }
    fs::write(dir.path().join("access.toml"), "").unwrap();
    dir
}

/// The variables of `ringfence serve`, from its help.
fn known_variables() -> Vec<String> {
    let help = Command::new(PROGRAM).args(["serve", "--help"]).env_clear().output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let names = help.split("[env: ").skip(1).map(|rest| rest.split(['=', ']']).next().unwrap().to_owned());
    names.collect()
}
