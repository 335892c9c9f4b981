//! Many operations of one request.
//!
//! Operations on few keys share one log entry. Applying an entry blocks the Raft thread, and encoding its outcomes blocks a
//! thread that serves other clients. So operations on very many keys are proposed in parts, one after the other. If the
//! first part has no outcome, the whole request fails. If a later part has no outcome, its operations fail so, and the operations
//! after it are certainly not done. Parts may take long, so what the caller may do is decided anew for each of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use ringfence_lease::{Acquire, Command, LeaseTable, Outcome, Subject};
use ringfence_raft::{Stuck, Unanswered};
use ringfence_wire::{BatchRenew, LeaseId, MAX_KEYS, Operation, Wait};
use tokio::time::{Instant, timeout};

use crate::caller::Caller;
use crate::commands::{ended, renewed};
use crate::done::Done;
use crate::failure::Failure;
use crate::measure;
use crate::mirror::tokens;
use crate::service::Service;
use crate::take_back::Unsent;
use crate::visit::{Report, Visit};

/// The maximum number of keys of a part with more than one operation.
const MAX_KEYS_AT_ONCE: usize = 4_096;
/// How many grants of a part the mirror is asked for at once. Its answers need the link to the leader, which has room for some thousands.
const MAX_MIRRORED_AT_ONCE: usize = 16;

/// Takes the results of many operations, in their order.
pub trait Results {
    /// Takes the result of the next one. `of`: the lease, if it is an acquire.
    fn put(&mut self, result: Result<Done, Failure>, of: Option<LeaseId>);

    /// Whether there is no room for more. Then no further part is proposed.
    fn are_full(&mut self) -> bool;
}

/// The kind of an operation, which its outcome does not tell.
enum Kind {
    Acquire {
        lease_id: LeaseId,
        /// Whether a refusal may name those who hold the keys.
        sees_holders: bool,
    },
    Renew,
    Release,
}

impl Service {
    /// Does the `operations` of a request, and puts what they come to into `results`. Calls `lasts` before it waits for the mirror.
    ///
    /// # Errors
    /// None of them was done, or the first ones have no outcome and the others were not done. Then there are no results.
    pub async fn run(
        self: &Arc<Self>,
        visit: &mut Visit<impl Report>,
        operations: Vec<Operation>,
        lasts: impl Fn(),
        results: &mut impl Results,
    ) -> Result<(), Failure> {
        visit.costs(operations.len())?;
        let caller = visit.caller();
        self.check_blocked()?;
        let are_few = operations.len() * MAX_KEYS <= MAX_KEYS_AT_ONCE;
        let commands: Vec<_> = operations.into_iter().map(|operation| self.command(operation)).collect();
        let keys = if are_few { vec![0; commands.len()] } else { self.keys_of(caller, &commands)? };
        let parts = parts(commands.into_iter().zip(keys));
        // `failure`: why all further operations are not done. `now`: the caller under the rules in use.
        let (mut unsent, mut failure, mut now) = (Unsent::new(self, caller), None::<Failure>, caller.clone());
        // All parts share it: a mirror that is down holds the request up once.
        let mut mirror_timeout = self.mirror_timeout;
        for (number, part) in parts.into_iter().enumerate() {
            let (mut kinds, commands): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            failure = failure.or_else(|| results.are_full().then_some(Failure::NoRoom));
            failure = failure.or_else(|| now.renew().err());
            if let Some(failure) = &failure {
                kinds.into_iter().for_each(|kind| results.put(Err(failure.clone()), kind.acquires()));
                continue;
            }
            kinds.iter_mut().zip(&commands).for_each(|(kind, command)| kind.look(command, &now));
            match self.propose_part(&now, commands, &mut unsent).await {
                Ok(outcomes) => {
                    let mirrored = match &mut mirror_timeout {
                        Some(left) if kinds.iter().any(|kind| kind.acquires().is_some()) => {
                            lasts();
                            Some(self.mirrored_part(&kinds, &outcomes, left).await)
                        }
                        _ => None,
                    };
                    for (kind, outcome) in kinds.into_iter().zip(outcomes) {
                        let of = kind.acquires();
                        results.put(outcome.and_then(|outcome| self.done(kind, outcome, mirrored)), of);
                    }
                }
                Err(unanswered) => {
                    let unanswered = Failure::from(unanswered);
                    kinds.iter().for_each(|kind| kind.count_failed(&unanswered));
                    if number == 0 {
                        unsent.sent();
                        return Err(unanswered);
                    }
                    kinds.into_iter().for_each(|kind| results.put(Err(unanswered.clone()), kind.acquires()));
                    failure = Some(Failure::AfterUnanswered);
                }
            }
        }
        unsent.sent();
        Ok(())
    }

    fn command(&self, operation: Operation) -> (Kind, Command) {
        match operation {
            Operation::Acquire(acquire) => {
                let lease_id = acquire.lease_id;
                let command = Command::Acquire(Box::new(Acquire {
                    lease_id,
                    claims: acquire.keys.into_iter().map(|claim| (claim.key, claim.mode)).collect(),
                    ttl: acquire.ttl_ms,
                    wait: Wait::default(),
                    keep_place: acquire.keep_place,
                    holder: acquire.holder,
                    metadata: acquire.metadata,
                    attachment: self.attachment(),
                }));
                (Kind::Acquire { lease_id, sees_holders: false }, command)
            }
            Operation::Renew(BatchRenew { lease_id, ttl_ms }) => {
                (Kind::Renew, Command::Renew { lease_id, ttl: ttl_ms })
            }
            Operation::Release(release) => (Kind::Release, Command::Release { lease_id: release.lease_id }),
        }
    }

