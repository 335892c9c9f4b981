//! Raising the rules of the cluster, which every member has to support from then on.
//!
//! A member that is started as an older program after it was asked stops at the first entry under the new rules; the others
//! go on.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use ringfence_lease::Request;
use ringfence_wire::Upgraded;
use tokio::time::{Instant, timeout_at};

use super::names::check_names;
use super::{ASK, TIMEOUT, list};
use crate::consensus::NodeId;
use crate::handle::Handle;
use crate::peer::Program;
use crate::propose::proposal::{Failure, Raise};
use crate::replica::Replica;
use crate::unanswered::MembersError::{self, Refused};
use crate::unanswered::Unanswered;

impl Handle {
    /// Raises the rules to `to`; without it, to the newest that all members support. If `check`, raises nothing and answers as
    /// if it did.
    pub async fn upgrade(&self, to: Option<u8>, check: bool) -> Result<Upgraded, MembersError> {
        let shared = &self.shared;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let result = match shared.leader() {
                Some(leader) if leader == shared.id => shared.upgrade_here(to, check, deadline).await,
                Some(leader) => shared.peers.upgrade(leader, to, check, deadline).await,
                None => Err(Unanswered::Unavailable.into()),
            };
            match result {
                Err(MembersError::Unanswered(Unanswered::Unavailable)) => {
                    shared.wait_for_another_try(deadline).await?;
                }
                other => return other,
            }
        }
    }
}

impl Replica {
    /// Raises the rules, if this node leads.
    pub(crate) async fn upgrade_here(
        &self,
        to: Option<u8>,
        check: bool,
        deadline: Instant,
    ) -> Result<Upgraded, MembersError> {
        // No member is added before the rules are raised.
        let guard = async { if check { None } else { Some(self.changing.lock().await) } };
        let unavailable = || MembersError::from(Unanswered::Unavailable);
        let _guard = timeout_at(deadline, guard).await.map_err(|_| unavailable())?;
        let prepared = timeout_at(deadline, self.prepare(to)).await.unwrap_or_else(|_| Err(unavailable()));
        let (from, raise) = prepared?;
        let upgraded = Upgraded { from, to: raise.rules };
        if check || raise.rules == from {
            return Ok(upgraded);
        }
        let raised = self.proposer.propose_with(Some(raise), Request::default());
        match timeout_at(deadline, raised).await.unwrap_or(Err(Failure::Unknown)) {
            Ok(_) => Ok(upgraded),
            Err(Failure::Rejected(_) | Failure::Full) => Err(unavailable()),
            Err(Failure::Unknown) => Err(Unanswered::Indeterminate.into()),
        }
    }

    /// The rules in use, and what to raise them to.
    async fn prepare(&self, to: Option<u8>) -> Result<(u8, Raise), MembersError> {
        let Some(term) = *self.leading.term().borrow() else { return Err(Unanswered::Unavailable.into()) };
        let from = self.applied.lock().table.rules();
        if to == Some(from) {
            return Ok((from, Raise { rules: from, term }));
        }
        let to = target(from, to, &self.ask_programs().await).map_err(Refused)?;
        check_names(&self.applied, to).await.map_err(|key| {
            Refused(format!(
                "a Redis client holds {key}, and under rules {to} its name may be another key, which would be granted to others: \
                 such locks are not extended any more, so wait until they end, or revoke them, and raise the rules then"
            ))
        })?;
        Ok((from, Raise { rules: to, term }))
    }

    /// The program of each member; `None` for those that do not answer now.
    async fn ask_programs(&self) -> BTreeMap<NodeId, Option<Program>> {
        let asked = self.members().into_iter().map(async |(id, member)| {
            // The answer comes from the process that said, when it was connected to, which program it is.
            let answers = id == self.id || self.peers.probe(id, ASK).await.is_ok();
            (id, self.peers.directory.program_of(id, member.incarnation).filter(|_| answers))
        });
        join_all(asked).await.into_iter().collect()
    }

    /// The rules of a new cluster: the newest that all its members support; the oldest that this program supports if that
    /// cannot be known.
    pub(crate) async fn first_rules(&self) -> u8 {
        let own = self.peers.directory.program.rules;
        if own.newest == self.applied.lock().table.rules() {
            return own.newest;
        }
        newest_of_all(self.ask_programs().await.into_values()).unwrap_or(own.oldest)
    }

