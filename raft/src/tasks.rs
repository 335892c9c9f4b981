//! The tasks of a node, and the fault that one of them ending is.

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The tasks of a node. Dropping this ends them, at the node's end or when its start fails.
#[derive(Default)]
pub(crate) struct Tasks {
    pub(crate) running: Vec<JoinHandle<()>>,
    /// The first task that ended, or why the cluster could not be founded.
    pub(crate) fault: watch::Sender<Option<String>>,
}

impl Tasks {
    /// Starts a task that has to run as long as the node: without it, the node would look well and serve nobody.
    pub(crate) fn start(&mut self, what: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let end = End { what, fault: self.fault.clone() };
        self.running.push(tokio::spawn(async move {
            let _end = end;
            task.await;
        }));
    }

    /// Starts a task that ends by itself. Its error is a fault.
    pub(crate) fn start_once<E: ToString>(
        &mut self,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let fault = self.fault.clone();
        self.running.push(tokio::spawn(async move {
            if let Err(error) = task.await {
                fault.send_replace(Some(error.to_string()));
            }
        }));
    }

    /// Ends all tasks; returns when they have released what they held.
    pub(crate) async fn stop(mut self) {
        for task in std::mem::take(&mut self.running) {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.running {
            task.abort();
        }
    }
}

/// Reports the end of a task, however it ends.
struct End {
    what: &'static str,
    fault: watch::Sender<Option<String>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "has panicked" } else { "has ended" };
        self.fault.send_if_modified(|fault| {
            let is_first = fault.is_none();
            fault.get_or_insert_with(|| format!("the task for {} {how}", self.what));
            is_first
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_a_fault_and_the_first_fault_is_reported() {
        let mut tasks = Tasks::default();
        let mut fault = tasks.fault.subscribe();
        tasks.start("this", async { panic!("of some kind") });
        let reported = timeout(Duration::from_secs(60), fault.wait_for(Option::is_some)).await;
        let reported = reported.unwrap().unwrap().clone().unwrap();
        assert_eq!(reported, "the task for this has panicked");
        tasks.start("that", async {});
        assert!(tasks.running.pop().unwrap().await.is_ok());
        assert_eq!(*fault.borrow(), Some(reported));
    }
}
