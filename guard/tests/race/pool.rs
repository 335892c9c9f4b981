use std::sync::Mutex;

use tokio::runtime::{Builder, Runtime};

/// A connection for each blocking holder, and a runtime that drives them.
pub(crate) struct Pool<C> {
    runtime: Runtime,
    idle: Mutex<Vec<C>>,
}

impl<C> Pool<C> {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, idle: Mutex::default() }
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Does `what` with an unused connection; if there is none, `connect` makes one.
    pub(crate) fn with<T>(&self, connect: impl AsyncFnOnce() -> C, what: impl AsyncFnOnce(&mut C) -> T) -> T {
        let idle = self.idle.lock().unwrap().pop();
        self.block_on(async {
            let mut connection = match idle {
                Some(connection) => connection,
                None => connect().await,
            };
            let done = what(&mut connection).await;
            self.idle.lock().unwrap().push(connection);
            done
        })
    }
}
