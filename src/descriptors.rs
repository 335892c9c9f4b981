//! File descriptors: a budget with a reserve. Every connection takes one, and so do the log, snapshots and peers, without
//! which a node cannot go on; so connections are held below the limit.

use anyhow::{Context, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A node does not start with fewer.
const LEAST: usize = 256;
/// What the log, snapshots, peers and a mirror are left; or half of what there is, where that is less.
const RESERVE: usize = 256;
/// What the runtime of each thread takes that serves connections.
const OF_THREAD: usize = 4;
/// With fewer connections than these, clients will wait for them.
const FEW: usize = 1_000;
/// A node takes no more connections, unless it is told to: each takes memory, too.
const MOST: usize = 16_384;

/// Raises the limit as far as this process may, and tells how many connections of clients it leaves room for, where so many
/// threads serve them.
pub(crate) fn connections(asked: Option<usize>, threads: usize) -> anyhow::Result<usize> {
    let limit = raise()?;
    let most = most(limit, asked, threads)?;
    if most < FEW {
        tracing::warn!(
            connections = most,
            descriptors = limit,
            "this node takes few connections at a time: raise the limit of file descriptors (LimitNOFILE, ulimit -n)"
        );
    }
    Ok(most)
}

fn raise() -> anyhow::Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit { current: maximum, maximum };
        setrlimit(Resource::Nofile, raised).context("the limit of file descriptors could not be raised")?;
    }
    Ok(maximum.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)))
}

fn most(limit: usize, asked: Option<usize>, threads: usize) -> anyhow::Result<usize> {
    let kept = RESERVE.min(limit / 2) + OF_THREAD * threads;
    ensure!(
        limit >= LEAST && kept < limit,
        "this process may have {limit} file descriptors open; a node needs at least {LEAST}, {OF_THREAD} for each of \
         --door-threads, and one for each connection (LimitNOFILE, ulimit -n)"
    );
    let room = limit - kept;
    match asked {
        None => Ok(room.min(MOST)),
        Some(asked) => {
            ensure!(
                (1..=room).contains(&asked),
                "--max-connections is from 1 to {room}: of {limit} file descriptors (LimitNOFILE, ulimit -n), {} are kept \
                 for the node itself",
                kept
            );
            Ok(asked)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_a_reserve() {
        for (limit, room) in [(256, 120), (512, 248), (1_024, 760), (4_096, 3_832), (usize::MAX, MOST)] {
            assert_eq!(most(limit, None, 2).unwrap(), room, "{limit}");
        }
        assert_eq!(most(1_024, Some(5), 64).unwrap(), 5);
        assert_eq!(most(1 << 20, Some(100_000), 8).unwrap(), 100_000);
        for (limit, asked, threads) in
            [(255, None, 1), (256, None, 32), (1_024, Some(0), 2), (1_024, Some(761), 2)]
        {
            assert!(most(limit, asked, threads).is_err(), "{limit} {asked:?} {threads}");
        }
    }
}
