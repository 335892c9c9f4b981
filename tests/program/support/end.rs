//! How a program has ended.

use std::process::{Command, ExitStatus, Output};

use serde::de::DeserializeOwned;

use super::PROGRAM;

/// Its exit status, standard output and standard error.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// `ringfence` with these arguments, separated by spaces.
pub(crate) fn ringfence(words: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words.split(' '));
    command
}

/// Runs it to its end.
pub(crate) fn run(command: &mut Command) -> End {
    End::of(command.output().unwrap())
}

impl End {
    pub(crate) fn of(output: Output) -> Self {
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        Self { status: output.status, out, err }
    }

    /// The exit status must be this.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// The exit status and the standard output must be these. Returns the standard error.
    #[track_caller]
    pub(crate) fn says(self, code: i32, out: &str) -> String {
        let this = self.with(code);
        assert_eq!(this.out, out, "{this:?}");
        this.err
    }

    /// It must have failed. Returns the standard error.
    #[track_caller]
    pub(crate) fn fails(self) -> String {
        assert!(!self.status.success(), "{self:?}");
        self.err
    }

    /// It must have succeeded. Returns the JSON that it printed.
    #[track_caller]
    pub(crate) fn json<T: DeserializeOwned>(self) -> T {
        serde_json::from_str(&self.with(0).out).unwrap()
    }
}
