//! Libraries in C that are loaded into a process before the C library, and change what the system tells it.

use std::path::Path;
use std::process::Command;

use crate::Error;

/// Compiles `source` to the library `to`, unless that exists; [`Error::Unavailable`] without a C compiler.
pub fn compile(source: &str, to: &Path) -> Result<(), Error> {
    if to.exists() {
        return Ok(());
    }
    let (text, built) = (to.with_extension("c"), to.with_extension("new"));
    std::fs::write(&text, source).map_err(Error::io("cannot write the source of a library"))?;
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-shared", "-fPIC", "-o"]).arg(&built).arg(&text).arg("-ldl");
    let unavailable = |error| Error::Unavailable(format!("needs a C compiler, cc: {error}"));
    let output = cc.output().map_err(unavailable)?;
    if !output.status.success() {
        return Err(Error::Failed(format!("cc: {}", String::from_utf8_lossy(&output.stderr))));
    }
    std::fs::rename(built, to).map_err(Error::io("cannot name a library"))
}
