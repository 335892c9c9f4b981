//! Logs that a crash leaves torn, and logs with a flipped bit.
//!
//! What a crash may leave torn is what was **written and not synced**, and nothing else: a byte lost that was synced is a
//! broken disk, not a crash. So that it is certain what was not synced, the syncs of the victim take a second, and it is
//! killed within the second after a flush was seen to come into its log. Of the sectors of that flush, any may then be
//! missing, as if the disk had written them in any order, or not at all; every other sector is left as it is.
//!
//! A flipped bit may be anywhere in what is written of the last segment. A node must see that, and refuse to start; then its data is as
//! good as gone.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use fastrand::Rng;
use ringfence_harness::Injection;
use tokio::time::{Instant, sleep};

use super::{Scene, named};
use crate::history::Fault;
use crate::nemesis::Nemesis;

/// What a log is made of.
const SECTOR: u64 = 512;
/// Where in a sector the number of its flush stands.
const FLUSH: std::ops::Range<usize> = 4..12;
/// How long every sync of a victim takes, and what of that may be used.
const SYNC: Duration = Duration::from_millis(1_000);
const MARGIN: Duration = Duration::from_millis(300);
/// How long a victim is watched at most until it writes.
const WATCH: Duration = Duration::from_secs(10);

/// The last segment of a log, as far as it is written.
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

    /// Leaves it killed, and its log torn; gives how many sectors are missing, of how many of the flush.
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
                // With its tracer, it may take as long as a sync until it is gone.
                node.finish_kill()?;
                // It was not there at the look before, so its sync has not ended.
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

    /// Its node refuses to start with it, or that is a finding; then it is taken in anew.
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
                self.field.found(*id, "it started though a bit of its log was flipped".to_owned());
            }
        }
        for id in nodes {
            self.field.bring_back(*id).await?;
        }
        fault.what = format!("a flipped bit in the log of {}: {}", named(nodes), places.join(", "));
        Ok(self.over(fault))
    }
}

/// Flips a bit of what is written in a log, and says where.
fn flip(log: &Path, draw: u64) -> anyhow::Result<String> {
    let mut rng = Rng::with_seed(draw);
    // An older segment may be about to be forgotten, and never be read again.
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

/// How the log ends now. It is searched from where it ended `before`.
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

/// The number of the flush of a sector; the header of a segment belongs to none.
fn flush_of(sector: &[u8], at: u64, otherwise: u64) -> u64 {
    let number = sector[FLUSH].try_into().map_or(0, u64::from_le_bytes);
    if at == 0 { otherwise } else { number }
}

/// Takes some sectors of the last flush, or all.
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
