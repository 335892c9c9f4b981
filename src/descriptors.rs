//! The budget of file descriptors. A node fails without one for its log, snapshots and peers, so client connections are
//! limited to leave a reserve.

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::memory;

/// A node refuses to start with a lower limit.
const LEAST: usize = 512;
/// Reserved for the log, snapshots, peers and the mirror, and for connections that are being closed or shake hands.
const RESERVE: usize = 256;
/// Used by the runtime of each HTTP thread.
const PER_THREAD: usize = 4;
/// A node warns below this.
const FEW: usize = 1_000;
/// The default maximum: connections take memory, too.
const DEFAULT_MAX: usize = 16_384;

/// Raises the soft limit to the hard one, and returns the maximum number of client connections.
pub(crate) fn connections(configured: Option<usize>, threads: usize) -> anyhow::Result<usize> {
    let limit = raise()?;
    let max = max_connections(limit, configured, threads)?;
    if max < FEW {
        tracing::warn!(
            connections = max,
            descriptors = limit,
            "the limit of file descriptors allows few connections: raise it (LimitNOFILE, ulimit -n)"
        );
    }
    Ok(max)
}

fn raise() -> anyhow::Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit { current: maximum, maximum };
        setrlimit(Resource::Nofile, raised).context("cannot raise the limit of file descriptors")?;
    }
    Ok(maximum.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn max_connections(limit: usize, configured: Option<usize>, threads: usize) -> anyhow::Result<usize> {
    let reserved = RESERVE + PER_THREAD * threads;
    ensure!(
        limit >= LEAST && reserved < limit,
        "the limit of file descriptors is {limit}; a node needs at least {LEAST}, including {PER_THREAD} for each of \
         --http-threads, and one per connection (LimitNOFILE, ulimit -n)"
    );
    let room = limit - reserved;
    let max = configured.unwrap_or(room.min(DEFAULT_MAX).min(memory::connections()));
    ensure!(
        (1..=room).contains(&max),
        "--max-connections must be from 1 to {room}: the limit of file descriptors is {limit} (LimitNOFILE, ulimit -n), \
         and the node itself needs {reserved}"
    );
    Ok(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve() {
        for (limit, room) in [(512, 248), (1_024, 760), (4_096, 3_832), (usize::MAX, DEFAULT_MAX)] {
            assert_eq!(max_connections(limit, None, 2).unwrap(), room, "{limit}");
        }
        assert_eq!(max_connections(1_024, Some(5), 64).unwrap(), 5);
        assert_eq!(max_connections(1 << 20, Some(100_000), 8).unwrap(), 100_000);
        for (limit, configured, threads) in
            [(511, None, 1), (512, None, 64), (1_024, Some(0), 2), (1_024, Some(761), 2)]
        {
            assert!(max_connections(limit, configured, threads).is_err(), "{limit} {configured:?} {threads}");
        }
    }
}
