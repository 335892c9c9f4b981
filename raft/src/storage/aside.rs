//! Work on snapshots off the runtime, which has to respond within milliseconds: threads in the product, and whatever runs
//! [`Disk::spawn`](ringfence_wal::disk::Disk::spawn) in a simulation.

use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::storage::snapshots::store::Storage;

/// Threads that read or write a snapshot give way to those that grant.
const NICE: i32 = 10;
const NAME: &str = "snapshots";

/// Runs `work` off the runtime, with low priority. A panic in it is an error.
pub(crate) async fn aside<T: Send + 'static>(
    storage: &dyn Storage,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    // The caller may have gone.
    storage.spawn(NAME, NICE, Box::new(move || drop(done.send(work()))))?;
    result.await.unwrap_or_else(|_| Err(io::Error::other("reading or writing a snapshot panicked")))
}

/// Drops `value` off the runtime.
pub(crate) fn discard(storage: &dyn Storage, value: impl Send + 'static) {
    // Without a thread for it, it is dropped here.
    let _ = storage.spawn(NAME, NICE, Box::new(move || drop(value)));
}

/// A value whose use, and whose drop, wait for the disk: both happen off the runtime.
pub(crate) struct Aside<T: Send + 'static> {
    storage: Arc<dyn Storage>,
    /// `None` while it is in use, and after that use was cancelled or panicked.
    value: Option<T>,
}

impl<T: Send + 'static> Aside<T> {
    /// What `open` returns.
    pub(crate) async fn open(
        storage: Arc<dyn Storage>,
        open: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        let value = Some(aside(&*storage, open).await?);
        Ok(Self { storage, value })
    }

    /// Uses the value. If this is cancelled, the value is lost: also then it is dropped off the runtime.
    pub(crate) async fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut T) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let mut lent = Self { storage: Arc::clone(&self.storage), value: Some(self.take()?) };
        let work = move || {
            let result = lent.value.as_mut().map(work).expect("the value is lent until the work ends");
            Ok((lent, result))
        };
        let (lent, result) = aside(&*self.storage, work).await?;
        *self = lent;
        result
    }

    /// Uses the value up.
    pub(crate) async fn end<R: Send + 'static>(
        mut self,
        work: impl FnOnce(T) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let value = self.take()?;
        aside(&*self.storage, move || work(value)).await
    }

    fn take(&mut self) -> io::Result<T> {
        self.value.take().ok_or_else(|| io::Error::other("this snapshot was given up"))
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            discard(&*self.storage, value);
        }
    }
}
