//! Torn logs, and logs with a flipped bit.
//!
//! A crash may tear what was **written and not synced**, and nothing else: losing a synced byte is a broken disk, not a
//! crash. To know for certain what was not synced, each sync of the victim takes a second, and the victim is killed within
//! a second after a flush appeared in its log. Then any sectors of that flush are removed, as if the disk had written the
//! sectors in any order, or not at all. All other sectors stay.
//!
//! A bit is flipped anywhere in the written part of the last segment. The node must notice, and refuse to start; then its
//! data counts as lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use fastrand::Rng;
use ringfence_harness::Injection;
use ringfence_laws::history::Fault;
use tokio::time::{Instant, sleep};

use super::{Scene, named};
use crate::nemesis::Nemesis;

/// The size of a sector of a log.
const SECTOR: u64 = 512;
/// The position of the flush number in a sector.
const FLUSH: std::ops::Range<usize> = 4..12;
/// How long every sync of a victim takes, and how much of that is reserved for the kill.
const SYNC: Duration = Duration::from_millis(1_000);
const MARGIN: Duration = Duration::from_millis(300);
/// Bounds the wait for a write of the victim.
const WATCH: Duration = Duration::from_secs(10);

/// The written part of the last segment of a log.
struct Tail {
    path: PathBuf,
    /// Where the first unwritten sector begins.
    end: u64,
    /// The number of the last flush.
    flush: u64,
}

impl Scene<'_> {
    pub(super) async fn tear_tail(
        self,
        nodes: &[u64],
        draw: u64,
        lasts: Duration,
    ) -> anyhow::Result<Vec<Fault>> {
        let _held = self.field.hold(nodes).await;
        let mut faults = Vec::new();
        for id in nodes {
            let fault = self.begun(Nemesis::TornTail, &[*id], "");
            let mut rng = Rng::with_seed(draw ^ id);
            let gone = self.die_within_a_flush(*id, &mut rng).await;
            let gone = gone.with_context(|| format!("cannot tear the log of node {id}"));
            sleep(lasts).await;
            self.field.start_all(&[*id])?;
            let (gone, of) = gone?;
            let what = format!("node {id} died within a flush: {gone} of its {of} sectors are missing");
            faults.extend(self.over(Fault { what, ..fault }));
        }
        Ok(faults)
    }

    /// Kills the node and tears its log. Returns how many sectors are missing, and how many the flush had.
    async fn die_within_a_flush(self, id: u64, rng: &mut Rng) -> anyhow::Result<(usize, usize)> {
        let node = self.field.cluster().node(id);
        let log = node.data().join("log");
        let slow = Injection::start(node, "fdatasync", &format!("delay_enter={}", SYNC.as_micros())).await?;
        let deadline = Instant::now() + WATCH;
        let (mut looked, mut before) = (Instant::now(), tail(&log, None)?);
        loop {
            sleep(Duration::from_millis(10)).await;
            let now = Instant::now();
            let next = tail(&log, Some(&before))?;
            if next.flush > before.flush {
                node.begin_kill()?;
                let since = looked.elapsed();
                // Under its tracer it may take as long as a sync to die.
                node.finish_kill()?;
                // The flush was not there at the previous look, so its sync has not ended.
                if since < SYNC - MARGIN {
                    break;
                }
                bail!("this machine is too slow to tell what was synced: {since:?} since the last look");
            }
            if now > deadline {
                bail!("it has written nothing");
            }
            (looked, before) = (now, next);
        }
        drop(slow);
        let torn = tail(&log, None)?;
        tear(&torn, rng)
    }

    /// A node that starts with its damaged log is a finding. Each is then added again without data.
    pub(super) async fn flip_bit(self, nodes: &[u64], draw: u64) -> anyhow::Result<Vec<Fault>> {
        let _alone = self.field.taking_data().await?;
        let _held = self.field.hold(nodes).await;
        let mut fault = self.begun(Nemesis::BitFlip, nodes, "");
        let mut places = Vec::new();
        nodes.iter().try_for_each(|id| self.field.kill(*id))?;
        for id in nodes {
            self.field.lose(*id);
            let place = flip(&self.field.cluster().node(*id).data().join("log"), draw ^ id)?;
            places.push(format!("node {id}: {place}"));
            self.field.start(*id)?;
        }
        for id in nodes {
            let node = self.field.cluster().node(*id);
            if node.ends().await.is_err() {
                self.field.found(*id, "it started with a flipped bit in its log".to_owned());
            }
        }
        for id in nodes {
            self.field.bring_back(*id).await?;
        }
        fault.what = format!("a flipped bit in the log of {}: {}", named(nodes), places.join(", "));
        Ok(self.over(fault))
    }
}

