//! Where the members listen.
//!
//! The membership records the address of each member, and the leader keeps that true (`members::moves`). Operators list addresses, too, in
//! `--peers`. A list may be out of date, and an old copy of a data directory may still be where it says. So a list counts only before there
//! is a record; where the record leads to nobody while this node has no leader, so that all nodes can move at once; and for a leader, if
//! nothing listens any more where the record leads. Whoever answers proves that it is the member by its incarnation and its start, and by
//! its certificate.
//!
//! A caller says in its hello where its operator has it listen, and where it called. By the first, the leader hears that a member has
//! moved; by the second, that it has moved itself.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use ringfence_wire::is_unspecified;
use tokio::time::{Instant, timeout};

use super::certificate::Certificate;
use super::directory::{Directory, Target};
use super::handshake::{Channel, Places};
use super::known::{Claim, Process, Whereabouts};
use crate::consensus::{Member, NodeId};
use crate::storage::starts::{Start, Starts};

/// How long who is asked may take to answer: longer than connecting, so that the error says what did not answer.
const ASK: Duration = Duration::from_millis(2_250);
/// A process that was not heard for so long has ended, or cannot call this node: a follower calls its leader twice a second.
const SILENT: Duration = Duration::from_secs(5);
/// A claim counts for so long. Who makes it goes on calling.
const CLAIMED: Duration = Duration::from_secs(10);

/// Who answers at an address.
#[derive(Debug)]
pub(super) enum Found {
    /// The member, in the newest of these starts.
    Member(Starts),
    /// Nobody: nothing listens there.
    Gone(io::Error),
    /// It cannot be known.
    Silent(io::Error),
}

impl Found {
    /// Why it is not the member.
    pub(super) fn error(self) -> Option<io::Error> {
        match self {
            Self::Member(_) => None,
            Self::Gone(error) | Self::Silent(error) => Some(error),
        }
    }
}

impl Directory {
    /// Where the membership has `id`, if another machine could use that.
    pub(super) fn recorded(&self, id: NodeId) -> Option<String> {
        self.member(id).map(|member| member.peer).filter(|peer| !is_unspecified(peer))
    }

    /// Where operators say that `id` is: the list of this node, and who adds it.
    pub(super) fn told(&self, id: NodeId) -> Vec<String> {
        let given = self.whereabouts(id, |known| known.given.clone());
        let listed = self.addresses.get(&id).filter(|listed| !is_unspecified(listed)).cloned();
        listed.into_iter().chain(given).collect()
    }

    /// Where `id` is called next: where it answered last, unless it was recorded elsewhere since; otherwise each address that counts in
    /// its turn.
    pub(super) fn address(&self, id: NodeId) -> Option<String> {
        let recorded = self.recorded(id);
        let (answered_at, failed_at) =
            self.whereabouts(id, |known| (known.answered_at.clone(), known.failed_at.clone()));
        if let Some((at, _)) = answered_at.filter(|(_, then)| *then == recorded) {
            return Some(at);
        }
        let member = self.member(id).filter(|_| recorded.is_some());
        let has_leader = member.is_some_and(|member| self.has_leader_besides((id, member.incarnation)));
        let told = if has_leader { Vec::new() } else { self.told(id) };
        let known: Vec<_> = recorded.into_iter().chain(told).collect();
        let failed = known.iter().position(|known| Some(known) == failed_at.as_ref());
        let after = known.iter().skip(failed.map_or(0, |failed| failed + 1));
        after.chain(&known).next().cloned()
    }

    /// Notes that `id` answered at this address.
    pub(super) fn note_answered(&self, id: NodeId, at: String) {
        let recorded = self.recorded(id);
        self.whereabouts(id, |known| known.answered_at = Some((at, recorded)));
    }

