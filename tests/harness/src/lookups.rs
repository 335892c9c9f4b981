use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::Error;
use crate::process::folder;

const SOURCE: &str = include_str!("lookups.c");

/// Names under `.test` for the processes that are started with its [variables](Lookups::variables): a library, compiled by `cc`,
/// whose lookups take a time of their own.
#[derive(Debug)]
pub struct Lookups {
    dir: TempDir,
    delay: Duration,
}

impl Lookups {
    /// These names and their addresses, each lookup of which takes `delay`; [`Error::Unavailable`] without a C compiler.
    pub fn new(names: &[(&str, &[IpAddr])], delay: Duration) -> Result<Self, Error> {
        let dir = folder("lookups")?;
        let (source, library) = (dir.path().join("lookups.c"), dir.path().join("lookups.so"));
        let mut text = String::new();
        for (name, addresses) in names {
            text += name;
            for address in *addresses {
                let _ = write!(text, " {address}");
            }
            text.push('\n');
        }
        let written =
            std::fs::write(&source, SOURCE).and_then(|()| std::fs::write(dir.path().join("names"), text));
        written.map_err(Error::io("cannot write the names"))?;
        let built =
            Command::new("cc").args(["-O1", "-shared", "-fPIC", "-o"]).arg(library).arg(source).output();
        let built = built.map_err(|error| Error::Unavailable(format!("no C compiler: {error}")))?;
        match built.status.success() {
            true => Ok(Self { dir, delay }),
            false => Err(Error::Failed(format!("cc: {}", String::from_utf8_lossy(&built.stderr)))),
        }
    }

    /// What the environment of a process needs.
    pub fn variables(&self) -> [(&'static str, PathBuf); 3] {
        let path = |name: &str| self.dir.path().join(name);
        [
            ("LD_PRELOAD", path("lookups.so")),
            ("RINGFENCE_TEST_NAMES", path("names")),
            ("RINGFENCE_TEST_LOOKUP_MS", self.delay.as_millis().to_string().into()),
        ]
    }
}
