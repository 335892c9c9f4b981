//! What processes have used, as the kernel counts it.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;

/// User and system time of all these processes, their threads included.
pub(crate) fn cpu(pids: &[u32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // Behind the name, which may contain anything: utime and stime are fields 14 and 15 of proc_pid_stat(5).
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect::<Vec<_>>());
        let of = |field: usize| fields.as_ref()?.get(field - 3)?.parse::<u64>().ok();
        ticks += of(14).zip(of(15)).map(|(user, system)| user + system).context("stat has no times")?;
    }
    Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
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
    }
}
