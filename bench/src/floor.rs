//! What the disk alone costs: three concurrent writers, each appending 200 B and syncing, as three nodes must.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The p50 of one append with its sync, in ms, measured for `time`.
pub(crate) fn sync_p50_ms(dir: &Path, time: Duration) -> Result<f64> {
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let path = dir.join(format!("floor-{writer}"));
            std::thread::spawn(move || -> Result<Vec<f64>> {
                let mut file = File::create(&path)?;
                let (mut took, begun) = (Vec::new(), Instant::now());
                while begun.elapsed() < time {
                    let start = Instant::now();
                    file.write_all(&[7; 200])?;
                    file.sync_data()?;
                    took.push(start.elapsed().as_secs_f64() * 1e3);
                }
                std::fs::remove_file(&path)?;
                Ok(took)
            })
        })
        .collect();
    let mut all = Vec::new();
    for writer in writers {
        all.extend(writer.join().ok().context("a writer panicked")??);
    }
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().context("nothing was written")
}
