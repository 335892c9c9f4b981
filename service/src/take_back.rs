//! Takes leases back of which their clients may never learn.
//!
//! | lease ids of | taken back unless | by | tries |
//! |---|---|---|---|
//! | the client (acquires, batches) | there was an answer, or the client asks for the lease again | `Detach` | one |
//! | the node (transactions) | the response was sent, or the client learns of the lease otherwise | `TakeBack` | as many as it takes |
//!
//! A client that chose the id can repeat its request after any answer, also an indeterminate one, and must find its grant or its place in
//! the queue, however long the cluster is without a leader. If it never comes back, that costs the same as a holder that vanishes: the
//! wait, or the time-to-live. So does a `Detach` that does not arrive. But if the node chose the id, a client that gets an error, or no
//! answer, cannot get the same grant again.
//!
//! The order is always right: a proposal whose caller is gone either is still at this node and never sent, or was sent before
//! the lease is taken back. It is not retried, so it cannot follow that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ringfence_lease::{Attachment, Command, Outcome};
use ringfence_raft::Unanswered;
use ringfence_wire::{LeaseId, MAX_KEYS};
use tokio::time::{Instant, sleep};

use crate::caller::Caller;
use crate::rights::Allowed;
use crate::service::Service;

/// How long after its request was dropped a lease is taken back.
const AFTER: Duration = Duration::from_secs(2);
/// The first pause between two attempts, and the longest one. A flood may cause thousands of attempts.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How long it is tried again while too many requests wait for the leader.
const FULL_FOR: Duration = Duration::from_secs(5);
/// How many leases are taken back by one entry, with about 4,096 keys at most: applying an entry blocks the Raft thread.
const AT_ONCE: usize = 4_096 / MAX_KEYS;

/// The leases of a request whose client does not know of them yet. If this is dropped, those that were proposed are taken back 2 s later,
/// by one task, unless the client asks for them or learns of them before.
#[must_use = "leases that are not sent are taken back"]
pub struct Unsent {
    service: Arc<Service>,
    caller: Caller,
    /// Those that may have been acquired, and then those of the proposal under way.
    leases: Vec<(LeaseId, Attachment)>,
    /// How many of them are not of that.
    proposed: usize,
    /// Whether it may have come, or come yet, into the log.
    is_proposed: bool,
    /// Whether to try again until there is an outcome, because the node chose the lease ids.
    repeats: bool,
}

impl Unsent {
    /// None yet of `caller`, who chooses the lease ids.
    pub(crate) fn new(service: &Arc<Service>, caller: &Caller) -> Self {
        let (service, caller) = (Arc::clone(service), caller.clone());
        Self { service, caller, leases: Vec::new(), proposed: 0, is_proposed: false, repeats: false }
    }

    /// None yet of `caller`, for whom this node chooses the lease ids.
    pub(crate) fn repeating(service: &Arc<Service>, caller: &Caller) -> Self {
        let mut unsent = Self::new(service, caller);
        unsent.repeats = true;
        unsent
    }

    /// The outcomes of commands, whose leases are added unless that was certainly not done. `caller`: the same one, under the rules in use.
    pub(crate) async fn propose(
        &mut self,
        caller: &Caller,
        commands: Vec<Allowed<Command>>,
    ) -> Result<Vec<Outcome>, Unanswered> {
        self.leases.extend(commands.iter().flat_map(|command| command.get().acquired()));
        let answer = self.service.propose_all(caller, commands, &mut self.is_proposed).await;
        self.settle();
        answer
    }

    /// Forgets the leases of a proposal that was not made.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.is_proposed) {
            self.leases.truncate(self.proposed);
        }
        self.proposed = self.leases.len();
    }

    /// Keeps the leases: the response was sent, or there are none.
    pub fn sent(mut self) {
        self.leases.drain(..).for_each(|(lease_id, _)| self.service.is_sent(lease_id));
    }

    /// `None` without any leases.
    pub(crate) fn if_any(self) -> Option<Self> {
        (!self.leases.is_empty()).then_some(self)
    }

    /// The leases.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.iter().map(|(lease_id, _)| *lease_id)
    }
}

impl fmt::Debug for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unsent").field(&self.leases).finish()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.settle();
        if self.leases.is_empty() {
            return;
        }
        // The wait or the time-to-live ends what is not taken back.
        let Some(portion) = self.service.take_backs.take(self.caller.asker(), 1) else { return };
        let (service, caller) = (Arc::clone(&self.service), self.caller.clone());
        let (leases, repeats) = (std::mem::take(&mut self.leases), self.repeats);
        tokio::spawn(async move {
            let _portion = portion;
            sleep(AFTER).await;
            for some in leases.chunks(AT_ONCE) {
                if let Err(error) = service.take_back(&caller, some, repeats).await {
                    tracing::debug!(%error, "could not take back what a client did not learn of");
                }
            }
        });
    }
}

impl Service {
    /// Takes `leases` back.
    async fn take_back(
        &self,
        caller: &Caller,
        leases: &[(LeaseId, Attachment)],
        repeats: bool,
    ) -> Result<(), Unanswered> {
        let attempt = || {
            let commands = leases.iter().map(|lease| Allowed::to_take_back(*lease, repeats)).collect();
            // Boxed, as most of these tasks only wait.
            Box::pin(async move { self.propose_all(caller, commands, &mut false).await.map(drop) })
        };
        attempted(repeats, attempt).await
    }
}

/// The result of the last attempt. There is another one while the leader has no room, for a while, and if it `repeats`, after any failure.
async fn attempted<F>(repeats: bool, mut attempt: impl FnMut() -> F) -> Result<(), Unanswered>
where
    F: Future<Output = Result<(), Unanswered>>,
{
    let (mut pause, full_until) = (PAUSE, Instant::now() + FULL_FOR);
    loop {
        match attempt().await {
            Err(Unanswered::Full) if Instant::now() + pause < full_until => {}
            Err(_) if repeats => {}
            done => return done,
        }
        sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An abandoned acquire whose end a full share had refused was once granted, and held its key until its time-to-live ended.
    #[tokio::test(start_paused = true)]
    async fn what_a_full_share_refuses_is_tried_again_for_a_while_and_what_repeats_until_it_is_done() {
        let attempts = Cell::new(0);
        let attempted = async |repeats, answer: fn(u32) -> Result<(), Unanswered>| {
            attempts.set(0);
            let attempt = || {
                attempts.set(attempts.get() + 1);
                std::future::ready(answer(attempts.get()))
            };
            (attempted(repeats, attempt).await, attempts.get())
        };
        let third = |attempt| if attempt == 3 { Ok(()) } else { Err(Unanswered::Full) };
        assert_eq!(attempted(false, third).await, (Ok(()), 3));
        assert_eq!(attempted(false, |_| Err(Unanswered::Full)).await, (Err(Unanswered::Full), 6));
        let unknown = |_| Err(Unanswered::Indeterminate);
        assert_eq!(attempted(false, unknown).await, (Err(Unanswered::Indeterminate), 1));
        let late = |attempt| if attempt == 100 { Ok(()) } else { Err(Unanswered::Unavailable) };
        assert_eq!(attempted(true, late).await, (Ok(()), 100));
    }
}