/// Flips a bit in the written part of a log, and returns where.
fn flip(log: &Path, draw: u64) -> anyhow::Result<String> {
    let mut rng = Rng::with_seed(draw);
    // An older segment may be deleted without being read again.
    let path = segments(log)?.pop().context("there is no log")?;
    let bytes = std::fs::read(&path)?;
    let is_written = |sector: &&[u8]| sector.last().is_some_and(|last| *last != 0);
    let written = bytes.chunks_exact(SECTOR as usize).take_while(is_written).count() as u64;
    let at = rng.u64(..written.max(1) * SECTOR);
    let byte = bytes.get(usize::try_from(at)?).context("the log is empty")? ^ 1 << rng.u32(..8);
    File::options().write(true).open(&path)?.write_all_at(&[byte], at)?;
    Ok(format!("byte {at} of {}", path.file_name().unwrap_or_default().display()))
}

/// The segments of a log, the oldest first.
fn segments(log: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(log).with_context(|| format!("cannot read {}", log.display()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
    let mut segments: Vec<PathBuf> =
        paths.into_iter().filter(|path| path.extension().is_some_and(|it| it == "wal")).collect();
    segments.sort();
    anyhow::ensure!(!segments.is_empty(), "there is no log in {}", log.display());
    Ok(segments)
}

/// The present end of the log, searched for from where it was `before`.
fn tail(log: &Path, before: Option<&Tail>) -> anyhow::Result<Tail> {
    let path = segments(log)?.pop().context("there is no log")?;
    let file = File::open(&path)?;
    let known = before.filter(|before| before.path == path);
    let (mut end, mut flush) = known.map_or((0, 0), |before| (before.end, before.flush));
    let mut sector = [0; SECTOR as usize];
    while file.read_at(&mut sector, end)? == sector.len() && sector[sector.len() - 1] != 0 {
        flush = flush_of(&sector, end, flush);
        end += SECTOR;
    }
    Ok(Tail { path, end, flush: flush.max(before.map_or(0, |before| before.flush)) })
}

/// The flush number of a sector; the header of a segment has none.
fn flush_of(sector: &[u8], at: u64, otherwise: u64) -> u64 {
    let number = sector[FLUSH].try_into().map_or(0, u64::from_le_bytes);
    if at == 0 { otherwise } else { number }
}

/// Zeroes some or all sectors of the last flush.
fn tear(tail: &Tail, rng: &mut Rng) -> anyhow::Result<(usize, usize)> {
    let file = File::options().read(true).write(true).open(&tail.path)?;
    let mut sector = [0; SECTOR as usize];
    let (mut last, mut at) = (Vec::new(), tail.end);
    while at > SECTOR {
        at -= SECTOR;
        file.read_exact_at(&mut sector, at)?;
        if flush_of(&sector, at, 0) != tail.flush {
            break;
        }
        last.push(at);
    }
    anyhow::ensure!(!last.is_empty(), "the last flush has no sector");
    let of = last.len();
    rng.shuffle(&mut last);
    last.truncate(rng.usize(1..=of));
    for at in &last {
        file.write_all_at(&[0; SECTOR as usize], *at)?;
    }
    file.sync_all()?;
    Ok((last.len(), of))
}
