//! Leases that are renewed in time, in batches that lie evenly over a third of the ttl.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringfence_wire::{LeaseId, MAX_BATCH, RenewManyRequest};
use serde::{Serialize, Serializer};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::TTL;
use crate::calls::statuses;
use crate::http::Connection;

/// How often each lease is renewed.
const EVERY: Duration = Duration::from_secs(TTL.as_secs() / 3);
/// So often a batch is due, as long as batches have more than one lease and no more than they may have.
const BATCH_EVERY: Duration = Duration::from_millis(200);

/// Renews leases until it is stopped.
pub(super) struct Renewals {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<Vec<Renewal>>>,
}

/// One batch.
#[derive(Clone, Copy, Debug)]
struct Renewal {
    due: Instant,
    answered: Instant,
    leases: u64,
    /// How many were answered anything but 200.
    refused: u64,
    /// Whether the leases could have ended before the answer.
    late: bool,
}

/// All that was renewed.
#[derive(Clone, Debug)]
pub(super) struct Renewed(Vec<Renewal>);

impl Renewals {
    /// The leases were taken after `taken`.
    pub(super) fn start(address: SocketAddr, leases: Vec<LeaseId>, taken: Instant) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(renew(address, leases, taken, stopped));
        Self { stop, task }
    }

    pub(super) async fn stop(self) -> Result<Renewed> {
        // It has ended by itself after an error, which it tells.
        let _ = self.stop.send(());
        Ok(Renewed(self.task.await?.context("renewals")?))
    }
}

async fn renew(
    address: SocketAddr,
    leases: Vec<LeaseId>,
    taken: Instant,
    mut stopped: oneshot::Receiver<()>,
) -> Result<Vec<Renewal>> {
    let mut connection = Connection::open(address).await?;
    let batches: Vec<_> = leases.chunks(batch_size(leases.len())).collect();
    let mut ends = vec![taken + TTL; batches.len()];
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
        // The lease lasts at least so long from then on, and no clock of the cluster is faster than this one.
        ends[place] = sent + TTL;
    }
    Ok(done)
}

fn batch_size(leases: usize) -> usize {
    let turns = EVERY.as_millis() / BATCH_EVERY.as_millis();
    leases.div_ceil(turns as usize).clamp(1, MAX_BATCH)
}

impl Renewed {
    fn leases(&self) -> u64 {
        self.0.iter().map(|renewal| renewal.leases).sum()
    }

    /// Fails unless leases were renewed, all of them in time.
    pub(super) fn check(&self) -> Result<()> {
        let (refused, late) = (self.refused(), self.late());
        ensure!(self.leases() > 0, "nothing was renewed");
        ensure!(refused + late == 0, "{refused} renewals were refused, {late} were late");
        Ok(())
    }

    fn refused(&self) -> u64 {
        self.0.iter().map(|renewal| renewal.refused).sum()
    }

    fn late(&self) -> u64 {
        self.0.iter().filter(|renewal| renewal.late).map(|renewal| renewal.leases).sum()
    }

    /// Over the time from the first that was due to the last.
    pub(super) fn per_second(&self) -> f64 {
        let took = self.0.first().zip(self.0.last()).map(|(first, last)| last.due - first.due);
        took.filter(|took| !took.is_zero()).map_or(0.0, |took| self.leases() as f64 / took.as_secs_f64())
    }

    /// The longest from due to answered, of all.
    pub(super) fn longest_of_all_ms(&self) -> f64 {
        longest_ms(self.0.iter())
    }

    /// The longest from due to answered, of those that were in hand at some time between these.
    pub(super) fn longest_ms(&self, from: Instant, to: Instant) -> f64 {
        longest_ms(self.0.iter().filter(|renewal| renewal.due <= to && renewal.answered >= from))
    }
}

impl Serialize for Renewed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            leases: u64,
            refused: u64,
            late: u64,
            per_s: f64,
            longest_ms: f64,
        }
        let shown = Shown {
            leases: self.leases(),
            refused: self.refused(),
            late: self.late(),
            per_s: self.per_second(),
            longest_ms: self.longest_of_all_ms(),
        };
        shown.serialize(serializer)
    }
}

fn longest_ms<'a>(renewals: impl Iterator<Item = &'a Renewal>) -> f64 {
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
        let renewed = Renewed(vec![renewal(a, b, 0, false), renewal(c, d, 3, true)]);
        assert_eq!((renewed.leases(), renewed.refused(), renewed.late()), (20, 3, 10));
        assert_eq!(renewed.check().unwrap_err().to_string(), "3 renewals were refused, 10 were late");
        assert!(Renewed(renewed.0[..1].to_vec()).check().is_ok());
        assert!(Renewed(Vec::new()).check().is_err());
        assert!((299.0..301.0).contains(&renewed.longest_of_all_ms()));
        assert!((99.0..101.0).contains(&renewed.longest_ms(a, b)));
        assert!(renewed.longest_ms(at(5_000), at(6_000)) == 0.0);
    }
}
