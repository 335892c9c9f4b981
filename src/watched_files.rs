//! Files that may change while a node runs.

use std::sync::Arc;
use std::time::Duration;

use ringfence_tls::{Look, Reload};
use tokio::signal::unix::Signal;
use tokio::sync::Mutex;
use tokio::time::interval;

use crate::ends::{Ends, Files};
use crate::measure::FILES_REFUSED;
use crate::private;

/// How often the files are looked at. A change counts at the second look that finds it, or at a SIGHUP.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the file of access rules is for, in logs and metrics.
pub(crate) const ACCESS: &str = "access";

/// Warns of files that others may access.
pub(crate) fn warn_of_others(files: &dyn Reload) {
    for (file, is_secret) in files.files() {
        private::warn_of_others(&file, is_secret);
    }
}

/// Files that are looked at again and again, each for the use that is named.
pub(crate) struct Watched {
    files: Files,
    /// Of the task that runs.
    hangup: Mutex<Signal>,
}

impl Watched {
    pub(crate) fn new(files: Files, hangup: Signal) -> Self {
        Self { files, hangup: Mutex::new(hangup) }
    }

    pub(crate) async fn watch(self: Arc<Self>) {
        let (mut looks, mut hangup) = (interval(LOOK_EVERY), self.hangup.lock().await);
        let mut ends = Ends::default();
        ends.tell(&self.files);
        loop {
            let at_once = tokio::select! {
                _ = hangup.recv() => true,
                _ = looks.tick() => false,
            };
            self.look(at_once).await;
            ends.tell(&self.files);
        }
    }

    async fn look(&self, at_once: bool) {
        for (r#use, files) in &self.files {
            let of_use = Arc::clone(files);
            // A file may be on a disk that hangs.
            match ringfence_aside::run("files", move || of_use.look(at_once)).await {
                Ok(Look::Same | Look::Changing) => {}
                Ok(Look::Loaded) => {
                    tracing::info!(r#use, "files that changed are in use");
                    warn_of_others(&**files);
                }
                Ok(Look::Aged) => {
                    tracing::warn!(
                        r#use,
                        "an authority has begun or ended: what it has signed is accepted from now on, or refused"
                    );
                }
                Ok(Look::Refused(error)) => {
                    tracing::error!(r#use, %error, "files that changed cannot be used: what they contained before stays in use");
                }
                Err(error) => tracing::warn!(r#use, %error, "cannot look at files that may have changed"),
            }
            let refused = files.refusal().is_some();
            FILES_REFUSED.of(r#use).set(u8::from(refused));
        }
    }
}