    /// How many keys each of `commands` of `caller` touches.
    fn keys_of(&self, caller: &Caller, commands: &[(Kind, Command)]) -> Result<Vec<usize>, Stuck> {
        let keys = |table: &LeaseTable, command| table.key_count(caller.owner_name(), command);
        self.handle.try_view(|table| commands.iter().map(|(_, command)| keys(table, command)).collect())
    }

    /// The outcomes of the commands that are allowed, and why the others are not.
    async fn propose_part(
        &self,
        caller: &Caller,
        commands: Vec<Command>,
        unsent: &mut Unsent,
    ) -> Result<Vec<Result<Outcome, Failure>>, Unanswered> {
        let commands = caller.allow_commands(&self.handle, commands).await?;
        let mut allowed = Vec::with_capacity(commands.len());
        let denied: Vec<_> =
            commands.into_iter().map(|command| command.map(|command| allowed.push(command)).err()).collect();
        let mut outcomes = match allowed.is_empty() {
            true => Vec::new(),
            false => unsent.propose(caller, allowed).await?,
        }
        .into_iter();
        let outcome = |denied: Option<Failure>| match denied {
            None => Ok(outcomes.next().expect("one outcome per command")),
            Some(failure) => Err(failure),
        };
        Ok(denied.into_iter().map(outcome).collect())
    }

    /// Whether the mirror has all grants of a part. Takes the time that it waits from `left`. New grants are waited for together:
    /// one log entry made them, and no view shows only some of them. Older ones are probably mirrored, each at its own revision.
    async fn mirrored_part(
        &self,
        kinds: &[Kind],
        outcomes: &[Result<Outcome, Failure>],
        left: &mut Duration,
    ) -> bool {
        let grants = kinds.iter().zip(outcomes).filter_map(|(kind, outcome)| match (kind, outcome) {
            (Kind::Acquire { .. }, Ok(Outcome::Granted(grant))) => Some((true, &**grant)),
            (Kind::Acquire { .. }, Ok(Outcome::Standing(grant))) => Some((false, &**grant)),
            _ => None,
        });
        let (new, older): (Vec<_>, Vec<_>) = grants.partition(|(is_new, _)| *is_new);
        let (began, within) = (Instant::now(), *left);
        let new = self.mirrored(tokens(new.into_iter().map(|(_, grant)| grant)), within);
        let older = async {
            for some in older.chunks(MAX_MIRRORED_AT_ONCE) {
                let some = some.iter().map(|(_, grant)| self.mirrored(tokens([*grant]), within));
                if join_all(some).await.contains(&false) {
                    return false;
                }
            }
            true
        };
        let (new, older) = join(new, timeout(within, older)).await;
        *left = left.saturating_sub(began.elapsed());
        new && older.unwrap_or(false)
    }

    /// What the operation would have come to on its own.
    fn done(&self, kind: Kind, outcome: Outcome, mirrored: Option<bool>) -> Result<Done, Failure> {
        match kind {
            Kind::Acquire { sees_holders, .. } => {
                let acquired = self.acquired(outcome, mirrored, sees_holders);
                measure::acquired(acquired.as_ref());
                acquired.map(Done::Acquired)
            }
            Kind::Renew => {
                let renewed = renewed(outcome);
                measure::renewed(renewed.as_ref().err());
                renewed.map(Done::Renewed)
            }
            Kind::Release => {
                measure::released();
                ended(outcome).map(|()| Done::Released)
            }
        }
    }
}

impl Kind {
    /// Notes what `caller` may see of those who hold the keys of an acquire.
    fn look(&mut self, command: &Command, caller: &Caller) {
        if let (Self::Acquire { sees_holders, .. }, Subject::Keys(named)) = (self, command.subject()) {
            *sees_holders = caller.sees_holders(named.iter());
        }
    }

    /// The lease, if it is an acquire.
    fn acquires(&self) -> Option<LeaseId> {
        match self {
            Self::Acquire { lease_id, .. } => Some(*lease_id),
            Self::Renew | Self::Release => None,
        }
    }

    /// Counts an operation that failed with its whole part.
    fn count_failed(&self, failure: &Failure) {
        match self {
            Self::Acquire { .. } => measure::acquired(Err(failure)),
            Self::Renew => measure::renewed(Some(failure)),
            Self::Release => {}
        }
    }
}

/// Splits operations, each with its number of keys, into parts of at most [`MAX_KEYS_AT_ONCE`] keys, in order.
fn parts<T>(operations: impl Iterator<Item = (T, usize)>) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut keys = 0;
    for (operation, more) in operations {
        match parts.last_mut() {
            Some(part) if keys + more <= MAX_KEYS_AT_ONCE => {
                keys += more;
                part.push(operation);
            }
            _ => {
                keys = more;
                parts.push(vec![operation]);
            }
        }
    }
    parts
}