    /// Notes that `id` did not answer at this address. While it calls this node, it is where it answered.
    pub(super) fn note_failed(&self, id: NodeId, at: String) {
        self.with_known(id, |known| {
            let is_heard = known.is_heard(SILENT);
            let whereabouts = &mut known.whereabouts;
            whereabouts.answered_at.take_if(|(answered_at, _)| !is_heard && *answered_at == at);
            whereabouts.failed_at = Some(at);
        });
    }

    /// The address of `id` given by the operator, or nothing.
    pub(crate) fn listed(&self, id: NodeId) -> String {
        self.addresses.get(&id).cloned().unwrap_or_default()
    }

    /// Notes that `id`, which is to become a member, listens at `address`; an error if the operator of this node gave
    /// another address.
    pub(super) fn introduce(&self, id: NodeId, address: &str) -> Result<(), String> {
        if let Some(listed) = self.addresses.get(&id).filter(|listed| *listed != address) {
            let own = self.identity.node_id;
            return Err(format!("--peers of node {own}, which leads, lists node {id} at {listed}"));
        }
        self.note_given(id, address);
        Ok(())
    }

    /// Whether this certificate is of `id`, or of a host that `id` may be at.
    pub(super) fn is_shown(&self, certificate: &Certificate, id: NodeId) -> bool {
        let addresses = self.recorded(id).into_iter().chain(self.told(id));
        certificate.is_of(id, None) || addresses.into_iter().any(|at| certificate.is_of(id, Some(&at)))
    }

    /// What this node says of addresses to a node that it calls at `called`.
    pub(super) fn places(&self, called: &str) -> Places {
        Places { own: self.own_address().unwrap_or_default(), called: called.to_owned() }
    }

    /// Where the operator has this node listen, if another machine could use that.
    fn own_address(&self) -> Option<String> {
        self.addresses.get(&self.identity.node_id).filter(|address| !is_unspecified(address)).cloned()
    }

    /// Where this node listens, if the membership, as it knows it, has it elsewhere.
    pub(super) fn elsewhere(&self) -> Option<String> {
        let recorded = self.member(self.identity.node_id)?.peer;
        self.own_address().filter(|own| *own != recorded)
    }

    /// Notes where a member that was let in called this node.
    pub(super) fn note_called(&self, id: NodeId, places: &Places) {
        let called = Some(places.called.clone()).filter(|called| !called.is_empty());
        self.whereabouts(id, |known| (known.claim, known.called) = (None, called));
    }

    /// Notes where a process says that a member listens, which does not answer where the membership has it.
    pub(super) fn note_claim(&self, (id, by): Process, start: Start, places: &Places) {
        if !places.own.is_empty() {
            let claim = Claim { by, start, address: places.own.clone(), at: Instant::now() };
            self.whereabouts(id, |known| known.claim = Some(claim));
        }
    }

    /// Where this node, which leads, has moved, if a majority of the voters, this node included, called it lately elsewhere than where the
    /// membership has it.
    pub(crate) fn own_move(&self, voters: &BTreeSet<NodeId>) -> Option<String> {
        let at = self.elsewhere()?;
        let recorded = self.recorded(self.identity.node_id);
        let calls = |id: &NodeId| {
            *id == self.identity.node_id
                || self.with_known(*id, |known| {
                    let is_heard = known.is_heard(SILENT);
                    is_heard
                        && known.whereabouts.called.as_ref().is_some_and(|at| Some(at) != recorded.as_ref())
                })
        };
        (2 * voters.iter().filter(|id| calls(id)).count() > voters.len()).then_some(at)
    }

