//! Writes changed keys to Redis.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ringfence_wire::Revision;
use tokio::time::sleep;

use crate::connection::{Change, Written, is_fatal, is_slot_error};
use crate::session::{End, Session};
use crate::settings::MirrorMode;
use crate::work::Writes;
use crate::{KeyState, Source, measure};

/// Keys in one pipeline: few enough that even a slow Redis answers in time.
const BATCH: usize = 256;
/// Pipelines in flight: a change just after one was sent need not wait for its answer.
const PIPELINES: usize = 2;
/// The pause after Redis has refused a write, as when its memory is full.
const REFUSED: Duration = Duration::from_millis(200);

impl<S: Source> Session<'_, S> {
    /// Writes queued keys. The order of two pipelines does not matter: the script orders writes by revision.
    pub(crate) async fn publish(&self) -> Result<Infallible, End> {
        let mut pipelines = FuturesUnordered::new();
        loop {
            tokio::select! {
                batch = self.master.work.batch(BATCH), if pipelines.len() < PIPELINES => {
                    pipelines.push(self.write(batch));
                }
                Some(written) = pipelines.next() => written?,
            }
        }
    }

    async fn write(&self, mut batch: Writes<'_>) -> Result<(), End> {
        self.renew_claim().await?;
        let view = self.source.views(&batch.keys());
        let answers = self.connection.write(view.revision, &view.keys, &[]).await?;
        let (mut refused, mut unserved) = (None, None);
        for (index, (state, answer)) in view.keys.iter().zip(answers).enumerate() {
            match answer {
                Ok(written) => {
                    self.note(state, view.revision, written);
                    batch.done(index);
                }
                Err(error) if is_slot_error(&error) => {
                    if self.master.has(&state.key) {
                        batch.defer(index);
                        unserved = Some(error);
                    } else {
                        // The slot has moved. Its new master is compared with everything.
                        batch.done(index);
                    }
                }
                Err(error) if is_fatal(&error) => return Err(error.into()),
                Err(error) => refused = Some(error),
            }
        }
        drop(batch);
        if let Some(error) = unserved {
            self.master.deferred(&error);
        }
        if let Some(error) = refused {
            self.master.write_refused(&error);
            sleep(REFUSED).await;
        } else {
            self.master.write_accepted();
        }
        Ok(())
    }

    fn note(&self, state: &KeyState, revision: Revision, written: Written) {
        match written.change {
            Change::None => {}
            Change::Written => measure::PUBLISHED.get().increment(1),
            Change::Replaced => {
                measure::REPAIRED.get().increment(1);
                tracing::warn!(key = %state.key, "replaced a malformed hash in Redis");
            }
        }
        if written.rev > revision {
            // From a newer leader, or from outside this cluster.
            self.master.work.compare(state.key.clone());
        }
        if written.rev >= revision && written.fence >= state.fence.0 {
            let shared = &self.master.shared;
            let remember = shared.config.settings.mode == MirrorMode::BeforeAnswer;
            shared.waiters.written(&state.key, revision, remember);
        }
    }
}
