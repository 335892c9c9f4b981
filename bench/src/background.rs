//! Work on a thread and a runtime of its own, so that the load neither delays it nor waits for it.

use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};
use tokio::sync::{oneshot, watch};

/// To be sent once the work is under way.
pub(crate) struct Ready(oneshot::Sender<()>);

/// Says that the work is to stop.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

pub(crate) struct Background<T> {
    stop: watch::Sender<bool>,
    thread: JoinHandle<Result<T>>,
}

impl Ready {
    pub(crate) fn send(self) {
        // The receiver waits for it, unless its runtime has ended.
        let _ = self.0.send(());
    }
}

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn requested(&mut self) {
        // An error means that the sender was dropped, which is as good a reason.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}

impl<T: Send + 'static> Background<T> {
    /// Starts `work` and returns once that is ready.
    pub(crate) async fn start<F>(work: F) -> Result<Self>
    where
        F: AsyncFnOnce(Ready, Stop) -> Result<T> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let (ready, is_ready) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(work(Ready(ready), Stop(stopped)))
        });
        let background = Self { stop, thread };
        match is_ready.await {
            Ok(()) => Ok(background),
            Err(_) => background.stop().and(Err(anyhow!("it ended at once"))),
        }
    }

    /// Stops it and returns its result.
    pub(crate) fn stop(self) -> Result<T> {
        self.stop.send_replace(true);
        self.thread.join().map_err(|_| anyhow!("the thread panicked"))?
    }
}
