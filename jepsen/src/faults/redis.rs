//! Redis killed, emptied, stopped and rolled back; and paused clients.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ringfence_laws::history::Fault;
use tokio::time::sleep;

use super::Scene;
use crate::nemesis::Nemesis;

impl Scene<'_> {
    /// Redis logs every command, so it keeps its data.
    pub(super) async fn kill_redis(self, lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let redis = self.field.the_redis()?;
        let fault = self.begun(Nemesis::RedisKill, &[], "Redis killed");
        redis.kill()?;
        sleep(lasts).await;
        redis.start().await?;
        Ok(self.over(fault))
    }

    pub(super) async fn empty_redis(self) -> anyhow::Result<Vec<Fault>> {
        let fault = self.begun(Nemesis::RedisEmpty, &[], "Redis emptied");
        self.field.the_redis()?.command(["FLUSHALL"]).await?;
        Ok(self.over(fault))
    }

    pub(super) async fn stop_redis(self, lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let redis = self.field.the_redis()?;
        let fault = self.begun(Nemesis::RedisStop, &[], "Redis stopped");
        redis.stop().await?;
        sleep(lasts).await;
        redis.resume()?;
        Ok(self.over(fault))
    }

    /// The fault starts when the old data is restored, not when it is copied.
    pub(super) async fn roll_back_redis(self, lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let (redis, aside) = (self.field.the_redis()?, tempfile::tempdir()?);
        copy(&redis.data(), aside.path()).context("cannot copy the data of Redis")?;
        sleep(lasts).await;
        let what = format!("Redis goes back to what it had {:.1} s ago", lasts.as_secs_f64());
        let fault = self.begun(Nemesis::RedisRollback, &[], what);
        redis.kill()?;
        std::fs::remove_dir_all(redis.data())?;
        copy(aside.path(), &redis.data()).context("cannot restore the data of Redis")?;
        redis.start().await?;
        Ok(self.over(fault))
    }

    pub(super) async fn pause_clients(self, lasts: Duration) -> anyhow::Result<Vec<Fault>> {
        let before = self.pauses.arrivals();
        let fault = self.begun(Nemesis::ClientPause, &[], "");
        self.pauses.hold();
        sleep(lasts).await;
        self.pauses.release();
        let paused = (self.pauses.arrivals() - before).div_ceil(2);
        Ok(self.over(Fault { what: format!("{paused} clients paused"), ..fault }))
    }
}

/// Copies a directory recursively.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
