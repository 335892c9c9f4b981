//! Renews many leases in time, in batches spread evenly over a third of the TTL.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringfence_harness::HttpConnection;
use ringfence_wire::{LeaseId, MAX_BATCH, RenewManyRequest};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::TTL;
use crate::calls::statuses;

/// How often each lease is renewed.
const EVERY: Duration = Duration::from_secs(TTL.as_secs() / 3);
/// How often a batch is due, as long as it has 1 to [`MAX_BATCH`] leases.
const BATCH_EVERY: Duration = Duration::from_millis(200);

/// Renews leases until it is stopped.
pub(super) struct Renewals {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Vec<Renewal>>>,
}

/// One batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    due: Instant,
    answered: Instant,
    leases: u64,
    /// How many were answered anything but 200.
    refused: u64,
    /// Whether the leases could have expired before the answer.
    late: bool,
}

/// The sum of all renewals.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Renewed {
    leases: u64,
    refused: u64,
    late: u64,
    /// From the first that was due to the last.
    pub(super) per_s: f64,
    /// From due to answered.
    pub(super) longest_ms: f64,
}

impl Renewals {
    /// Renews leases that were acquired after `acquired`.
    pub(super) fn start(address: SocketAddr, leases: Vec<LeaseId>, acquired: Instant) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(renew(address, leases, acquired, stopped));
        Self { stop, task }
    }

    pub(super) async fn stop(self) -> Result<Vec<Renewal>> {
        // After an error the task has ended already; its result says why.
        let _ = self.stop.send(());
        self.task.await?.context("renewals")
    }
}

async fn renew(
    address: SocketAddr,
    leases: Vec<LeaseId>,
    acquired: Instant,
    mut stopped: oneshot::Receiver<()>,
) -> Result<Vec<Renewal>> {
    let mut connection = HttpConnection::open(address).await?;
    let batches: Vec<_> = leases.chunks(batch_size(leases.len())).collect();
    let mut ends = vec![acquired + TTL; batches.len()];
    let (mut done, begun) = (Vec::new(), Instant::now());
    for turn in 0_u32.. {
        let due = begun + EVERY.mul_f64(f64::from(turn) / batches.len() as f64);
        tokio::select! {
            _ = &mut stopped => break,
            () = sleep_until(due) => {}
        }
        let place = turn as usize % batches.len();
        let batch = batches[place];
        let body = serde_json::to_string(&RenewManyRequest { lease_ids: batch.to_vec() })?;
        let sent = Instant::now();
        let statuses = statuses(&mut connection, "/v1/renew", &body, batch.len()).await?;
        let answered = Instant::now();
        done.push(Renewal {
            due,
            answered,
            leases: batch.len() as u64,
            refused: statuses.iter().filter(|status| **status != 200).count() as u64,
            late: answered > ends[place],
        });
        // The lease lasts at least this long, and no clock of the cluster is faster than this one.
        ends[place] = sent + TTL;
    }
    Ok(done)
}

fn batch_size(leases: usize) -> usize {
    let turns = EVERY.as_millis() / BATCH_EVERY.as_millis();
    leases.div_ceil(turns as usize).clamp(1, MAX_BATCH)
}

impl Renewed {
    pub(super) fn of(renewals: &[Renewal]) -> Self {
        let leases = renewals.iter().map(|renewal| renewal.leases).sum();
        let took = renewals.first().zip(renewals.last()).map(|(first, last)| last.due - first.due);
        let took = took.filter(|took| !took.is_zero());
        Self {
            leases,
            refused: renewals.iter().map(|renewal| renewal.refused).sum(),
            late: renewals.iter().filter(|renewal| renewal.late).map(|renewal| renewal.leases).sum(),
            per_s: took.map_or(0.0, |took| leases as f64 / took.as_secs_f64()),
            longest_ms: longest(renewals.iter()),
        }
    }

    /// Fails unless leases were renewed, all of them in time.
    pub(super) fn check(&self) -> Result<()> {
        let Self { leases, refused, late, .. } = self;
        ensure!(*leases > 0, "nothing was renewed");
        ensure!(refused + late == 0, "{refused} renewals were refused, {late} were late");
        Ok(())
    }
}

/// The longest renewal, from due to answered, of those under way between `from` and `to`.
pub(super) fn longest_ms(renewals: &[Renewal], from: Instant, to: Instant) -> f64 {
    longest(renewals.iter().filter(|renewal| renewal.due <= to && renewal.answered >= from))
}

fn longest<'a>(renewals: impl Iterator<Item = &'a Renewal>) -> f64 {
    let longest = renewals.map(|renewal| renewal.answered - renewal.due).max();
    longest.unwrap_or_default().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_leases_are_renewed_all_the_time_too() {
        assert_eq!(batch_size(1), 1);
        assert_eq!(batch_size(20_000), 20);
        assert_eq!(batch_size(100_000), 100);
        assert_eq!(batch_size(1_000_000), 1_000);
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_due() {
        let at = |ms| Instant::now() + Duration::from_millis(ms);
        let renewal = |due, answered, refused, late| Renewal { due, answered, leases: 10, refused, late };
        let (a, b, c, d) = (at(0), at(100), at(1_000), at(1_300));
        let renewals = [renewal(a, b, 0, false), renewal(c, d, 3, true)];
        let renewed = Renewed::of(&renewals);
        assert_eq!((renewed.leases, renewed.refused, renewed.late), (20, 3, 10));
        assert_eq!(renewed.check().unwrap_err().to_string(), "3 renewals were refused, 10 were late");
        assert!(Renewed::of(&renewals[..1]).check().is_ok());
        assert!(Renewed::of(&[]).check().is_err());
        assert!((299.0..301.0).contains(&renewed.longest_ms));
        assert!((99.0..101.0).contains(&longest_ms(&renewals, a, b)));
        assert!(longest_ms(&renewals, at(5_000), at(6_000)) == 0.0);
    }
}
