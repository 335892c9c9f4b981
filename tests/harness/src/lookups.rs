use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::folder;
use crate::{Error, preload};

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
        let mut text = String::new();
        for (name, addresses) in names {
            text += name;
            for address in *addresses {
                let _ = write!(text, " {address}");
            }
            text.push('\n');
        }
        std::fs::write(dir.path().join("names"), text).map_err(Error::io("cannot write the names"))?;
        preload::compile(SOURCE, &dir.path().join("lookups.so"))?;
        Ok(Self { dir, delay })
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
