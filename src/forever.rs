//! Tasks that run as long as the node, and are not worth its end: the node serves clients without them. Those of Raft stop it.

use std::time::Duration;

use tokio::time::sleep;

/// The pause before a task that has panicked starts again.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs `task`, and starts it again if it panics. Returns when it ends by itself.
pub(crate) async fn forever<F>(what: &'static str, task: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    while let Err(error) = tokio::spawn(task()).await
        && error.is_panic()
    {
        tracing::error!(%error, "the task for {what} starts again");
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_starts_again_and_one_that_ends_does_not() {
        let starts = Arc::new(AtomicUsize::new(0));
        let of_task = Arc::clone(&starts);
        let task = move || {
            let starts = Arc::clone(&of_task);
            async move { assert!(starts.fetch_add(1, Ordering::SeqCst) == 2, "not the third time") }
        };
        forever("this test", task).await;
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }
}
