//! How much memory this process may use, for limits that follow it.

use std::fs;
use std::path::Path;

use ringfence_raft::MAX_LEASE_BYTES;

/// What a connection takes at most, in bytes, with TLS and full buffers. Measured: 91 KB. After the handshake, rustls keeps up to 64 KiB of
/// a message that has not arrived to its end.
const PER_CONNECTION: u64 = 160_000;

/// The default of --max-lease-bytes: a quarter of the memory, if that is less than usual. The process takes 1.6 times as much, with the
/// log and the history.
pub(crate) fn lease_bytes() -> u64 {
    available().map_or(MAX_LEASE_BYTES, |bytes| MAX_LEASE_BYTES.min(bytes / 4))
}

/// How many connections take an eighth of the memory.
pub(crate) fn connections() -> usize {
    let fit = available().map_or(u64::MAX, |bytes| (bytes / 8 / PER_CONNECTION).max(1));
    usize::try_from(fit).unwrap_or(usize::MAX)
}

/// All memory of the machine or, if that is less, what the control groups of this process allow. `None` if the system does not say.
fn available() -> Option<u64> {
    let of_machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    of_machine.into_iter().chain(limits(&groups, Path::new("/sys/fs/cgroup"))).min()
}

/// In bytes, by proc_meminfo(5).
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The limits of the groups that /proc/self/cgroup lists, and of those that they are in, by cgroups(7): of version 2, and of version 1.
fn limits(groups: &str, root: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            "memory" => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        // In a container, the group may be named as outside, and mounted as the root.
        let named = root.join(group.trim_start_matches('/'));
        let all = named.ancestors().take_while(|group| group.starts_with(&root));
        let limit = |group: &Path| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
        found.extend(all.filter_map(limit));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_limits_counts() {
        assert_eq!(total("MemFree: 5 kB\nMemTotal:       24576 kB\n"), Some(24 << 20));
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "3000\n");
        write("a/b/memory.max", "max\n");
        write("memory/x/memory.limit_in_bytes", "7000\n");
        let of = |groups: &str| limits(groups, dir.path());
        assert_eq!(of("0::/a/b\n"), [3000]);
        assert_eq!(of("1:name=systemd:/x\n4:memory:/x\n"), [7000]);
        assert_eq!(of("0::/elsewhere/b\n"), [0; 0]);
        write("memory.max", "9000");
        assert_eq!(of("0::/elsewhere/b\n"), [9000], "as in a container");
    }
}
