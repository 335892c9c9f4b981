//! Plans of runs that once failed.
//!
//! A plan is kept, not its seed: which plan a seed draws changes with the simulator.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// A run that once failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regression {
    /// What it showed.
    pub showed: String,
    /// What is played again.
    pub plan: Plan,
}

/// The files in `sim/regressions`, by name.
///
/// # Errors
/// If a file cannot be read as one.
pub fn all() -> anyhow::Result<Vec<(String, Regression)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut all = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let regression =
            serde_json::from_slice(&text).with_context(|| format!("{} is no regression", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        all.push((name, regression));
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_reads() {
        let all = all().unwrap();
        assert!(!all.is_empty());
        for (name, regression) in all {
            assert!(!regression.showed.is_empty(), "{name}");
        }
    }
}
