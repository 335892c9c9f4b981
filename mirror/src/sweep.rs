//! Compares the table with Redis.
//!
//! A round goes through the live keys of the table, and then through the hashes that Redis has of keys that are not
//! held. It goes as fast as it can when all is to be compared: after connecting, when the marker was missing, when
//! Redis has evicted something or too many changes came at once. Otherwise slowly, for what a foreign hand did. What is
//! behind is marked as changed, and [published](crate::publish) like any other change.
//!
//! What is *ahead* of the table is not believed and not overwritten at once, as it may be a newer leader's: the hash was
//! read, *then* the cluster is asked for its revision R. Whoever wrote a revision larger than R was not of this
//! cluster. It is replaced, if it is still what was read.

use std::convert::Infallible;
use std::time::Duration;

use ringfence_wire::Key;
use tokio::time::timeout;

use crate::connection::{Connection, Done, is_elsewhere, is_final};
use crate::hash::{Fields, Judgement, Standing};
use crate::master::{Lost, Master};
use crate::{KeyState, Source};

/// Keys that are compared at once.
const PAGE: usize = 256;
/// Between two rounds of the slow sweep.
const ROUND_EVERY: Duration = Duration::from_secs(2);

/// How far a round has come.
#[derive(Debug, Default)]
struct Round {
    part: Part,
    /// The last live key that was compared.
    after: Option<Key>,
    /// Where SCAN goes on.
    cursor: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Live,
    Hashes,
    Over,
}

impl Master {
    /// Compares what is due at once, and the rest slowly.
    pub(crate) async fn sweep<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
    ) -> Result<Infallible, Lost> {
        let mut slow = Round::default();
        loop {
            let due = self.due.take();
            let keys: Vec<Key> = due.keys.into_iter().collect();
            for page in keys.chunks(PAGE) {
                self.compare(source, connection, page).await?;
            }
            if due.all {
                slow = Round::default();
                let mut round = Round::default();
                while round.part != Part::Over {
                    self.step(source, connection, &mut round).await?;
                    // What clients change meanwhile must not wait behind all of the table.
                    self.pending.fewer_than(2 * PAGE).await;
                }
                self.pending.catch_up().await;
                self.is_reconciled();
            }
            match self.shared.settings.sweep_keys_per_s {
                0 => self.due.is_set().await,
                rate => {
                    self.step(source, connection, &mut slow).await?;
                    let mut pause = Duration::from_secs_f64(PAGE as f64 / f64::from(rate));
                    if slow.part == Part::Over {
                        pause = pause.max(ROUND_EVERY);
                        slow = Round::default();
                    }
                    // Either way it goes on.
                    let _ = timeout(pause, self.due.is_set()).await;
                }
            }
        }
    }

    /// Compares the next page.
    async fn step<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
        round: &mut Round,
    ) -> Result<(), Lost> {
        match round.part {
            Part::Live => {
                let live = source.live(round.after.as_ref(), PAGE).keys;
                match live.last() {
                    Some(last) => round.after = Some(last.key.clone()),
                    None => round.part = Part::Hashes,
                }
                let keys: Vec<Key> = live.into_iter().map(|state| state.key).collect();
                self.compare(source, connection, &keys).await
            }
            Part::Hashes => {
                let names = &self.shared.settings.names;
                let (cursor, found) = connection.scan(&names.pattern(), round.cursor, PAGE).await?;
                round.cursor = cursor;
                if cursor == 0 {
                    round.part = Part::Over;
                }
                let keys: Vec<Key> = found.iter().filter_map(|name| names.key(name)).collect();
                // Live keys have had their turn.
                let free = source.views(&keys).keys.into_iter().filter(|state| !state.is_held());
                let keys: Vec<Key> = free.map(|state| state.key).collect();
                self.compare(source, connection, &keys).await
            }
            Part::Over => Ok(()),
        }
    }

    async fn compare<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
        keys: &[Key],
    ) -> Result<(), Lost> {
        // The table has keys of all masters. And SCAN finds what has come ahead of its slot, or stayed behind it: nobody
        // reads that here.
        let keys: Vec<Key> = keys.iter().filter(|key| self.has(key)).cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let read = connection.read(&keys).await?;
        let view = source.views(&keys);
        let mut ahead = Vec::new();
        for (state, standing) in view.keys.iter().zip(read) {
            match (state.judge(&standing, view.revision), standing) {
                (Judgement::Right, _) => {}
                (Judgement::Ahead, Standing::Hash(fields)) => ahead.push((state.key.clone(), *fields)),
                _ => self.pending.mark(state.key.clone()),
            }
        }
        if ahead.is_empty() { Ok(()) } else { self.settle(source, connection, ahead).await }
    }

    /// Finds out who wrote these hashes, which were ahead of the table when they were read.
    async fn settle<S: Source>(
        &self,
        source: &S,
        connection: &Connection,
        ahead: Vec<(Key, Fields)>,
    ) -> Result<(), Lost> {
        // Where it cannot be had, this node leads no longer, or the next round finds the same again.
        let Some(revision) = source.read_index().await else { return Ok(()) };
        // Hashes of a later cluster are ahead as well.
        self.claim(source, connection).await?;
        let keys: Vec<Key> = ahead.iter().map(|(key, _)| key.clone()).collect();
        let view = source.views(&keys);
        if view.revision < revision {
            return Ok(());
        }
        let mut foreign: Vec<(KeyState, Fields)> = Vec::new();
        for (state, (_, fields)) in view.keys.into_iter().zip(ahead) {
            let standing = Standing::Hash(Box::new(fields.clone()));
            match state.judge(&standing, view.revision) {
                Judgement::Right => {}
                Judgement::Behind => self.pending.mark(state.key),
                Judgement::Ahead => foreign.push((state, fields)),
            }
        }
        for ((state, fields), answer) in
            foreign.iter().zip(connection.replace(view.revision, &foreign).await?)
        {
            match answer {
                Ok(written) if written.done == Done::Nothing => {}
                Ok(_) => {
                    metrics::counter!("ringfence_mirror_foreign_total").increment(1);
                    let (rev, fence) = (&fields[0].escape_ascii(), &fields[1].escape_ascii());
                    tracing::error!(
                        key = %state.key, %rev, %fence,
                        "a foreign hand has written to the mirror: replaced"
                    );
                }
                // It is looked at again where its slot is then.
                Err(error) if is_elsewhere(&error) => {}
                Err(error) if is_final(&error) => return Err(error.into()),
                Err(error) => self.refused(&error),
            }
        }
        Ok(())
    }
}
