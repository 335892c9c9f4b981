//! Work that may block, on a thread of its own: it runs, or there is an error.
//!
//! The system may have no thread for a moment: a limit of processes is reached, or memory is short. `std::thread::spawn` and
//! tokio's `spawn_blocking` panic then, and a panic ends for good what was to run for ever. So `clippy.toml` has all crates use
//! this one. A runtime also waits for its blocking threads when it ends; for these it does not: a disk or a name server
//! may hang for ever.
//!
//! A thread that must not block shows by its [`Beat`] that it does not.

mod beat;

use std::io;
use std::thread;

use tokio::sync::oneshot;

pub use beat::Beat;

/// Starts a thread that does `work`.
///
/// # Errors
/// The system has no thread for it.
pub fn start(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// What `work` returns, which a thread of its own does. It goes on if this future is dropped.
///
/// # Errors
/// The system has no thread for it, or it panicked.
pub async fn run<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    start(name, move || {
        // The caller may have gone.
        drop(done.send(work()));
    })?;
    result.await.map_err(|_| io::Error::other("the work panicked"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_runs_on_a_thread_of_this_name_and_a_panic_in_it_is_an_error() {
        let name = || thread::current().name().map(str::to_owned);
        assert_eq!(run("of this test", name).await.unwrap().as_deref(), Some("of this test"));
        let panicked = run("of this test", || panic!("why")).await;
        assert_eq!(panicked.unwrap_err().to_string(), "the work panicked");
    }
}
