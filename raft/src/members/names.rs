//! Names of the Redis protocol, which are other keys under new rules: the check before the rules are raised.

use ringfence_lease::NAMES;
use ringfence_wire::Key;
use tokio::task::yield_now;

use crate::applied::table::Applied;

/// How many keys are looked at in one turn of the thread.
const LOOKED_AT: usize = 4_096;

/// Checks that no lock has a key that [may be that of another name](ringfence_lease::was_of_another_name) under the rules `to`; returns one
/// such key otherwise. Members that run this program refuse such names under older rules. If all do, nobody makes or extends such locks.
pub(crate) async fn check_names(applied: &Applied, to: u8) -> Result<(), Key> {
    if applied.rules() >= NAMES || to < NAMES {
        return Ok(());
    }
    let mut after: Option<Key> = None;
    loop {
        after = applied.read(|inner| inner.table.check_names(after.as_ref().map(Key::as_str), LOOKED_AT))?;
        if after.is_none() {
            return Ok(());
        }
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use ringfence_lease::{Attachment, Command, Conditional, KeyChange, Outcome, Request, SUPPORTED, Value};
    use ringfence_wire::{LeaseId, RulesRange, Ttl, Upgraded};
    use tokio::time::Instant;

    use super::*;
    use crate::handle::Handle;
    use crate::members::tests::{Cluster, SOON, until};
    use crate::peer::{Answer, Call};
    use crate::propose::asker::Asker;
    use crate::propose::proposal::{Failure, Origin};
    use crate::unanswered::MembersError;

    /// A node of this program, under the rules before [`NAMES`].
    async fn upgraded() -> Cluster {
        let older = RulesRange { oldest: 1, newest: NAMES - 1 };
        let mut cluster = Cluster::start_with(1, |_| older).await;
        let rules = || cluster.handle(1).view(|table| table.rules());
        until("it has these rules", async || rules() == NAMES - 1).await;
        cluster.stop(1).await;
        cluster.rules = SUPPORTED;
        cluster.restart(1).await;
        cluster.lead(1).await;
        cluster
    }

    /// Waits until one more entry is proposed.
    async fn proposed(leader: &Handle, before: Option<u64>) {
        until("it is proposed", async || leader.status().last_log_index > before).await;
    }

    fn set(name: &str) -> Command {
        let change = KeyChange::Acquire {
            key: Key::new(name).unwrap(),
            lease_id: LeaseId::from_u128(1).unwrap(),
            ttl: Ttl::default(),
            value: Value::new(b"v").unwrap(),
            holder: None,
            attachment: Attachment(1),
        };
        Command::Conditional(Box::new(Conditional::new(Vec::new(), vec![change]).unwrap()))
    }

    /// The name was once granted under new rules, as a key under which nobody else looks for that name.
    #[tokio::test]
    async fn a_request_of_an_older_program_is_rejected_also_if_the_rules_are_raised_while_it_waits() {
        let cluster = upgraded().await;
        let leader = cluster.handle(1);
        let before = leader.status().last_log_index;
        let go_on = leader.shared.log.hang();
        let raising = leader.clone();
        let raised = tokio::spawn(async move { raising.upgrade(None, false).await });
        proposed(&leader, before).await;
        let ask = |supports| {
            let (leader, origin) = (leader.clone(), Origin { asker: Asker::UNNAMED, supports });
            tokio::spawn(async move {
                leader.propose_here(origin, Request::default(), Instant::now() + SOON, &mut false).await
            })
        };
        let (older, own) = (ask(NAMES - 1), ask(NAMES));
        until("both wait", async || leader.shared.proposer.queued() == 2).await;
        drop(go_on);
        assert_eq!(raised.await.unwrap(), Ok(Upgraded { from: NAMES - 1, to: NAMES }));
        let older = older.await.unwrap();
        assert!(matches!(older, Err(Failure::Rejected(_))), "{older:?}");
        own.await.unwrap().unwrap();
    }

    /// An older program may replace a member right after that was asked, and does not know of the raise yet.
    #[tokio::test]
    async fn a_leader_tells_older_programs_that_what_they_pass_on_is_not_done() {
        let cluster = Cluster::start(2).await;
        let leader = cluster.handle(1);
        until("the rules are in use", async || leader.upgrade(Some(NAMES), false).await.is_ok()).await;
        let of = |supports| Call::ProposeOf { asker: 5, supports, request: Request::default() };
        let own = cluster.handle(2).shared.peers.call(1, of(NAMES)).await.unwrap();
        assert_eq!(own, Answer::Outcomes(Vec::new()));
        for older in [Call::Propose(Vec::new()), Call::ProposeBy(Request::default()), of(NAMES - 1)] {
            let answer = cluster.handle(2).shared.peers.call(1, older.clone()).await.unwrap();
            assert_eq!(answer, Answer::NotDone, "{older:?}");
        }
    }

    /// Such a lock was in the log, but not in the table yet.
    #[tokio::test]
    async fn a_lock_that_is_in_flight_while_the_locks_are_checked_is_in_the_way() {
        let cluster = upgraded().await;
        let leader = cluster.handle(1);
        let before = leader.status().last_log_index;
        let go_on = leader.shared.log.hang();
        let (setting, raising) = (leader.clone(), leader.clone());
        let set = tokio::spawn(async move { setting.propose(vec![set("50%25off")]).await });
        proposed(&leader, before).await;
        let raised = tokio::spawn(async move { raising.upgrade(None, false).await });
        until("the raise has begun", async || leader.shared.changing.try_lock().is_err()).await;
        drop(go_on);
        let set = set.await.unwrap().unwrap();
        assert!(matches!(set[..], [Outcome::Changed(_)]), "{set:?}");
        let refused = raised.await.unwrap().unwrap_err();
        assert!(matches!(&refused, MembersError::Refused(why) if why.contains("50%25off")), "{refused:?}");
        assert_eq!(leader.view(|table| table.rules()), NAMES - 1);
    }
}
