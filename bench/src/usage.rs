//! What processes have used, as the kernel counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

/// User and system time of all these processes, their threads included.
pub(crate) fn cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| Ok(stat(&format!("/proc/{pid}/stat"))?.1)).sum()
}

/// User and system time by process and by the names of its threads.
pub(crate) fn cpu_by_thread(pids: &[u32]) -> Result<BTreeMap<u32, BTreeMap<String, Duration>>> {
    let mut used = BTreeMap::new();
    for &pid in pids {
        let threads: &mut BTreeMap<_, Duration> = used.entry(pid).or_default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            // One that has ended meanwhile is of no interest.
            let Ok((name, time)) = stat(&thread?.path().join("stat").display().to_string()) else { continue };
            *threads.entry(name).or_default() += time;
        }
    }
    Ok(used)
}

/// The name, and user and system time, that proc_pid_stat(5) describes.
fn stat(path: &str) -> Result<(String, Duration)> {
    let stat = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    // Around the name, which may contain anything, and behind it field 3 and so on: utime and stime are 14 and 15.
    let parts = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") "));
    let (name, rest) = parts.context("stat has no name")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let of = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = of(14).zip(of(15)).map(|(user, system)| user + system).context("stat has no times")?;
    Ok((name.to_owned(), Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)))
}

/// The most memory that these processes have had so far, together, in bytes.
pub(crate) fn peak_bytes(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| status_bytes(*pid, "VmHWM:")).sum()
}

/// The memory that these processes have now, together, in bytes.
pub(crate) fn resident_bytes(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| status_bytes(*pid, "VmRSS:")).sum()
}

fn status_bytes(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    let kibibytes: u64 = line.with_context(|| format!("{path} has no {name}"))?.parse()?;
    Ok(kibibytes * 1_024)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_works_has_used_time_and_memory() {
        let own = [std::process::id()];
        let before = cpu(&own).unwrap();
        let (begun, mut sum) = (Instant::now(), 0_u64);
        while cpu(&own).unwrap() < before + Duration::from_millis(50) {
            assert!(begun.elapsed() < Duration::from_secs(20), "no time was used");
            sum = std::hint::black_box((0..1_000_000).fold(sum, u64::wrapping_add));
        }
        assert!(peak_bytes(&own).unwrap() >= resident_bytes(&own).unwrap() / 2);
        assert!(cpu(&[u32::MAX]).is_err());
        let threads = cpu_by_thread(&own).unwrap().remove(&own[0]).unwrap();
        assert!(threads.values().sum::<Duration>() >= before + Duration::from_millis(50), "{threads:?}");
        assert!(threads.contains_key(thread::current().name().unwrap().split_at(15).0), "{threads:?}");
    }
}