    /// The newest rules that all members support, as far as their programs are known without asking.
    pub(crate) fn rules_supported(&self) -> Option<u8> {
        let directory = &self.peers.directory;
        self.metrics(|metrics| {
            let members = metrics.membership_config.membership().nodes();
            newest_of_all(members.map(|(id, member)| directory.program_of(*id, member.incarnation)))
        })
    }
}

/// The newest rules that all these programs support; `None` if one is not known, or there is none.
fn newest_of_all(programs: impl IntoIterator<Item = Option<Program>>) -> Option<u8> {
    let newest = programs.into_iter().map(|program| program.map(|program| program.rules.newest));
    newest.reduce(|least, newest| Some(least?.min(newest?))).flatten()
}

/// The rules to raise to, or why they cannot be raised.
fn target(from: u8, to: Option<u8>, programs: &BTreeMap<NodeId, Option<Program>>) -> Result<u8, String> {
    let silent = programs.iter().filter(|(_, program)| program.is_none()).map(|(id, _)| *id).collect();
    if silent != BTreeSet::new() {
        return Err(format!(
            "no answer from node {}: every member has to support the new rules, so start it, or remove it, first",
            list(&silent)
        ));
    }
    let newest = programs.values().flatten().map(|program| program.rules.newest);
    let (least, most) = (newest.clone().min().unwrap_or(from), newest.max().unwrap_or(from));
    // Nothing can be raised: say who is in the way, if some members could go on.
    let to = to.unwrap_or(if least > from { least } else { most });
    if to < from {
        return Err(format!("the cluster uses rules {from}: rules are never lowered"));
    }
    let lack = programs.iter().filter_map(|(id, program)| Some((id, program.as_ref()?)));
    let lack = lack
        .filter(|(_, program)| !program.rules.contains(to))
        .map(|(id, program)| format!("node {id} runs {program}, which supports rules {}", program.rules));
    let lack: Vec<String> = lack.collect();
    match lack.is_empty() {
        true => Ok(to),
        false => {
            Err(format!("{}: every member has to support rules {to}; upgrade it first", lack.join(", and ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringfence_lease::{Command, Outcome, Refusal};
    use ringfence_wire::{LeaseId, Revision, RulesRange};
    use tokio::net::TcpListener;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::consensus::ELECTION_MS;
    use crate::members::tests::{Cluster, until};
    use crate::node::{Node, Settings};
    use crate::propose::proposal::Proposed;
    use crate::unanswered::RETRY;

    const SOON: Duration = Duration::from_secs(60);
    const NEW: RulesRange = RulesRange { oldest: 1, newest: 2 };
    const NEWER: RulesRange = RulesRange { oldest: 1, newest: 3 };

    fn program(oldest: u8, newest: u8, version: &str) -> Option<Program> {
        let rules = RulesRange { oldest, newest };
        Some(Program { version: version.to_owned(), ..Program::of_this(rules) })
    }

    #[test]
    fn the_rules_are_raised_to_what_all_support_or_the_refusal_names_who_does_not() {
        let programs = |given: [Option<Program>; 3]| (1..).zip(given).collect::<BTreeMap<NodeId, _>>();
        let (old, new, newer) = (program(1, 1, ""), program(1, 2, "1.2"), program(2, 3, "1.3"));
        let all_new = programs([new.clone(), newer.clone(), new.clone()]);
        assert_eq!(target(1, None, &all_new), Ok(2));
        assert_eq!(target(2, None, &programs([new.clone(), new.clone(), new.clone()])), Ok(2));
        assert_eq!(target(1, Some(2), &all_new), Ok(2));
        let refusals = [
            (
                target(1, None, &programs([new.clone(), old.clone(), new.clone()])),
                "node 2 runs an unknown version of ringfence, which supports rules 1 to 1: every member has to support rules \
                 2; upgrade it first",
            ),
            (
                target(2, None, &all_new),
                "node 1 runs ringfence 1.2, which supports rules 1 to 2, and node 3 runs ringfence 1.2, which supports rules \
                 1 to 2: every member has to support rules 3; upgrade it first",
            ),
            (target(2, Some(1), &all_new), "the cluster uses rules 2: rules are never lowered"),
            (
                target(1, None, &programs([new.clone(), None, None])),
                "no answer from node 2 and 3: every member has to support the new rules, so start it, or remove it, first",
            ),
        ];
        for (refused, expected) in refusals {
            assert_eq!(refused.unwrap_err(), expected);
        }
    }

    /// Raises the rules without asking anybody.
    async fn raise(handle: &Handle, rules: u8) -> Proposed {
        let term = handle.leads().borrow().unwrap();
        handle.shared.proposer.propose_with(Some(Raise { rules, term }), Request::default()).await
    }

    /// The leader of three still leads, but Raft there takes no entry.
    async fn lose_the_lease(cluster: &Cluster, leader: NodeId) {
        for id in (1..=3).filter(|id| *id != leader) {
            cluster.handle(id).shared.raft.runtime_config().elect(false);
        }
        let leader = cluster.handle(leader);
        leader.shared.raft.runtime_config().heartbeat(false);
        let lease = Duration::from_millis(ELECTION_MS.end);
        until("its lease is over", async || !leader.shared.has_quorum(lease)).await;
    }

    /// The entries after it were once under the new rules all the same.
    #[tokio::test]
    async fn a_raise_that_is_rejected_leaves_no_trace() {
        let cluster = Box::pin(Cluster::start_with(3, |_| NEW)).await;
        let leader = cluster.handle(1);
        let (before, term) = (leader.view(|table| table.rules()), leader.shared.leads_in());
        lose_the_lease(&cluster, 1).await;
        let rejected = timeout(SOON, raise(&leader, before + 1)).await.unwrap();
        assert!(matches!(rejected, Err(Failure::Rejected(_))), "{rejected:?}");
        leader.shared.raft.runtime_config().heartbeat(true);
        until("it is followed again", async || leader.propose(Request::default()).await.is_ok()).await;
        assert_eq!(leader.shared.leads_in(), term);
        assert_eq!(leader.view(|table| table.rules()), before);
    }

    /// A command that is not in the entry was once lost to the next leader.
    #[tokio::test]
    async fn a_rejected_request_comes_back_with_the_commands_that_the_rules_do_not_have() {
        let mut cluster = Box::pin(Cluster::start_with(3, |_| NEW)).await;
        cluster.stop(1).await;
        cluster.since = |command| if matches!(command, Command::Start { .. }) { 3 } else { command.since() };
        cluster.restart(1).await;
        cluster.lead(1).await;
        let leader = cluster.handle(1);
        let (new, old) = (
            || Command::Start { revision: Revision(7) },
            |id| Command::Release { lease_id: LeaseId::from_u128(id).unwrap() },
        );
        let commands = || vec![old(1), new(), old(2), new()];
        let outcomes = leader.propose(commands()).await.unwrap();
        let not_yet = || Outcome::Refused(Refusal::NotYet { rules: 2, since: 3 });
        assert_eq!(outcomes, [Outcome::Done, not_yet(), Outcome::Done, not_yet()]);
        lose_the_lease(&cluster, 1).await;
        let propose = |commands: Vec<Command>| leader.shared.proposer.propose(commands.into());
        let (first, second) = tokio::join!(propose(commands()), propose(vec![new(), old(3)]));
        for (rejected, whole) in [(first, commands()), (second, vec![new(), old(3)])] {
            let Err(Failure::Rejected(request)) = rejected else { panic!("{rejected:?}") };
            assert_eq!(request.commands, whole);
        }
    }

    /// A program that does not support them once became a member.
    #[tokio::test]
    async fn a_node_is_added_only_if_it_supports_the_rules_that_are_being_raised() {
        let cluster = Cluster::start_with(1, |_| NEWER).await;
        let leader = cluster.handle(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = listener.local_addr().unwrap().to_string();
        let settings = cluster.settings(2, cluster.data(2), listener, true);
        let joining = tokio::spawn(Node::start(Settings { rules: NEW, peers: BTreeMap::new(), ..settings }));
        let go_on = leader.shared.log.hang();
        let (raising, adding) = (leader.clone(), leader.clone());
        let before = leader.status().last_log_index;
        let raised = tokio::spawn(async move { raise(&raising, 3).await });
        until("the raise is proposed", async || leader.status().last_log_index > before).await;
        let added = tokio::spawn(async move {
            loop {
                let added = adding.add_member(2, peer.clone()).await;
                // It may be starting.
                if !added.as_ref().is_err_and(|error| error.to_string().contains("does not answer")) {
                    return added;
                }
            }
        });
        until("the node is probed", async || leader.shared.peers.known().1 > 0).await;
        sleep(10 * RETRY).await;
        drop(go_on);
        raised.await.unwrap().unwrap();
        let added = timeout(SOON, added).await.unwrap().unwrap();
        let refused = added.unwrap_err().to_string();
        assert!(refused.contains("supports rules 1 to 2, and this cluster uses rules 3"), "{refused}");
        joining.abort();
    }

    #[tokio::test]
    async fn a_check_holds_up_no_change_of_the_members() {
        let cluster = Box::pin(Cluster::start_with(2, |_| NEW)).await;
        let leader = cluster.handle(1);
        let _changing = leader.shared.changing.lock().await;
        leader.upgrade(None, true).await.unwrap();
        let deadline = Instant::now();
        sleep(RETRY).await;
        let late = leader.shared.upgrade_here(None, true, deadline).await;
        assert_eq!(late, Err(Unanswered::Unavailable.into()), "nothing was done");
        let late = leader.shared.upgrade_here(None, false, deadline).await;
        assert_eq!(late, Err(Unanswered::Unavailable.into()), "nothing was proposed");
    }

    /// They would be under older rules than the raise.
    #[tokio::test]
    async fn no_entry_is_proposed_while_a_raise_is_in_flight() {
        let cluster = Cluster::start_with(1, |_| NEW).await;
        let leader = cluster.handle(1);
        let last = || leader.status().last_log_index;
        let before = last();
        let go_on = leader.shared.log.hang();
        let proposed = async {
            let (raised, next) =
                tokio::join!(raise(&leader, 2), leader.shared.proposer.propose(Request::default()));
            raised.unwrap();
            next.unwrap();
        };
        let hung = async {
            until("the raise is proposed", async || last() > before).await;
            sleep(10 * RETRY).await;
            assert_eq!(last(), before.map(|index| index + 1));
            drop(go_on);
        };
        tokio::join!(proposed, hung);
        assert_eq!(last(), before.map(|index| index + 2));
    }

    /// Another leader may have added a member since.
    #[tokio::test]
    async fn the_rules_are_not_raised_in_a_later_term_than_the_members_were_asked_in() {
        let cluster = Cluster::start_with(1, |_| NEW).await;
        let leader = cluster.handle(1);
        let before = leader.view(|table| table.rules());
        let raise = Raise { rules: before + 1, term: leader.leads().borrow().unwrap() - 1 };
        let late = leader.shared.proposer.propose_with(Some(raise), Request::default()).await;
        assert!(matches!(late, Err(Failure::Rejected(_))), "{late:?}");
        leader.propose(Request::default()).await.unwrap();
        assert_eq!(leader.view(|table| table.rules()), before);
    }

    /// A member that is started as an older program right after it was asked stops at the first entry under the new rules.
    #[tokio::test]
    async fn a_program_that_does_not_support_the_rules_stops_cleanly_and_the_others_go_on() {
        let rules = |id| RulesRange { newest: if id == 3 { 1 } else { 2 }, ..NEW };
        let mut cluster = Box::pin(Cluster::start_with(3, rules)).await;
        let leader = cluster.handle(1);
        raise(&leader, 2).await.unwrap();
        let reason = timeout(SOON, cluster.nodes[&3].failed()).await.unwrap();
        assert!(reason.contains("this cluster uses rules 2"), "{reason}");
        cluster.stop(3).await;
        timeout(SOON, cluster.handle(2).propose(Request::default())).await.unwrap().unwrap();
        let rules = |id| cluster.handle(id).view(|table| table.rules());
        until("both use the new rules", async || rules(1) == 2 && rules(2) == 2).await;

        let (data, listener) = (cluster.data(3), cluster.listener(3).await);
        let settings = cluster.settings(3, data, listener, false);
        let Err(error) = Node::start(Settings { rules: RulesRange { newest: 1, ..NEW }, ..settings }).await
        else {
            panic!("it starts")
        };
        assert!(error.to_string().contains("this program supports rules 1 to 1"), "{error}");
        cluster.rules = NEW;
        cluster.restart(3).await;
        let again = cluster.handle(3);
        until("it is back", async || again.view(|table| table.rules()) == 2).await;
    }

    #[test]
    fn what_all_support_is_not_known_if_one_program_is_not() {
        assert_eq!(newest_of_all([program(1, 3, ""), program(1, 2, "")]), Some(2));
        assert_eq!(newest_of_all([program(1, 3, ""), None]), None);
        assert_eq!(newest_of_all([None, program(1, 3, "")]), None);
        assert_eq!(newest_of_all([]), None);
    }
}
