//! Where the members listen.
//!
//! The membership records the address of each member. The operator of a node may list another, in `--peers`. Either may be out of date:
//! a member moved and the lists did not, or all moved at once and nobody could record it. So a node calls the one and then the other
//! until the member answers: whoever answers proves that it is the member by its incarnation and its start, and by its certificate.
//!
//! The leader keeps the record true ([`members::moves`](crate::members)). It hears of a move by the hello of the member that
//! moved, which says where its operator has it listen, and of its own move by the hellos of the others, which say where they called it.

use std::io;
use std::time::Duration;

use ringfence_wire::is_unspecified;
use tokio::time::timeout;

use super::certificate::Certificate;
use super::directory::{Directory, Target};
use super::handshake::{Channel, Places};
use super::known::{Claim, Process, Whereabouts};
use crate::consensus::{Member, NodeId};
use crate::storage::starts::Start;

/// How long a member's address may take to answer.
const ASK: Duration = Duration::from_secs(2);
/// A process that was not heard for so long has ended, or cannot call this node: a follower calls its leader twice a second.
const SILENT: Duration = Duration::from_secs(5);

/// Who answers at an address.
#[derive(Debug)]
pub(super) enum Found {
    /// The member, in this start; `None`: its program is too old to say in which.
    Member(Option<Start>),
    /// Certainly not the member: nothing listens there, or somebody else does.
    Gone(io::Error),
    /// It cannot be known.
    Silent(io::Error),
}

impl Directory {
    /// The addresses of `id`: what the membership records, what the operator lists, and what was given by an operator who adds it.
    pub(super) fn addresses(&self, id: NodeId) -> Vec<String> {
        let recorded = self.member(id).map(|member| member.peer);
        let given = self.whereabouts(id, |at| at.given.clone());
        let mut addresses = Vec::with_capacity(3);
        for address in [recorded, self.addresses.get(&id).cloned(), given].into_iter().flatten() {
            if !is_unspecified(&address) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Where `id` is called next.
    pub(super) fn address(&self, id: NodeId) -> Option<String> {
        let mut addresses = self.addresses(id);
        let turn = self.whereabouts(id, |at| at.turn);
        let at = turn.checked_rem(addresses.len())?;
        Some(addresses.swap_remove(at))
    }

    /// `id` did not answer where it was called: it is called elsewhere next.
    pub(super) fn turn(&self, id: NodeId) {
        self.whereabouts(id, |at| at.turn = at.turn.wrapping_add(1));
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
        certificate.is_of(id, None)
            || self.addresses(id).iter().any(|address| certificate.is_of(id, Some(address)))
    }

    /// What this node says of addresses to a node that it calls at `called`.
    pub(super) fn places(&self, called: &str) -> Places {
        Places { own: self.own_address().unwrap_or_default(), called: called.to_owned() }
    }

    /// Where the operator has this node listen, if another machine could use that.
    fn own_address(&self) -> Option<String> {
        self.addresses.get(&self.identity.node_id).filter(|address| !is_unspecified(address)).cloned()
    }

    /// Whether this node listens elsewhere than the membership, as it knows it, says.
    pub(super) fn has_moved(&self) -> bool {
        let recorded = self.member(self.identity.node_id).map(|member| member.peer);
        recorded.is_some_and(|recorded| self.own_address().is_some_and(|own| own != recorded))
    }

    /// Notes where a member that was let in called this node.
    pub(super) fn note_called(&self, id: NodeId, places: &Places) {
        let called = Some(places.called.clone()).filter(|called| !called.is_empty());
        self.whereabouts(id, |at| (at.claim, at.called) = (None, called));
    }

    /// Notes where a process says that a member listens, which does not answer where it is called.
    pub(super) fn note_claim(&self, (id, by): Process, start: Start, places: &Places) {
        let address = places.own.clone();
        if !address.is_empty() && !self.addresses(id).contains(&address) {
            self.whereabouts(id, |at| at.claim = Some(Claim { by, start, address }));
        }
    }

    /// Where this node, which leads, was called by the others, if all say the same, and it is not where the membership has it.
    pub(crate) fn own_move(&self, recorded: &str) -> Option<String> {
        let mut called = self.called_by_heard(SILENT);
        let first = called.pop().filter(|first| first != recorded)?;
        called.iter().all(|other| *other == first).then_some(first)
    }

    /// Whether anything says that a member is elsewhere than where the membership has it.
    pub(crate) fn may_have_moved(&self, id: NodeId, recorded: &str) -> bool {
        self.whereabouts(id, |at| {
            at.claim.is_some() || at.answered_at.as_ref().is_some_and(|at| at != recorded)
        })
    }

    /// The address that `member` has moved to, if that is certain: it answers there, in its newest start, and does not answer any more
    /// where the membership has it. If the operator of this node lists the new address, that is enough. If only the process there says
    /// so, it may be a copy of one that stands still: then nothing may be left that the member could answer by.
    pub(crate) async fn moved(&self, id: NodeId, member: &Member) -> Option<String> {
        let process = (id, member.incarnation);
        let (claim, answered_at) = self.whereabouts(id, |at| (at.claim.clone(), at.answered_at.clone()));
        let (at, claim) = match (answered_at.filter(|at| *at != member.peer), claim) {
            (Some(at), _) => (at, None),
            (None, claim) => claim.map(|claim| (claim.address.clone(), Some(claim)))?,
        };
        let (there, before) = tokio::join!(self.ask(process, &at), self.ask(process, &member.peer));
        match (there, before, claim) {
            (_, Found::Member(_), _) => {
                let found = Whereabouts { answered_at: Some(member.peer.clone()), ..Whereabouts::default() };
                self.whereabouts(id, |at| *at = Whereabouts { called: at.called.take(), ..found });
                None
            }
            (Found::Member(_), _, None) => Some(at),
            (Found::Member(start), Found::Gone(_), Some(claim)) => {
                let is_the_one = claim.by == member.incarnation && start == Some(claim.start);
                (is_the_one && !self.is_heard(process)).then_some(at)
            }
            _ => None,
        }
    }

    /// As [`moved`](Self::moved), if an operator says that `member` has moved to `at`: an error is the reason why it has not.
    pub(crate) async fn check_moved(&self, id: NodeId, member: &Member, at: &str) -> Result<(), String> {
        let process = (id, member.incarnation);
        let (there, before) = tokio::join!(self.ask(process, at), self.ask(process, &member.peer));
        let start = match there {
            Found::Member(start) => start,
            Found::Gone(error) | Found::Silent(error) => {
                return Err(format!(
                    "node {id} is a member at {}, and does not answer at {at} ({error}): start it there, with its data directory, \
                     or remove it first to add another",
                    member.peer
                ));
            }
        };
        match before {
            Found::Member(before) if before != start => Err(format!(
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
            Ok(Ok((_, _, starts))) => Found::Member(starts.newest()),
            Ok(Err(error)) if is_certain(error.kind()) => Found::Gone(error),
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

    /// Notes where `id` answered.
    pub(super) fn note_answered(&self, id: NodeId, at: String) {
        self.whereabouts(id, |known| known.answered_at = Some(at));
    }

    /// Whether this process was heard just now.
    fn is_heard(&self, (id, incarnation): Process) -> bool {
        self.with_known(id, |known| {
            let is_met = known.met.is_some_and(|(it, _)| it == incarnation);
            is_met && known.heard.is_some_and(|heard| heard.elapsed() < SILENT)
        })
    }
}

/// Whether nothing listens there, or a node that is not who was meant.
fn is_certain(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied)
}
