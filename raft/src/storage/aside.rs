//! Work that waits for the disk, mostly on snapshots, off the runtime, which has to respond within milliseconds: threads in
//! the product, and whatever runs [`Disk::spawn`](ringfence_wal::disk::Disk::spawn) in a simulation. It holds the data
//! directory: no other process gets that before the work has ended.

use std::io;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::storage::identity::DataDir;

/// Threads that read or write a snapshot give way to those that grant.
const NICE: i32 = 10;
const NAME: &str = "snapshots";

/// Runs `work` off the runtime, with low priority. A panic in it is an error.
pub(crate) async fn aside<T: Send + 'static>(
    dir: &Arc<DataDir>,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    let held = Arc::clone(dir);
    let work = move || {
        let result = work();
        drop(held);
        // The caller may have gone.
        drop(done.send(result));
    };
    dir.disk.spawn(NAME, NICE, Box::new(work))?;
    result.await.unwrap_or_else(|_| Err(io::Error::other("work for the disk panicked")))
}

/// Drops `value` off the runtime.
pub(crate) fn discard(dir: &Arc<DataDir>, value: impl Send + 'static) {
    let held = Arc::clone(dir);
    let work = move || {
        drop(value);
        drop(held);
    };
    // Without a thread for it, it is dropped here.
    let _ = dir.disk.spawn(NAME, NICE, Box::new(work));
}

/// A value whose use, and whose drop, wait for the disk: both happen off the runtime.
pub(crate) struct Aside<T: Send + 'static> {
    dir: Arc<DataDir>,
    /// `None` while it is in use, and after that use was cancelled or panicked.
    value: Option<T>,
}

impl<T: Send + 'static> Aside<T> {
    /// What `open` returns.
    pub(crate) async fn open(
        dir: &Arc<DataDir>,
        open: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<Self> {
        let held = Arc::clone(dir);
        // Made there, so that what is opened for a caller that has gone is dropped off the runtime as well.
        aside(dir, move || Ok(Self { value: Some(open()?), dir: held })).await
    }

    /// Uses the value. If this is cancelled, the value is lost: also then it is dropped off the runtime.
    pub(crate) async fn run<R: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut T) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let mut lent = Self { dir: Arc::clone(&self.dir), value: Some(self.take()?) };
        let work = move || {
            let result = lent.value.as_mut().map(work).expect("the value is lent until the work ends");
            Ok((lent, result))
        };
        let (lent, result) = aside(&self.dir, work).await?;
        *self = lent;
        result
    }

    /// Uses the value up.
    pub(crate) async fn end<R: Send + 'static>(
        mut self,
        work: impl FnOnce(T) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let value = self.take()?;
        aside(&self.dir, move || work(value)).await
    }

    fn take(&mut self) -> io::Result<T> {
        self.value.take().ok_or_else(|| io::Error::other("an earlier step with this snapshot failed"))
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take() {
            discard(&self.dir, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::{Context, Wake, Waker};
    use std::thread;

    use futures_util::FutureExt;
    use tempfile::TempDir;

    use super::*;
    use crate::storage::identity::DirError;

    /// Reports the name of the thread that drops it.
    struct Value(mpsc::Sender<String>);

    impl Drop for Value {
        fn drop(&mut self) {
            self.0.send(thread::current().name().unwrap_or_default().to_owned()).unwrap();
        }
    }

    /// Reports that it is woken.
    struct Woken(mpsc::Sender<()>);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    /// It was already sent by then, and dropped where the caller was.
    #[test]
    fn a_value_that_is_opened_for_a_caller_that_has_gone_is_dropped_off_the_runtime() {
        let (sender, dropped) = mpsc::channel();
        let (woken, wakes) = mpsc::channel();
        let temporary = TempDir::new().unwrap();
        let dir = dir(&temporary);
        let (go_on, gate) = mpsc::channel();
        let open = move || gate.recv().map(|()| Value(sender)).map_err(io::Error::other);
        let mut opening = Box::pin(Aside::open(&dir, open));
        let waker = Waker::from(Arc::new(Woken(woken)));
        assert!(opening.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        go_on.send(()).unwrap();
        wakes.recv().unwrap();
        drop(opening);
        assert_eq!(dropped.recv().unwrap(), NAME);
    }

    fn dir(temporary: &TempDir) -> Arc<DataDir> {
        Arc::new(DataDir::open(temporary.path(), 1).unwrap().0)
    }

    async fn value(dir: &Arc<DataDir>) -> (Aside<Value>, mpsc::Receiver<String>) {
        let (sender, dropped) = mpsc::channel();
        (Aside::open(dir, move || Ok(Value(sender))).await.unwrap(), dropped)
    }

    /// Reports whether the data directory is held while this is dropped.
    struct Looks(TempDir, mpsc::Sender<bool>);

    impl Drop for Looks {
        fn drop(&mut self) {
            let opened = DataDir::open(self.0.path(), 1);
            self.1.send(matches!(opened, Err(DirError::InUse(_)))).unwrap();
        }
    }

    /// The copy that a snapshot is read from was once removed when another process might have had the directory.
    #[tokio::test]
    async fn the_data_directory_is_held_until_a_value_is_dropped() {
        let temporary = TempDir::new().unwrap();
        let dir = dir(&temporary);
        let (sender, was_held) = mpsc::channel();
        let opened = Aside::open(&dir, move || Ok(Looks(temporary, sender))).await.unwrap();
        drop(dir);
        drop(opened);
        assert!(was_held.recv().unwrap());
    }

    #[tokio::test]
    async fn a_value_is_dropped_off_the_runtime_also_if_its_use_is_cancelled_or_panics() {
        let temporary = TempDir::new().unwrap();
        let dir = dir(&temporary);
        let (mut used, dropped) = value(&dir).await;
        assert_eq!(used.run(|_| Ok(7)).await.unwrap(), 7);
        assert!(used.run(|_| Err::<(), _>(io::Error::other("failed"))).await.is_err());
        assert!(dropped.try_recv().is_err());
        drop(used);
        assert_eq!(dropped.recv().unwrap(), NAME);

        let (mut cancelled, dropped) = value(&dir).await;
        let (go_on, gate) = mpsc::channel::<()>();
        let waits = move |_: &mut Value| gate.recv().map_err(io::Error::other);
        assert!(cancelled.run(waits).now_or_never().is_none());
        go_on.send(()).unwrap();
        assert_eq!(dropped.recv().unwrap(), NAME);
        assert!(cancelled.run(|_| Ok(())).await.is_err());

        let (mut panicked, dropped) = value(&dir).await;
        assert!(panicked.run(|_| -> io::Result<()> { panic!("of some kind") }).await.is_err());
        assert_eq!(dropped.recv().unwrap(), NAME);
    }
}
