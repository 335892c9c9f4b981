//! The tables, and the check.

use std::fmt;

use anyhow::{Context, Result};

use super::{Row, Scale, TTL};
use crate::figures::{digits, table};

/// With fewer leases, most memory is not theirs.
const ENOUGH_TO_SHARE_MEMORY: u64 = 100_000;

impl fmt::Display for Scale {
    /// One row for each number of live leases, in tables that fit on a page.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Keys of 32 bytes, one a lease, and all leases renewed at a third of their ttl of {} s.",
            TTL.as_secs()
        )?;
        let first = self.rows.first().map(|row| row.cycles_per_s);
        self.part(
            f,
            &format!(
                "{} clients acquire and release keys of their own; p99.9 without and during snapshots of the leader; its delays",
                self.clients
            ),
            &["cycles/s", "to first", "p50 ms", "p99 ms", "p99.9 ms", "without", "during", "each s", "> 50 ms"],
            |row| {
                let Row { cycles_per_s, acquire_p50_ms, acquire_p99_ms, acquire_p99_9_ms, snapshots, .. } = row;
                vec![
                    digits(*cycles_per_s),
                    first.map_or_else(|| "-".to_owned(), |first| digits(cycles_per_s / first)),
                    digits(*acquire_p50_ms),
                    digits(*acquire_p99_ms),
                    digits(*acquire_p99_9_ms),
                    digits(snapshots.without_p99_9_ms),
                    digits(snapshots.p99_9_ms),
                    digits(snapshots.each_s),
                    snapshots.delays.to_string(),
                ]
            },
        )?;
        self.part(
            f,
            "A tenth as many expire at once, and the keys of half of these have waiters; the longest renewal meanwhile",
            &["gone s", "granted s", "renewal ms", "> 50 ms"],
            |Row { expiry, renewal_at_expiry_ms, .. }| {
                vec![
                    digits(expiry.gone_s),
                    digits(expiry.granted_s),
                    digits(*renewal_at_expiry_ms),
                    expiry.delays.to_string(),
                ]
            },
        )?;
        self.part(
            f,
            "Time to fill by batches, to catch up of a follower, to restart; renewals, and the longest; B of memory a lease",
            &["fill s", "catch up s", "restart s", "renewals/s", "longest ms", "resident B", "peak B"],
            |row| {
                vec![
                    digits(row.fill_s),
                    digits(row.catch_up_s),
                    digits(row.restart_s),
                    digits(row.renewed.per_s),
                    digits(row.renewed.longest_ms),
                    row.of_a_lease(&row.resident_bytes),
                    row.of_a_lease(&row.peak_bytes),
                ]
            },
        )
    }
}

impl Scale {
    fn part(
        &self,
        f: &mut fmt::Formatter<'_>,
        title: &str,
        headings: &[&str],
        cells: impl Fn(&Row) -> Vec<String>,
    ) -> fmt::Result {
        let headings: Vec<_> = ["leases"].into_iter().chain(headings.iter().copied()).collect();
        let rows = self.rows.iter().map(|row| [vec![digits(row.leases as f64)], cells(row)].concat());
        write!(f, "\n{title}\n{}", table(&headings, &rows.collect::<Vec<_>>()))
    }

    /// Fails if a renewal was refused or late.
    pub(crate) fn check(&self) -> Result<()> {
        self.rows
            .iter()
            .try_for_each(|row| row.renewed.check().with_context(|| format!("{} leases", row.leases)))
    }
}

impl Row {
    /// Bytes a lease, of the node that has the most.
    fn of_a_lease(&self, nodes: &[u64]) -> String {
        let most = nodes.iter().max().filter(|_| self.leases >= ENOUGH_TO_SHARE_MEMORY);
        most.map_or_else(|| "-".to_owned(), |most| digits(*most as f64 / self.leases as f64))
    }
}
