//! Marked keys to Redis.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::connection::{Connection, Done, Written, is_elsewhere, is_final};
use crate::master::{Lost, Master};
use crate::pending::Taken;
use crate::settings::MirrorMode;
use crate::{KeyState, Source};

/// Keys in one pipeline: so few that even a slow Redis answers them in time.
const BATCH: usize = 256;
/// Pipelines under way at once: what changes just after one was sent need not wait for its answer.
const FLIGHTS: usize = 2;
/// How long to wait after Redis has refused a write, as when its memory is full.
const REFUSED: Duration = Duration::from_millis(200);

impl Master {
    /// Writes what is pending. The order of two pipelines does not matter: the script orders by revision.
    pub(crate) async fn publish<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
    ) -> Result<Infallible, Lost> {
        let mut flights = FuturesUnordered::new();
        loop {
            tokio::select! {
                taken = self.pending.take(BATCH), if flights.len() < FLIGHTS => {
                    flights.push(self.write(source, connection, taken));
                }
                Some(done) = flights.next() => done?,
            }
        }
    }

    async fn write<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
        mut taken: Taken<'_>,
    ) -> Result<(), Lost> {
        self.keep_claim(source, connection).await?;
        let view = source.views(&taken.keys());
        let (mut refused, mut elsewhere) = (None, None);
        for (number, (state, answer)) in
            view.keys.iter().zip(connection.write(view.revision, &view.keys).await?).enumerate()
        {
            match answer {
                Ok(written) => {
                    self.note(state, view.revision, written);
                    taken.settle(number);
                }
                Err(error) if is_elsewhere(&error) => {
                    if self.has(&state.key) {
                        taken.is_elsewhere(number);
                        elsewhere = Some(error);
                    } else {
                        // The slot has moved. The master that got it is compared with everything.
                        taken.settle(number);
                    }
                }
                Err(error) if is_final(&error) => return Err(error.into()),
                Err(error) => refused = Some(error),
            }
        }
        drop(taken);
        if let Some(error) = elsewhere {
            self.wait_for_slots(&error);
        }
        if let Some(error) = refused {
            self.refused(&error);
            sleep(REFUSED).await;
        } else {
            self.accepted();
        }
        Ok(())
    }

    fn note(&self, state: &KeyState, revision: ringfence_wire::Revision, written: Written) {
        match written.done {
            Done::Nothing => {}
            Done::Written => metrics::counter!("ringfence_mirror_published_total").increment(1),
            Done::Replaced => {
                metrics::counter!("ringfence_mirror_repaired_total").increment(1);
                tracing::warn!(key = %state.key, "what stood in Redis was no state of this key: replaced");
            }
        }
        if written.rev > revision {
            // A newer leader's, or nobody's of us.
            self.due.key(state.key.clone());
        }
        if written.rev >= revision && written.fence >= state.fence.0 {
            let remember = self.shared.settings.mode == MirrorMode::BeforeAnswer;
            self.shared.answers.stands(&state.key, revision, remember);
        }
    }
}
