//! Compares the table with Redis.
//!
//! A round covers the live keys of the table, then the hashes in Redis of keys that are not held. A full comparison
//! runs as fast as it can; otherwise rounds run slowly, to find writes of others. Keys that are behind are marked as
//! changed, and [published](crate::publish) like any other change.
//!
//! A hash *ahead* of the table may come from a newer leader, so it is neither trusted nor overwritten at once. After
//! reading it, the sweep asks the cluster for its revision R. A revision above R was not written by this cluster: the hash
//! is replaced, provided that it still holds what was read.

use std::convert::Infallible;
use std::time::Duration;

use ringfence_wire::Key;
use tokio::time::timeout;

use crate::connection::{Change, is_fatal, is_slot_error};
use crate::hash::{Fields, Verdict};
use crate::session::{End, Session};
use crate::{Source, measure};

/// Keys compared at once.
const PAGE: usize = 256;
/// The shortest time between two rounds of the slow sweep.
const ROUND_EVERY: Duration = Duration::from_secs(2);

/// The next page of a round.
#[derive(Debug)]
enum Page {
    /// Live keys of the table after this one.
    Live(Option<Key>),
    /// Hashes in Redis from this cursor on.
    Hashes(u64),
}

impl<S: Source> Session<'_, S> {
    /// Compares what is due at once, and everything else slowly.
    pub(crate) async fn sweep(&self) -> Result<Infallible, End> {
        let work = &self.master.work;
        let mut slow = Page::Live(None);
        loop {
            let due = work.take_comparison();
            let keys: Vec<Key> = due.keys.into_iter().collect();
            for keys in keys.chunks(PAGE) {
                self.compare(keys).await?;
            }
            if due.all {
                slow = Page::Live(None);
                let mut page = Some(Page::Live(None));
                while let Some(now) = page {
                    page = self.step(now).await?;
                    // Changes by clients must not wait behind the whole table.
                    work.below(2 * PAGE).await;
                }
                work.caught_up().await;
                self.master.reconciled();
            }
            match self.master.shared.config.settings.sweep_keys_per_s {
                0 => work.comparison_wanted().await,
                rate => {
                    let next = self.step(slow).await?;
                    let mut pause = Duration::from_secs_f64(PAGE as f64 / f64::from(rate));
                    if next.is_none() {
                        pause = pause.max(ROUND_EVERY);
                    }
                    slow = next.unwrap_or(Page::Live(None));
                    let _ = timeout(pause, work.comparison_wanted()).await;
                }
            }
        }
    }

    /// Compares one page. Returns the next; `None` after the last.
    async fn step(&self, page: Page) -> Result<Option<Page>, End> {
        match page {
            Page::Live(after) => {
                let live = self.source.live(after.as_ref(), PAGE).keys;
                let keys: Vec<Key> = live.into_iter().map(|state| state.key).collect();
                self.compare(&keys).await?;
                Ok(Some(keys.into_iter().last().map_or(Page::Hashes(0), |last| Page::Live(Some(last)))))
            }
            Page::Hashes(cursor) => {
                let names = &self.master.shared.config.names;
                let (cursor, found) = self.connection.scan(&names.hash_pattern(), cursor, PAGE).await?;
                let keys: Vec<Key> = found.iter().filter_map(|name| names.key(name)).collect();
                // Live keys were compared before.
                let free = self.source.views(&keys).keys.into_iter().filter(|state| !state.is_held());
                let keys: Vec<Key> = free.map(|state| state.key).collect();
                self.compare(&keys).await?;
                Ok((cursor != 0).then_some(Page::Hashes(cursor)))
            }
        }
    }

    async fn compare(&self, keys: &[Key]) -> Result<(), End> {
        // The table has the keys of all masters. And SCAN finds hashes that arrived ahead of their slot or stayed behind
        // it, which nobody reads here.
        let keys: Vec<Key> = keys.iter().filter(|key| self.master.has(key)).cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let read = self.connection.read(&keys).await?;
        let view = self.source.views(&keys);
        let mut ahead = Vec::new();
        for (state, fields) in view.keys.into_iter().zip(read) {
            match (state.compare(fields.as_ref(), view.revision), fields) {
                (Verdict::Current, _) => {}
                (Verdict::Ahead, Some(fields)) => ahead.push((state.key, fields)),
                _ => self.master.work.mark(state.key),
            }
        }
        if ahead.is_empty() { Ok(()) } else { self.check_ahead(ahead).await }
    }

    /// Replaces those of these hashes, read ahead of the table, that this cluster cannot have written.
    async fn check_ahead(&self, ahead: Vec<(Key, Fields)>) -> Result<(), End> {
        // Without an answer this node no longer leads, or the next round finds the same again.
        let Some(revision) = self.source.read_index().await else { return Ok(()) };
        // Hashes of another cluster that owns the master now are ahead as well.
        self.claim().await?;
        let keys: Vec<Key> = ahead.iter().map(|(key, _)| key.clone()).collect();
        let view = self.source.views(&keys);
        if view.revision < revision {
            return Ok(());
        }
        let (mut foreign, mut replaces) = (Vec::new(), Vec::new());
        for (state, (_, fields)) in view.keys.into_iter().zip(ahead) {
            match state.compare(Some(&fields), view.revision) {
                Verdict::Current => {}
                Verdict::Behind => self.master.work.mark(state.key),
                Verdict::Ahead => {
                    foreign.push(state);
                    replaces.push(fields);
                }
            }
        }
        let answers = self.connection.write(view.revision, &foreign, &replaces).await?;
        let mut refused = None;
        for ((state, fields), answer) in foreign.iter().zip(&replaces).zip(answers) {
            match answer {
                Ok(written) if written.change == Change::None => {}
                Ok(_) => {
                    measure::FOREIGN.get().increment(1);
                    let (rev, fence) = (&fields[0].escape_ascii(), &fields[1].escape_ascii());
                    tracing::error!(
                        key = %state.key, %rev, %fence,
                        "replaced a hash in Redis that no leader can have written: somebody else writes to the mirror"
                    );
                }
                // Compared again where its slot is then.
                Err(error) if is_slot_error(&error) => {}
                Err(error) if is_fatal(&error) => return Err(error.into()),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => self.master.write_refused(&error),
            // It takes writes, whatever it refused before.
            None if !foreign.is_empty() => self.master.write_accepted(),
            None => {}
        }
        Ok(())
    }
}