    /// The address that `member` has moved to, if that is certain: it answers there, in its newest start, and does not answer any more
    /// where the membership has it. If a list led this node there while it had no leader, that is enough. Otherwise a list may be out of
    /// date, and a process that says so itself may be a copy of a member that stands still: nothing may listen at the old address any
    /// more, and in the second case, the member is not heard either.
    pub(crate) async fn moved(&self, id: NodeId, member: &Member) -> Option<String> {
        let process = (id, member.incarnation);
        let recorded = self.recorded(id);
        let (answered_at, claim) =
            self.whereabouts(id, |known| (known.answered_at.clone(), known.claim.clone()));
        let is_elsewhere = |at: &String| *at != member.peer && !at.is_empty() && !is_unspecified(at);
        let found = answered_at.filter(|(_, then)| *then == recorded).map(|(at, _)| at).filter(is_elsewhere);
        let listed = Some(self.listed(id)).filter(is_elsewhere);
        let claim = claim.filter(|claim| {
            let is_fresh = claim.by == member.incarnation && claim.at.elapsed() < CLAIMED;
            is_fresh && is_elsewhere(&claim.address) && !self.is_heard(process)
        });
        // Where it is called without trouble, it has not moved.
        if found.is_none()
            && claim.is_none()
            && (listed.is_none() || self.is_heard(process) && self.is_well(id))
        {
            return None;
        }
        let is_gone = match self.ask(process, &member.peer).await {
            Found::Member(_) => return None,
            Found::Gone(_) => true,
            Found::Silent(_) => false,
        };
        if let Some(at) = found.or(listed.filter(|_| is_gone))
            && self.is_there(process, &at, None).await
        {
            return Some(at);
        }
        let claim = claim.filter(|_| is_gone)?;
        let is_there = self.is_there(process, &claim.address, Some(claim.start)).await;
        (is_there && !self.is_heard(process)).then_some(claim.address)
    }

    /// Whether a process answers there, in this start if it is given, that may be the newest of its data directory.
    async fn is_there(&self, process: Process, at: &str, start: Option<Start>) -> bool {
        match self.ask(process, at).await {
            Found::Member(starts) => {
                (start.is_none() || starts.newest() == start) && self.check_starts(process, &starts).is_ok()
            }
            Found::Gone(_) | Found::Silent(_) => false,
        }
    }

    /// An error says why `member` has not moved to `at`, though an operator says so.
    pub(crate) async fn check_moved(&self, id: NodeId, member: &Member, at: &str) -> Result<(), String> {
        let process = (id, member.incarnation);
        let (there, before) = tokio::join!(self.ask(process, at), self.ask(process, &member.peer));
        let starts = match there {
            Found::Member(starts) => starts,
            Found::Gone(error) | Found::Silent(error) => {
                return Err(format!(
                    "node {id} is a member at {}, and does not answer at {at} ({error}): start it there, with its data \
                     directory, or remove it first to add another",
                    member.peer
                ));
            }
        };
        self.check_starts(process, &starts).map_err(|error| error.to_string())?;
        match before {
            Found::Member(before) if before.newest() != starts.newest() => Err(format!(
                "another process with the data directory of node {id} answers at {}, where it is a member: stop one of them",
                member.peer
            )),
            _ => Ok(()),
        }
    }

    /// Who answers at `address`.
    pub(super) async fn ask(&self, (to, incarnation): Process, address: &str) -> Found {
        let target = Target { to, incarnation: Some(incarnation), channel: Channel::Founding };
        match timeout(ASK, self.greet_at(target, address)).await {
            Ok(Ok(greeted)) => Found::Member(greeted.starts),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Found::Gone(error),
            Ok(Err(error)) => Found::Silent(error),
            Err(_) => Found::Silent(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{address}: no answer in time"),
            )),
        }
    }

    fn whereabouts<T>(&self, id: NodeId, work: impl FnOnce(&mut Whereabouts) -> T) -> T {
        self.with_known(id, |known| work(&mut known.whereabouts))
    }

    /// Whether this process was heard just now.
    fn is_heard(&self, (id, incarnation): Process) -> bool {
        self.with_known(id, |known| {
            let is_met = known.met.is_some_and(|(it, _)| it == incarnation);
            is_met && known.is_heard(SILENT)
        })
    }
}
