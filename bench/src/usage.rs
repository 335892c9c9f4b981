//! CPU time and memory of processes, from procfs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

/// CPU time by process and thread name.
pub(crate) type Threads = BTreeMap<u32, BTreeMap<String, Duration>>;

/// User and system time of all threads of these processes.
pub(crate) fn cpu(pids: &[u32]) -> Result<Duration> {
    pids.iter().map(|pid| Ok(stat(&format!("/proc/{pid}/stat"))?.1)).sum()
}

/// User and system time by process and thread name.
pub(crate) fn cpu_by_thread(pids: &[u32]) -> Result<Threads> {
    let mut used = Threads::new();
    for &pid in pids {
        let threads = used.entry(pid).or_default();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            // A thread may have ended meanwhile.
            let Ok((name, time)) = stat(&thread?.path().join("stat").display().to_string()) else { continue };
            *threads.entry(name).or_default() += time;
        }
    }
    Ok(used)
}

/// What each thread used between two measurements, of the process that used the most.
pub(crate) fn busiest(before: &Threads, after: &Threads) -> BTreeMap<String, Duration> {
    let used = after.iter().map(|(pid, threads)| {
        let before =
            |name| before.get(pid).and_then(|threads| threads.get(name)).copied().unwrap_or_default();
        threads.iter().map(|(name, time)| (name.clone(), time.saturating_sub(before(name)))).collect()
    });
    used.max_by_key(|threads: &BTreeMap<String, Duration>| threads.values().sum::<Duration>())
        .unwrap_or_default()
}

/// The name, and user and system time: see proc_pid_stat(5).
fn stat(path: &str) -> Result<(String, Duration)> {
    let stat = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    // The name, in parentheses, may contain anything. Behind it is field 3; utime and stime are 14 and 15.
    let parts = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") "));
    let (name, rest) = parts.context("stat has no name")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    let of = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = of(14).zip(of(15)).map(|(user, system)| user + system).context("stat has no times")?;
    Ok((name.to_owned(), Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)))
}

/// The sum of the peak memory of these processes, in bytes.
pub(crate) fn peak_bytes(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|pid| status_bytes(*pid, "VmHWM:")).sum()
}

/// The sum of the memory of these processes, in bytes.
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
    fn a_thread_that_works_uses_time_and_memory() {
        let own = [std::process::id()];
        let before = cpu(&own).unwrap();
        let name = thread::current().name().unwrap().split_at(15).0.to_owned();
        let used = || cpu_by_thread(&own).unwrap()[&own[0]][&name];
        let (begun, mut sum) = (Instant::now(), 0_u64);
        while used() < Duration::from_millis(50) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no time was used");
            sum = std::hint::black_box((0..1_000_000).fold(sum, u64::wrapping_add));
        }
        assert!(cpu(&own).unwrap() >= before + Duration::from_millis(30));
        assert!(peak_bytes(&own).unwrap() >= resident_bytes(&own).unwrap() / 2);
        assert!(cpu(&[u32::MAX]).is_err());
    }
}
